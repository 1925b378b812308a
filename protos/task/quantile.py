"""Clipping at a quantile of the norms that is learnt with noise: how two servers that hold shares learn it.

What a client shares has one coordinate more than its update u = theta_i - theta:

    ( r / S clip_S(u),  a c )      c = 1 where ||u|| <= S, else -1;   a = C z / (2 sigma_b);   r = sqrt(C^2 - a^2)

So its norm is at most C whatever S is. Servers check that norm. They add noise of standard deviation z C to every
coordinate and account it, as they do without the coordinate. In units of updates, the servers' sum is S / r times too
small, so the noise is z' S with z' = z C / r. In clients, the last coordinate counts each as a, so the noise is 2
sigma_b. This is the source's split, z'^-2 + (2 sigma_b)^-2 = z^-2, for each server's noise.

The next bound follows from the last coordinate's sum and travels with the model. The last number of a task's vector is
lambda = ln(S / C). So whatever stores, compares, hands out or restores a model does it to the bound as well.
Source: Andrew, Thakkar, McMahan and Ramaswamy, "Differentially Private Learning with Adaptive Clipping", NeurIPS '21,
Algorithm 1 and Theorem 1. One vector for both is our derivation (docs/explanation/privacy.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np

LEARNT: Final = ("private-quantile", "private-quantile-per-layer")
"""Values of `update_clipping` with a bound that is learnt.

By layer, each of the L layers is clipped to S / sqrt(L). An update counts as within the bound if all of its layers are.
To the servers both values are the same."""
BY_LAYER: Final = ("per-layer", "private-quantile-per-layer")
"""Those that clip layer by layer."""
RANGE: Final = 2.0**10
"""How far a learnt bound may move from its start, either way. The rule is public, so keeping to it costs nothing."""
LARGEST_LOG_RATIO: Final = math.log(RANGE)
"""Largest lambda, either way."""
_LEAST_SPLIT: Final = 1.2
"""sigma_b is this many times z at least, unless it is given: then z' is at most 1.1 z."""
_EXACT: Final = Context(prec=40, rounding=ROUND_HALF_EVEN)
"""Digits of a float32's exponential that decide how it is rounded to float64. A value as close to a tie as that is
among the 2^31 cases with a chance of 2^-48."""


def count_noise(expected_clients: float, noise_multiplier: float) -> float:
    """Return sigma_b where none is given: q n / 20 as in the source, or 1.2 z where that is more."""
    return max(expected_clients / 20, _LEAST_SPLIT * noise_multiplier)


def moved(log_ratio: float, noisy_count: float, *, expected_clients: float, quantile: float, rate: float) -> float:
    """Return the next lambda, lambda - rate (b - gamma), no further than the range from zero.

    noisy_count: sum of the c_i, with noise. The share of updates no longer than S is estimated by b = 1/2 + noisy_count
    / (2 q n). Here q n is the expected number of clients, since their number is no public constant.
    """
    share = 0.5 + noisy_count / (2 * expected_clients)
    return min(max(log_ratio - rate * (share - quantile), -LARGEST_LOG_RATIO), LARGEST_LOG_RATIO)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantileRule:
    """The public constants of a task that clips so, and what follows from them: the same bits on all machines."""

    clip: float
    """C: of what is shared, enforced by the servers, and the bound of updates at the start."""
    frac_bits: int
    noise_multiplier: float
    """z: each server's noise has standard deviation z C."""
    count_noise: float
    """sigma_b: each server's noise on the number of updates within the bound has standard deviation 2 sigma_b in sums
    of the c_i."""
    expected_clients: float
    """q n."""
    quantile: float
    """gamma: the share of updates that the bound shall leave as they are."""
    rate: float

    @property
    def unit(self) -> float:
        """Return a, cut to the grid, so that it is encoded exactly."""
        exact = self.clip * self.noise_multiplier / (2 * self.count_noise)
        return math.ldexp(math.floor(math.ldexp(exact, self.frac_bits)), -self.frac_bits)

    @property
    def room(self) -> float:
        """Return r: what is left of C for the update."""
        return math.sqrt((self.clip - self.unit) * (self.clip + self.unit))

    def bound(self, log_ratio: float) -> float:
        """S = C e^lambda, with the float64 nearest to e^lambda: `math.exp` differs between machines, and servers whose
        models differ in a bit stop. Raises ValueError beyond the range."""
        if not abs(log_ratio) <= LARGEST_LOG_RATIO * (1 + 2.0**-20):  # lambda is stored in float32; refuses NaN too
            raise ValueError(f"learnt bound: expected |lambda| <= {LARGEST_LOG_RATIO:.3f}, found {log_ratio:g}")
        return self.clip * float(_EXACT.exp(Decimal(log_ratio)))

    def next_log_ratio(self, log_ratio: float, coordinate: float) -> np.float32:
        """Return lambda after a round. coordinate: the last one of the round's noisy sum, decoded."""
        import numpy as np  # here alone, so that whoever reads a task does not wait for it

        return np.float32(
            moved(
                log_ratio,
                coordinate / self.unit,
                expected_clients=self.expected_clients,
                quantile=self.quantile,
                rate=self.rate,
            )
        )
