"""Estimates and their error bars as people read them: what is printed covers what was computed.

Failure means that a bar is printed shorter than it is, so that it covers the truth less often than its level says.
"""

from __future__ import annotations

import math
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precad.deploy.shown.error_bars import estimate_and_bar, percent

FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(FINITE, min_size=3, max_size=3).map(sorted))
def test_the_printed_bar_covers_the_bar_and_its_estimate(ends: list[float]) -> None:
    """In decimal arithmetic, and by at most a fiftieth of the bar more."""
    low, value, high = ends
    shown, bar = estimate_and_bar(value, low, high)
    first, middle, last = (Decimal(text) for text in (bar[1:-1].split(", ")[0], shown, bar[1:-1].split(", ")[1]))
    exact_low, exact_high = Decimal(repr(low)), Decimal(repr(high))

    assert first <= exact_low
    assert exact_high <= last
    assert first <= middle <= last
    if low < high:
        assert (last - first) - (exact_high - exact_low) <= (exact_high - exact_low) / 50


@pytest.mark.parametrize(
    ("value", "low", "high", "text"),
    [
        (50.1367, 49.9146, 50.3586, "50.137 [49.914, 50.359]"),
        (123472.0, 123456.0, 123488.0, "123472 [123456, 123488]"),
        (1234567.0, 1234562.4, 1234572.3, "1234567 [1234562.4, 1234572.3]"),
        (-0.0, -3.2, 3.1, "0 [-3.2, 3.1]"),
        (0.9, 0.85, 1.0, "0.9 [0.85, 1]"),
        (123456.789, 123456.789, 123456.789, "123456.789 [123456.789, 123456.789]"),
        (math.nan, -math.inf, 1.0, "nan [-inf, 1]"),
    ],
)
def test_a_bar_has_the_digits_that_its_length_is_worth(value: float, low: float, high: float, text: str) -> None:
    assert " ".join(estimate_and_bar(value, low, high)) == text


@pytest.mark.parametrize(("share", "text"), [(0.95, "95"), (0.995, "99.5"), (0.9999, "99.99"), (0.1, "10")])
def test_a_level_is_not_rounded_up(share: float, text: str) -> None:
    assert percent(share) == text
