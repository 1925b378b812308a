"""The worst adversary against a figure of a random number of rounds, by dynamic programming over the privacy loss.

After n rounds with privacy loss L the adversary may stop and claims its price epsilon_n, or goes on. The true delta of
the claim is the supremum over all stopping rules of E[(1 - exp(epsilon_n - L))+]. It needs nothing of `dp` but events:
the law of a round's loss is integrated here from the normal distribution.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.signal import fftconvolve
from scipy.stats import norm

from precad.dp.accountants.pld import SampledGaussian, TwoStageSampledGaussian

Vector = NDArray[np.float64]
CELLS = 20_000


@dataclass(frozen=True)
class Losses:
    """The law of one round's loss, on multiples of the grid's step: `masses[i]` at `first + i` steps."""

    first: int
    masses: Vector


@cache
def losses(event: SampledGaussian, step: float, is_added: bool) -> Losses:
    """Split the release's line into cells, and each cell's mass between the two nearest points of the grid."""
    p, s = event.sampling_rate, event.noise_multiplier
    edges = np.linspace(-9.0 * s - 1.0, 9.0 * s + 1.0, CELLS + 1)
    exponent = (2 * edges - 1) / (2 * s * s)
    loss = exponent if p == 1 else np.log1p(p * np.expm1(exponent))
    without = norm.cdf(edges / s)
    law = (1 - p) * without + p * norm.cdf((edges - 1) / s) if is_added else without
    middle = (loss[1:] + loss[:-1]) / 2 * (1 if is_added else -1)
    at = np.floor(middle / step).astype(np.int64)
    share = middle / step - at
    masses = np.zeros(int(at.max() - at.min()) + 2)
    np.add.at(masses, at - at.min(), np.diff(law) * (1 - share))
    np.add.at(masses, at - at.min() + 1, np.diff(law) * share)
    kept = np.flatnonzero(masses > 1e-16)
    return Losses(int(at.min() + kept[0]), masses[kept[0] : kept[-1] + 1])


@dataclass(frozen=True)
class Game:
    """One direction, add or remove, of rounds that are alike. prices: epsilon claimed after 0, 1, 2, ... rounds."""

    event: SampledGaussian | TwoStageSampledGaussian
    prices: Sequence[float]
    is_added: bool
    points: int = 2000

    @property
    def step(self) -> float:
        """The grid reaches from -1.5 to 3 times the largest price."""
        return 1.5 * max(self.prices) / self.points

    def grid(self) -> Vector:
        """Losses at which the adversary's value is known."""
        return np.arange(-self.points, 2 * self.points + 1) * self.step

    def claim(self, n: int) -> Vector:
        """Return the worth of a stop after n rounds, by loss."""
        worth: Vector = np.maximum(0.0, -np.expm1(np.minimum(self.prices[n] - self.grid(), 0.0)))
        return worth

    def after_a_round(self, value: Vector, *, may_discard: bool) -> Vector:
        """The value before a round, whose draw, if there is one, the adversary sees and may be able to discard."""
        if isinstance(self.event, SampledGaussian):
            return self._released(value, self.event)
        inner = SampledGaussian(self.event.record_rate, self.event.noise_multiplier)
        q = self.event.selection_rate
        released = self._released(value, inner)
        drawn: Vector = q * (np.maximum(released, value) if may_discard else released) + (1 - q) * value
        return drawn

    def _released(self, value: Vector, event: SampledGaussian) -> Vector:
        found = losses(event, self.step, self.is_added)
        low, high = max(0, -found.first), max(0, found.first + len(found.masses) - 1)
        padded = np.concatenate([np.zeros(low), value, np.ones(high)])
        moved: Vector = fftconvolve(padded, found.masses[::-1], mode="valid")[low + found.first :][: len(value)]
        return moved

    def values(self, *, may_stop: bool) -> list[Vector]:
        """The adversary's value after 0, 1, 2, ... rounds, by loss."""
        found = [self.claim(len(self.prices) - 1)]
        for n in range(len(self.prices) - 2, -1, -1):
            going_on = self.after_a_round(found[-1], may_discard=may_stop)
            found.append(np.maximum(self.claim(n), going_on) if may_stop else going_on)
        return found[::-1]

    def true_delta(self, *, may_stop: bool) -> float:
        """From a loss of zero."""
        return float(self.values(may_stop=may_stop)[0][self.points])


def true_delta(
    event: SampledGaussian | TwoStageSampledGaussian, prices: Sequence[float], *, may_stop: bool, points: int = 2000
) -> float:
    """The larger of both directions. prices: epsilon claimed after 0, 1, 2, ... rounds, and no more rounds follow."""
    return max(Game(event, prices, is_added, points).true_delta(may_stop=may_stop) for is_added in (True, False))
