"""The audit of whole curves: against closed forms, an exact law, and the figures that were simulated before."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from precad.dp.accountants.gaussian_dp import delta_from_mu
from precad.dp.accountants.pld import PldAccountant, SampledGaussian
from precad.dp.auditing import f_dp, strict
from precad.dp.auditing.guesses import Guesses, Plan
from precad.dp.auditing.plans import planned
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


@pytest.mark.parametrize(("rate", "noise"), [(0.05, 1.0), (0.25, 0.8), (0.25, 1.5)])
def test_the_curve_of_a_sampled_round_is_the_one_of_a_fair_coin_to_be_guessed(rate: float, noise: float) -> None:
    """The best events: scores above a with the coin in, scores below b with it out, by their exact chances."""
    least = f_dp.least_of(SampledGaussian(rate, noise), 1)
    cuts = np.linspace(-8 * noise, 1 + 8 * noise, 801)
    of_out, given_in = norm.cdf(cuts / noise), rate * norm.cdf((cuts - 1) / noise) + (1 - rate) * norm.cdf(cuts / noise)
    right = (1 - given_in)[:, None] / 2 + of_out[None] / 2
    turned = (1 - of_out)[:, None] / 2 + given_in[None] / 2
    right, turned = right[np.triu_indices(801, 1)[::-1]], turned[np.triu_indices(801, 1)[::-1]]
    for y in (0.01, 0.1, 0.3, 0.5):
        exact = float(turned[right >= y].min())
        assert least(y) <= exact * (1 + 1e-6)
        assert least(y) >= exact * 0.97


def test_a_gaussian_is_accused_in_at_most_17_of_200_runs() -> None:
    """mu = 1, one round, all of 400 canaries guessed by the best test."""
    event, accused = SampledGaussian(1.0, 1.0), 0
    least = f_dp.least_of(event, 1)
    for seed in range(200):
        found = observed(1.0, 1.0, m=400, T=1, seed=seed)
        accused += f_dp.is_refuted(found.guesses(event, Plan(50, 50)), least, 0.05)

    assert accused <= 17


def test_guesses_that_refute_nothing_show_nothing() -> None:
    """Half of them are right by chance, which no noise contradicts; and nobody's are the best."""
    event, by_chance = SampledGaussian(1.0, 1.0), Guesses(400, 100, 50)
    assert f_dp.refuted_epsilon(by_chance, event, 1, 1e-5, 0.95) == 0
    assert f_dp.best_of([by_chance, Guesses(400, 100, 90)], event, 1, 0.95) == 1
    assert f_dp.best_of([by_chance, by_chance], event, 1, 0.95) == 0
    for few in (Guesses(400, 0, 0), Guesses(400, 1, 1), Guesses(400, 50, 0)):
        assert f_dp.refuted_epsilon(few, event, 1, 1e-5, 0.95) == 0


def of_curves(event: SampledGaussian, m: int, T: int) -> Plan:
    """The plan of an audit by curves, of clients that are in every round."""
    best = functools.partial(f_dp.best_of, event=event, rounds=T, confidence=0.95)
    return planned(np.ones((T, m), dtype=np.bool_), event, best)


def strictly(event: SampledGaussian, m: int, T: int) -> Plan:
    """Likewise, of an audit that assumes nothing."""
    best = functools.partial(strict.best_of, delta=1e-5, confidence=0.95)
    return planned(np.ones((T, m), dtype=np.bool_), event, best)


def shares(event: SampledGaussian, T: int, seeds: int) -> list[float]:
    """Shares of the printed epsilon that 2000 canaries show by curves, one for each run."""
    plan, printed = of_curves(event, 2000, T), PldAccountant().epsilon(event, T, 1e-5)
    runs = (observed(event.sampling_rate, event.noise_multiplier, m=2000, T=T, seed=seed) for seed in range(seeds))
    return [f_dp.refuted_epsilon(run.guesses(event, plan), event, T, 1e-5, 0.95) / printed for run in runs]


@pytest.mark.parametrize(
    ("rate", "noise", "rounds"),
    [
        (0.25, 1.0, 20),
        (0.5, 1.0, 5),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in ((1.0, 2.0, 4), (0.05, 1.0, 100), (0.5, 4.6, 30))),
    ],
)
def test_sampled_rounds_are_accused_in_at_most_17_of_200_runs(rate: float, noise: float, rounds: int) -> None:
    """By either audit of one run, of a true epsilon that is the printed one, by the guesses that each plans."""
    event = SampledGaussian(rate, noise)
    printed, least = PldAccountant().epsilon(event, rounds, 1e-5), f_dp.least_of(event, rounds)
    plan, strict_plan = of_curves(event, 400, rounds), strictly(event, 400, rounds)
    by_curves = by_strict = 0
    for seed in range(200):
        seen = observed(rate, noise, m=400, T=rounds, seed=seed)
        by_curves += f_dp.is_refuted(seen.guesses(event, plan), least, 0.05)
        by_strict += strict.p_value(seen.guesses(event, strict_plan), printed, 1e-5) <= 0.05

    assert by_curves <= 17
    assert by_strict <= 17


ONE_RUN = (
    (1.0, 1.0, 1),
    (0.05, 1.0, 100),
    (0.1, 1.0, 100),
    (0.05, 1.0, 1000),
    (0.05, math.sqrt(2), 1000),
    (0.25, math.sqrt(2), 100),
    (0.25, 1.0, 20),
    (0.5, 4.6, 30),
)
"""Rate, noise and rounds of eight mechanisms that print an epsilon of 2 to 11; the last one is the demo's."""


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "noise", "rounds"), ONE_RUN)
def test_one_run_shows_45_to_70_percent_of_epsilons_of_2_to_11(rate: float, noise: float, rounds: int) -> None:
    """In the median of 40 runs, 8 of the long ones. A median of so many has a spread of about 0.02."""
    event = SampledGaussian(rate, noise)
    assert 2 < PldAccountant().epsilon(event, rounds, 1e-5) < 11

    assert 0.45 <= np.median(shares(event, rounds, 40 if rounds < 1000 else 8)) <= 0.70


def test_one_round_shows_45_to_70_percent_and_no_run_below_40() -> None:
    found = shares(SampledGaussian(1.0, 1.0), 1, 9)
    assert min(found) >= 0.4
    assert 0.45 <= np.median(found) <= 0.70


def test_the_curves_refute_more_than_the_strict_audit() -> None:
    """sigma = 1, one round, m = 2000."""
    event = SampledGaussian(1.0, 1.0)
    for seed in range(3):
        seen = observed(1.0, 1.0, m=2000, T=1, seed=seed)
        by_curves = f_dp.refuted_epsilon(seen.guesses(event, of_curves(event, 2000, 1)), event, 1, 1e-5, 0.95)
        assert strict.refuted_epsilon(seen.guesses(event, strictly(event, 2000, 1)), 1e-5, 0.95) < by_curves


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
    plan, strict_plan = of_curves(event, 2000, rounds), strictly(event, 2000, rounds)
    for seed in range(5):
        seen = observed(rate, noise, m=2000, T=rounds, seed=seed)
        shown = f_dp.refuted_epsilon(seen.guesses(event, plan), event, rounds, 1e-5, 0.95)
        found.append((strict.refuted_epsilon(seen.guesses(event, strict_plan), 1e-5, 0.95), shown))

    assert np.median(found, axis=0) == pytest.approx([by_strict, by_curves], rel=0.25, abs=0.5)
