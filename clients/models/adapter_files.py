"""The constants of an adapted model as files that the task names by their digests: the base, and every adapter's A.

A process says which files it has. A task then finds those whose bytes have its digests, so no order of files and no
name can put other constants in their place.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import torch
from torch import Tensor, nn

from precad.clients.errors import AdapterError
from precad.clients.models.adapters import Adapted, AdaptedLayer, adapted
from precad.clients.models.safetensors_file import read_tensors, write_tensors
from precad.clients.own_code import folders, looked, offered
from precad.protos.task.task import Task


@dataclass(frozen=True, slots=True)
class Constants:
    """SHA-256 of the files that a task names; None where the model's own code makes the constants."""

    base: str | None = None
    adapter: str | None = None

    @classmethod
    def of(cls, task: Task) -> Self:
        """Return those of a task."""
        return cls(task.base_model_sha256, task.adapter_sha256)


NO_FILES: Final = Constants()
_OPENING: Final = os.O_RDONLY | os.O_NONBLOCK
"""Links are followed, as caches of models have them: the digest says which bytes count. No pipe is waited for."""


def load_constants(model: nn.Module, wanted: Constants) -> None:
    """Put the constants that a task names in the place of the model's own. Raises AdapterError."""
    if wanted == NO_FILES:
        return
    found = adapted(model)
    if found is None:
        raise AdapterError(
            "task.model", "expected a model with adapters, whose constants the task names", "one without"
        )
    if wanted.base is not None:
        path, tensors = _file_of(wanted.base, "task.base_model_sha256", "client.base_model")
        _put(path, _base_of(found), tensors)
    if wanted.adapter is not None:
        path, tensors = _file_of(wanted.adapter, "task.adapter_sha256", "client.adapter")
        _put(path, a_of(found), tensors)


def adapter_bytes(digest: str) -> bytes:
    """Return the file of this `task.adapter_sha256`, among those that this process may use. Raises AdapterError."""
    path, _ = _file_of(digest, "task.adapter_sha256", "client.adapter")
    content = path.read_bytes()
    if (found := hashlib.sha256(content).hexdigest()) != digest:
        raise AdapterError(path, f"expected the file of task.adapter_sha256, {digest}", f"one that changes: {found}")
    return content


def write_adapter(path: Path, model: nn.Module) -> str:
    """Write every A into a new file, and return its SHA-256. Raises AdapterError, OSError."""
    found = adapted(model)
    if found is None:
        raise AdapterError("task.model", "expected a model with adapters", "one without")
    write_tensors(path, a_of(found), {"rank": str(found.shared.rank), "alpha": repr(found.shared.alpha)})
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def a_of(found: Adapted) -> dict[str, Tensor]:
    """Return every A by the name that `peft` gives it within the adapted model."""
    return {f"{layer.name}.lora_A.weight": layer.get_buffer("A") for layer in found.layers()}


def _base_of(found: Adapted) -> dict[str, Tensor]:
    """Return the base's tensors by the names that they had before there were adapters."""
    modules = found.root.named_modules(remove_duplicate=False)  # as a state_dict has each name of a layer
    names = {name: layer for name, layer in modules if isinstance(layer, AdaptedLayer)}
    state: dict[str, Tensor] = found.root.state_dict()
    base = {}
    for name, value in state.items():
        owner = next((own for own in names if name.startswith(f"{own}.")), None)
        inner = name if owner is None else name.removeprefix(f"{owner}.")
        if owner is None:
            base[name] = value
        elif inner.startswith("base."):
            base[f"{owner}.{inner.removeprefix('base.')}"] = value
    return base


def _file_of(digest: str, of_task: str, of_client: str) -> tuple[Path, dict[str, Tensor]]:
    """Return the file with these bytes, and its tensors. Raises AdapterError."""
    tried = []
    for path in offered():
        if path.exists() and not path.is_file():
            tried.append(f"{path}, which is no file")
            continue
        try:
            with open(os.open(path, _OPENING), "rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
                if found == digest:
                    file.seek(0)
                    return path, read_tensors(file, path)
                tried.append(f"{path} has {found}")
        except OSError:
            continue
    seen = "; ".join(tried) or f"none; {looked(folders())}"
    raise AdapterError(of_client, f"expected the file of {of_task}, {digest}", seen)


def _put(path: Path, own: dict[str, Tensor], given: dict[str, Tensor]) -> None:
    """Copy the file's tensors over the model's, name by name. Raises AdapterError.

    A file may leave out names that share their memory with another name, as tied weights do.
    """
    if unknown := sorted(given.keys() - own.keys()):
        raise AdapterError(f"{path}, tensor {unknown[0]!r}", "expected a name of the model", f"{len(unknown)} others")
    held = {own[name].data_ptr() for name in given}
    if missing := sorted(name for name in own.keys() - given.keys() if own[name].data_ptr() not in held):
        raise AdapterError(path, f"expected a tensor {missing[0]!r}", f"none, nor {len(missing) - 1} others")
    for name, value in given.items():
        if value.shape != own[name].shape or not value.isfinite().all():
            shape = tuple(own[name].shape)
            raise AdapterError(
                f"{path}, tensor {name!r}", f"expected finite numbers of shape {shape}", f"{value.shape}"
            )
    with torch.no_grad():
        for name, value in given.items():
            own[name].copy_(value)
