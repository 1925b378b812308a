"""Exact rounded Gaussian noise, by a certified inverse of the normal tail.

A server must add round(std * Z), with Z standard normal in the reals, to integers on the fixed-point grid. The
integer part X of the sum is on the grid already, so X + round(std * Z) = round(X + std * Z). This is post-processing
of the continuous Gaussian mechanism and costs no privacy beyond it. That argument is about the reals: a float64
`std * normal()` has gaps and a finite tail that reveal X. Source: Mironov, "On significance of the least significant
bits for differential privacy", CCS '12. Here float64 only proposes an integer. It is kept where no error of the
computation could have changed it, and decided in multiprecision elsewhere, so the output has the exact law.

Construction (ours). 64 random bits are one sign bit and a 63-bit integer `tail`. They are the first bits of an
infinite uniform string U with

    tail <= 2^64 U < tail + 1,    U in (0, 1/2],    |Z| = -ndtri(U),    k = floor(std |Z| + 1/2),

ndtri being the inverse of the normal distribution function. Rounding is symmetric and ties have probability
zero, so sign * k = round(std * Z).

Margin. Let x + 1/2 be the float64 value of -std ndtri((tail + 1/2) 2^-64) + 1/2. For |Z| <= 5.2 it differs from
std |Z| + 1/2, for every U that starts with these bits, by at most the sum of

    U unknown by 2^-65 either way                std * 2^-65 / phi(5.2)      std * 5.1e-14
    tail + 1/2 in float64, two roundings         std * 2^-52 * max U/phi     std * 2.8e-16
    ndtri, absolute error taken as 2^-46         std * 2^-46                 std * 1.5e-14
    the product with std                         std * 5.2 * 2^-53           std * 5.8e-16
    the sum with 1/2                             (std * 5.2 + 1/2) * 2^-53   std * 5.8e-16 + 2^-54

where U/phi(|Z|), Mills' ratio, is at most sqrt(pi/2). The total is below std * 6.8e-14 + 2^-54, and
`_margin` = std * 2^-43 + 2^-50 exceeds it. If x + 1/2 is farther than that from every integer, its floor is k.
The error assumed of ndtri is ten times what tests/dp/noise/test_rounded_gaussian.py finds against mpmath (2^-49.5).

The share of coordinates decided in multiprecision is about 2 * margin + 2e-7. It is under one in a million at
std = 2^17, one in 2^12 at 2^30, one in four at 2^40. Larger std is slower, never less exact.
"""

import math
from collections.abc import Callable
from typing import Final

import mpmath
import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from precad.dp.checks import require_count

MIN_STD: Final = 2.0**-20
MAX_STD: Final = 2.0**40
"""Range of std in grid units. The upper end keeps 12 std far inside int64, the lower one the tail computable."""

_CHUNK: Final = 1 << 15  # coordinates at a time: every temporary is 256 KiB
_TAIL_BITS: Final = 64  # U is known to 2^-64 before more bits are drawn
_TAIL_MASK: Final = (1 << 63) - 1
_FLOAT_TAIL: Final = 5.2  # |Z| beyond this goes to multiprecision; the margin is derived up to here

RandomBytes = Callable[[int], bytes]
"""n -> n uniform, independent bytes: the operating system's, a keyed stream cipher's, or a test's fixed stream."""


def sample(std: float, size: int, random_bytes: RandomBytes) -> NDArray[np.int64]:
    """Return `size` independent draws of round(std * Z), Z standard normal. One server's noise, in grid units.

    Shape:  (size,).
    Unit:   std and the result in steps of the fixed-point grid: sigma R 2^f for one server's noise.
    Bytes:  8 per coordinate, in order; after them 8 more at a time for each undecided coordinate, in order.
    Raises: ValueError if std is outside [2^-20, 2^40], or random_bytes returns another number of bytes.
    """
    require_std(std)
    require_count("size", size)

    noise = np.empty(size, dtype=np.int64)
    undecided: list[tuple[int, int]] = []  # (coordinate, its word)
    for start in range(0, size, _CHUNK):
        part = noise[start : start + _CHUNK]
        words = np.frombuffer(_draw(random_bytes, 8 * part.size), dtype="<i8")
        is_undecided = _round_in_float64(words, std, out=part)
        undecided += [(start + int(i), int(words[i])) for i in np.flatnonzero(is_undecided)]

    if undecided:
        mp = mpmath.MPContext()  # our own: the precision of the global context belongs to everybody
        for coordinate, word in undecided:
            magnitude = _decide(mp, word & _TAIL_MASK, std, random_bytes)
            noise[coordinate] = -magnitude if word < 0 else magnitude
    return noise


def require_std(std: float) -> None:
    """Require a standard deviation in grid units that can be drawn. Raises: ValueError."""
    if isinstance(std, bool) or not MIN_STD <= std <= MAX_STD:
        raise ValueError(f"std: expected 2^-20 to 2^40 grid units, found {std}")


def _margin(std: float) -> float:
    """More than float64 can be wrong about std * |Z| + 1/2 while |Z| <= 5.2. Derived in the module docstring."""
    return std * 2.0**-43 + 2.0**-50


def _round_in_float64(words: NDArray[np.int64], std: float, *, out: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Write round(std * Z) for each word to `out`; true in the result where that is not certain."""
    tail = (words & _TAIL_MASK).astype(np.float64)
    tail += 0.5
    tail *= 2.0**-_TAIL_BITS
    shifted = ndtri(tail, out=tail)
    shifted *= -std
    shifted += 0.5  # std * |Z| + 1/2
    whole = np.floor(shifted)

    sign = words >> 63  # 0 or -1
    out[:] = whole
    out ^= sign
    out -= sign  # (k ^ -1) - (-1) = -k

    is_undecided: NDArray[np.bool_] = shifted > std * _FLOAT_TAIL + 0.5
    shifted -= whole  # in [0, 1), exact
    shifted -= 0.5
    is_undecided |= np.abs(shifted, out=shifted) >= 0.5 - _margin(std)
    return is_undecided


def _decide(mp: mpmath.MPContext, tail: int, std: float, random_bytes: RandomBytes) -> int:
    """Return the k with k - 1/2 < std * |Z| < k + 1/2, drawing as many more bits of U as that takes.

    float64 proposes k to within one, since 2^40 * 10 * 2^-46 < 1. `_surely_rounds_to` confirms every returned k
    for every U that starts with the bits known.
    """
    bits = _TAIL_BITS
    while True:
        middle = (2 * tail + 1) / (1 << (bits + 1))
        guess = math.floor(-std * float(ndtri(middle)) + 0.5)
        for k in (guess, guess - 1, guess + 1):
            if k >= 0 and _surely_rounds_to(k, mp, tail, bits, std):
                return k
        tail = tail << 64 | int.from_bytes(_draw(random_bytes, 8), "little")
        bits += 64


def _surely_rounds_to(k: int, mp: mpmath.MPContext, tail: int, bits: int, std: float) -> bool:
    """Tell whether every U in [tail, tail + 1) * 2^-bits satisfies Q((k + 1/2)/std) < U < Q((k - 1/2)/std).

    Q = 1 - Phi is computed at bits + 128 bits of precision. Its argument z carries at most four roundings, which
    Q magnifies by its condition number, at most z^2 + 1. The largest z is 1.5 * 2^20, at k = 1 and std = 2^-20.
    So the relative error of Q is below 2^-(bits + 80), and the comparisons give way by that much.
    """
    mp.prec = bits + 128
    slack = mp.ldexp(1, -(bits + 80))

    def upper_tail(boundary: mpmath.mpf) -> mpmath.mpf:
        return mp.erfc(boundary / (mp.mpf(std) * mp.sqrt(2))) / 2

    if upper_tail(mp.mpf(2 * k + 1) / 2) * (1 + slack) > mp.ldexp(tail, -bits):
        return False
    # U <= 1/2 says |Z| >= 0 already: zero has no lower boundary to stay above.
    return k == 0 or bool(mp.ldexp(tail + 1, -bits) < upper_tail(mp.mpf(2 * k - 1) / 2) * (1 - slack))


def _draw(random_bytes: RandomBytes, n: int) -> bytes:
    """Return n bytes from the generator; a short answer would shift every later draw, so it is refused."""
    drawn = random_bytes(n)
    if len(drawn) != n:
        raise ValueError(f"random_bytes: expected the {n} bytes asked for, found {len(drawn)}")
    return drawn
