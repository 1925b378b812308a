"""The audit of whole curves: against closed forms, an exact law, and the figures that were simulated before."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from precad.dp.accountants.gaussian_dp import delta_from_mu
from precad.dp.accountants.pld import PldAccountant, SampledGaussian
from precad.dp.auditing import f_dp, strict
from precad.dp.auditing.guesses import Guesses
from precad.dp.auditing.observed import planned_guesses
from tests.dp.auditing.canaries import observed


@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
def test_the_inverse_of_a_curve_is_the_gaussian_one_from_below(mu: float) -> None:
    """Points of delta(epsilon) give the trade-off function that has a closed form, never more of it."""
    epsilons = np.linspace(0, mu * (mu / 2 + 8), 4000)
    least = f_dp._envelope(epsilons, np.array([delta_from_mu(float(e), mu) for e in epsilons]))

    for y in (1e-4, 1e-2, 0.2, 0.5, 0.9, 0.999):
        exact = float(norm.cdf(norm.ppf(y) - mu))
        assert exact * 0.97 - 1e-9 <= least(y) <= exact * (1 + 1e-9)


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 2.5])
def test_of_randomised_response_nothing_is_refuted_that_the_binomial_law_allows(epsilon: float) -> None:
    """Its curve is min(e^eps x, 1 - e^-eps (1 - x)), and the number of correct guesses is binomial."""
    least, right = f_dp._envelope(np.array([epsilon]), np.zeros(1)), math.exp(epsilon) / (1 + math.exp(epsilon))
    refuted = [c for c in range(1, 200) if f_dp.is_refuted(Guesses(200, 200, c), least, 0.05)]

    assert refuted
    assert all(binom.sf(c - 1, 200, right) <= 0.05 for c in refuted)
    assert min(refuted) <= binom.isf(0.05, 200, right) + 3, "it is no weaker than three guesses"


def test_a_gaussian_is_accused_in_at_most_17_of_200_runs() -> None:
    """mu = 1, one round, all of 400 canaries guessed by the best test."""
    event, accused = SampledGaussian(1.0, 1.0), 0
    least = f_dp.least_of(event, 1)
    for seed in range(200):
        found = observed(1.0, 1.0, m=400, T=1, seed=seed)
        accused += f_dp.is_refuted(found.guesses(event, 100), least, 0.05)

    assert accused <= 17


@pytest.mark.parametrize(("rate", "rounds"), [(0.25, 20), (0.5, 5)])
def test_sampled_rounds_are_accused_in_at_most_17_of_200_runs(rate: float, rounds: int) -> None:
    """By either audit of one run, of a true epsilon that is the printed one, in the number of guesses that it plans."""
    event = SampledGaussian(rate, 1.0)
    printed, least = PldAccountant().epsilon(event, rounds, 1e-5), f_dp.least_of(event, rounds)
    made = planned_guesses(observed(rate, 1.0, m=400, T=rounds, seed=200), event, 1e-5, 0.95)
    by_curves = by_strict = 0
    for seed in range(200):
        guesses = observed(rate, 1.0, m=400, T=rounds, seed=seed).guesses(event, made)
        by_curves += f_dp.is_refuted(guesses, least, 0.05)
        by_strict += strict.p_value(guesses, printed, 1e-5) <= 0.05

    assert by_curves <= 17
    assert by_strict <= 17


@pytest.mark.parametrize(("rate", "rounds"), [pytest.param(0.05, 1000, marks=pytest.mark.slow), (1.0, 1)])
def test_the_curves_refute_more_than_the_strict_audit(rate: float, rounds: int) -> None:
    """sigma = 1, m = 2000. 45 to 70 % of the printed epsilon where that is between 2 and 11."""
    event = SampledGaussian(rate, 1.0)
    shares = []
    for seed in range(3):
        found = observed(rate, 1.0, m=2000, T=rounds, seed=seed)
        guesses = found.guesses(event, planned_guesses(found, event, 1e-5, 0.95))
        by_curves = f_dp.refuted_epsilon(guesses, event, rounds, 1e-5, 0.95)
        assert strict.refuted_epsilon(guesses, 1e-5, 0.95) < by_curves
        shares.append(by_curves / PldAccountant().epsilon(event, rounds, 1e-5))

    assert 0.45 <= np.median(shares) <= 0.70


def test_no_training_shows_little_for_the_chance_of_a_plan() -> None:
    """One round at sigma = 1: 40 % of the printed epsilon or more in each of nine runs, 45 to 70 % in the median."""
    event, shares = SampledGaussian(1.0, 1.0), []
    for seed in range(9):
        found = observed(1.0, 1.0, m=2000, T=1, seed=seed)
        guesses = found.guesses(event, planned_guesses(found, event, 1e-5, 0.95))
        shares.append(f_dp.refuted_epsilon(guesses, event, 1, 1e-5, 0.95) / PldAccountant().epsilon(event, 1, 1e-5))

    assert min(shares) >= 0.4
    assert 0.45 <= np.median(shares) <= 0.70


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "rate", "rounds", "by_strict", "by_curves"),
    [
        (1.0, 1.0, 1, 2.16, 2.91),
        (1.0, 0.05, 1, 0.0, 0.0),
        (1.0, 0.05, 100, 1.14, 1.77),
        (1.0, 0.05, 1000, 3.54, 6.05),
        (1.0, 1.0, 100, 5.24, 9.43),
        (math.sqrt(2), 0.05, 1000, 2.56, 3.92),
        (math.sqrt(2), 0.25, 100, 3.20, 5.05),
    ],
)
def test_figures_of_one_run_are_those_of_an_earlier_simulation(
    noise: float, rate: float, rounds: int, by_strict: float, by_curves: float
) -> None:
    """m = 2000, delta = 1e-5, 95 %. The earlier figures are of one seed each, so a quarter and 0.5 either way."""
    event, found = SampledGaussian(rate, noise), []
    for seed in range(5):
        seen = observed(rate, noise, m=2000, T=rounds, seed=seed)
        guesses = seen.guesses(event, planned_guesses(seen, event, 1e-5, 0.95))
        of_curves = f_dp.refuted_epsilon(guesses, event, rounds, 1e-5, 0.95)
        found.append((strict.refuted_epsilon(guesses, 1e-5, 0.95), of_curves))

    assert np.median(found, axis=0) == pytest.approx([by_strict, by_curves], rel=0.25, abs=0.5)
