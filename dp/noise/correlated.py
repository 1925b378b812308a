"""Noise that is correlated over rounds, on the integer grid: later rounds take back a part of what earlier ones added.

What a model learns is the sum of all rounds so far. A server that adds C^-1 z in place of z, C lower-triangular, adds
less noise to these sums at the same privacy. Here C is Toeplitz, with b coefficients c_0 = 2^m, c_1, .., c_(b-1),
integers. The server draws Z_t = round(s 2^m z_t), exactly, z_t standard normal, and adds to the integers x_t of round t

    n_t = floor((Z_t - sum_(0<k<b) c_k n_(t-k) + 2^(m-1)) / 2^m).

Proof that this is the Gaussian mechanism (ours, from the sketch of the task's specification). Write r_t = x_t + n_t for
what leaves. Then n_(t-k) = r_(t-k) - x_(t-k), and x_t = floor(2^m x_t / 2^m) moves into the floor:

    r_t = floor((Z_t + (C x)_t - sum_(0<k<b) c_k r_(t-k) + 2^(m-1)) / 2^m).

(C x)_t is an integer, so Z_t + (C x)_t = round(s 2^m z_t + (C x)_t). Hence r_t is a function of past releases and of
y_t = (C x)_t + s 2^m z_t. The transcript is post-processing of the y_t. Rounding takes no delta.
x_t may depend on all that left before, as every round of a composition may.

Sensitivity. Say a client moves x_t by at most B where it takes part, and any two such rounds are at least b apart.
Then each y_t is moved by one of its updates at most, the one of round t - k, by c_k B. Given the past this is a
Gaussian release of multiplier s 2^m / (c_k B). Such releases compose adaptively into one whose mu^2 is the sum of
theirs (Dong, Roth and Su, "Gaussian Differential Privacy", JRSS B '22, Corollary 3.3). One participation thus costs

    mu^2 = ||c||^2 / 4^m (B / s)^2,    and k participations k times that.

So a round in which a client takes part is a Gaussian release of multiplier (s / B) / (||c|| / 2^m). Rounds compose as
they do without correlation: in closed form, by k. That is what ledgers hold.

Blocks. n_t may also start anew, with no outputs before it. Then y_t and later ones lack the terms of earlier blocks.
Sums of squares only get smaller, whoever decides when a block ends, since the bounds above were fixed before.

Views. This is for one server that sees everything but the other's z. Clients see r_t plus the other server's noise,
which is independent of it: post-processing, so the same figure holds. That the noise of both protects better against
clients is not proved here, for a sum of two such recursions, and is not claimed.

Coefficients. c_k / 2^m are those of (1 - x)^(-2/3), cut off at b and rounded. The square root, (1 - x)^(-1/2), is best
where columns are not cut (Fichtenberger, Henzinger and Upadhyay, ICML '23). With b bands the best exponent is .61 to
.71 for 100 to 1,000 rounds. 2/3 is within 1 % of the best bands, found numerically (tests/dp/noise/test_correlated.py).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final, Protocol, Self

from precad.dp.checks import require_count, require_positive

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SCALE_BITS: Final = 16
"""m."""
MOST_BANDS: Final = 64
"""A server keeps one vector of d words less than so many, and its rounds read all of them."""
_PIECE: Final = 1 << 14  # coordinates at a time: every temporary is 128 KiB
_SETTLED: Final = 2.0**-40
_MARGIN: Final = 1 + 2.0**-20


class Output(Protocol):
    """Hold one of the last outputs: an array, or a file that is read slice by slice."""

    def __getitem__(self, part: slice, /) -> NDArray[np.int64]: ...


@dataclass(frozen=True, slots=True)
class Strategy:
    """The lower-triangular Toeplitz matrix C of these coefficients, over 2^m. With one alone, noise is independent."""

    coefficients: tuple[int, ...]
    """c_0 = 2^m >= c_1 >= .. > 0."""

    def __post_init__(self) -> None:
        require_count("number of coefficients", len(self.coefficients), at_least=1)
        falls = all(a >= b > 0 for a, b in zip(self.coefficients, self.coefficients[1:], strict=False))
        if self.coefficients[0] != 1 << SCALE_BITS or not falls:
            raise ValueError(
                f"coefficients: expected a fall from 2^{SCALE_BITS} that stays above 0, found {self.coefficients}"
            )

    @classmethod
    def banded(cls, n_bands: int) -> Self:
        """Return the strategy of this many bands, b. Integers alone, so every machine finds the same.

        Raises: ValueError unless 1 <= b <= MOST_BANDS.
        """
        require_count("n_bands", n_bands, at_least=1)
        if n_bands > MOST_BANDS:
            raise ValueError(f"n_bands: expected at most {MOST_BANDS}, found {n_bands}")
        found, exact = list[int](), Fraction(1 << SCALE_BITS)
        for k in range(1, n_bands + 1):
            found.append(round(exact))
            exact *= Fraction(3 * k - 1, 3 * k)
        return cls(tuple(found))

    @property
    def n_bands(self) -> int:
        """Return b."""
        return len(self.coefficients)

    @property
    def squared_norm(self) -> Fraction:
        """Return ||c||^2 / 4^m, exactly: what one participation costs, in units of (B / s)^2."""
        return Fraction(sum(c * c for c in self.coefficients), 1 << (2 * SCALE_BITS))

    def multiplier_of_a_round(self, noise_multiplier: float) -> float:
        """Return (s / B) / (||c|| / 2^m), never rounded up: the Gaussian release that one participation is."""
        require_positive("noise_multiplier", noise_multiplier)
        if self.n_bands == 1:
            return noise_multiplier
        return noise_multiplier / math.sqrt(self.squared_norm) * (1 - 2.0**-50)

    def reach(self, rounds: int) -> tuple[float, float]:
        """Return the 2-norm and the 1-norm of C^-1's rows, over 2^-m and over-estimated by a millionth.

        The first bounds the standard deviation of n_t in units of s, the second what rounding adds, in halves of a
        step. Rows grow with t, up to `rounds`.
        """
        return _reach(self.coefficients, rounds)


@functools.lru_cache(maxsize=64)
def _reach(coefficients: tuple[int, ...], rounds: int) -> tuple[float, float]:
    """Return the norms of the inverse series' first `rounds` numbers; it falls geometrically, and is cut where tiny.

    Coefficients fall, so no zero of their polynomial is within the unit circle (Enestrom and Kakeya).
    """
    import numpy as np  # tasks read strategies, and most of them need no array

    ratios = np.array(coefficients[1:]) / coefficients[0]
    last = np.zeros(max(1, ratios.size))  # the newest first
    last[0] = 1.0
    squares = absolutes = 1.0
    for _ in range(1, rounds):
        entry = -float(ratios @ last[: ratios.size])
        last[1:] = last[:-1].copy()
        last[0] = entry
        squares, absolutes = squares + entry * entry, absolutes + abs(entry)
        if np.abs(last).max() < _SETTLED:
            break
    return math.sqrt(squares) * _MARGIN, absolutes * _MARGIN


def correlate(draw: NDArray[np.int64], past: Sequence[Output], strategy: Strategy) -> None:
    """Turn Z_t into n_t, in place.

    - draw: Z_t, (d,), of standard deviation s 2^m
    - past: the outputs of this block, the newest first, (d,) each; at most b - 1 of them are read

    Raises: ValueError where there are more.
    """
    import numpy as np

    weights = strategy.coefficients[1:]
    if len(past) > len(weights):
        raise ValueError(f"past: expected at most {len(weights)} outputs, found {len(past)}")
    for start in range(0, draw.size, _PIECE):
        here = slice(start, min(start + _PIECE, draw.size))
        part = draw[here]
        for weight, output in zip(weights, past, strict=False):
            part -= np.int64(weight) * np.asarray(output[here])
        part += 1 << (SCALE_BITS - 1)
        part >>= SCALE_BITS  # toward minus infinity: floor
