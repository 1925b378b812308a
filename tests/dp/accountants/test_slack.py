"""Slack in delta: figures with it against a root of closed forms, and against laws that were spoilt.

Failure means: an epsilon is printed at a delta at which it does not hold, or a round begins that breaks a budget.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import ndtr

from precad.dp.accountants.calibration import short_noise_multiplier
from precad.dp.accountants.pld import Label, PldAccountant, SampledGaussian, TwoStageSampledGaussian, Unit, View
from precad.dp.accountants.side_by_side import ACCOUNTANTS, side_by_side
from precad.dp.accountants.slack import WithSlack, left_of_delta, with_slack
from precad.dp.accountants.task_cost import Evaluations, TaskCost
from precad.dp.certificates.planner import least_sigma_for_epsilon
from precad.dp.errors import BudgetExceededError, LedgerCorruptedError
from precad.dp.ledgers.ledger import Ledger

PLD = PldAccountant()


def gaussian_delta(epsilon, mu: float):
    """Balle and Wang '18, Theorem 8, as printed; of one epsilon or of many."""
    return ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)


def least_epsilon(mu: float, slack: float, delta: float) -> float:
    """The smaller root of delta'(e) + (1 + exp e) slack = delta, from its minimum on the left; inf without one."""

    def excess(epsilon):
        return gaussian_delta(epsilon, mu) + (1 + np.exp(epsilon)) * slack - delta

    grid = np.linspace(0, math.log(delta / slack), 20_001)
    values = excess(grid)
    lowest = int(np.argmin(values))
    if values[0] <= 0:
        return 0.0
    return math.inf if values[lowest] > 0 else float(brentq(excess, 0, grid[lowest], xtol=1e-13))


@pytest.mark.parametrize("slack", [1e-14, 1e-9, 1e-7, 1e-6])
@pytest.mark.parametrize("mu", [0.05, 0.5, 1.0, 2.5])
def test_a_gaussian_has_the_root_of_the_closed_form(mu: float, slack: float) -> None:
    found = WithSlack(PLD, slack).epsilon(SampledGaussian(1.0, 1 / mu), 1, 1e-5)
    expected = least_epsilon(mu, slack, 1e-5)
    assert found == pytest.approx(expected, rel=1e-7, abs=1e-7)
    if math.isfinite(found):
        assert gaussian_delta(found, mu) + (1 + math.exp(found)) * slack <= 1e-5 * (1 + 1e-12)


def test_both_kinds_of_answers_are_among_the_cases() -> None:
    assert least_epsilon(0.5, 1e-9, 1e-5) < 4
    assert least_epsilon(2.5, 1e-6, 1e-5) == math.inf  # e^epsilon alone takes all of delta


@pytest.mark.parametrize(
    "event", [SampledGaussian(0.1, 1.1), TwoStageSampledGaussian(0.3, 0.1, 0.9)], ids=["one stage", "two stages"]
)
def test_sampled_rounds_meet_the_condition_and_nothing_much_smaller_does(event) -> None:
    """The accountant itself says, at what is left of delta, that the figure holds; and that 1e-6 less does not."""
    slack, delta, rounds = 3e-8, 1e-5, 40
    found = WithSlack(PLD, slack).epsilon(event, rounds, delta)
    assert found > PLD.epsilon(event, rounds, delta)
    assert PLD.epsilon(event, rounds, delta - (1 + math.exp(found)) * slack) <= found
    less = found - 1e-6
    assert PLD.epsilon(event, rounds, delta - (1 + math.exp(less)) * slack) > less


def test_the_stated_delta_covers_laws_that_were_spoilt_by_as_much() -> None:
    """Two Gaussians, each replaced with probability eta by a value of its own: the worst that the distance allows.

    Their exact delta at epsilon is (1 - eta) delta'(epsilon) + eta. Without the slack, the figure breaks.
    """
    eta, delta, mu = 1e-7, 1e-5, 0.7
    event = SampledGaussian(1.0, 1 / mu)

    def exact(epsilon: float) -> float:
        return float((1 - eta) * gaussian_delta(epsilon, mu) + eta)

    assert exact(WithSlack(PLD, eta).epsilon(event, 1, delta)) <= delta
    assert exact(PLD.epsilon(event, 1, delta)) > delta


def hockey_stick(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    """Return the least delta at this epsilon of two finite laws, either way round."""
    return float(max(np.maximum(p - math.exp(epsilon) * q, 0).sum(), np.maximum(q - math.exp(epsilon) * p, 0).sum()))


def seen(vectors: dict[int, float], bad: dict[int, set[int]], n_challenges: int, noise: np.ndarray) -> np.ndarray:
    """The law of (challenge, sum): a client is silent, which is the last column, where its vector has a row outside."""
    law = np.zeros((n_challenges, noise.size + 8 + 1))
    for vector, chance in vectors.items():
        for challenge in range(n_challenges):
            if challenge in bad[vector]:
                law[challenge, -1] += chance / n_challenges
            else:
                law[challenge, vector : vector + noise.size] += chance * noise / n_challenges
    return law


@pytest.mark.parametrize("rate", [0.2, 1.0])
@pytest.mark.parametrize("bad", [{0: {0}, 3: {1}}, {0: {0}, 3: set()}, {0: set(), 3: {0}}, {0: {0}, 3: {0}}])
def test_silence_that_a_challenge_decides_costs_no_exponential(bad: dict[int, set[int]], rate: float) -> None:
    """The lemma on large epsilons (`protocol-v2-proofs.md`), exactly: delta' + 2 eta at most, at every epsilon.

    The general lemma would give away (1 + e^epsilon) eta, more than 1 at the largest epsilon here.
    """
    n_challenges = 400
    grid = np.arange(-60, 61)
    noise = np.exp(-(grid**2) / 50.0)
    noise /= noise.sum()
    absent, present = {0: 1.0}, {0: 1 - rate, 3: rate}
    ideal = [seen(vectors, {0: set(), 3: set()}, n_challenges, noise) for vectors in (absent, present)]
    real = [seen(vectors, bad, n_challenges, noise) for vectors in (absent, present)]
    eta = 1 / n_challenges
    for epsilon in (0.0, 0.5, 2.0, 6.0, 9.0):
        found = hockey_stick(real[0], real[1], epsilon)
        assert found <= hockey_stick(ideal[0], ideal[1], epsilon) + 2 * eta + 1e-15
    assert (bad[0] != bad[3]) == (found > eta * rate / 2)  # what differs is seen, whatever epsilon


def test_no_slack_changes_nothing_and_all_of_delta_leaves_nothing() -> None:
    event = SampledGaussian(0.1, 1.0)
    assert with_slack(PLD, 0.0) is PLD
    assert WithSlack(PLD, 0.0).epsilon(event, 10, 1e-5) == PLD.epsilon(event, 10, 1e-5)
    assert WithSlack(PLD, 1e-12).epsilon(event, 0, 1e-5) == 0
    for slack in (0.5e-5, 1e-5, 1.0, 1e300):
        assert WithSlack(PLD, slack).epsilon(event, 10, 1e-5) == math.inf
    assert WithSlack(PLD, 1e-12).epsilon(SampledGaussian(1.0, 1e-3), 10, 1e-5) == math.inf
    assert left_of_delta(1e-5, 1e6, 1e-300) == 0
    with pytest.raises(ValueError, match="slack: expected a finite number of at least 0"):
        WithSlack(PLD, -1e-9)


def test_every_accountant_but_the_published_ones_counts_it() -> None:
    event = SampledGaussian(1.0, 5.0)
    without = side_by_side(event, 10, delta=1e-5, view=View.ONE_SERVER)
    found = side_by_side(event, 10, delta=1e-5, view=View.ONE_SERVER, slack=1e-7)
    for name, accountant in ACCOUNTANTS.items():
        assert found[name].label is accountant.label
        is_printed = accountant.label is Label.PUBLISHED_REPRODUCTION
        assert (found[name].epsilon == without[name].epsilon) == is_printed, name


def test_calibrated_noise_meets_its_target_with_the_slack() -> None:
    counted = WithSlack(PLD, 1e-7)
    sigma = short_noise_multiplier(2.0, lambda s: SampledGaussian(1.0, s), 10, 1e-5, counted)
    assert least_epsilon(math.sqrt(10) / sigma, 1e-7, 1e-5) <= 2.0
    assert least_epsilon(math.sqrt(10) / (sigma - 0.01), 1e-7, 1e-5) > 2.0
    planned = least_sigma_for_epsilon(2.0, 1.0, 10, 1e-5, 1e-7)
    assert planned == pytest.approx(sigma, rel=1e-3)
    assert least_sigma_for_epsilon(5.0, 1.0, 10, 1e-5, 1e-7) is None  # (1 + e^5) 1e-7 is above 1e-5


@pytest.mark.parametrize("n_tasks", [1, 3])
def test_every_task_of_several_takes_its_part(n_tasks: int) -> None:
    """All rounds are one Gaussian; delta pays for each task's protocol, and for the evaluations that each can have."""
    events, slack = dict.fromkeys(View, SampledGaussian(1.0, 9.0)), 3e-8
    evaluations = Evaluations(events=dict.fromkeys(View, SampledGaussian(1.0, 20.0)), levels={}, most=2)
    cost = TaskCost(events=events, delta=1e-5, slack=slack, most_rounds=5)
    found = cost.of_several(n_tasks, View.ONE_SERVER, 10)
    assert found == pytest.approx(least_epsilon(math.sqrt(10) / 9, n_tasks * slack, 1e-5), rel=1e-6)
    both = replace(cost, evaluations=evaluations).of_several(n_tasks, View.ONE_SERVER, 10)
    mu = math.sqrt(10 / 81 + 2 * n_tasks / 400)
    assert both == pytest.approx(least_epsilon(mu, n_tasks * slack, 1e-5), rel=1e-6)


def ledger(slack: float, path=None, budget: float | None = 2.0) -> Ledger:
    return Ledger(
        path,
        events={View.ONE_SERVER: SampledGaussian(1.0, 5.0), View.CLIENTS_ONLY: SampledGaussian(1.0, 7.0)},
        delta=1e-5,
        budgets={} if budget is None else {View.ONE_SERVER: budget},
        unit=Unit.CLIENT,
        slack=slack,
        most_rounds=50,
    )


def test_a_ledgers_budget_is_kept_with_the_slack_and_ends_the_task_earlier() -> None:
    """The filter: the rounds of the most that were charged, at the root of the closed form, are within the budget."""
    rounds = {}
    for slack in (0.0, 1e-12, 5e-7):
        with ledger(slack) as kept:
            while not kept.would_exceed(["a"]):
                kept.charge(len(kept.rounds), ["a"])
            n = rounds[slack] = kept.participation["a"]
            with pytest.raises(BudgetExceededError):
                kept.charge(n, ["a"])
            assert kept.statement(View.ONE_SERVER).epsilon <= 2.0
            if slack:
                assert kept.statement(View.ONE_SERVER).epsilon == pytest.approx(
                    least_epsilon(math.sqrt(n) / 5, slack, 1e-5), rel=1e-6
                )
                assert least_epsilon(math.sqrt(n + 1) / 5, slack, 1e-5) > 2.0
            assert kept.most_rounds_of_a_client == n
    assert rounds[5e-7] < rounds[1e-12] <= rounds[0.0]


def test_a_ledgers_file_keeps_its_slack(tmp_path) -> None:
    path = tmp_path / "ledger.jsonl"
    with ledger(1e-9, path, budget=None) as kept:
        kept.charge(0, ["a"])
        epsilon = kept.statement(View.ONE_SERVER).epsilon
    with ledger(1e-9, path, budget=None) as kept:
        assert kept.statement(View.ONE_SERVER).epsilon == epsilon
    with pytest.raises(LedgerCorruptedError, match="slack = 1e-09, and is opened with None"):
        ledger(0.0, path, budget=None)
