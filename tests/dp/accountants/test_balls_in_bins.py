"""Balls in bins: closed forms, numerical integration, Monte Carlo with its error, and Poisson sampling beside it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import ndtr
from scipy.stats import norm

from precad.dp.accountants import balls_in_bins
from precad.dp.accountants.balls_in_bins import BallsInBins
from precad.dp.accountants.gaussian import gaussian_epsilon
from precad.dp.accountants.gaussian_dp import delta_from_mu
from precad.dp.accountants.pld import PldAccountant, SampledGaussian

DELTA = 1e-5
SETTINGS = [(20, 1.0, 1.609), (20, 0.7, 3.681), pytest.param(100, 1.0, 0.621, marks=pytest.mark.slow)]
"""T, sigma and epsilon of an epoch: 1.985, 4.649 and 0.718 by Poisson sampling at rate 1 / T."""


def deltas_of_sampling(T: int, sigma: float, epsilon: float, n: int, seed: int) -> tuple[float, float]:
    """Return delta of removing the record at epsilon, and its standard error, by n draws from the exact pair.

    delta = E_Q[(S / T - e^epsilon)_+] = E[(X + W - T e^epsilon)_+; X is the largest] over the T - 1 others, whose sum
    is W. The mean over X has a closed form, so that no rare event is waited for.
    """
    draws, k = np.random.default_rng(seed), T * math.exp(epsilon)
    others = np.exp(draws.normal(0, 1 / sigma, (n, T - 1)) - sigma**-2 / 2)
    total = others.sum(axis=1)
    least = np.maximum(others.max(axis=1), np.maximum(k - total, 1e-300))
    z = np.log(least) * sigma + 1 / (2 * sigma)
    found = ndtr(1 / sigma - z) + (total - k) * ndtr(-z)
    return float(found.mean()), float(found.std() / math.sqrt(n))


@pytest.mark.parametrize(("T", "sigma", "epsilon"), SETTINGS)
def test_an_epoch_costs_what_monte_carlo_says(T: int, sigma: float, epsilon: float) -> None:
    """100,000 draws: the bound is not below them by five standard errors (false alarm 3e-7), nor above by 1 %."""
    found = BallsInBins(bins=T, noise_multiplier=sigma).epsilon(T, DELTA)
    delta, error = deltas_of_sampling(T, sigma, found, 100_000, seed=1)

    assert found == pytest.approx(epsilon, abs=6e-4)
    assert delta < DELTA + 5 * error
    assert 1.01 * delta + 5 * error > DELTA


def exact_of_two(sigma: float, epsilon: float) -> float:
    """Return the larger delta of an epoch of two, by integrals over the first release."""
    u = 1 / sigma

    def below(k: float, x: float) -> float:
        """E[(k - X)_+ | first = x] over the second X."""
        if (left := k - x) <= 0:
            return 0.0
        z = math.log(left) / u + u / 2
        return left * norm.cdf(z) - norm.cdf(z - u)

    def put(k: float) -> float:
        top = math.log(k) / u + u / 2
        return quad(lambda z: norm.pdf(z) * below(k, math.exp(u * z - u * u / 2)), -12, top, limit=400)[0]

    low, high = 2 * math.exp(-epsilon), 2 * math.exp(epsilon)
    return max(put(low) / low, 1 - high / 2 + put(high) / 2)


@pytest.mark.parametrize("sigma", [0.6, 1.0, 3.0])
def test_an_epoch_of_two_is_that_of_numerical_integration(sigma: float) -> None:
    found = BallsInBins(bins=2, noise_multiplier=sigma).epsilon(2, 1e-3)

    assert exact_of_two(sigma, found) <= 1e-3 * (1 + 1e-6)
    assert exact_of_two(sigma, found - 1e-3 * max(found, 0.01)) > 1e-3


def delta_of_a_choice(sigma: float, epsilon: float, stops_above: float) -> float:
    """Return delta of an adversary that loses the second release of two where the first is above a value.

    By the midpoint rule on 2000 points of each release, within 1e-5.
    """
    step = (1 + 18 * sigma) / 2000
    z = -9 * sigma + step * (np.arange(2000) + 0.5)
    without, with_record = norm.pdf(z, 0, sigma), norm.pdf(z, 1, sigma)
    first = np.maximum(0.0, (with_record + without) / 2 - math.exp(epsilon) * without) * step
    both = (np.outer(with_record, without) + np.outer(without, with_record)) / 2
    second = np.maximum(0.0, both - math.exp(epsilon) * np.outer(without, without)).sum(axis=1) * step**2
    return float(np.where(z > stops_above, first, second).sum())


@pytest.mark.parametrize("stops_above", [-0.5, 0.5, 1.5])
def test_releases_that_are_lost_by_choice_cost_no_more_than_the_whole_epoch(stops_above: float) -> None:
    """More than the first alone, and less than both. An adversary that loses none meets the epoch's own delta."""
    sigma, epsilon = 1.0, 0.5
    alone, never = (delta_of_a_choice(sigma, epsilon, value) for value in (-math.inf, math.inf))
    assert alone < delta_of_a_choice(sigma, epsilon, stops_above) < never
    assert never == pytest.approx(exact_of_two(sigma, epsilon), abs=1e-5)


def test_releases_of_many_epochs_cost_more_than_their_number_says() -> None:
    """One of each of five epochs, as servers could arrange, is Poisson sampling: between one epoch and five."""
    one = BallsInBins(bins=5, noise_multiplier=1.0)
    arranged = PldAccountant().epsilon(SampledGaussian(0.2, 1.0), 5, DELTA)
    assert one.epsilon(5, DELTA) < arranged < one.epsilon(25, DELTA)


@pytest.mark.parametrize("participations", [1, 7, 19])
def test_a_part_of_an_epoch_is_between_one_release_and_all_of_them(participations: int) -> None:
    """One release of an epoch of T is one Poisson sample at rate 1 / T, and further releases cost more."""
    one = BallsInBins(bins=20, noise_multiplier=1.0)
    assert one.epsilon(1, DELTA) == pytest.approx(
        PldAccountant().epsilon(SampledGaussian(0.05, 1.0), 1, DELTA), rel=2e-3
    )
    found = [one.epsilon(n, DELTA) for n in (participations, participations + 1, 20, 21)]
    assert found == sorted(found)


@pytest.mark.parametrize(("epochs", "sigma"), [(2, 1.0), (8, 2.0)])
def test_epochs_compose_between_monte_carlo_and_a_known_participation(epochs: int, sigma: float) -> None:
    """100,000 draws of the loss of all epochs with the record, each by itself. At delta = 1e-2, five errors wide."""
    one, delta, T = BallsInBins(bins=5, noise_multiplier=sigma), 1e-2, 5
    found = one.epsilon(epochs * T, delta)
    z = np.random.default_rng(2).normal(0, 1 / sigma, (100_000, epochs, T)) - sigma**-2 / 2
    z[:, :, 0] += sigma**-2
    losses = np.log(np.exp(z).mean(axis=2)).sum(axis=1)
    terms = np.maximum(-np.expm1(np.minimum(found - losses, 0.0)), 0.0)
    error = terms.std() / math.sqrt(len(terms))

    assert delta - 5 * error < terms.mean() < delta + 5 * error
    assert found < gaussian_epsilon(sigma / math.sqrt(epochs), delta)


def test_epochs_of_one_participation_are_gaussian() -> None:
    found = BallsInBins(bins=1, noise_multiplier=3.0).epsilon(7, DELTA)
    assert found == gaussian_epsilon(3 / math.sqrt(7), DELTA)


def test_poisson_sampling_does_not_dominate_balls_in_bins() -> None:
    """At epsilon = 0 the record is missed by Poisson sampling alone; at delta = 1e-5 that costs more."""
    sigma, T = 0.3, 2
    poisson = 1 - (1 - 1 / T) ** T  # no event tells more than whether the record was drawn at all
    assert exact_of_two(sigma, 0.0) > 0.85 > poisson
    by_bins = BallsInBins(bins=T, noise_multiplier=1.0).epsilon(T, DELTA)
    assert by_bins < PldAccountant().epsilon(SampledGaussian(0.5, 1.0), T, DELTA)


@pytest.mark.parametrize(("T", "sigma"), [(20, 0.25), (20, 0.1), (3, 5000.0), (10_000, 1.0)])
def test_figures_at_the_ends_are_finite_and_below_a_known_participation(T: int, sigma: float) -> None:
    found = BallsInBins(bins=T, noise_multiplier=sigma).epsilon(T, DELTA)
    assert 0 < found <= gaussian_epsilon(sigma, DELTA)


def test_the_grid_moves_the_figure_upwards_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grid that is a quarter as fine says more; the finest is within 1e-4 of it."""
    fine = BallsInBins(bins=20, noise_multiplier=1.0).epsilon(20, DELTA)
    monkeypatch.setattr(balls_in_bins, "_POINTS", 1 << 12)
    balls_in_bins._composed.cache_clear()
    balls_in_bins._epoch.cache_clear()
    coarse = BallsInBins(bins=20, noise_multiplier=1.0).epsilon(20, DELTA)
    balls_in_bins._composed.cache_clear()
    balls_in_bins._epoch.cache_clear()
    assert fine < coarse < fine * 1.001


@pytest.mark.parametrize(
    ("bins", "sigma", "message"),
    [
        (0, 1.0, "bins: expected an integer of at least 1, found 0"),
        (10_001, 1.0, "bins: expected at most 10000, found 10001"),
        (5, 0.0, "noise_multiplier: expected a finite number above 0, found 0.0"),
    ],
)
def test_what_is_outside_its_range_is_refused(bins: int, sigma: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BallsInBins(bins=bins, noise_multiplier=sigma)


@pytest.mark.parametrize(("epochs", "delta"), [(1, 1.4e-11), (8, 1.1e-10), (30, 4e-10)])
def test_below_what_rounding_moves_the_bins_are_taken_to_be_known(epochs: int, delta: float) -> None:
    """Each epoch's masses pass through 2^17 additions of float64 in one place, so as many errors of 2^-53."""
    assert delta < epochs * 2**17 * 2.0**-53
    found = BallsInBins(bins=4, noise_multiplier=3.0).epsilon(4 * epochs, delta)
    assert delta_from_mu(found, math.sqrt(epochs) / 3.0) == pytest.approx(delta, rel=1e-6)
    above = BallsInBins(bins=4, noise_multiplier=3.0).epsilon(4 * epochs, 1e4 * delta)
    assert delta_from_mu(above, math.sqrt(epochs) / 3.0) > 1.5e4 * delta
