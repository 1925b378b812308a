"""F_p, p = 2^56 - 2^32 + 1: the compiled loops against Python's integers, and transforms against their definition.

Failure means: servers and clients that compute different numbers from the same bytes.
"""

import random
import tracemalloc

import numpy as np
import pytest

from precad.mpc.errors import MalformedMessageError, ParameterError
from precad.mpc.kernels import loading
from precad.mpc.proved import field
from precad.mpc.proved.accumulators import CpuWires
from precad.mpc.proved.field import P
from precad.mpc.ring import TILE
from tests.mpc.fixed_randomness import random_bytes_of

RANDOM = random.Random(56)
EDGES = [0, 1, 2, 2**28 - 1, 2**28, 2**32 - 1, 2**32, P // 2, P // 2 + 1, P - 2, P - 1]


def elements(values):
    return np.array(values, dtype=np.uint64)


def some(n):
    """`n` elements, the edges first."""
    return elements([*EDGES, *(RANDOM.randrange(P) for _ in range(n))][:n])


def test_the_generator_proves_that_p_is_prime():
    """Its order is p - 1: no power by a proper divisor is 1. It is the smallest with that order."""
    primes = (2, 3, 5, 7, 13, 17, 241)
    assert P - 1 == 2**32 * 3**2 * 5 * 7 * 13 * 17 * 241

    def generates(g):
        return pow(g, P - 1, P) == 1 and all(pow(g, (P - 1) // q, P) != 1 for q in primes)

    assert [g for g in range(2, 23) if generates(g)] == [field.GENERATOR]


def test_products_reductions_and_squares_are_the_integers():
    """Any factors below 2^60, at and around every power of two that the reduction cuts at."""
    kernels = loading.prime_field()
    cuts = [2**k + s for k in (24, 28, 32, 48, 56, 59) for s in (-1, 0, 1)] + EDGES + [P, P + 1, 2**60 - 1]
    pairs = [(x, y) for x in cuts for y in cuts] + [
        (RANDOM.getrandbits(60), RANDOM.getrandbits(60)) for _ in range(500)
    ]
    for x, y in pairs:
        product = int(kernels.multiply(np.uint64(x), np.uint64(y)))
        assert product % P == x * y % P
        assert product < 2**56 + 2**35
    for word in (*cuts, 2**64 - 1, 2**63, *(RANDOM.getrandbits(64) for _ in range(200))):
        assert int(kernels.canonical(np.uint64(word))) == word % P
        assert int(kernels.fold(np.uint64(word))) % P == word % P
        assert int(kernels.fold(np.uint64(word))) < 2**56 + 2**40


def test_products_in_montgomery_s_form_are_the_integers():
    """At the edges of what loops multiply, and at all others below 2^62."""
    kernels = loading.prime_field()
    values = [*EDGES, P, P + 1, 2 * P - 1, 2**62 - 1, 2**61, *(RANDOM.getrandbits(62) for _ in range(60))]
    for x, y in [(x, y) for x in values for y in values]:
        product = int(kernels.montgomery(np.uint64(x), np.uint64(y)))
        assert 0 < product <= x * y // 2**64 + P + 2**25
        assert (product * 2**64 - x * y) % P == 0


def test_products_by_constants_are_the_integers():
    """Below 2p for any x below 2^62, at the edges of both halves: words of ones and zeros in x and in the constants."""
    kernels = loading.prime_field()
    halves = [2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**62 - 2**31, 2**62 - 1, 2**62 - 2]
    of_inverse = [pow(2**k, -1, P) * v % P for k in (32, 63) for v in (1, P - 1, 2**32 - 1, P - 2**32, 2**56 - 2**33)]
    factors = elements([*EDGES, *of_inverse, *(RANDOM.randrange(P) for _ in range(60))])
    of_low, of_high = np.empty_like(factors), np.empty_like(factors)
    kernels.constants(factors, of_low, of_high)
    assert of_low.tolist() == [2**32 * w % P for w in factors.tolist()]
    assert of_high.tolist() == [2**63 * w % P for w in factors.tolist()]
    for x in [*EDGES, *halves, *(RANDOM.getrandbits(62) for _ in range(60))]:
        for w, low, high in zip(factors.tolist(), of_low, of_high, strict=True):
            product = int(kernels.times(np.uint64(x), low, high))
            assert 0 < product < 2 * P
            assert (product - x * w) % P == 0


@pytest.mark.parametrize("n", [16, 2048])
def test_weights_are_fractions_of_integers(n):
    """Against Python's integers: at zero too, and next to roots."""
    root = field.root_of_unity(n)
    roots, out = [pow(root, j, P) for j in range(n)], np.empty(n, dtype=np.uint64)
    for point in (0, 2, P - 2, roots[1] + 1, roots[-1] - 1):
        scale = (pow(point, n, P) - 1) * pow(n, -1, P) % P
        loading.prime_field().lagrange(np.uint64(point), np.uint64(scale), field.powers(2**64, root, n), out)
        assert out.tolist() == [scale * w * pow(point - w, -1, P) % P for w in roots]


@pytest.mark.parametrize("n", [1, 8, 9, 300])
def test_powers_are_the_integers(n):
    for first, base in ((1, P - 1), (P - 1, 2), (2**64, P - 2), (0, 5), (7, 0)):
        assert field.powers(first, base, n).tolist() == [first * pow(base, i, P) % P for i in range(n)]


def test_sums_and_differences_of_words_that_were_not_reduced():
    """Both below 2^62."""
    words = [2**62 - 1, 2**62 - P, P, 2 * P, *EDGES]
    x, y = (elements([pair[i] for pair in ((a, b) for a in words for b in words)]) for i in (0, 1))
    pairs = list(zip(x.tolist(), y.tolist(), strict=True))
    assert field.add(x, y).tolist() == [(a + b) % P for a, b in pairs]
    assert field.subtract(x, y).tolist() == [(a - b) % P for a, b in pairs]


def test_sums_differences_and_multiples():
    x, y = some(40), some(51)[11:]
    a, b = x.tolist(), y.tolist()
    assert field.add(x, y).tolist() == [(i + j) % P for i, j in zip(a, b, strict=True)]
    assert field.subtract(x, y).tolist() == [(i - j) % P for i, j in zip(a, b, strict=True)]
    assert field.times(x, -3).tolist() == [-3 * i % P for i in a]
    assert field.powers(5, 7, 20).tolist() == [5 * 7**i % P for i in range(20)]


@pytest.mark.parametrize("n", [1, 8, 127, 128, 129, 1000])
def test_products_of_limbs_do_not_overflow(n):
    """The largest elements, and random ones."""
    for x, y in (
        (np.full(n, P - 1, dtype=np.uint64), np.full(n, 2**56 - 1, dtype=np.uint64)),
        (some(n), some(n)[::-1].copy()),
    ):
        assert field.dot(x, y) == sum(i * j for i, j in zip(x.tolist(), y.tolist(), strict=True)) % P


@pytest.mark.parametrize("n", [127, 128, 129, 255, 256, 257, 1000])
def test_products_of_the_largest_limbs_do_not_overflow(n):
    """Both halves of 28 bits at their largest below p, for longer than one block of sums."""
    largest = ((2**28 - 17) << 28) + 2**28 - 1
    assert largest < P
    x = np.full(n, largest, dtype=np.uint64)
    assert field.dot(x, x) == n * largest**2 % P


def test_integers_and_back():
    """Up to (p - 1) / 2 in magnitude, and nothing beyond."""
    x = np.array([0, 1, -1, P // 2, -(P // 2), 12345, -98765], dtype=np.int64)
    assert field.from_integers(x).tolist() == [v % P for v in x.tolist()]
    assert field.to_integers(field.from_integers(x)).tolist() == x.tolist()
    for too_large in (P // 2 + 1, -(P // 2) - 1, -(2**63)):
        with pytest.raises(ParameterError, match="integers: expected magnitudes"):
            field.from_integers(np.array([too_large], dtype=np.int64))


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 100])
def test_seven_bytes_each_lowest_first(n):
    x = some(n)
    data = field.to_bytes(x)
    assert data == b"".join(value.to_bytes(7, "little") for value in x.tolist())
    assert field.from_bytes(data, n_elements=n).tolist() == x.tolist()
    field.require_elements(data, n_elements=n)
    for read in (field.from_bytes, field.require_elements):
        with pytest.raises(MalformedMessageError, match=f"share: expected {7 * n} bytes, found {7 * n + 1}"):
            read(data + b"\0", n_elements=n, field="share")


@pytest.mark.parametrize("value", [P, P + 1, 2**56 - 1])
@pytest.mark.parametrize(("n", "index"), [(9, 0), (9, 7), (9, 8), (TILE + 3, TILE - 1), (TILE + 3, TILE + 2)])
def test_p_and_above_are_malformed(value, n, index):
    data = bytearray(field.to_bytes(some(n)))
    data[7 * index : 7 * index + 7] = value.to_bytes(7, "little")
    for read in (field.from_bytes, field.require_elements):
        for given in (data, bytes(data), memoryview(b"x" + data)[1:]):
            with pytest.raises(MalformedMessageError, match="elements: expected elements below p, found 1"):
                read(given, n_elements=n)


def test_elements_that_are_checked_take_the_memory_of_a_tile():
    n = 64 * TILE
    data = field.to_bytes(some(n))
    tracemalloc.start()
    try:
        field.require_elements(data, n_elements=n)
        assert tracemalloc.get_traced_memory()[1] < 16 * 8 * TILE
    finally:
        tracemalloc.stop()


def test_random_elements_are_drawn_again_rather_than_reduced():
    """A draw of p is not taken; the next bytes stand in its place."""
    draws = iter([P.to_bytes(7, "little") + (5).to_bytes(7, "little"), (9).to_bytes(7, "little")])
    assert field.random_elements(2, lambda n: next(draws)).tolist() == [5, 9]
    assert field.random_elements(0, random_bytes_of("none")).size == 0


@pytest.mark.parametrize("n", [16, 64])
def test_transforms_are_evaluations_at_roots_of_unity(n):
    """Values at w^j and, on the coset, at g w^j with g^2 = w."""
    transform, x = field.transform(n), some(n)
    w, g = field.root_of_unity(n), field.root_of_unity(2 * n)
    assert pow(w, n // 2, P) == P - 1
    assert g * g % P == w

    def values(coefficients, first):
        points = [first * pow(w, j, P) % P for j in range(n)]
        return [sum(c * pow(t, i, P) for i, c in enumerate(coefficients.tolist())) % P for t in points]

    assert values(transform.coefficients(x), 1) == x.tolist()
    assert values(transform.coset_coefficients(x), g) == x.tolist()
    assert transform.coset_values(x).tolist() == values(x, g)


def test_the_longest_transform_stays_below_a_word():
    """2^15 values at their maximum, for d = 2^30: lazy sums do not overflow, as the inverse gives them back."""
    transform = field.transform(1 << 15)
    x = np.full(transform.n, P - 1, dtype=np.uint64)
    x[1::3] = some(x[1::3].size)
    assert np.array_equal(transform.coset_coefficients(transform.coset_values(x)), x)


def test_compiled_loops_are_not_given_fewer_words_than_they_read():
    """Fewer packed words than their elements take, and a tile that leaves the sum or the wires."""
    out = np.empty(17, dtype=np.uint64)
    with pytest.raises(ParameterError, match="packed: expected 21 words of 17 elements, found 20"):
        field.unpack_into(np.zeros(20, dtype=np.uint64), out)
    wires = CpuWires(1, 2, np.zeros((2, 16), dtype=np.uint64))
    for start, n_sum, n in ((0, 16, 17), (0, 17, 16), (16, 17, 17), (33, 1, 1)):
        wires.open_tile(start, np.zeros(n_sum, dtype=np.uint64))
        with pytest.raises(ParameterError, match="share: expected"):
            wires.add(0, np.zeros((1, n), dtype=np.uint64))
