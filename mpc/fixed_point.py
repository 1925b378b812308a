"""Real vectors as ring elements: f fractional bits, rounding toward zero.

With rounding toward zero, |X_i| <= 2^f |x_i| holds exactly, and an honest norm never grows by encoding. A vector
clipped to C is accepted at the exact integer threshold floor(C^2 2^{2f}), with no slack: docs/explanation/privacy.md.
The printed protocol's C + 1e-5 would have to be accounted as the client's sensitivity.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from precad.mpc.errors import NotFiniteError, OverflowsRingError, ParameterError
from precad.mpc.parameters import DEFAULT_FRAC_BITS, check_frac_bits
from precad.mpc.ring import RingArray


def encode(x: NDArray[np.float64], frac_bits: int = DEFAULT_FRAC_BITS) -> RingArray:
    """Return trunc(x * 2^f), elementwise. Raises NotFiniteError, OverflowsRingError; never says which value."""
    largest = max(float(x.max(initial=0.0)), -float(x.min(initial=0.0)))
    if not largest < math.inf:  # this form refuses NaN too
        raise NotFiniteError("cannot encode: the vector holds a NaN or an infinity")
    if largest >= math.ldexp(1.0, 63 - check_frac_bits(frac_bits)):
        raise OverflowsRingError(f"cannot encode: a coordinate is not below 2^{63 - frac_bits} in magnitude")
    scaled = np.asarray(x, dtype=np.float64) * math.ldexp(1.0, frac_bits)
    return scaled.astype(np.int64)  # which truncates


def decode(x: RingArray, frac_bits: int = DEFAULT_FRAC_BITS) -> NDArray[np.float64]:
    """Return x / 2^f in float64, the centred representative taken. Exact below 2^53."""
    return x.astype(np.float64) * math.ldexp(1.0, -check_frac_bits(frac_bits))


def encode_within(x: NDArray[np.float64], *, squared_norm_threshold: int, frac_bits: int) -> RingArray:
    """Return the encoding of a clipped `x`, with sum X_i^2 <= threshold made certain in integers. Run by an honest
    client.

    Truncation only shrinks, so a vector of norm at most C passes as it is. One whose norm float64 rounded to C from
    just above is brought in by factors of 1 - 2^-40. Shapes: (d,) to (d,).
    Raises: ParameterError when x was not clipped (its norm is above the bound by more than rounding); what `encode`
    raises.
    """
    for _ in range(64):
        encoded = encode(x, frac_bits)
        if exact_squared_norm(encoded) <= squared_norm_threshold:
            return encoded
        x = x * (1.0 - 2.0**-40)
    raise ParameterError("the vector is longer than the bound by more than rounding: clip it before encoding")


def exact_squared_norm(x: RingArray) -> int:
    """Return sum x_i^2 over the integers (not modulo 2^64), of the centred representatives."""
    largest = max(int(x.max(initial=0)), -int(x.min(initial=0)))
    if largest * largest * x.size < 1 << 63:  # nothing wraps
        return int(np.dot(x, x))
    low, high = x & 0xFFFFFFFF, x >> 32  # x = high * 2^32 + low, 0 <= low < 2^32, |high| <= 2^31
    return (exact_dot(high, high) << 64) + (exact_dot(high, low) << 33) + exact_dot(low, low)


def exact_dot(x: RingArray, y: RingArray) -> int:
    """Return <x, y> over the integers for |x_i| and |y_i| at most 2^32: 16-bit pieces of y, partial sums below 2^63."""
    tile = 1 << 14  # 2^32 * 2^16 * 2^14 = 2^62
    total = 0
    for start in range(0, x.size, tile):
        xs, ys = x[start : start + tile], y[start : start + tile]
        total += int(np.dot(xs, ys & 0xFFFF)) + (int(np.dot(xs, ys >> 16)) << 16)
    return total
