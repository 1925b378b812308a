"""The simulated attack: against closed forms where there are any, and against the certificates of one setting."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from precad.dp.accountants.pld import SampledGaussian
from precad.dp.certificates.attack_simulation import attackers_that_succeed, simulate
from precad.dp.certificates.prediction import Method, Threat, Training, attacked_bounds, certify

FAILURE = 1e-9
N = 300_000


@pytest.mark.parametrize(("threat", "shift"), [(Threat.ADD, 1), (Threat.REPLACE, 2)])
@pytest.mark.parametrize("rounds", [2, 9])
def test_attackers_in_every_round_are_a_shifted_gaussian(threat, shift, rounds):
    """At q = 1 the best test of k sqrt(T)/sigma is Phi(Phi^{-1}(F_A) - mu), by either statistic; to both radii."""
    training = Training(SampledGaussian(1.0, 6.0), rounds)
    found = simulate(2, 0.9, training, threat, n_draws=N, failure=FAILURE, seed=1)
    expected = norm.cdf(norm.ppf(0.9) - shift * 2 * math.sqrt(rounds) / 6.0)
    assert found.benign == pytest.approx(0.9 + found.radius, abs=found.radius)
    assert found.attacked == pytest.approx(expected, abs=3 * found.radius)


@pytest.mark.parametrize("threat", Threat)
def test_of_few_sampled_rounds_the_statistic_is_the_best_one(threat):
    """Two rounds by Neyman and Pearson, on a grid of both releases: no predictor gives way sooner at its F_A."""
    q, sigma, k = 0.5, 0.5, 1
    found = simulate(k, 0.9, Training(SampledGaussian(q, sigma), 2), threat, n_draws=N, failure=FAILURE, seed=7)
    x = np.linspace(-1 - 8 * sigma, 1 + 8 * sigma, 1201)
    pushed = {sign: (1 - q) * norm.pdf(x, 0, sigma) + q * norm.pdf(x, sign, sigma) for sign in (-1, 1)}
    benign = pushed[-1] if threat is Threat.REPLACE else norm.pdf(x, 0, sigma)
    ratio = np.log(pushed[1] / benign)
    order = np.argsort(np.add.outer(ratio, ratio).ravel())
    left, attacked = (np.cumsum(np.outer(law, law).ravel()[order]) / law.sum() ** 2 for law in (benign, pushed[1]))
    expected = float(attacked[np.searchsorted(left, 0.9 + found.radius)])
    assert found.attacked == pytest.approx(expected, abs=3 * found.radius)


@pytest.mark.parametrize("threat", Threat)
def test_no_certificate_is_beaten(threat):
    """At the exact method's number, the largest, more than half of the prediction is left after 300,000 trainings.

    And what is left is above the certified lower bound: the simulated benign share has F_A >= .95 but for 1e-9. The
    other methods and settings: test_tightness.
    """
    training = Training(SampledGaussian(0.1, 1.8), 3)
    k = certify(0.95, 0.05, training, method=Method.EXACT, threat=threat).tolerated
    attack = simulate(k, 0.95, training, threat, n_draws=N, failure=FAILURE, seed=2)
    assert not attack.has_surely_succeeded
    assert attack.attacked + attack.radius >= attacked_bounds(0.95, k, training, threat)[0]


def test_the_exact_certificate_can_hardly_be_improved():
    """16 added users are certified, and 18 change the prediction in simulation: at most 17 could ever be certified."""
    training = Training(SampledGaussian(0.1, 1.8), 3)
    attack = simulate(18, 0.95, training, Threat.ADD, n_draws=N, failure=FAILURE, seed=3)
    assert attack.has_surely_succeeded
    assert attack.benign >= 0.95


def test_the_search_finds_the_first_success():
    """At q = 1, one round: the first k with Phi(Phi^{-1}(F_A) - k/sigma) below one half, but for the radius."""
    training = Training(SampledGaussian(1.0, 6.0), 1)
    found = attackers_that_succeed(0.9, training, Threat.ADD, at_least=1, n_draws=10**5, failure=FAILURE, seed=6)
    first = math.ceil(6.0 * norm.ppf(0.9))
    assert found.k in (first, first + 1)


def test_a_certificate_that_is_too_large_would_be_found():
    """Simulate at twice the certified number: the attack surely succeeds, so the test above can fail."""
    training = Training(SampledGaussian(0.1, 1.8), 3)
    assert simulate(32, 0.95, training, Threat.ADD, n_draws=10**5, failure=FAILURE, seed=4).has_surely_succeeded


def test_both_statistics_are_nearly_as_good():
    """In the fourth round the statistic changes to the plain sum; what is left falls by what a round does, not more."""
    left = [
        simulate(
            8, 0.95, Training(SampledGaussian(0.1, 1.8), rounds), Threat.ADD, n_draws=200_000, failure=FAILURE, seed=5
        )
        for rounds in (2, 3, 4, 5)
    ]
    falls = -np.diff([attack.attacked for attack in left])
    assert np.all(falls > 0)
    assert falls[1] < 1.5 * falls[0]


def test_arguments_are_checked():
    training = Training(SampledGaussian(0.1, 1.8), 3)
    with pytest.raises(ValueError, match="k: expected an integer of at least 1, found 0"):
        simulate(0, 0.9, training, Threat.ADD, n_draws=10, failure=FAILURE, seed=1)
    with pytest.raises(ValueError, match="FA: expected a number below 1 - radius"):
        simulate(1, 0.9, training, Threat.ADD, n_draws=10, failure=FAILURE, seed=1)
    never = Training(SampledGaussian(0.0, 1.8), 3)
    with pytest.raises(ValueError, match="training: expected rounds in which attackers are drawn"):
        attackers_that_succeed(0.9, never, Threat.ADD, at_least=1, n_draws=10, failure=FAILURE, seed=1)
