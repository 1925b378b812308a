"""Plans of guesses: against simulations of the printed round, and of audits that differ in what no plan may see."""

from __future__ import annotations

import numpy as np
import pytest

from precad.dp.accountants.pld import SampledGaussian
from precad.dp.auditing.guesses import Guesses, log_likelihood_ratios, right_at_ends
from precad.dp.auditing.observed import Observed
from precad.dp.auditing.plans import expected_right, planned


@pytest.mark.parametrize(("rate", "noise"), [(0.05, 0.7), (0.25, 1.0), (1.0, 3.0)])
def test_as_many_guesses_are_expected_to_be_right_as_simulations_have(rate: float, noise: float) -> None:
    """Half of 400 canaries' clients miss 12 of 20 rounds. 100 trainings have a mean within 1.5 of it, seven spreads."""
    draws, present = np.random.default_rng(1), np.ones((20, 400), dtype=np.bool_)
    present[:12, ::2] = False
    found = []
    for _ in range(100):
        coins = draws.random(400) < 0.5
        scores = ((draws.random(present.shape) < rate) & present & coins) + draws.normal(0, noise, present.shape)
        found.append(right_at_ends(log_likelihood_ratios(scores, present, rate, noise), coins))
    expected, mean = expected_right(present.sum(axis=0), SampledGaussian(rate, noise)), np.mean(found, axis=0)

    for k in (10, 40, 160, 400):
        assert expected[:, k] == pytest.approx(mean[:, k], abs=1.5)


def test_clients_of_many_numbers_of_rounds_or_of_none_have_a_plan() -> None:
    present = np.arange(40)[:, None] < np.arange(60)[None]
    right = expected_right(present.sum(axis=0), SampledGaussian(0.3, 1.0))

    assert (np.diff(right, axis=1) >= -1e-9).all()
    assert right[:, -1] == pytest.approx([30, 30], abs=1e-6)


def test_a_figure_is_of_the_rounds_of_the_canary_whose_client_was_in_most() -> None:
    """Others were in fewer, or in none: what is printed beside it is for the client with most of them."""
    present = np.arange(5)[:, None] < np.array([0, 2, 4, 3])[None]
    seen = Observed(np.zeros((5, 4)), np.zeros((5, 4)), present, np.ones(4, dtype=np.bool_))
    assert (seen.most_rounds, seen.canaries) == (4, 4)


def test_the_plan_is_that_of_the_best_guesses_on_the_grid() -> None:
    """As an audit that prefers few of them would have it; there are as many plans as guesses."""
    seen: list[Guesses] = []

    def fewest(found: object) -> int:
        assert isinstance(found, list)
        seen.extend(found)
        return int(np.argmin([guesses.made for guesses in seen]))

    plan = planned(np.ones((3, 500), dtype=np.bool_), SampledGaussian(0.5, 1.0), fewest)
    assert (plan.made, plan.highest) == (4, 2)
    assert max(guesses.made for guesses in seen) == 400
    with pytest.raises(ValueError, match="canaries: expected an integer of at least 2"):
        planned(np.ones((3, 1), dtype=np.bool_), SampledGaussian(0.5, 1.0), fewest)
