"""Audit the clip in floating point: records at kinks of the model, beside others, in samples of every size.

Linear canaries cannot see this fault. Where a client's pass has as many records as its sample, one record more chooses
other kernels, and other bits. At a kink the last bit decides which way a gradient goes, so one record moves others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from precad.clients.models.networks import trained
from precad.clients.records.records import Records

ClippedSum = Callable[[Records], NDArray[np.float64]]
"""Records to the sum (d,) of their clipped gradients, as a client computes it."""

SIZES: Final = (1, 2, 3, 4, 7, 8, 12, 15, 16, 24, 31, 32)
"""Sizes of samples to which one record more is added."""
SLACK: Final = 1e-8
"""Relative: sums in float64 of so few records are within far less (docs/explanation/privacy.md)."""
SETS: Final = 6
"""Sets of crafted records, each tried in all sizes: one alone may miss the fault, as kernels differ by machine."""
_HALVINGS: Final = 40
_TRIES: Final = 200
_IMAGE_AXES: Final = 3
_PATCH: Final = 6


@dataclass(frozen=True, slots=True)
class Kinks:
    """Hold how far one record more moved a client's sum."""

    pairs: int
    most: float
    """Largest distance, over the clip R."""

    @property
    def alarms(self) -> list[str]:
        """Return a line where one record moved more than R."""
        if self.most <= 1 + SLACK:
            return []
        return [f"clip: expected one record more to move a client's sum by at most R, found {self.most:.6g} R"]

    @classmethod
    def of_all(cls, found: Iterable[Kinks]) -> Self:
        """Return what several audits found together."""
        every = list(found)
        return cls(sum(one.pairs for one in every), max((one.most for one in every), default=0.0))


def audit_kinks(
    model: nn.Module,
    parameters: NDArray[np.float32],
    shape: tuple[int, ...],
    clip: float,
    clipped_sum: ClippedSum,
    *,
    sets: int = SETS,
    seed: int = 0,
) -> Kinks:
    """Return the most that one record more moved a sum of clipped gradients, in samples of all `SIZES`.

    model: gets these parameters (d,). shape: of one record's features, which are numbers. clipped_sum: at `parameters`.
    A model of which no kink is found has no pair.
    """
    model, draws, moved = trained(model, parameters), np.random.default_rng(seed), [0.0]
    for _ in range(sets):
        try:
            records = at_kinks(model, shape, max(SIZES) + 1, draws)
        except RuntimeError:  # a model of the user's own that takes no float64
            break
        for n in SIZES if len(records) else ():
            without, beside = (clipped_sum(records.take(np.arange(k))) for k in (n, n + 1))
            moved.append(float(np.linalg.norm(beside - without)) / clip)
    return Kinks(len(moved) - 1, max(moved))


def at_kinks(model: nn.Module, shape: tuple[int, ...], n: int, draws: np.random.Generator) -> Records:
    """Return n records of features in [0, 1] at kinks of a model, labelled 0 and 1 by turns; none where none is found.

    Between two of which pre-activations have different signs, bisection in float64 finds one with a few 1e-9. Changes
    by units in the last place give many more.
    """
    precise = model.double().eval()
    found = [_root(precise, shape, draws) for _ in range(max(1, n // 8))]
    roots = [root for root in found if root is not None]
    if not roots:
        return Records(np.zeros((0, *shape), dtype=np.float32), np.zeros(0, dtype=np.int64))
    features = np.stack([_jittered(roots[i % len(roots)], draws) for i in range(n)])
    return Records(features, np.arange(n, dtype=np.int64) % 2)


def pre_activations(model: nn.Module, features: Tensor) -> Tensor:
    """Return what decides the last ReLU, (n, units); without one, the difference of the first two logits, (n, 1)."""
    kept: list[Tensor] = []
    kinks = [layer for layer in model.modules() if isinstance(layer, nn.ReLU)]
    handles = [layer.register_forward_hook(lambda _, read, __: kept.append(read[0].clone())) for layer in kinks[-1:]]
    with torch.no_grad():
        logits = model(features)
    for handle in handles:
        handle.remove()
    return (kept[0] if kept else logits[:, :1] - logits[:, 1:2]).flatten(start_dim=1)


def _root(model: nn.Module, shape: tuple[int, ...], draws: np.random.Generator) -> NDArray[np.float64] | None:
    """Return features at which a unit's pre-activation is nearly zero; None after many pairs without one."""
    for _ in range(_TRIES):
        low, high = (torch.from_numpy(_features(shape, draws)) for _ in range(2))
        at_low, at_high = pre_activations(model, torch.stack([low, high]))
        crossing = torch.nonzero(at_low * at_high < 0)[:, 0]
        if not len(crossing):
            continue
        unit = int(crossing[draws.integers(len(crossing))])
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            is_low = pre_activations(model, middle[None])[0, unit] * at_low[unit] > 0
            low, high = (middle, high) if is_low else (low, middle)
        return np.asarray(((low + high) / 2).numpy())
    return None


def _features(shape: tuple[int, ...], draws: np.random.Generator) -> NDArray[np.float64]:
    """Return a few bright patches on noise; noise alone where records are no images."""
    if len(shape) != _IMAGE_AXES or min(shape[1:]) <= _PATCH:
        return draws.random(shape)
    image = np.zeros(shape)
    for _ in range(4):
        top, left = (int(draws.integers(0, side - 4)) for side in shape[1:])
        image[:, top : top + _PATCH, left : left + _PATCH] += draws.random()
    return np.clip(image + 0.1 * draws.random(shape), 0.0, 1.0)


def _jittered(features: NDArray[np.float64], draws: np.random.Generator) -> NDArray[np.float32]:
    """Return float32, with some features one unit in the last place further."""
    found = features.astype(np.float32)
    return np.where(draws.random(found.shape) < 0.05, np.nextafter(found, np.float32(1.0)), found)
