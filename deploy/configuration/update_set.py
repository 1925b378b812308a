"""Parts of a `[task]` section that follow from its model and files, where updates lie in a smaller set than a ball."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precad.clients.errors import ArgumentError
from precad.deploy.errors import ConfigError, refusing
from precad.protos.task.convex_fields import DIRECTIONS_FILE

if TYPE_CHECKING:
    import torch


def supply_directions(task: dict[str, Any]) -> None:
    """Write the digest of the file of directions, and its path from anywhere. Raises ConfigError."""
    if not isinstance(file := task.get(DIRECTIONS_FILE), str):
        return
    path = Path(file).absolute()
    with refusing(OSError, f"task.directions: expected a .npy file, found {file}"):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    task[DIRECTIONS_FILE] = str(path)
    task.setdefault("directions_sha256", digest)


def draft_layer_sizes(task: dict[str, Any]) -> None:
    """Make up sizes for bounds of layers that say none, of a model that is not looked at."""
    if n := _n_unsized(task):
        task["layer_sizes"] = [*[1] * (n - 1), max(1, task["dim"] - n + 1)]


def supply_layer_sizes(task: dict[str, Any], model: torch.nn.Module) -> None:
    """Write the sizes of the model's layers for bounds of layers that say none. Raises ConfigError."""
    from precad.clients.gradients.layers import require_layer_sizes

    if not (n := _n_unsized(task)):
        return
    try:
        sizes = require_layer_sizes(model, "task.layer_sizes")
    except ArgumentError:
        raise ConfigError(
            "task.layer_sizes: expected a size for each of layer_clips with a model whose layers share parameters, "
            "found none"
        ) from None
    if len(sizes) != n:
        raise ConfigError(f"task.layer_clips: expected a bound for each of {len(sizes)} layers of the model, found {n}")
    task["layer_sizes"] = sizes


def _n_unsized(task: dict[str, Any]) -> int:
    """Return how many bounds there are whose layers have no sizes."""
    clips = task.get("layer_clips")
    return len(clips) if isinstance(clips, list) and "layer_sizes" not in task else 0
