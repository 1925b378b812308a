"""Fields of a task whose updates lie in a smaller set than the ball of radius C: bounds of layers, and half-spaces.

Servers check all of them in the one bit that they open of a client. Honest clients project onto the set.
Source: docs/reference/protocol-convex-sets.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import BaseModel, Field, PlainSerializer

from precad.mpc.errors import ParameterError
from precad.mpc.parameters import MAX_HALF_SPACES, MAX_LAYERS
from precad.protos.config_path import ConfigPath
from precad.protos.task.parameters import TaskParameters
from precad.protos.task.proved_fields import MODE as PROVED

if TYPE_CHECKING:
    from precad.mpc.convex_set import ConvexSet, HalfSpace
    from precad.mpc.ring import RingArray

DIRECTIONS_FILE: Final = "directions"
"""Field of which the canonical text has nothing: each party has the file where it likes, and the digest says which."""


class NoDirectionsError(ParameterError):
    """Say that the file of directions is not here: such a party has the task, and no set to check."""


class ConvexFields(BaseModel, defer_build=True):
    """A part of `precad.protos.task.task.Task`. The text has them where they are not at their default."""

    layer_clips: Annotated[list[Annotated[float, Field(gt=0, allow_inf_nan=False)]], Field(max_length=MAX_LAYERS)] = (
        Field(default_factory=list)
    )
    """C_l: an L2 bound on each layer of a client's update, at most C, enforced by the servers beside C. Empty: none."""
    layer_sizes: Annotated[list[Annotated[int, Field(ge=1)]], Field(max_length=MAX_LAYERS)] = Field(
        default_factory=list
    )
    """How many parameters each of these layers has, in the order of the model's vector; together d. `precad run` takes
    the model's where the file has none."""
    half_spaces: Annotated[
        list[Annotated[float, Field(le=0, allow_inf_nan=False)]], Field(max_length=MAX_HALF_SPACES)
    ] = Field(default_factory=list)
    """t of each half-space <x, g> >= t that a client's update lies in, enforced by the servers beside C."""
    directions_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """SHA-256 of the file with their directions g. `precad run` takes that of `directions` where the file has none."""
    directions: Annotated[ConfigPath, Field(strict=False), PlainSerializer(str)] | None = None
    """Where this party has that file: a .npy of integers, a row of d for each of `half_spaces`. Parties do not compare
    it. Aggregators and clients need it."""


CONVEX_FIELDS: Final = tuple(ConvexFields.model_fields)
FIXED_WORDS: Final = ("layer_clips", "half_spaces")
"""Fields that are checked by words of an update which no coin draws: one that deviates may ask about the same again."""


def set_of(task: TaskParameters) -> ConvexSet | None:
    """Return the set that each update has to lie in; None where it is the ball of radius C.

    Raises ParameterError, also without the file of directions.
    """
    if not task.layer_clips and not task.half_spaces:
        return None
    from precad.mpc.convex_set import ConvexSet, LayerBall  # here alone, as it needs NumPy

    layers = tuple(LayerBall(*layer) for layer in zip(task.layer_sizes, task.layer_clips, strict=True))
    return ConvexSet(task.client_clip, task.dim, task.frac_bits, layers=layers, half_spaces=_half_spaces_of(task))


def _half_spaces_of(task: TaskParameters) -> tuple[HalfSpace, ...]:
    """Read the directions, if there are half-spaces. Raises ParameterError."""
    if not task.half_spaces:
        return ()
    from precad.mpc.convex_set import HalfSpace

    if task.directions is None:
        raise NoDirectionsError(f"directions: expected the file of SHA-256 {task.directions_sha256}, found none")
    directions = _read_directions(task.directions, task.directions_sha256)
    if directions.shape != (len(task.half_spaces), task.dim):
        raise ParameterError(
            f"directions: expected shape {(len(task.half_spaces), task.dim)}, found {directions.shape} in "
            f"{task.directions}"
        )
    return tuple(HalfSpace(g, t) for g, t in zip(directions, task.half_spaces, strict=True))


def _read_directions(path: Path, sha256: str | None) -> RingArray:
    """Return the integers of a file that has this digest. The bytes that are read once are those that are compared."""
    import io

    import numpy as np

    try:
        content = path.read_bytes()
    except OSError as error:
        raise NoDirectionsError(f"directions: expected a .npy file, found {path}: {error.strerror or error}") from None
    if (found := hashlib.sha256(content).hexdigest()) != sha256:
        raise ParameterError(f"directions: expected the file of SHA-256 {sha256}, found {found} in {path}")
    try:
        directions = np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise ParameterError(f"directions: expected a .npy file, found {path}: {error}") from None
    if not isinstance(directions, np.ndarray) or directions.dtype.kind != "i":
        raise ParameterError(f"directions: expected signed integers in {path}, found others")
    return directions.astype(np.int64)


def refuse_convex(task: TaskParameters, given: Collection[str]) -> None:
    """Refuse a smaller set in a task that cannot have one, or one that does not fit its vector. Raises ValueError.

    given: fields that are not at their default.
    """
    if not (name := next((name for name in CONVEX_FIELDS if name in given), None)):
        return
    if len(task.layer_clips) != len(task.layer_sizes):
        raise ValueError(
            f"layer_clips: expected a bound for each of {len(task.layer_sizes)} layer_sizes, found "
            f"{len(task.layer_clips)}"
        )
    _refuse_others(name, task)
    if task.layer_sizes and sum(task.layer_sizes) != task.dim:
        raise ValueError(f"layer_sizes: expected {task.dim} parameters in all, found {sum(task.layer_sizes)}")
    for i, clip in enumerate(task.layer_clips):
        if not 2.0**-task.frac_bits <= clip <= task.client_clip:
            raise ValueError(
                f"layer_clips.{i}: expected at most client_clip, {task.client_clip:g}, and at least a step of the grid"
                f", found {clip:g}"
            )
    if not task.half_spaces and task.directions is not None:
        raise ValueError("directions: expected none without half_spaces, found a file")
    if bool(task.half_spaces) != (task.directions_sha256 is not None):
        raise ValueError("directions_sha256: expected the digest of a file with half_spaces, and none without")


def _refuse_others(name: str, task: TaskParameters) -> None:
    """Refuse what a smaller set does not go with. Raises ValueError."""
    if task.mode == PROVED:
        raise ValueError(f"mode: expected one with a dealer with {name}, found {PROVED!r}, whose proofs are of C alone")
    if not task.checks_norms:
        raise ValueError(f"validation: expected 'norm' with {name}, which are checked beside it, found 'none'")
    if task.rules.clients_share_noise:
        raise ValueError(
            f"{name}: expected none with algorithm {task.rules.name!r}, whose clients add noise after clipping"
        )
    if task.update_clipping != "flat":
        raise ValueError(f"update_clipping: expected 'flat' with {name}, found {task.update_clipping!r}")
    if task.query is not None:
        raise ValueError(f"{name}: expected none in a task with a query, whose answers have no layers")
    if task.audit_clients:
        raise ValueError(
            f"audit_clients: expected none with {name}, beyond which canaries have coordinates, found some"
        )
