"""The files of a model: a state_dict, and on request a program that runs without our code.

Each is loaded again from the disk and must give the module's own outputs, on a batch of another size than it was made
with. Only the state_dict's bytes depend on the parameters alone: TorchScript's hold paths of this machine, and
`torch.export`'s differ from one time to the next. So the statement is about the parameters, and files' digests are what
each server says of its own.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from precad.clients.errors import ClientError
from precad.clients.models import networks
from precad.clients.models.adapter_files import NO_FILES, Constants
from precad.clients.models.adapters import adapted
from precad.clients.records.records import example
from precad.clients.records.tweets import VOCABULARY
from precad.deploy.errors import ConfigError, ExportRefusedError, refusing
from precad.deploy.exporting.adapters import write_adapters
from precad.protos.messages import convert
from precad.protos.task.learning import Argument

STATE_DICT: Final = "model.pt"
TOLERANCE: Final = 1e-4
"""Tolerance of an output, absolute and relative: float32 in another order of additions."""
_MADE_WITH, _CHECKED_WITH = 2, 5
"""Records in a batch."""


class Format(StrEnum):
    """Beside the state_dict, which is always written."""

    TORCHSCRIPT = "torchscript"
    ONNX = "onnx"
    TORCH_EXPORT = "torch-export"


class Written(NamedTuple):
    """One way to write a module, and to run what was written on a batch."""

    file_name: str
    write: Callable[[nn.Module, Tensor, Path], None]
    run: Callable[[Path, Tensor], NDArray[Any]]


def module_of(
    architecture: str,
    parameters: NDArray[np.float32],
    arguments: Mapping[str, Argument] = networks.NO_ARGUMENTS,
    constants: Constants = NO_FILES,
) -> nn.Module:
    """Return the trained module, in evaluation mode. Raises ConfigError."""
    with refusing(
        (ClientError, RuntimeError), f"task.model: expected a model of {parameters.size} parameters to build"
    ):
        module = networks.build(architecture, arguments=arguments, constants=constants).eval()
        nn.utils.vector_to_parameters(torch.tensor(parameters), module.parameters())
    return module


def require_writable(architecture: str, formats: Sequence[Format]) -> None:
    """Raises ConfigError where the model or this installation does not allow a format."""
    if formats and architecture not in networks.ARCHITECTURES:
        known = ", ".join(sorted(networks.ARCHITECTURES))
        raise ConfigError(
            f"--format: expected one of the models {known}, whose inputs are known, found {architecture!r}"
        )
    if Format.ONNX in formats and importlib.util.find_spec("onnx") is None:
        raise ConfigError("--format onnx: expected the package onnx (pip install onnx), found none")


def write_files(folder: Path, architecture: str, module: nn.Module, formats: Sequence[Format]) -> list[str]:
    """Write the files, and return their names. Raises ConfigError where a format cannot hold the model; OSError.

    The adapters of an adapted model are written, without the base.
    """
    found = adapted(module)
    state = module.state_dict() if found is None else {name: p.detach() for name, p in module.named_parameters()}
    with (folder / STATE_DICT).open("wb") as file:  # to a path that is not ASCII, torch writes other bytes
        torch.save(state, file)
    of_adapters = [] if found is None else write_adapters(folder, found)
    return [STATE_DICT, *of_adapters, *(_write(folder, architecture, module, kind) for kind in formats)]


def _write(folder: Path, architecture: str, module: nn.Module, kind: Format) -> str:
    way = WAYS[kind]
    path, checked = folder / way.file_name, _batch(architecture, _CHECKED_WITH)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of deprecation: what counts is whether the outputs are the module's
        expected = module(checked).numpy()
        try:
            way.write(module, _batch(architecture, _MADE_WITH), path)
            found = way.run(path, checked)
        except OSError:
            raise
        except Exception as error:
            why = str(error).strip().splitlines() or [type(error).__name__]
            raise ConfigError(f"--format {kind}: it cannot hold the model {architecture!r}: {why[0]}") from error
    if found.shape != expected.shape or not np.allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE):
        raise ConfigError(f"--format {kind}: what was written gives other outputs than the model {architecture!r}")
    return way.file_name


def _batch(architecture: str, n: int) -> Tensor:
    """Records that mean nothing, the same ones each time."""
    known = networks.ARCHITECTURES[architecture]
    one = example(known.shape, is_text=known.is_text)
    generator = torch.Generator().manual_seed(n)
    if known.is_text:
        return torch.randint(0, VOCABULARY, (n, *known.shape), generator=generator, dtype=one.dtype)
    return torch.rand((n, *known.shape), generator=generator, dtype=one.dtype)


def _write_torchscript(module: nn.Module, batch: Tensor, path: Path) -> None:
    torch.jit.save(torch.jit.trace(module, batch), path)  # type: ignore[no-untyped-call]


def _run_torchscript(path: Path, batch: Tensor) -> NDArray[Any]:
    found: NDArray[Any] = torch.jit.load(path)(batch).detach().numpy()  # type: ignore[no-untyped-call]
    return found


def _write_onnx(module: nn.Module, batch: Tensor, path: Path) -> None:
    first = {0: "batch"}
    axes = {"records": first, "logits": first}
    torch.onnx.export(
        module, (batch,), path, dynamo=False, input_names=["records"], output_names=["logits"], dynamic_axes=axes
    )


def _run_onnx(path: Path, batch: Tensor) -> NDArray[Any]:
    """Run the model by onnx's own evaluator, which is NumPy."""
    evaluator = importlib.import_module("onnx.reference").ReferenceEvaluator(str(path))
    found: NDArray[Any] = evaluator.run(None, {"records": batch.numpy()})[0]
    return found


def _write_torch_export(module: nn.Module, batch: Tensor, path: Path) -> None:
    shapes = ({0: torch.export.Dim("batch")},)
    torch.export.save(torch.export.export(module, (batch,), dynamic_shapes=shapes), path)


def _run_torch_export(path: Path, batch: Tensor) -> NDArray[Any]:
    found: NDArray[Any] = torch.export.load(path).module()(batch).detach().numpy()
    return found


WAYS: Final = {
    Format.TORCHSCRIPT: Written("model.torchscript", _write_torchscript, _run_torchscript),
    Format.ONNX: Written("model.onnx", _write_onnx, _run_onnx),
    Format.TORCH_EXPORT: Written("model.pt2", _write_torch_export, _run_torch_export),
}


def require_parameters(path: Path, names: Sequence[str], digest: str) -> None:
    """Require that the state_dict holds the parameters of this digest: little-endian float32, one after the other in
    this order.

    Loads with weights_only=True, so a file of strangers runs nothing. Raises ExportRefusedError.
    """
    try:
        state = torch.load(path, weights_only=True, map_location="cpu")
        flat = torch.cat([state[name].reshape(-1) for name in names]).numpy()
    except Exception as error:
        raise ExportRefusedError(f"{path}: expected a state_dict with the statement's parameters: {error}") from error
    found = convert.sha256(convert.model_to_bytes(flat)).hex()
    if flat.dtype != np.float32 or found != digest:
        raise ExportRefusedError(f"{path}: expected the parameters of digest {digest[:16]}, found {found[:16]}")
