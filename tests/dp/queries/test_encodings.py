"""Vectors of records: their norms, exact sums, and cells that hold no number."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from precad.dp.queries.encodings import ROW_BITS, Encoding
from precad.dp.queries.kinds import Kind

HOSTILE = (math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324, -0.0)


def encoding(kind: Kind, *, low: float = -3.0, high: float = 7.0, frac_bits: int = 12, bins: int = 5) -> Encoding:
    """A query of a column in [low, high]."""
    return Encoding(kind=kind, low=low, high=high, frac_bits=frac_bits, bins=bins if kind.has_bins else 1)


@given(
    st.sampled_from(Kind),
    st.lists(st.floats() | st.sampled_from(HOSTILE), min_size=1, max_size=20),
    st.integers(0, 45),
)
def test_a_record_has_norm_at_most_one_exactly(kind: Kind, cells: list[float], frac_bits: int) -> None:
    """In rational arithmetic, on the grid of records, whatever the cell holds and however coarse the sum's is."""
    own = encoding(kind, frac_bits=frac_bits)
    rows = own.rows(np.asarray(cells))
    assert own.weights.min() > 0.5
    for cell, row in zip(cells, rows, strict=True):
        exact = [Fraction(float(entry)) for entry in row]
        assert sum(entry * entry for entry in exact) <= 1
        assert all((entry * 2 ** max(frac_bits, ROW_BITS)).denominator == 1 for entry in exact)
        assert math.isfinite(cell) or not any(exact)


@pytest.mark.parametrize("kind", Kind)
def test_a_sum_is_the_float_nearest_to_that_of_its_rows(kind: Kind) -> None:
    """More records than one pass takes, against rational arithmetic."""
    values = np.random.default_rng(1).normal(2, 4, 9_000)
    own = encoding(kind, frac_bits=20)
    exact = [sum(map(Fraction, column)) for column in own.rows(values).T.tolist()]

    assert own.total(values).tolist() == list(map(float, exact))


@pytest.mark.parametrize("kind", [Kind.MEAN, Kind.VARIANCE])
def test_records_of_one_value_are_not_all_off_alike(kind: Kind) -> None:
    """A coarse grid of the sum moves none of 50,000 equal records, against rational arithmetic."""
    own, n = encoding(kind, low=0.0, high=3.0, frac_bits=5), 50_000
    y = Fraction(-1, 3)
    exact = [
        Fraction(float(w)) * n * part for w, part in zip(own.weights, (1, y, y * y - Fraction(1, 2)), strict=False)
    ]

    assert own.total(np.full(n, 1.0)) == pytest.approx([float(entry) for entry in exact], abs=n * 2.0**-ROW_BITS)


def test_what_each_kind_counts() -> None:
    """Counts leave out what is outside; the other kinds clip it."""
    values = np.asarray([-9.0, -3.0, 0.0, 7.0, 9.0, math.nan])

    assert encoding(Kind.COUNT).total(values).tolist() == [3.0]
    assert encoding(Kind.HISTOGRAM).total(values).tolist() == [2.0, 1.0, 0.0, 0.0, 2.0]
    own = encoding(Kind.MEAN)
    n, y = own.total(values) / own.weights
    assert n == 5
    assert own.middle + own.half_width * y / n == pytest.approx((-3 - 3 + 0 + 7 + 7) / 5, abs=1e-3)


@pytest.mark.parametrize(
    ("low", "high", "bins"), [(1.0, 1.0, 1), (2.0, 1.0, 1), (math.nan, 1.0, 1), (-1e308, 1e308, 1), (0.0, 1.0, 0)]
)
def test_bounds_out_of_order_are_refused(low: float, high: float, bins: int) -> None:
    """Field, expected and found."""
    with pytest.raises(ValueError, match=r"low, high: expected|bins: expected"):
        Encoding(kind=Kind.HISTOGRAM, low=low, high=high, frac_bits=8, bins=bins)


@pytest.mark.parametrize("low", [0.0, -5e-324, 1e-310])
@pytest.mark.parametrize("kind", Kind)
def test_a_range_whose_half_is_zero_is_refused(kind: Kind, low: float) -> None:
    """A record at its lower end would be 0/0, a number of -2^63 steps, where its epsilon is of a norm of 1."""
    least = math.nextafter(low, math.inf)
    with pytest.raises(ValueError, match="low, high: expected more than 5e-324 apart"):
        encoding(kind, low=low, high=least)
    wider = encoding(kind, low=low, high=math.nextafter(least, math.inf), bins=2)
    rows = wider.rows(np.array([low, least, 1.0, -1.0, 0.0]))
    assert np.isfinite(rows).all()
    assert np.linalg.norm(rows, axis=1).max() <= 1


def test_no_other_weights_of_a_variance_have_a_smaller_largest_error() -> None:
    """Against 20,000 other weights within the ball, at the largest error over columns of y."""
    draw = np.random.default_rng(5)
    columns = [(m, s) for m in np.linspace(-1, 1, 21) for s in np.linspace(m * m, 1, 11)]  # mean and mean square
    slopes = np.asarray([[2 * m * m - (s - 0.5), -2 * m, 1.0] for m, s in columns])

    def largest(weights: np.ndarray) -> np.ndarray:
        return np.sqrt(np.square(slopes[None] / weights[:, None]).sum(axis=2)).max(axis=1)

    parts = draw.dirichlet([1.0, 1.0, 1.0], 20_000)
    others = np.sqrt(parts * [1.0, 1.0, 4.0])  # a^2 + b^2 + c^2 / 4 = 1, the largest norm of a record
    ours = largest(encoding(Kind.VARIANCE, frac_bits=40).weights[None])[0]

    assert ours == pytest.approx(4, rel=1e-9)
    assert largest(others).min() >= ours * (1 - 1e-9)
