"""Distribution of the privacy loss on a grid, rounded so that the loss is only ever overstated.

For a pair (P, Q) the loss is L = ln dP/dQ, and its law under P decides every (epsilon, delta):

    delta(epsilon) = P(L = inf) + E_P[ (1 - e^{epsilon - L})_+ ],

the hockey-stick divergence of P from Q. The mass between two grid points is moved to both of them so that P and Q
keep the mass they have there. On the curve of delta against e^epsilon this joins neighbouring points by a straight
line, which lies above a convex curve. Source: Doroshenko, Ghazi, Kamath, Kumar, Manurangsi, "Connect the Dots: Tighter
Discrete Approximations of Privacy Loss Distributions", PETS '22. Rounds compose by convolution, in one FFT.

dp_accounting has the same construction. Ours stands beside it for pairs that it discretises in seconds rather than
milliseconds, and tests/dp/accountants/test_group_mixture.py holds the one against the other.
"""

import math
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft
from scipy.signal import lfilter

from precad.dp.checks import integral, require_delta, require_probability

Array = NDArray[np.float64]

ROUNDING_PER_ROUND: Final = 1e-13
"""Added to delta for every round composed: what a transform of total mass one loses to float64."""

_TAIL: Final = 1e-14  # mass that may be cut off a composed distribution, and is then counted as infinite loss


class MonotonePair(Protocol):
    """P, with the attack, beside Q, without: laws of one number x, in which the loss ln dP/dQ increases."""

    def inverse(self, losses: Array) -> Array:
        """Return the x of each loss; -inf at and below the infimum of the loss."""
        ...

    def attacked_between(self, cuts: Array) -> Array:
        """P's mass below the first of the ascending cuts, between each two, and above the last: (n,) -> (n + 1,)."""
        ...

    def benign_between(self, cuts: Array) -> Array:
        """Q's likewise."""
        ...


@dataclass(frozen=True, slots=True)
class LossDistribution:
    """Mass of the losses step * (lowest + i) under P; `infinite` is the mass where Q has none, or was cut off."""

    step: float
    lowest: int
    mass: Array
    infinite: float

    def __post_init__(self) -> None:
        """Keep the masses as they are: one round's are cached."""
        object.__setattr__(self, "mass", _read_only(self.mass))

    @classmethod
    def connect_dots(cls, step: float, lowest: int, p: Array, q: Array, p_below: float) -> "LossDistribution":
        """Make the distribution from the masses of P and Q in each interval.

        p[i] and q[i], shapes (n,), are masses where the loss is between the grid points lowest + i and lowest + i + 1.
        The last entry has all the mass above the last point. `p_below` is the mass of P below the lowest point, which
        is raised to that point.
        """
        losses = step * (lowest + np.arange(len(p)))
        with np.errstate(divide="ignore", over="ignore"):
            q_scaled = np.minimum(np.exp(np.log(q) + losses), p)  # e^{loss} q <= p, but for rounding
        upper = np.clip((p - q_scaled)[:-1] / -math.expm1(-step), 0.0, p[:-1])
        mass = np.zeros(len(p))
        mass[:-1] = p[:-1] - upper
        mass[1:] += upper
        mass[0] += p_below
        mass[-1] += q_scaled[-1]
        return cls(step, lowest, mass, float(p[-1] - q_scaled[-1]))

    @classmethod
    def of_pair(
        cls, pair: MonotonePair, step: float, lowest: int, highest: int, *, is_reversed: bool
    ) -> "LossDistribution":
        """Return the loss of P from Q, on grid points lowest .. highest; if `is_reversed` of Q from P, which is its
        negative."""
        losses = step * np.arange(lowest, highest + 1, dtype=np.float64)
        if is_reversed:
            cuts = pair.inverse(-losses)[::-1]
            p, q = pair.benign_between(cuts)[::-1], pair.attacked_between(cuts)[::-1]
        else:
            cuts = pair.inverse(losses)
            p, q = pair.attacked_between(cuts), pair.benign_between(cuts)
        return cls.connect_dots(step, lowest, p[1:], q[1:], float(p[0]))

    def mixed(self, weight: float) -> "LossDistribution":
        """Return this loss with probability `weight`, seen to have happened, and no loss otherwise."""
        require_probability("weight", weight)
        first = min(self.lowest, 0)
        mass = np.zeros(max(self.lowest + len(self.mass), 1) - first)
        mass[self.lowest - first :][: len(self.mass)] = weight * self.mass
        mass[-first] += 1 - weight
        return LossDistribution(self.step, first, mass, weight * self.infinite)

    def composed(self, rounds: float) -> "LossDistribution":
        """Return the loss of so many independent rounds, at least one. ROUNDING_PER_ROUND covers the transform's
        error."""
        T = integral("rounds", rounds, at_least=1)
        if T == 1:
            return self
        first, last = self._support(T)
        n = last - first + 1
        length = next_fast_len(max(n, len(self.mass)), real=True)
        # What lies outside first .. last wraps round into it; `_TAIL` bounds it and is counted as infinite below.
        circular = irfft(rfft(self.mass, length) ** T, length)
        mass = np.maximum(np.roll(circular, -first)[:n], 0.0)
        infinite = -math.expm1(T * math.log1p(-min(self.infinite, 1 - 1e-16)))
        return LossDistribution(
            self.step, T * self.lowest + first, mass, min(1.0, infinite + _TAIL + T * ROUNDING_PER_ROUND)
        )

    def _support(self, T: int) -> tuple[int, int]:
        """Indices, from T times the lowest, outside which T rounds have mass below _TAIL, by Chernoff's bound."""
        first, last = 0, T * (len(self.mass) - 1)
        if last < 1 << 19:
            return first, last
        index = np.arange(len(self.mass), dtype=np.float64)
        mean = float(self.mass @ index)
        std = math.sqrt(max(float(self.mass @ (index - mean) ** 2), 1e-300))
        log_tail = math.log(2 / _TAIL)
        orders = [2.0**i / (std * math.sqrt(T)) for i in range(6)] + [2.0**i / len(index) for i in range(2, 7)]
        for order in orders:
            for sign in (1, -1):
                shifted = sign * order * (index - mean)
                top = float(shifted.max())
                moment = float(self.mass @ np.exp(shifted - top))
                if moment <= 0:  # underflow at an order far too large: it bounds nothing
                    continue
                log_mgf = top + math.log(moment)
                reach = (T * log_mgf + log_tail) / order
                if sign > 0:
                    last = min(last, math.ceil(T * mean + reach))
                else:
                    first = max(first, math.floor(T * mean - reach))
        return first, max(last, first)

    def delta(self, epsilon: float) -> float:
        """Return an upper bound on delta at any real epsilon."""
        losses = self._losses()
        above = losses > epsilon
        return min(1.0, self.infinite + float(self.mass[above] @ -np.expm1(epsilon - losses[above])))

    def curve(self) -> "DeltaCurve":
        """Return delta at epsilon = 0 and at every grid point above it."""
        start = max(0, 1 - self.lowest)  # the first point with a positive loss
        mass = self.mass[start:]
        # sum over j >= i of mass_j e^{loss_i - loss_j}, as a recursion from the right: nothing overflows
        discounted = np.asarray(lfilter([1.0], [1.0, -math.exp(-self.step)], mass[::-1])[::-1])
        above = np.cumsum(mass[::-1])[::-1]
        epsilons = np.concatenate([[0.0], self._losses()[start:]])
        deltas = np.concatenate([[self.delta(0.0)], self.infinite + np.maximum(above - discounted, 0.0)])
        return DeltaCurve(epsilons, np.minimum(deltas, 1.0))

    def epsilon(self, delta: float) -> float:
        """Return the smallest epsilon >= 0 that this loss allows at delta; infinite if delta is below the mass at
        infinity."""
        require_delta(delta)
        if self.infinite > delta:
            return math.inf
        curve = self.curve()
        i = int(np.argmax(curve.deltas <= delta))  # the last delta is the mass at infinity
        if i == 0:
            return 0.0
        # From the point before up to point i, delta(epsilon) = infinite + above - e^{epsilon - loss_i} discounted.
        above = self.mass[i - 1 + max(0, 1 - self.lowest) :]
        discounted = float(above @ np.exp(-self.step * np.arange(len(above))))
        excess = self.infinite + float(above.sum()) - delta
        within = math.log(excess / discounted) if excess > 0 else -math.inf
        return float(np.clip(curve.epsilons[i] + within, curve.epsilons[i - 1], curve.epsilons[i]))

    def _losses(self) -> Array:
        return self.step * (self.lowest + np.arange(len(self.mass), dtype=np.float64))


@dataclass(frozen=True, slots=True)
class DeltaCurve:
    """delta(epsilon) of one direction at finitely many epsilon >= 0, ascending. Each point is a guarantee."""

    epsilons: Array
    deltas: Array

    def __post_init__(self) -> None:
        """Keep whoever plots a curve from changing it: curves are cached, and certificates are made of them."""
        for name in ("epsilons", "deltas"):
            object.__setattr__(self, name, _read_only(getattr(self, name)))

    def thinned(self, n_points: int) -> "DeltaCurve":
        """Return every m-th point and the last, at most about `n_points`. As sound as the whole, and lighter to
        keep."""
        stride = -(-len(self.epsilons) // n_points)
        if stride <= 1:
            return self
        keep = np.unique(np.append(np.arange(0, len(self.epsilons), stride), len(self.epsilons) - 1))
        return DeltaCurve(self.epsilons[keep], self.deltas[keep])


def _read_only(values: Array) -> Array:
    kept = values.view()
    kept.flags.writeable = False
    return kept
