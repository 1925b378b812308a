"""Parameters of the norm check: refusals, the threshold in rationals, and the completeness table."""

import math
from fractions import Fraction

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from precad.mpc.errors import ParameterError
from precad.mpc.norm_bound import WINDOW, NormBound

LARGEST_DIM = max(d for d in range(2**34, 2**34 + 64) if d * (2**30 - 1) + 2**29 < 2**64)


@pytest.mark.parametrize("clip_norm", [0.0, -0.0, -1.0, math.nan, math.inf, -math.inf])
def test_clip_norm_must_be_positive_and_finite(clip_norm):
    """NaN and infinities are refused along with what is not positive."""
    with pytest.raises(ParameterError, match="clip_norm: expected a finite number above 0, found"):
        NormBound(clip_norm, 3)


@pytest.mark.parametrize(
    ("clip_norm", "frac_bits", "is_allowed"),
    [
        (94_000_000.0, 0, True),
        (94_000_000.5, 0, False),
        (94_000_001.0, 0, False),
        (94_000_000 / 65_536, 16, True),
        (math.nextafter(94_000_000 / 65_536, math.inf), 16, False),
        (2000.0, 16, False),
        (1e290, 40, False),
        (1.7e308, 40, False),
        (1.7976931348623157e308, 40, False),
        (2.0**-16, 16, True),
        (math.nextafter(2.0**-16, 0), 16, False),
        (5e-324, 40, False),
    ],
)
def test_encoded_clip_must_lie_between_one_and_the_completeness_limit(clip_norm, frac_bits, is_allowed):
    """1 <= C * 2^f <= 9.4e7, compared exactly: the next float beyond either end is refused."""
    if is_allowed:
        assert NormBound(clip_norm, 3, frac_bits).encoded_clip == Fraction(clip_norm) * 2**frac_bits
    else:
        side = "least 1" if clip_norm < 1 else "most 94000000"
        with pytest.raises(ParameterError) as caught:
            NormBound(clip_norm, 3, frac_bits)
        assert str(caught.value).startswith(
            f"clip_norm * 2^frac_bits: expected at {side}, found {clip_norm} * 2^{frac_bits}: "
        )


@pytest.mark.parametrize("dim", [0, -1, LARGEST_DIM + 1, 2**64])
def test_dimensions_outside_the_theorem_are_refused(dim):
    """1 <= d and d(2b - 1) + b < 2^64."""
    with pytest.raises(ParameterError, match=f"dim: expected at (least 1|most {LARGEST_DIM}.*), found {dim}$"):
        NormBound(1.0, dim)


def test_the_largest_dimension_of_the_theorem_is_allowed():
    """d(2b - 1) + b < 2^64 holds at the limit and fails one above."""
    assert NormBound(1.0, LARGEST_DIM).dim == LARGEST_DIM
    assert LARGEST_DIM * (2 * WINDOW - 1) + WINDOW < 2**64 <= (LARGEST_DIM + 1) * (2 * WINDOW - 1) + WINDOW


@pytest.mark.parametrize("n_rows", [0, -1, 65])
def test_row_counts_outside_one_word_are_refused(n_rows):
    """One PRG word per coordinate holds 1 to 64 rows."""
    with pytest.raises(ParameterError, match=rf"n_rows: expected 1 to 64, found {n_rows}"):
        NormBound(1.0, 3, n_rows=n_rows)


@pytest.mark.parametrize("frac_bits", [-1, 41])
def test_fractional_bits_outside_the_range_are_refused(frac_bits):
    """The bound shares the encoding's range of f."""
    with pytest.raises(ParameterError, match=r"frac_bits: expected 0 to 40"):
        NormBound(1.0, 3, frac_bits)


@given(encoded=st.floats(1, 94e6), frac_bits=st.integers(0, 40))
def test_threshold_is_the_floor_of_the_exact_square(encoded, frac_bits):
    """T <= (C 2^f)^2 < T + 1, by the float's own numerator and denominator."""
    clip_norm = math.ldexp(encoded, -frac_bits)
    numerator, denominator = clip_norm.as_integer_ratio()
    threshold = NormBound(clip_norm, 3, frac_bits).threshold
    assert threshold == (numerator << frac_bits) ** 2 // denominator**2


@given(encoded=st.floats(1, 94e6))
def test_the_largest_accepted_coordinate_is_the_floor_of_the_encoded_clip(encoded):
    """B^2 <= T < (B + 1)^2 with B = floor(C 2^f): a one-hot B passes, B + 1 does not."""
    largest = math.floor(encoded)
    assert largest**2 <= NormBound(encoded, 3, 0).threshold < (largest + 1) ** 2


@given(encoded=st.floats(1, 94e6))
def test_low_bits_are_those_below_the_bits_that_must_vanish(encoded):
    """30 for each row, and for the norm as many as T has."""
    bound = NormBound(encoded, 3, 0)
    first = next(bit for bit in range(65) if bound.threshold < 2**bit)
    assert bound.low_bits == (30,) * 64 + (first,)
    assert NormBound(encoded, 3, 0, n_rows=8).low_bits == (30,) * 8 + (first,)
    assert 1 <= first <= 53


@pytest.mark.parametrize(("clip_norm", "low", "high"), [(1000.0, -90, -89), (1434.0, -41, -40), (100.0, -9700, -9000)])
def test_honest_failure_bound_is_the_table_of_the_specification(clip_norm, low, high):
    """f = 16, 64 rows: 2^-89 at C = 1000, 2^-40 at C = 1434, below 2^-9000 at C = 100."""
    assert low < NormBound(clip_norm, 26_010).log2_honest_failure < high


@pytest.mark.parametrize("n_rows", [1, 8, 40, 64])
@pytest.mark.parametrize("clip_norm", [0.7, 1.0, 1000.0, 1434.0])
def test_honest_failure_bound_is_the_logarithm_of_the_formula(clip_norm, n_rows):
    """log2(2k exp(-(b/B)^2)) evaluated as it stands, in multiprecision."""
    failure = 2 * n_rows * mpmath.exp(-((mpmath.mpf(2) ** 29 / (mpmath.mpf(clip_norm) * 65_536)) ** 2))
    assert NormBound(clip_norm, 3, n_rows=n_rows).log2_honest_failure == pytest.approx(float(mpmath.log(failure, 2)))


@pytest.mark.parametrize("n_rows", [1, 8, 40, 63, 64])
def test_soundness_error_is_the_rows_and_a_collision_of_the_hash(n_rows):
    """log2(2^-k + (k + 2) / 2^127), in multiprecision.

    k + 1 words are a polynomial with at most k + 1 zeros, and zero is drawn twice as often as another point.
    """
    error = mpmath.mpf(2) ** -n_rows + (n_rows + 2) * mpmath.mpf(2) ** -127
    assert NormBound(1.0, 3, n_rows=n_rows).log2_soundness_error == pytest.approx(float(mpmath.log(error, 2)))


def test_soundness_error_of_all_rows_is_2_to_the_minus_64():
    """The hash adds 2^-57 of it, which float64 does not hold."""
    assert NormBound(1.0, 3).log2_soundness_error == -64


def test_every_allowed_bound_keeps_honest_failure_below_2_to_the_minus_40():
    """The limit on C * 2^f is where the bound of 64 rows reaches 2^-40, to within half a bit."""
    assert -40.5 < NormBound(94_000_000.0, 3, 0).log2_honest_failure < -40


def test_the_sign_of_a_wrapped_slack_is_visible_in_the_top_bits():
    """For T < N < 44.9 b^2 the top bits of T - N modulo 2^64 are not all zero, at both ends of the range."""
    bound = NormBound(94_000_000.0, 3, 0)
    largest_unwrapped = math.floor(Fraction(67, 10) ** 2 * WINDOW**2)
    for norm in (bound.threshold + 1, bound.threshold + 2**52, 2**63, largest_unwrapped):
        assert (bound.threshold - norm) % 2**64 >> bound.low_bits[-1]
    for norm in (0, 1, bound.threshold - 1, bound.threshold):
        assert not (bound.threshold - norm) % 2**64 >> bound.low_bits[-1]


def test_words_per_client_are_the_rows_and_the_norm():
    """65 words by default."""
    assert NormBound(1.0, 3).words_per_client == 65
    assert NormBound(1.0, 3, n_rows=8).words_per_client == 9
