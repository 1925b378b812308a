"""Exact rounded Laplace noise: round(scale * Lap(1)) on the integers, from random bits alone.

A Laplace release made of float64 reveals what it should hide (Mironov, "On significance of the least significant bits
for differential privacy", CCS '12). A value on a grid plus rounded noise is the rounded value plus noise, that is,
post-processing of the release in the reals. With L = |Lap(scale)| exponential, K = round(L) has

    P(K >= k) = e^{-(k - 1/2)/scale},   k >= 1:

a coin of probability e^{-1/(2 scale)}, and then a geometric number. Both are drawn exactly (Canonne, Kamath, Steinke,
"The Discrete Gaussian for Differential Privacy", NeurIPS '20, Algorithms 1 and 2). Time varies with the draw.
"""

from fractions import Fraction

from precad.dp.checks import require_positive
from precad.dp.noise.rounded_gaussian import RandomBytes


def sample(scale: float, random_bytes: RandomBytes) -> int:
    """Return one draw of round(scale * Lap(1)), in grid units; `scale` is the float's exact value."""
    require_positive("scale", scale)
    exact = Fraction(scale)
    if not _happens(1 / (2 * exact), random_bytes):
        return 0
    magnitude = 1 + _geometric(exact, random_bytes)
    return magnitude if _below(2, random_bytes) else -magnitude


def _geometric(scale: Fraction, random_bytes: RandomBytes) -> int:
    """Return Y with P(Y >= y) = e^{-y/scale}."""
    numerator, denominator = scale.numerator, scale.denominator
    while True:
        low = _below(numerator, random_bytes)
        if _happens(Fraction(low, numerator), random_bytes):
            break
    high = 0
    while _happens(Fraction(1), random_bytes):
        high += 1
    return (low + numerator * high) // denominator


def _happens(x: Fraction, random_bytes: RandomBytes) -> bool:
    """True with probability e^-x, x >= 0."""
    while x > 1:
        if not _happens(Fraction(1), random_bytes):
            return False
        x -= 1
    k = 1
    while _below_fraction(x / k, random_bytes):
        k += 1
    return k % 2 == 1


def _below_fraction(x: Fraction, random_bytes: RandomBytes) -> bool:
    """True with probability x, 0 <= x <= 1."""
    return _below(x.denominator, random_bytes) < x.numerator


def _below(n: int, random_bytes: RandomBytes) -> int:
    """Uniform in 0 .. n - 1."""
    bits = (n - 1).bit_length()
    n_bytes = -(-bits // 8)
    while True:
        drawn = random_bytes(n_bytes)
        if len(drawn) != n_bytes:
            raise ValueError(f"random_bytes: expected the {n_bytes} bytes asked for, found {len(drawn)}")
        value = int.from_bytes(drawn, "little") & ((1 << bits) - 1)
        if value < n:
            return value
