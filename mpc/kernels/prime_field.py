"""Arithmetic of F_p, p = 2^56 - 2^32 + 1, for `precad.mpc.proved`, compiled by Numba. `precad.mpc.kernels.loading`
loads it when first needed.

An element is one word below p. Between steps a word may be larger, as long as nothing reaches 2^64: each loop says how
large. 254 elements fit into a word, so most additions need no reduction.

2^56 = 2^32 - 1 modulo p, so what lies above bit 55 is multiplied by 2^32 - 1 and added to what lies below.

p is 1 modulo 2^32. So a number less p times its low word is a multiple of 2^32: division by 2^32 modulo p takes no
quotient (`without_low_word`). Products in Montgomery's form are divided by 2^64 so. Products by a constant w take two
constants, 2^32 w and 2^63 w, and one division. Neither has products of more than 32 bits by 32, of which processors
make several at once. Transforms are Cooley-Tukey in both directions, so that a layer adds at most 2p to a value and
none needs a correction.

No branch and no address depends on an element: a comparison is only ever the carry of a subtraction.
Source: docs/reference/protocol-v2.md, sections 3 and 6.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from precad.mpc.kernels.machine_code import READ, READ_SIGNED, WRITE, compiled
from precad.mpc.kernels.wide import high_product

Words = NDArray[np.uint64]

ZERO, ONE = np.uint64(0), np.uint64(1)
P = np.uint64(2**56 - 2**32 + 1)
TWO_P, MANY_P = np.uint64(2 * (2**56 - 2**32 + 1)), np.uint64(2**7 * (2**56 - 2**32 + 1))
MASK56, MASK32, MASK31, MASK28, MASK24 = (np.uint64(2**bits - 1) for bits in (56, 32, 31, 28, 24))
B8, B24, B28, B31, B32, B48, B56, B63 = (np.uint64(bits) for bits in (8, 24, 28, 31, 32, 48, 56, 63))
TWO_TO_32, TWO_TO_56, TWO_TO_63 = np.uint64(2**32), np.uint64(2**32 - 1), np.uint64(2**39 - 2**7)
TWO_TO_64, TWO_TO_112 = np.uint64(2**40 - 2**8), np.uint64(2**40 - 2**33 - 2**8 + 1)
"""Powers of two modulo p, by what they are powers of."""
CHAINS = 8
"""Products that do not wait for one another: a multiplication takes several times longer than the next may begin."""
LIMB_BLOCK = 128
"""Coordinates whose products of 28-bit limbs, two of each, fit into a word: 2 * 128 * (2^28 - 1)^2 < 2^64."""

_U64 = types.uint64


@compiled(_U64(_U64))
def fold(y: np.uint64) -> np.uint64:
    """Return y modulo p, below 2^56 + 2^40. A product by 2^32 - 1 would keep loops from being vectorised."""
    above = y >> B56
    folded: np.uint64 = (y & MASK56) + (above << B32) - above
    return folded


@compiled(_U64(_U64))
def canonical(y: np.uint64) -> np.uint64:
    """Return y modulo p, below p, for any word."""
    rest = fold(y) - P
    reduced: np.uint64 = rest + (P & (ZERO - (rest >> B63)))
    return reduced


@compiled(_U64(_U64, _U64))
def multiply(x: np.uint64, y: np.uint64) -> np.uint64:
    """Return x y modulo p, below 2^56 + 2^35, for x and y below 2^60.

    The product is c0 + 2^56 c1 + 2^112 c2, and 2^56 c1 = 2^32 c1 - c1. What 2^32 c1 has above bit 55 is folded twice.
    """
    high, low = high_product(x, y), x * y
    c0, c1, c2 = low & MASK56, ((high << B8) | (low >> B56)) & MASK56, high >> B48
    d0, d1 = c1 & MASK24, c1 >> B24
    e0, e1 = d1 & MASK24, d1 >> B24
    total = c0 + ((d0 + e0 + e1) << B32) + c2 * TWO_TO_112 + TWO_P - (e1 + d1 + c1)
    return fold(total)


@compiled(_U64(_U64, _U64))
def without_low_word(low: np.uint64, above: np.uint64) -> np.uint64:
    """Return (low + 2^32 above) / 2^32 modulo p, above zero, at most floor(low / 2^32) + above + p."""
    quotient: np.uint64 = (low >> B32) + above + P - (low & MASK32) * MASK24
    return quotient


@compiled(_U64(_U64, _U64, _U64))
def times(x: np.uint64, of_low: np.uint64, of_high: np.uint64) -> np.uint64:
    """Return x w modulo p, in 1..2p - 1, for x below 2^62.

    of_low, of_high: 2^32 w and 2^63 w modulo p, for the 31 low bits of x and for those above.
    Both sums are below 2^64. Before p is added, the quotient is at most 2 (2^31 - 1) (p - 1) / 2^32, below p.
    """
    low, high = x & MASK31, (x >> B31) & MASK32
    words = low * (of_low & MASK32) + high * (of_high & MASK32)
    return without_low_word(words, low * (of_low >> B32) + high * (of_high >> B32))


@compiled(_U64(_U64, _U64))
def montgomery(x: np.uint64, y: np.uint64) -> np.uint64:
    """Return x y / 2^64 modulo p, above zero and at most x y / 2^64 + p + 2^25, for x and y below 2^62."""
    x_low, x_high, y_low, y_high = x & MASK32, x >> B32, y & MASK32, y >> B32
    by_low = without_low_word(x_low * y_low, x_low * y_high)
    return without_low_word(by_low + x_high * y_low, x_high * y_high)


@compiled(types.void(READ, WRITE, WRITE))
def constants(factors: Words, of_low: Words, of_high: Words) -> None:
    """Write what `times` takes of each factor w < p: 2^32 w and 2^63 w modulo p."""
    for i in range(factors.size):
        of_low[i] = canonical(multiply(factors[i], TWO_TO_32))
        of_high[i] = canonical(multiply(factors[i], TWO_TO_63))


@compiled(types.void(_U64, _U64, WRITE))
def powers(first: np.uint64, base: np.uint64, out: Words) -> None:
    """Write out[i] = first base^i. A product waits for the one CHAINS before it, so that several are under way."""
    value, step = first, ONE
    for i in range(min(CHAINS, out.size)):
        out[i] = canonical(value)
        value, step = multiply(value, base), multiply(step, base)
    of_low, of_high = canonical(multiply(step, TWO_TO_32)), canonical(multiply(step, TWO_TO_63))
    for i in range(CHAINS, out.size):
        out[i] = canonical(times(out[i - CHAINS], of_low, of_high))


@compiled(_U64(WRITE))
def mask(words: Words) -> np.uint64:
    """Keep the low 56 bits of each word. Return how many of them are p or above."""
    refused = ZERO
    for i in range(words.size):
        word = words[i] & MASK56
        words[i] = word
        refused += ONE - ((word - P) >> B63)
    return refused


@compiled(types.void(READ_SIGNED, WRITE))
def residues(integers: NDArray[np.int64], out: Words) -> None:
    """Write integers of (-p/2, p/2) modulo p."""
    for i in range(integers.size):
        word = np.uint64(integers[i])
        out[i] = word + (P & (ZERO - (word >> B63)))


@compiled(types.void(READ, READ, _U64, WRITE))
def add(x: Words, y: Words, sign: np.uint64, out: Words) -> None:
    """Write x + y modulo p where `sign` is zero, x - y where it is all ones. Both below 2^62; `out` may be either."""
    for i in range(x.size):
        out[i] = canonical(x[i] + ((y[i] ^ sign) - sign) + (MANY_P & sign))


@compiled(types.void(WRITE, READ, _U64))
def add_to(total: Words, y: Words, sign: np.uint64) -> None:
    """Do `add` in place: where the compiler knows that nothing overlaps it makes eight sums at a time."""
    for i in range(total.size):
        total[i] = canonical(total[i] + ((y[i] ^ sign) - sign) + (MANY_P & sign))


@compiled(types.void(READ, WRITE))
def squares(x: Words, out: Words) -> None:
    """Write x^2 modulo p, below p, of elements."""
    for i in range(x.size):
        out[i] = canonical(multiply(x[i], x[i]))


@compiled(types.void(WRITE, READ, READ))
def scrambling(values: Words, of_low: Words, of_high: Words) -> None:
    """Apply the discrete Fourier transform in place: natural order in, bits of the index reversed out.

    A layer takes each polynomial modulo x^2t - r^2 to one modulo x^t - r and one modulo x^t + r. Values grow by 2p.
    of_low, of_high: `constants` of r of block i, (n / 2,).
    """
    half, n_blocks = values.size // 2, 1
    while half > 0:
        for block in range(n_blocks):
            root, root_high, first = of_low[block], of_high[block], 2 * half * block
            for i in range(first, first + half):
                low, high = values[i], times(values[i + half], root, root_high)
                values[i], values[i + half] = low + high, low + TWO_P - high
        half, n_blocks = half // 2, 2 * n_blocks


@compiled(types.void(WRITE, READ, READ))
def ordering(values: Words, of_low: Words, of_high: Words) -> None:
    """Apply the discrete Fourier transform in place: bits of the index reversed in, natural order out.

    of_low, of_high: (n,); from `half` on, of the first `half` powers of a root of order 2 half. Values grow by 2p a
    layer.
    """
    half = 1
    while half < values.size:
        for first in range(0, values.size, 2 * half):
            for i in range(half):
                low = values[first + i]
                high = times(values[first + half + i], of_low[half + i], of_high[half + i])
                values[first + i], values[first + half + i] = low + high, low + TWO_P - high
        half *= 2


@compiled(types.void(READ, READ_SIGNED, READ, READ, WRITE))
def scaled(values: Words, order: NDArray[np.int64], of_low: Words, of_high: Words, out: Words) -> None:
    """Write out[i] = values[order[i]] w_i, below p. of_low, of_high: `constants` of each w_i."""
    for i in range(out.size):
        out[i] = canonical(times(values[order[i]], of_low[i], of_high[i]))


@compiled(_U64(_U64, _U64, _U64))
def joined(low: np.uint64, middle: np.uint64, high: np.uint64) -> np.uint64:
    """low + 2^28 middle + 2^56 high modulo p, below p, for folded words."""
    shifted = ((middle & MASK28) << B28) + (middle >> B28) * TWO_TO_56  # below 2^62
    return canonical(low + shifted + multiply(high, TWO_TO_56))


@compiled(types.UniTuple(_U64, 2)(READ, READ, READ))
def two_products(x: Words, weights: Words, others: Words) -> tuple[np.uint64, np.uint64]:
    """Return (<x, weights>, <x, others>) modulo p, below p. All elements below 2^56; x may be shorter.

    Products of 28-bit limbs, low, middle and high, are added up without reduction, for a block. The compiler makes
    eight of them at a time, but only where the loop stands here: a call for each block would double its time.
    """
    a0 = a1 = a2 = b0 = b1 = b2 = ZERO
    for start in range(0, x.size, LIMB_BLOCK):
        block = slice(start, start + LIMB_BLOCK)
        of_x, of_weights, of_others = x[block], weights[block], others[block]
        c0 = c1 = c2 = d0 = d1 = d2 = ZERO
        for i in range(of_x.size):
            low, high = of_x[i] & MASK28, (of_x[i] >> B28) & MASK28
            w0, w1 = of_weights[i] & MASK28, (of_weights[i] >> B28) & MASK28
            o0, o1 = of_others[i] & MASK28, (of_others[i] >> B28) & MASK28
            c0 += low * w0
            c1 += low * w1 + high * w0
            c2 += high * w1
            d0 += low * o0
            d1 += low * o1 + high * o0
            d2 += high * o1
        a0, a1, a2 = fold(a0 + fold(c0)), fold(a1 + fold(c1)), fold(a2 + fold(c2))
        b0, b1, b2 = fold(b0 + fold(d0)), fold(b1 + fold(d1)), fold(b2 + fold(d2))
    return joined(a0, a1, a2), joined(b0, b1, b2)


@compiled(_U64(_U64, _U64))
def _over(scale: np.uint64, divisor: np.uint64) -> np.uint64:
    """2^64 scale / divisor modulo p, for a scale below p: in Montgomery's form, scale times the power p - 2."""
    result, exponent, base = scale, P - np.uint64(2), divisor
    while exponent > ZERO:
        if exponent & ONE:
            result = montgomery(result, base)
        base, exponent = montgomery(base, base), exponent >> ONE
    return result


@compiled(types.void(_U64, _U64, READ, WRITE))
def lagrange(point: np.uint64, scale: np.uint64, roots: Words, out: Words) -> None:
    """Write out[j] = scale w_j / (point - w_j), with one inversion for all: Montgomery's way, in CHAINS at once.

    roots: 2^64 w_j, where no w_j is the point, a multiple of CHAINS. scale: (point^n - 1) / n for the n-th roots of
    unity. What is computed is scale point / (point - w_j) - scale. Differences and their products
    keep the factor 2^64, inverses have none: `montgomery` takes one off each product.
    """
    shifted = canonical(multiply(point, TWO_TO_64)) + P
    products, inverses = np.empty(CHAINS, dtype=np.uint64), np.empty(CHAINS, dtype=np.uint64)
    for k in range(CHAINS):
        products[k] = TWO_TO_64
    for first in range(0, roots.size, CHAINS):
        for k in range(CHAINS):
            out[first + k] = products[k]
            products[k] = montgomery(products[k], shifted - roots[first + k])
    before = TWO_TO_64
    for k in range(CHAINS):  # the product of the chains before, then of those behind
        inverses[k] = before
        before = montgomery(before, products[k])
    behind = _over(canonical(multiply(scale, point)), before)
    for k in range(CHAINS - 1, -1, -1):
        inverses[k] = montgomery(inverses[k], behind)
        behind = montgomery(behind, products[k])
    for first in range(roots.size - CHAINS, -1, -CHAINS):
        for k in range(CHAINS):
            j = first + k
            out[j] = canonical(montgomery(inverses[k], out[j]) + P - scale)
            inverses[k] = montgomery(inverses[k], shifted - roots[j])
