"""Encoding and exact norms against rationals and Python's integers."""

import math
import warnings
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from precad.mpc.errors import EncodingError, NotFiniteError, OverflowsRingError, ParameterError
from precad.mpc.fixed_point import decode, encode, encode_within, exact_squared_norm
from precad.mpc.parameters import MAX_FRAC_BITS
from tests.mpc.ring_strategies import generator, ring_vectors, ring_words

FRAC_BITS = st.integers(0, MAX_FRAC_BITS)


def squared_norm(x):
    return sum(v * v for v in x.tolist())


@given(x=st.floats(allow_nan=False, allow_infinity=False), frac_bits=FRAC_BITS)
def test_encode_rounds_the_exact_rational_toward_zero(x, frac_bits):
    """encode(x) is x * 2^f as a rational, without its fraction; so |X| <= 2^f |x| exactly."""
    assume(abs(Fraction(x)) * 2**frac_bits < 2**63)
    assert encode(np.array([x]), frac_bits).tolist() == [math.trunc(Fraction(x) * 2**frac_bits)]


@given(x=ring_words, frac_bits=FRAC_BITS)
def test_decode_is_the_float_nearest_to_the_rational(x, frac_bits):
    """decode(X) is X / 2^f correctly rounded, of the centred representative."""
    assert decode(np.array([x]), frac_bits).tolist() == [float(Fraction(x, 2**frac_bits))]


@given(x=st.integers(-(2**53), 2**53), frac_bits=FRAC_BITS)
def test_encode_undoes_decode_below_2_to_the_53(x, frac_bits):
    """Every encoded value that float64 can hold survives decoding and encoding."""
    assert encode(decode(np.array([x]), frac_bits), frac_bits).tolist() == [x]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_encode_refuses_what_is_not_finite_without_a_value(bad):
    """A NaN or an infinity anywhere is NotFiniteError, and the message quotes no coordinate."""
    with pytest.raises(NotFiniteError) as caught:
        encode(np.array([7777.125, bad, -7777.125]))
    assert not any(character.isdigit() for character in str(caught.value))


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("frac_bits", [0, 16, 40])
def test_encode_refuses_the_first_float_that_leaves_the_ring(sign, frac_bits):
    """2^(63-f) is refused and the float before it is encoded exactly."""
    first = sign * math.ldexp(1.0, 63 - frac_bits)
    last = math.nextafter(first, 0)
    assert encode(np.array([last]), frac_bits).tolist() == [int(Fraction(last) * 2**frac_bits)]
    with pytest.raises(OverflowsRingError):
        encode(np.array([0.0, first]), frac_bits)


def test_encode_overflow_names_the_limit_and_no_value():
    """The message of OverflowsRingError holds the public limit and nothing of the vector."""
    with pytest.raises(OverflowsRingError) as caught:
        encode(np.array([7777.125, 1e30]))
    assert str(caught.value) == "cannot encode: a coordinate is not below 2^47 in magnitude"
    assert issubclass(OverflowsRingError, EncodingError)
    assert issubclass(NotFiniteError, EncodingError)


@pytest.mark.parametrize("frac_bits", [0, 16, 40])
@pytest.mark.parametrize("value", [1e290, 1e305, -1e305, 1.7976931348623157e308])
def test_encode_of_a_float_whose_scaling_overflows_warns_of_nothing(value, frac_bits):
    """OverflowsRingError and no RuntimeWarning, though value * 2^f may be no float64 any more."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(OverflowsRingError, match=rf"not below 2\^{63 - frac_bits} in magnitude"):
            encode(np.array([value, 1.0]), frac_bits)
        with pytest.raises(OverflowsRingError):
            encode_within(np.array([1.0, value]), squared_norm_threshold=2**32, frac_bits=frac_bits)


@pytest.mark.parametrize("frac_bits", [-1, MAX_FRAC_BITS + 1])
def test_fractional_bits_outside_the_range_are_refused(frac_bits):
    """encode and decode take f in 0..40."""
    with pytest.raises(ParameterError, match=f"frac_bits: expected 0 to 40, found {frac_bits}"):
        encode(np.zeros(1), frac_bits)
    with pytest.raises(ParameterError, match=f"found {frac_bits}"):
        decode(np.zeros(1, dtype=np.int64), frac_bits)


@given(ring_vectors(min_dim=0, max_dim=12))
def test_exact_squared_norm_is_the_integers_sum_of_squares(x):
    """No reduction modulo 2^64, whatever the words; compared with Python's integers."""
    assert exact_squared_norm(x) == squared_norm(x)


@pytest.mark.parametrize("word", [-(2**63), 2**63 - 1, -1, 2**32 - 1, -(2**32) + 1])
@pytest.mark.parametrize("dim", [(1 << 14) - 1, 1 << 14, (1 << 14) + 1, 50_000])
def test_exact_squared_norm_of_a_constant_vector_is_d_times_its_square(word, dim):
    """The extreme partial sums of every tile stay exact: ||w 1||^2 = d w^2."""
    assert exact_squared_norm(np.full(dim, word)) == dim * word**2


@given(
    x=st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=6).map(np.array),
    excess=st.sampled_from([1.0, 1 + 2**-52, 1 + 2**-45, 1 + 2**-40]),
    frac_bits=st.sampled_from([4, 16]),
)
def test_encode_within_meets_the_threshold_at_the_bound(x, excess, frac_bits):
    """A vector whose norm is the bound, or exceeds it by a rounding error, gets an encoding with sum X_i^2 <= T."""
    encoded_norm = math.sqrt(math.fsum(v * v for v in x)) * 2**frac_bits
    assume(encoded_norm > 1)
    threshold = math.floor(Fraction(encoded_norm) ** 2)
    encoded = encode_within(x * excess, squared_norm_threshold=threshold, frac_bits=frac_bits)
    assert squared_norm(encoded) <= threshold
    assert all(abs(int(a) - math.trunc(v * 2**frac_bits)) <= 1 for a, v in zip(encoded, x, strict=True))


def test_encode_within_leaves_a_vector_on_the_sphere_alone():
    """A grid point with sum X_i^2 = T is returned as it is; with threshold T - 1 it is shortened."""
    grid_point = np.array([3 * 2**16, -4 * 2**16, 12 * 2**16])
    x, on_the_sphere = decode(grid_point), squared_norm(grid_point)
    assert_array_equal(encode_within(x, squared_norm_threshold=on_the_sphere, frac_bits=16), grid_point)
    shortened = encode_within(x, squared_norm_threshold=on_the_sphere - 1, frac_bits=16)
    assert_array_equal(shortened, [3 * 2**16 - 1, -(4 * 2**16 - 1), 12 * 2**16 - 1])


def test_encode_within_refuses_a_vector_that_was_not_clipped():
    """An excess of one part in a million is no rounding error: ParameterError, without a value."""
    with pytest.raises(ParameterError, match=r"clip it before encoding$"):
        encode_within(np.array([100 + 1e-4, 0.0]), squared_norm_threshold=(100 * 2**16) ** 2, frac_bits=16)


@pytest.mark.parametrize(("dim", "draws"), [(1, 2000), (3, 2000), (1000, 500), (26_010, 20)])
@pytest.mark.parametrize("clip", [0.5, 1.0, 0.7, 1000.0])
def test_vectors_clipped_to_the_bound_never_exceed_the_threshold(dim, draws, clip):
    """Directions scaled to C in float64: N <= T = floor(C^2 2^32), and truncation costs at most sqrt(d) of the norm."""
    rng = generator(f"honest {dim} {clip}")
    threshold = math.floor(Fraction(clip) ** 2 * 2**32)
    for _ in range(draws):
        x = rng.standard_normal(dim)
        x *= clip / np.linalg.norm(x)
        norm = squared_norm(encode_within(x, squared_norm_threshold=threshold, frac_bits=16))
        assert norm <= threshold
        assert math.sqrt(norm) > clip * 2**16 * (1 - 1e-9) - math.sqrt(dim) - 1
