"""Other trainings' units, and the planner, against their definitions."""

import math

import pytest

from dp.accounting import PldAccountant, SampledGaussian
from dp.certified_prediction import Threat, Training, is_certified
from dp.levels import central_noise_std, instance_level_epsilon, joint_clip, may_start
from dp.planner import Task, frontier, plan

TASK = Task(q=0.1, p=0.05, rounds=30, n_records=60_000, record_clip=2.0, client_clip=4.0, delta=1e-5)


def test_the_noise_on_an_average_is_that_on_the_sum_over_its_divisor():
    """z S on the sum, divided by the constant q N; the published z S/q would be N times that."""
    assert central_noise_std(1.1, 2.0, 0.1, 200) == pytest.approx(1.1 * 2.0 / 20)
    with pytest.raises(ValueError, match="q must be > 0"):
        central_noise_std(1.0, 1.0, 0.0, 5)


def test_blocks_add_in_squares():
    """Eight blocks at S/sqrt(8) keep S; at S each they make S sqrt(8)."""
    assert joint_clip([2 / math.sqrt(8)] * 8) == pytest.approx(2)
    assert joint_clip([2.0] * 8) == pytest.approx(2 * math.sqrt(8))
    with pytest.raises(ValueError, match="block_clips must be > 0"):
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


@pytest.mark.parametrize("threat", Threat)
def test_a_plan_reaches_its_wish_and_less_noise_does_not(threat):
    """Both parts of the wish hold at sigma; the one that decided fails a percent below."""
    found = plan(2, 3.0, 0.9, 0.1, TASK, threat)
    epsilon = PldAccountant().epsilon(SampledGaussian(TASK.p, found.sigma), 3, TASK.delta)
    assert epsilon <= 3.0

    def survives(sigma):
        multiplier = math.sqrt(2) * sigma * TASK.record_clip / TASK.client_clip
        return is_certified(0.9, 0.1, 2, Training(SampledGaussian(TASK.q, multiplier), TASK.rounds), threat)

    assert survives(found.sigma)
    assert found.decided_by == "attackers"
    assert not survives(0.99 * found.sigma)
    assert found.noise_to_signal == pytest.approx(math.sqrt(2) * found.sigma / 300)


def test_no_noise_makes_a_lead_of_nothing():
    """A tie survives nobody; more attackers need more noise."""
    assert plan(1, 3.0, 0.5, 0.5, TASK) is None
    sigmas = [found.sigma for found in frontier([0, 1, 4], 3.0, 0.9, 0.1, TASK).values()]
    assert sigmas == sorted(sigmas)
