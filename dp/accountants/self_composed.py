"""Compose one round with itself, any number of times, as dp_accounting does it, to the bit.

For every number of rounds, dp_accounting asks 40 moments of the one round where to cut the tails off. They do not
depend on the number, and were three quarters of a figure's cost. Here they are computed once for a round. The transform
and what counts as infinite are the library's, and a test holds both to the same bits.
"""

from __future__ import annotations

import itertools
import math
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
    """The library's, which adds up Python's floats: the same sums, without an object of NumPy's for each term."""

    def get_epsilon_for_delta(self, delta: float) -> float:
        """Return the least epsilon at this delta, as the library does."""
        highest = (self._lower_loss + len(self._probs) - 1) * self._discretization
        losses, masses = itertools.count(highest, -self._discretization), np.flip(self._probs)
        parts = (masses[start : start + _AT_ONCE].tolist() for start in range(0, len(masses), _AT_ONCE))
        found = pld_pmf._get_epsilon_for_delta(self._infinity_mass, losses, itertools.chain.from_iterable(parts), delta)
        return float(found)
