"""The sampler's law, its multiprecision path and its determinism.

Chi-square tests run on fixed byte streams, so they either always pass or always fail. The false-alarm rate of 1e-6 each
is the share of streams on which an exact sampler would fail. The law of the rounded Gaussian is computed from Phi((k +
1/2)/std) - Phi((k - 1/2)/std), with cells merged to 20 expected draws or more.
"""

import hashlib
import math
import os
import random
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from scipy.special import ndtr, ndtri
from scipy.stats import chi2

from precad.dp.noise import rounded_gaussian
from precad.dp.noise.rounded_gaussian import sample
from tests.dp.discrete_gaussian import sample_discrete_gaussian
from tests.harness.examples import IS_THOROUGH

FALSE_ALARM_RATE = 1e-6
MP = mpmath.MPContext()
MP.dps = 60


def stream(seed: bytes):
    """random_bytes of a test: successive blocks of SHAKE-128 keyed by `seed`."""
    calls = 0

    def random_bytes(n: int) -> bytes:
        nonlocal calls
        calls += 1
        return hashlib.shake_128(seed + calls.to_bytes(8, "little")).digest(n)

    return random_bytes


def script(*words: int):
    """random_bytes that hands out these 64-bit words one after another, however many are asked for at a time."""
    content = b"".join(word.to_bytes(8, "little") for word in words)
    position = 0

    def random_bytes(n: int) -> bytes:
        nonlocal position
        position += n
        assert position <= len(content), "the sampler drew more bits than the script holds"
        return content[position - n : position]

    random_bytes.is_used_up = lambda: position == len(content)
    return random_bytes


def rounded_tail(tail: int, bits: int, std: float) -> int:
    """floor(std * -ndtri((tail + 1/2) 2^-bits) + 1/2) at 60 digits: a second way, through the inverse of erf."""
    u = (MP.mpf(tail) + 0.5) * MP.mpf(2) ** -bits
    return int(MP.floor(std * MP.sqrt(2) * MP.erfinv(1 - 2 * u) + 0.5))


def tail_of_boundary(boundary: float, std: float, bits: int) -> int:
    """The integer whose interval of U holds Q(boundary / std): the word that 64 bits cannot decide."""
    return int(MP.floor(MP.erfc(MP.mpf(boundary) / (std * MP.sqrt(2))) / 2 * MP.mpf(2) ** bits))


def chi_square_p_value(draws, std: float) -> float:
    """Pearson's test of `draws` against the rounded Gaussian, with equiprobable cells of whole integers."""
    n_cells = min(200, len(draws) // 20)
    edges = np.unique(np.floor(std * ndtri(np.arange(1, n_cells) / n_cells))) + 0.5  # between integers
    while True:
        probabilities = np.diff(np.concatenate([[0.0], ndtr(edges / std), [1.0]]))
        too_small = np.flatnonzero(probabilities * len(draws) < 20)
        if not too_small.size:
            break
        edges = np.delete(edges, min(too_small[0], len(edges) - 1))
    observed = np.bincount(np.searchsorted(edges, draws), minlength=len(probabilities))
    expected = probabilities * len(draws)
    return chi2.sf(np.sum((observed - expected) ** 2 / expected), len(expected) - 1)


@pytest.mark.parametrize("std", [0.3, 1.0, 40.0, 2.0**17, 2.0**30])
def test_draws_have_the_law_of_the_rounded_gaussian(std):
    """Chi-square, 10^6 draws (10^5 at 2^30, where one in 2^12 goes to multiprecision)."""
    draws = sample(std, 10**6 if std < 2**30 else 10**5, stream(b"law"))
    assert chi_square_p_value(draws, std) > FALSE_ALARM_RATE


@pytest.mark.parametrize("std", [0.3, 1.0, 40.0, 2.0**17])
@pytest.mark.parametrize("factor", [0.99, 1.01])
def test_chi_square_detects_a_standard_deviation_off_by_one_percent(std, factor):
    """The tests of the law have the power to matter: the same draws fail for 1 % more or less noise."""
    draws = sample(std, 10**6, stream(b"power"))
    assert chi_square_p_value(draws, std * factor) < FALSE_ALARM_RATE


def test_draws_agree_with_an_exact_discrete_gaussian():
    """Two-sample chi-square at std = 40, where the laws differ by 2.6e-5; 20 000 draws against 200 000."""
    rng = random.Random(2020)
    discrete = np.array([sample_discrete_gaussian(Fraction(1600), rng) for _ in range(20_000)])
    rounded = sample(40.0, 200_000, stream(b"two samples"))
    edges = np.arange(-100, 101, 4) + 0.5
    counts = np.array([np.bincount(np.searchsorted(edges, x), minlength=len(edges) + 1) for x in (discrete, rounded)])
    expected = counts.sum(axis=0) * counts.sum(axis=1, keepdims=True) / counts.sum()
    statistic = np.sum((counts - expected) ** 2 / expected)
    assert chi2.sf(statistic, len(edges)) > FALSE_ALARM_RATE


def test_successive_coordinates_are_uncorrelated():
    """Lag-1 correlation of 10^6 draws is normal with std 1e-3; 5 std is a false-alarm rate of 6e-7."""
    draws = sample(2.0**17, 10**6, stream(b"lag")).astype(float)
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 5e-3


def test_ndtri_is_well_within_the_error_assumed_of_it():
    """|ndtri - exact| <= 2^-46 for |Z| <= 5.2: on a grid, at random, near 1/2 and at Cephes' change of formula.

    One Newton step from ndtri's value, at 60 digits, gives its error to second order, that is to 2^-90.
    """
    rng = np.random.default_rng(1)
    u = np.concatenate(
        [
            np.linspace(1e-7, 0.5, 2001),
            ndtr(-np.linspace(0, 5.2, 1001)),
            0.5 * rng.random(2000),
            math.exp(-2) + np.linspace(-1e-9, 1e-9, 401),
            0.5 - 10.0 ** -np.linspace(1, 16, 301),
        ]
    )

    def error(tail: float) -> mpmath.mpf:
        z = MP.mpf(float(-ndtri(tail)))
        return (MP.erfc(z / MP.sqrt(2)) / 2 - MP.mpf(tail)) * MP.sqrt(2 * MP.pi) * MP.exp(z * z / 2)

    assert max(abs(error(float(tail))) for tail in u) < 2.0**-46


@pytest.mark.parametrize("std", [0.3, 40.0, 2.0**17, 2.0**26, 2.0**40])
def test_every_draw_equals_the_multiprecision_rounding(std):
    """400 words (1500), rounded at 60 digits from the middle of their interval, in both signs.

    At std = 2^40 the interval of U can hold a boundary: those words draw on, and are only off by one at most.
    """
    n = 1500 if IS_THOROUGH else 400
    first = stream(b"words")(8 * n)
    more = stream(b"more")
    blocks = iter([first])
    draws = sample(std, n, lambda k: next(blocks, None) or more(k))
    words = np.frombuffer(first, dtype="<i8")
    expected = np.array(
        [(-1 if w < 0 else 1) * rounded_tail(int(w) & (2**63 - 1), 64, std) for w in words], dtype=np.int64
    )
    if std <= 2**26:
        assert_array_equal(draws, expected)
    else:
        assert np.max(np.abs(draws - expected)) <= 1
        assert np.mean(draws != expected) < 1e-3


@pytest.mark.parametrize(
    ("std", "k"), [(0.3, 0), (1.0, 2), (40.0, 0), (40.0, 57), (2.0**17, 400_000), (2.0**40, 2**41)]
)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_word_on_a_rounding_boundary_is_decided_by_further_bits(std, k, sign):
    """U starts with the 64 bits of Q((k + 1/2)/std): the next 64 bits say k + 1, k, or (equal again) ask for more."""
    at_64 = tail_of_boundary(k + 0.5, std, 64)
    at_128 = tail_of_boundary(k + 0.5, std, 128)
    at_192 = tail_of_boundary(k + 0.5, std, 192)
    word = at_64 | (1 << 63 if sign < 0 else 0)
    second, third = at_128 % 2**64, at_192 % 2**64
    assert 0 < second < 2**64 - 1
    assert 0 < third < 2**64 - 1

    for further, expected in [
        ((second - 1,), k + 1),  # a smaller tail is a larger |Z|
        ((second + 1,), k),
        ((second, third - 1), k + 1),
        ((second, third + 1), k),
    ]:
        source = script(word, *further)
        assert sample(std, 1, source)[0] == sign * expected
        assert source.is_used_up()


@pytest.mark.parametrize(("std", "k"), [(0.3, 0), (1.0, 0), (1.0, 2), (40.0, 10), (40.0, 57), (2.0**17, 400_000)])
def test_words_next_to_a_rounding_boundary_fall_on_their_own_side(std, k):
    """Up to 600 steps of 2^-64 from the boundary, where float64 cannot tell: it holds U to 2^-54 only."""
    boundary = tail_of_boundary(k + 0.5, std, 64)
    for distance in [*range(-600, 0, 7), *range(1, 600, 7)]:
        assert sample(std, 1, script(boundary + distance))[0] == (k + 1 if distance < 0 else k)


@pytest.mark.parametrize("std", [0.3, 1.0, 40.0, 2.0**17])
@pytest.mark.parametrize("tail", [10**12, 123_456_789, 1000, 1])
def test_far_tail_equals_the_multiprecision_rounding(std, tail):
    """|Z| from 5.3 to 9: decided from the 64 bits, and from further ones where these leave two integers open."""
    further = 0x0123_4567_89AB_CDEF
    expected = rounded_tail(tail << 64 | further, 128, std)
    assert sample(std, 1, script(tail, further))[0] == expected
    assert sample(std, 1, script(tail | 1 << 63, further))[0] == -expected


def test_a_tail_of_64_zero_bits_goes_on_into_the_next_bits():
    """U < 2^-64 has no largest |Z|: only bits that are not zero end the draw."""
    source = script(0, 0, 5 << 32, 77)
    assert sample(40.0, 1, source)[0] == rounded_tail(5 << 32, 192, 40.0)


def test_smallest_and_largest_word():
    """U next to 1/2 is |Z| next to zero, on either side."""
    assert sample(40.0, 1, script(2**63 - 1))[0] == 0
    assert sample(40.0, 1, script(2**64 - 1))[0] == 0


@given(size=st.integers(0, 70_000), seed=st.binary(max_size=8))
def test_draws_are_a_function_of_the_bytes(size, seed):
    """Same bytes, same noise, across chunks too; flipping every sign bit flips every sign."""
    content = hashlib.shake_128(seed).digest(8 * size)
    flipped = (np.frombuffer(content, dtype="<u8") ^ np.uint64(1 << 63)).tobytes()

    def read(data: bytes):
        position = 0

        def random_bytes(n: int) -> bytes:
            nonlocal position
            position += n
            return data[position - n : position] if position <= len(data) else bytes([7]) * n

        return random_bytes

    draws = sample(1000.0, size, read(content))
    assert draws.shape == (size,)
    assert draws.dtype == np.int64
    assert_array_equal(draws, sample(1000.0, size, read(content)))
    assert_array_equal(draws, -sample(1000.0, size, read(flipped)))


@pytest.mark.parametrize("std", [0.0, -1.0, math.nan, math.inf, 2.0**41, 2.0**-21, True])
def test_standard_deviation_out_of_range_is_refused(std):
    with pytest.raises(ValueError, match=r"std: expected 2\^-20 to 2\^40 grid units, found"):
        sample(std, 1, os.urandom)


@pytest.mark.parametrize("size", [-1, 1.0, True])
def test_size_must_be_a_count(size):
    with pytest.raises(ValueError, match="size: expected an integer of at least 0"):
        sample(1.0, size, os.urandom)


def test_a_short_answer_of_the_generator_is_refused():
    """A generator that runs dry must not shorten the noise."""
    with pytest.raises(ValueError, match="random_bytes: expected the 80 bytes asked for, found 79"):
        sample(1.0, 10, lambda n: bytes(n - 1))


@pytest.mark.parametrize("std", [2.0**-20, 1e-3])
def test_tiny_noise_rounds_to_zero_and_stays_decidable(std):
    """At the lower end of the range every boundary is beyond any tail the script can name; the far path says so."""
    assert_array_equal(sample(std, 1000, stream(b"tiny")), np.zeros(1000))
    assert sample(std, 1, script(1))[0] == 0


def test_margin_covers_the_terms_of_its_derivation():
    """The sum in the module docstring, recomputed at 60 digits, is below the margin for every std."""
    z = MP.mpf("5.2")
    phi = MP.exp(-z * z / 2) / MP.sqrt(2 * MP.pi)
    unit = MP.mpf(2) ** -53
    per_std = MP.mpf(2) ** -65 / phi + 2 * unit * MP.sqrt(MP.pi / 2) + MP.mpf(2) ** -46 + 2 * z * unit
    for std in (2.0**-20, 1.0, 2.0**17, 2.0**40):
        assert per_std * std + unit / 2 < rounded_gaussian._margin(std)
