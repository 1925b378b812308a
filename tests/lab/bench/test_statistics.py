"""Medians, quartiles, exponents."""

from __future__ import annotations

import pytest

from precad.lab.bench.statistics import Spread, log_log_slope, timed


def test_median_and_quartiles():
    """Summarise 1..5."""
    assert Spread.of([5.0, 1.0, 4.0, 2.0, 3.0]) == Spread(3.0, 2.0, 4.0, 5)


def test_one_measurement_is_its_own_quartiles():
    """And scales with the unit."""
    assert Spread.of([2.0]).scaled(1e3).fields("ms") == {"ms": 2e3, "ms_q1": 2e3, "ms_q3": 2e3, "repetitions": 1}


def test_the_warm_up_does_not_count():
    """Three runs, two measurements."""
    runs = []
    spread = timed(lambda: runs.append(None), 2)

    assert len(runs) == 3
    assert spread.repetitions == 2


def test_the_slope_is_the_exponent():
    """y = 7 x^1.5; undefined for a single x."""
    x = [10.0, 100.0, 1000.0]

    assert log_log_slope(x, [7 * v**1.5 for v in x]) == pytest.approx(1.5)
    assert log_log_slope([10.0, 10.0], [1.0, 2.0]) is None
