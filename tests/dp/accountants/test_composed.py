"""Rounds of several tasks together, against other methods: Gaussian DP, Renyi divergences, and the library alone."""

from __future__ import annotations

import math
from typing import Any

import dp_accounting
import pytest
from dp_accounting import pld as library
from hypothesis import given, settings
from hypothesis import strategies as st

from precad.dp.accountants import composed
from precad.dp.accountants.bins_event import BinnedGaussian
from precad.dp.accountants.composed import composed_epsilon
from precad.dp.accountants.gaussian import gaussian_epsilon
from precad.dp.accountants.gaussian_dp import delta_from_mu, eps_from_mu
from precad.dp.accountants.pld import PldAccountant, SampledGaussian
from precad.dp.accountants.renyi import rdp_gaussian, rdp_sgm_poisson
from precad.dp.accountants.renyi_accounting import eps_from_rdp

DELTA = 1e-5
TRAINING = (SampledGaussian(0.05, 1.1), 200)
QUERIES = ((SampledGaussian(1.0, 4.0), 2), (SampledGaussian(1.0, 7.5), 1))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(0.5, 50), st.integers(0, 20)), max_size=5))
def test_queries_alone_are_one_gaussian(releases: list[tuple[float, int]]) -> None:
    """By the exact delta of telling N(0, 1) from N(mu, 1)."""
    found = composed_epsilon([(SampledGaussian(1.0, sigma), n) for sigma, n in releases], DELTA)
    mu = math.sqrt(math.fsum(n / sigma**2 for sigma, n in releases))
    if mu == 0:
        assert found == 0
    else:
        assert delta_from_mu(found, mu) <= DELTA
        assert delta_from_mu(found * (1 - 1e-6) - 1e-8, mu) >= DELTA or found <= 1e-8


def test_a_training_and_queries_agree_with_the_library() -> None:
    """The library's own accountant composes the events in another order, on its own grid."""
    accountant = library.PLDAccountant()
    for event, n in (TRAINING, *QUERIES):
        gaussian = dp_accounting.GaussianDpEvent(event.noise_multiplier)
        accountant.compose(dp_accounting.PoissonSampledDpEvent(event.sampling_rate, gaussian), n)

    assert composed_epsilon((TRAINING, *QUERIES), DELTA) == pytest.approx(accountant.get_epsilon(DELTA), rel=2e-3)


def test_a_training_and_queries_cost_no_more_than_by_renyi_divergences() -> None:
    """Renyi divergences add up too, and bound the same epsilon from above, by about a tenth."""

    def divergence(alpha: float) -> float:
        training = TRAINING[1] * rdp_sgm_poisson(alpha, TRAINING[0].sampling_rate, TRAINING[0].noise_multiplier)
        return training + sum(n * rdp_gaussian(alpha, event.noise_multiplier) for event, n in QUERIES)

    by_renyi = eps_from_rdp(divergence, DELTA)

    assert by_renyi * 0.85 <= composed_epsilon((TRAINING, *QUERIES), DELTA) <= by_renyi


def test_together_costs_more_than_each_and_less_than_the_sum() -> None:
    """Whatever the order in which they are named."""
    alone = [composed_epsilon([rounds], DELTA) for rounds in (TRAINING, *QUERIES)]
    together = composed_epsilon((TRAINING, *QUERIES), DELTA)

    assert alone[0] == PldAccountant().epsilon(*TRAINING, DELTA)
    assert max(alone) < together < sum(alone)
    assert together == composed_epsilon((*QUERIES[::-1], TRAINING), DELTA)


@pytest.mark.parametrize("sigma", [0.3, 0.06, 0.04, 1e-3, 1e-6])
def test_evaluations_of_a_whole_client_with_little_noise_beside_a_training(sigma: float) -> None:
    """Their losses reach to 1 / sigma^2: no grid is as long as that. They cost little more than by themselves."""
    alone = gaussian_epsilon(sigma, DELTA)
    together = composed_epsilon([TRAINING, (SampledGaussian(1.0, sigma), 1)], DELTA)
    assert alone <= together < 1.01 * alone + composed_epsilon([TRAINING], DELTA)


@pytest.mark.parametrize("sigma", [0.04, 0.01])
def test_beside_next_to_no_noise_each_part_has_half_of_delta(sigma: float) -> None:
    """Epsilons add up where deltas do, and both parts together have no more than all of it."""
    together = composed_epsilon([TRAINING, (SampledGaussian(1.0, sigma), 1)], DELTA)
    of_parts = eps_from_mu(DELTA / 2, 1 / sigma) + PldAccountant().epsilon(*TRAINING, DELTA / 2)
    assert together == pytest.approx(of_parts, rel=1e-7)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_epochs_of_a_group_beside_a_query_are_longer_releases(k: int) -> None:
    """All of a person's records are at worst in the same bin, so a release moves k times as far."""
    binned, query = BinnedGaussian(4, 6.0, k), SampledGaussian(1.0, 5.0)
    found = composed_epsilon([(binned, 6), (query, 1)], DELTA)
    assert delta_from_mu(found, math.sqrt(2 * (k / 6) ** 2 + 1 / 25)) == pytest.approx(DELTA, rel=1e-6)


def test_a_round_without_noise_costs_everything() -> None:
    """And one that never was costs nothing."""
    assert composed_epsilon([TRAINING, (None, 1)], DELTA) == math.inf
    assert composed_epsilon([TRAINING, (None, 0)], DELTA) == composed_epsilon([TRAINING], DELTA)
    assert composed_epsilon([], DELTA) == 0


def test_next_to_no_noise_is_no_division_by_zero() -> None:
    """Its square is 0 in float64. Beside another kind of round, too, it hides nothing."""
    for other in (SampledGaussian(1.0, 5.0), SampledGaussian(0.1, 5.0)):
        assert composed_epsilon([(SampledGaussian(1.0, 1e-300), 3), (other, 2)], 1e-5) == math.inf


def test_each_kind_of_round_is_made_once_for_all_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """For more rounds and for other deltas; the bits are those of the first question of a new process."""
    made: list[float] = []
    make = library.privacy_loss_distribution.from_gaussian_mechanism

    def counted(*, standard_deviation: float, **others: Any) -> Any:
        made.append(standard_deviation)
        return make(standard_deviation=standard_deviation, **others)

    def forget() -> None:
        for kept in (composed._epsilon, composed._composed, composed._loss):
            kept.cache_clear()

    monkeypatch.setattr(library.privacy_loss_distribution, "from_gaussian_mechanism", counted)
    questions = [(rounds, delta) for rounds in (200, 201, 250) for delta in (1e-5, 3e-6)]
    forget()
    found = [composed_epsilon([(TRAINING[0], rounds), QUERIES[0]], delta) for rounds, delta in questions]

    assert len(made) == 2
    for (rounds, delta), epsilon in zip(questions, found, strict=True):
        forget()
        assert composed_epsilon([(TRAINING[0], rounds), QUERIES[0]], delta) == epsilon


def test_a_delta_below_the_grid_is_answered_by_renyi_divergences() -> None:
    """Beside a few evaluations, 10^4 rounds still have a bound: no more than both bounds with half of delta each."""
    rounds, evaluations = (SampledGaussian(0.01, 2.0), 10_000), (SampledGaussian(1.0, 20.0), 10)
    found = composed_epsilon((rounds, evaluations), 1e-9)
    apart = [PldAccountant().epsilon(*one, 0.5e-9) for one in (rounds, evaluations)]
    assert PldAccountant().epsilon(*rounds, 1e-9) < found < sum(apart)

    def divergence(alpha: float) -> float:
        return 10_000 * rdp_sgm_poisson(alpha, 0.01, 2.0) + 10 * rdp_gaussian(alpha, 20.0)

    assert found == pytest.approx(eps_from_rdp(divergence, 1e-9), rel=1e-9)
