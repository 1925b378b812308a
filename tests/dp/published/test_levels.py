"""Other trainings' units, against their definitions."""

import math

import pytest

from precad.dp.accountants.levels import may_start
from precad.dp.accountants.pld import PldAccountant, SampledGaussian
from precad.dp.published.levels import central_noise_std, instance_level_epsilon, joint_clip


def test_the_noise_on_an_average_is_that_on_the_sum_over_its_divisor():
    """z S on the sum, divided by the constant q N; the published z S/q would be N times that."""
    assert central_noise_std(1.1, 2.0, 0.1, 200) == pytest.approx(1.1 * 2.0 / 20)
    with pytest.raises(ValueError, match="q: expected a number above 0"):
        central_noise_std(1.0, 1.0, 0.0, 5)


def test_blocks_add_in_squares():
    """Eight blocks at S/sqrt(8) keep S; at S each they make S sqrt(8)."""
    assert joint_clip([2 / math.sqrt(8)] * 8) == pytest.approx(2)
    assert joint_clip([2.0] * 8) == pytest.approx(2 * math.sqrt(8))
    with pytest.raises(ValueError, match="block_clips: expected a finite number above 0"):
        joint_clip([1.0, 0.0])


def test_records_of_all_users_have_the_largest_epsilon():
    event, pld = SampledGaussian(0.05, 2.0), PldAccountant()
    steps = {"a": (event, 100), "b": (event, 400), "c": (SampledGaussian(0.01, 2.0), 400)}
    assert instance_level_epsilon(steps, 1e-5, pld) == pld.epsilon(event, 400, 1e-5)
    with pytest.raises(ValueError, match="at least one user"):
        instance_level_epsilon({}, 1e-5, pld)


def test_the_budget_is_tested_on_the_coming_round():
    event, pld = SampledGaussian(0.1, 1.0), PldAccountant()
    budget = pld.epsilon(event, 10, 1e-5)
    assert may_start(event, 9, 1e-5, budget, pld)
    assert not may_start(event, 10, 1e-5, budget, pld)
