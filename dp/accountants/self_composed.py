"""Compose one round with itself, any number of times, as dp_accounting does it, to the bit.

For every number of rounds, dp_accounting asks 40 moments of the one round where to cut the tails off. They do not
depend on the number, and were three quarters of a figure's cost. Here they are computed once for a round. The transform
and what counts as infinite are the library's, and a test holds both to the same bits.
"""

from __future__ import annotations

import bisect
import itertools
import math
import threading
from typing import Any, Final, TypeAlias

import numpy as np
from dp_accounting.pld import pld_pmf, privacy_loss_distribution
from numpy.typing import NDArray
from scipy import fft, special

_TAIL: Final = 1e-15
"""Mass that may be cut off, counted as infinite loss: the library's default."""
_MOST_ORDER: Final = 20
"""Orders of the moments are -20..-1 and 1..20 over the number of grid points, as in the library."""

_AT_ONCE: Final = 1024
"""Grid points: few of them are looked at."""
_LARGEST_LOSS: Final = 700.0

Distribution: TypeAlias = "privacy_loss_distribution.PrivacyLossDistribution"


class SelfComposition:
    """One round's distribution, and what its compositions share."""

    def __init__(self, one_round: Distribution) -> None:
        """one_round: adding and removing a record, rounded towards more loss."""
        self._one_round = one_round
        parts = (one_round._pmf_remove, *(() if one_round._symmetric else (one_round._pmf_add,)))
        is_dense = all(isinstance(part, pld_pmf.DensePLDPmf) for part in parts)
        self._parts = [_Part(part) for part in parts] if is_dense else None

    def times(self, rounds: int) -> Distribution:
        """Return the distribution of so many rounds, one or more."""
        if rounds == 1:
            return self._one_round
        if self._parts is None:  # a short one: the library adds up its few losses
            return self._one_round.self_compose(rounds)
        return privacy_loss_distribution.PrivacyLossDistribution(*(part.times(rounds) for part in self._parts))


class _Part:
    """One direction of it: the record added, or removed."""

    def __init__(self, pmf: Any) -> None:
        self._pmf, self._mass = pmf, np.asarray(pmf._probs, dtype=np.float64)
        orders = np.concatenate((np.arange(-_MOST_ORDER, 0), np.arange(1, _MOST_ORDER + 1))) / len(self._mass)
        grid = np.arange(len(self._mass))
        self._moments = [(float(order), float(special.logsumexp(grid * order, b=self._mass))) for order in orders]

    def _support(self, rounds: int) -> tuple[int, int]:
        """Return the first and the last index that are kept, by Chernoff's bound."""
        first, last = 0, (len(self._mass) - 1) * rounds
        for order, log_moment in self._moments:
            bound = (rounds * log_moment + math.log(2 / _TAIL)) / order
            if math.isfinite(bound) and order > 0:
                last = min(last, math.ceil(bound))
            elif math.isfinite(bound):
                first = max(first, math.floor(bound))
        return first, last

    def times(self, rounds: int) -> Any:
        first, last = self._support(rounds)
        n = last - first + 1
        length = fft.next_fast_len(max(n, len(self._mass)))
        circular: NDArray[np.float64] = np.real(fft.ifft(fft.fft(self._mass, length) ** rounds))
        infinite = _TAIL - math.expm1(rounds * math.log1p(-self._pmf._infinity_mass))
        lowest = self._pmf._lower_loss * rounds + first
        mass = np.roll(circular, -first)[:n]
        return _Composed(self._pmf._discretization, lowest, mass, infinite, self._pmf._pessimistic_estimate)


class _Composed(pld_pmf.DensePLDPmf):  # type: ignore[misc]  # the library has no types
    """The library's, which adds up Python's floats: the same sums, without an object of NumPy's for each term.

    No sum depends on delta, so they are kept: `precad.dp.accountants.slack` asks at several deltas. Threads share them.
    """

    def __init__(self, *of_library: Any) -> None:
        super().__init__(*of_library)
        highest = (self._lower_loss + len(self._probs) - 1) * self._discretization
        self._are_moderate, self._lock = highest < _LARGEST_LOSS, threading.Lock()
        self._coming, self._losses = itertools.count(highest, -self._discretization), list[float]()
        self._upper, self._lower = [float(self._infinity_mass)], [0.0]
        """Sums of the masses above each loss, in the one world and in the other."""

    def get_epsilon_for_delta(self, delta: float) -> float:
        """Return the least epsilon at this delta, as the library does."""
        if self._infinity_mass > delta:
            return math.inf
        if not self._are_moderate:  # e^-loss vanishes
            return float(super().get_epsilon_for_delta(delta))
        with self._lock:
            n = len(self._losses)
            while n < len(self._probs) and (n == 0 or not self._is_passed(n - 1, delta)):
                self._add_up()
                n = len(self._losses)
        at = bisect.bisect_left(range(n), True, key=lambda i: self._is_passed(i, delta))
        upper, lower = self._upper[at], self._lower[at]
        return 0.0 if upper <= lower + delta else math.log((upper - delta) / lower)

    def _add_up(self) -> None:
        """Take in the next losses, the highest first."""
        end = len(self._probs) - len(self._losses)
        masses = np.flip(self._probs[max(0, end - _AT_ONCE) : end]).tolist()
        losses = list(itertools.islice(self._coming, len(masses)))
        others = [math.exp(-loss) * mass for loss, mass in zip(losses, masses, strict=True)]
        self._losses += losses
        self._upper += itertools.islice(itertools.accumulate(masses, initial=self._upper[-1]), 1, None)
        self._lower += itertools.islice(itertools.accumulate(others, initial=self._lower[-1]), 1, None)

    def _is_passed(self, at: int, delta: float) -> bool:
        """Return whether epsilon is no less than this loss: it rises from loss to loss, so one search finds where."""
        upper, lower = self._upper[at], self._lower[at]
        return upper > delta and lower > 0 and math.log((upper - delta) / lower) >= self._losses[at]
