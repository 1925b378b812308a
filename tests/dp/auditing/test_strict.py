"""The audit without assumptions: against closed forms, and its rate of false alarms on randomised response."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from precad.dp.auditing.guesses import Guesses, Plan, log_likelihood_ratios
from precad.dp.auditing.strict import p_value, refuted_epsilon


@pytest.mark.parametrize("made", [10, 100, 1000])
def test_all_correct_guesses_refute_what_the_binomial_law_says(made: int) -> None:
    """With delta near 0 the chance of r correct ones is (e^eps / (1 + e^eps))^r, which has an inverse."""
    at = 0.05 ** (1 / made)

    assert refuted_epsilon(Guesses(made, made, made), 1e-15, 0.95) == pytest.approx(math.log(at / (1 - at)), abs=2e-4)


def test_a_p_value_is_the_binomial_tail_plus_a_term_linear_in_delta() -> None:
    """The term by its definition: 2 m delta max over i of P(c - i <= W < c) / i."""
    guesses, right = Guesses(2000, 200, 150), math.e / (1 + math.e)
    term = max((binom.cdf(149, 200, right) - binom.cdf(149 - i, 200, right)) / i for i in range(1, 151))

    for delta in (1e-6, 1e-5):
        expected = binom.sf(149, 200, right) + 2 * 2000 * delta * term
        assert p_value(guesses, 1.0, delta) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
def test_randomised_response_is_accused_in_at_most_17_of_200_runs(epsilon: float) -> None:
    """It is epsilon-DP, and every guess is right with the largest chance that this allows: 5 % is exact."""
    draws = np.random.default_rng(1)
    correct = draws.binomial(400, math.exp(epsilon) / (1 + math.exp(epsilon)), 200)
    accused = sum(refuted_epsilon(Guesses(400, 400, int(c)), 1e-9, 0.95) > epsilon for c in correct)

    assert accused <= 17


def test_a_large_delta_refutes_nothing() -> None:
    assert refuted_epsilon(Guesses(2000, 200, 180), 0.4, 0.95) == 0


def test_guesses_take_the_ends_of_the_scores() -> None:
    scores = np.array([3.0, -2.0, 0.1, 5.0, -7.0, 0.0])
    coins = np.array([True, True, True, False, False, True])

    assert Guesses.of_scores(scores, coins, Plan(2, 2)) == Guesses(6, 4, 2)
    assert Guesses.of_scores(scores, coins, Plan(3, 1)) == Guesses(6, 4, 3)
    with pytest.raises(ValueError, match="plan: expected at most 6 guesses, the canaries, found 7"):
        Guesses.of_scores(scores, coins, Plan(4, 3))
    with pytest.raises(ValueError, match="expected correct <= made <= canaries"):
        Guesses(4, 3, 4)


def test_ratios_are_those_of_the_densities() -> None:
    """ln of (1-p) N(0) + p N(1) over N(0), summed over the rounds that the client was in."""
    from scipy.stats import norm

    scores = np.array([[0.3, -1.0], [2.0, 0.4]])
    present = np.array([[True, True], [False, True]])
    one = np.log((0.75 * norm.pdf(scores, 0, 2) + 0.25 * norm.pdf(scores, 1, 2)) / norm.pdf(scores, 0, 2))

    np.testing.assert_allclose(log_likelihood_ratios(scores, present, 0.25, 2.0), [one[0, 0], one[:, 1].sum()])
