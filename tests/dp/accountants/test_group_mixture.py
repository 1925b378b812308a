"""The exact law of K units: against quadrature, dp_accounting, closed forms, simulation, and Kahane's inequality."""

import math
import time
import tracemalloc

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import trapezoid
from scipy.stats import binom, norm

from precad.dp.accountants import group_mixture
from precad.dp.accountants.gaussian_dp import delta_from_mu
from precad.dp.accountants.group_mixture import Direction, delta_curve, loss_distribution
from precad.dp.accountants.group_privacy import group_dp
from precad.dp.accountants.pld import PldAccountant, SampledGaussian
from precad.dp.published.gaussian import group_mixture_delta
from tests.harness.examples import SMALL_RATE, examples

BOTH = tuple(Direction)
ATTACKED, BENIGN = BOTH


def by_quadrature(K: int, q: float, sigma: float, epsilon: float, direction: Direction) -> float:
    """One round's hockey-stick divergence from the two densities on 400 000 points."""
    x = np.linspace(-14 * sigma, K + 14 * sigma, 400_001)
    benign = norm.pdf(x, scale=sigma)
    attacked = sum(binom.pmf(k, K, q) * norm.pdf(x, loc=k, scale=sigma) for k in range(K + 1))
    first, second = (attacked, benign) if direction is ATTACKED else (benign, attacked)
    return float(trapezoid(np.maximum(first - math.exp(epsilon) * second, 0.0), x))


@examples(8, 40)
@given(
    K=st.integers(1, 8),
    q=st.floats(0.01, 0.95),
    sigma=st.floats(0.4, 4.0),
    epsilon=st.floats(-1.0, 3.0),
    direction=st.sampled_from(BOTH),
)
def test_one_round_is_just_above_the_exact_divergence(K, q, sigma, epsilon, direction):
    """Never below the quadrature, and above it by what the grid explains."""
    exact = by_quadrature(K, q, sigma, epsilon, direction)
    delta = group_mixture_delta(K, q, sigma, 1, epsilon, direction)
    assert exact - 1e-9 <= delta <= exact * 1.005 + 1e-5


@pytest.mark.parametrize("direction", BOTH)
@pytest.mark.parametrize(("K", "q", "T"), [(1, 0.1, 1), pytest.param(5, 0.02, 7, marks=pytest.mark.slow), (3, 0.6, 2)])
def test_next_to_no_noise_shows_who_was_drawn(direction, K, q, T):
    """Below a hundredth of the clip the bound is that of seeing the draw; a little above it, the grid is just above."""
    w = (1 - q) ** (K * T)
    for epsilon in (-0.5, 0.0, 0.05, 3.0):
        seen = 1 - w + max(0.0, w - math.exp(min(epsilon, 0.0))) if direction is ATTACKED else 1 - math.exp(epsilon) * w
        bound = group_mixture_delta(K, q, 1e-160, T, epsilon, direction)
        assert bound == pytest.approx(max(0.0, seen), rel=1e-12, abs=1e-15)
        assert bound - 1e-9 <= group_mixture_delta(K, q, 0.0101, T, epsilon, direction) <= bound * 1.005 + 1e-6
    curve = delta_curve(K, q, 1e-160, T, direction)
    exact = [group_mixture_delta(K, q, 1e-160, T, float(epsilon), direction) for epsilon in curve.epsilons]
    assert curve.deltas.tolist() == pytest.approx(exact)


@pytest.mark.parametrize("direction", BOTH)
def test_noise_without_end(direction):
    """Squares of it leave float64; what it hides does not change. Without sampling, next to none hides nothing."""
    assert group_mixture_delta(3, 0.1, 1e200, 5, 0.0, direction) <= 1e-7
    assert delta_curve(3, 0.1, 1e200, 5, direction).deltas[0] <= 1e-7
    assert delta_curve(3, 1.0, 1e-200, 5, direction).deltas.tolist() == [1.0]


def test_composition_agrees_with_dp_accounting():
    """The library's mixture mechanism, which takes a second, within the two grids, in both directions."""
    K, q, sigma, T = 3, 0.1, 1.8, 3
    pld = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        sigma, np.arange(K + 1), binom.pmf(np.arange(K + 1), K, q), value_discretization_interval=4e-3
    ).self_compose(T)
    for direction, theirs in ((ATTACKED, pld._pmf_remove), (BENIGN, pld._pmf_add)):
        for epsilon in (0.0, 0.3, 1.0):
            ours = group_mixture_delta(K, q, sigma, T, epsilon, direction)
            assert ours == pytest.approx(theirs.get_delta_for_epsilon(epsilon), rel=2e-3, abs=1e-7)


@examples(5, 15)
@given(q=st.floats(SMALL_RATE, 0.9), sigma=st.floats(0.6, 5.0), T=st.integers(1, 60), log10_delta=st.floats(-8, -3))
def test_one_unit_is_the_accountant(q, sigma, T, log10_delta):
    """K = 1 by our grid, and PldAccountant by dp_accounting's: two implementations of one number."""
    ours = max(loss_distribution(1, q, sigma, T, d).epsilon(10**log10_delta) for d in BOTH)
    theirs = PldAccountant().epsilon(SampledGaussian(q, sigma), T, 10**log10_delta)
    assert ours == pytest.approx(theirs, rel=2e-3, abs=2e-3)


@examples(3, 20)
@given(
    K=st.integers(1, 6),
    q=st.floats(0.02, 0.9),
    sigma=st.floats(0.6, 4.0),
    T=st.integers(1, 30),
    epsilon=st.floats(0.0, 4.0),
    direction=st.sampled_from(BOTH),
)
def test_monotone_in_every_parameter(K, q, sigma, T, epsilon, direction):
    """More units, a higher rate, more rounds, less noise, a smaller epsilon: never a smaller delta."""
    delta = group_mixture_delta(K, q, sigma, T, epsilon, direction)
    at_least = delta * (1 - 5e-3) - 1e-6  # two grids
    assert 0 <= delta <= 1
    assert group_mixture_delta(K + 1, q, sigma, T, epsilon, direction) >= at_least
    assert group_mixture_delta(K, min(1.0, q * 1.2), sigma, T, epsilon, direction) >= at_least
    assert group_mixture_delta(K, q, sigma, T + 1, epsilon, direction) >= at_least
    assert group_mixture_delta(K, q, sigma / 1.2, T, epsilon, direction) >= at_least
    assert group_mixture_delta(K, q, sigma, T, epsilon * 0.9, direction) >= at_least


@pytest.mark.parametrize("direction", BOTH)
@pytest.mark.parametrize("K", [1, 4])
def test_the_exact_law_is_within_group_privacy(K, direction):
    """At (k eps, delta_k) of the one-unit curve, the exact delta is smaller: by far for several units."""
    q, sigma, T, epsilon = 0.1, 1.8, 3, 0.2
    one = max(group_mixture_delta(1, q, sigma, T, epsilon, d) for d in BOTH)
    k_epsilon, k_delta = group_dp(epsilon, one, K)
    assert group_mixture_delta(K, q, sigma, T, k_epsilon, direction) <= k_delta * (1 + 1e-3)


def test_edges():
    """Nobody attacks, nobody is ever drawn, nothing is released; and everybody always is."""
    for K, q, T in ((0, 0.5, 9), (3, 0.0, 9), (3, 0.5, 0)):
        for direction in BOTH:
            assert group_mixture_delta(K, q, 1.0, T, 0.5, direction) == 0
            assert group_mixture_delta(K, q, 1.0, T, -1.0, direction) == pytest.approx(1 - math.exp(-1))
            assert delta_curve(K, q, 1.0, T, direction).deltas.tolist() == [0.0]
    assert group_mixture_delta(2, 1.0, 8.0, 4, 0.5, ATTACKED) == delta_from_mu(0.5, 0.5)
    near = group_mixture_delta(2, 1 - 1e-9, 8.0, 4, 0.5, BENIGN)
    assert near == pytest.approx(delta_from_mu(0.5, 0.5), rel=2e-3)
    always = loss_distribution(2, 1.0, 8.0, 4, BENIGN)
    assert always.delta(0.5) == pytest.approx(delta_from_mu(0.5, 0.5), rel=2e-3)


def test_worst_vectors_are_equal_ones():
    """Kahane's inequality at work: three units along different directions are never worse than along one.

    10^6 draws of each; Hoeffding's radius for a mean in [0, 1] is 3e-3 with a false-alarm rate of 3e-8.
    """
    rng, n, q, sigma, K = np.random.default_rng(3), 10**6, 0.3, 1.0, 3
    angles = np.array([0.0, 1.0, 2.5])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    subsets = np.array([[(i >> j) & 1 for j in range(K)] for i in range(2**K)])
    weights = np.prod(np.where(subsets, q, 1 - q), axis=1)
    sums = subsets @ vectors
    chosen = sums[rng.choice(2**K, size=n, p=weights)]
    x = chosen + sigma * rng.standard_normal((n, 2))
    ratio = np.exp((x @ sums.T - (sums**2).sum(axis=1) / 2) / sigma**2) @ weights
    for epsilon in (0.0, 0.5, 1.5):
        simulated = float(np.mean(np.maximum(0.0, 1 - math.exp(epsilon) / ratio)))
        assert simulated <= group_mixture_delta(K, q, sigma, 1, epsilon, ATTACKED) + 3e-3


@pytest.mark.parametrize("direction", BOTH)
def test_composition_is_above_a_simulated_likelihood_ratio(direction):
    """A bound 5 % too small would be found: 10^6 draws of five rounds, radius 3e-3, false-alarm rate 3e-8."""
    rng, n, K, q, sigma, T = np.random.default_rng(5), 10**6, 4, 0.2, 2.0, 5
    log_weights = binom.logpmf(np.arange(K + 1), K, q)
    loss = np.zeros(n)
    for _ in range(T):
        x = sigma * rng.standard_normal(n)
        if direction is ATTACKED:
            x += rng.binomial(K, q, size=n)
        k = np.arange(K + 1)[:, None]
        loss += np.log(np.exp(log_weights[:, None] + (k * x - k**2 / 2) / sigma**2).sum(axis=0))
    loss = loss if direction is ATTACKED else -loss
    for epsilon in (0.1, 0.5, 1.0):
        simulated = float(np.mean(np.maximum(0.0, -np.expm1(epsilon - loss))))
        delta = group_mixture_delta(K, q, sigma, T, epsilon, direction)
        assert simulated - 3e-3 <= delta <= simulated * 1.005 + 3e-3


def test_a_certificate_curve_takes_seconds():
    """k = 0 .. 20 in both directions, from nothing: under 5 s on one core; the second time it is cached."""
    group_mixture.delta_curve.cache_clear()
    group_mixture._one_round.cache_clear()
    start = time.process_time()
    for k in range(21):
        for direction in BOTH:
            delta_curve(k, 0.1, 1.8, 3, direction)
    assert time.process_time() - start < 5
    start = time.process_time()
    for k in range(21):
        delta_curve(k, 0.1, 1.8, 3, ATTACKED)
    assert time.process_time() - start < 0.05


def test_epsilon_inverts_delta():
    """On the composed distribution, between grid points too; infinite below the mass at infinity."""
    composed = loss_distribution(2, 0.1, 1.0, 20, ATTACKED)
    for delta in (1e-9, 1e-5, 1e-2, 0.3):
        epsilon = composed.epsilon(delta)
        assert composed.delta(epsilon) == pytest.approx(delta, rel=1e-6)
    assert composed.epsilon(0.99) == 0
    assert composed.epsilon(1e-13) == math.inf


def test_visible_selection_scales_one_round():
    """delta of "with probability w, visibly" is w times the delta of the round, for epsilon >= 0."""
    full, half = (loss_distribution(1, 0.3, 1.0, 1, ATTACKED, visible=w) for w in (1.0, 0.5))
    for epsilon in (0.0, 0.4, 1.1):
        assert half.delta(epsilon) == pytest.approx(full.delta(epsilon) / 2, rel=1e-9)


def test_many_units_are_a_table_of_those_that_are_drawn():
    """A rare tail has no quantile from the other side: 1 - 1e-18 is 1 in float64. What is cut counts as missing."""
    for K, q in ((1000, 0.05), (1000, 1e-7), (17, 1e-30)):
        pair = group_mixture._pair(K, q, 2.0)
        most = len(pair.k) - 1
        assert 1 <= most < K * q + 9 * math.sqrt(K * q) + 10
        assert binom.sf(most, K, q) <= min(1e-18, pair.missing)


def test_losses_of_many_units_take_no_gigabytes():
    """As many as a task may count of one person: tables are made of some points of the grid at a time."""
    pair, x = group_mixture._pair(1000, 0.3, 30.0), np.linspace(-300.0, 700.0, 200_000)
    tracemalloc.start()
    found = pair._losses(x)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200e6
    assert [pair.loss(float(at)) for at in x[::40_000]] == pytest.approx(found[::40_000], rel=1e-13)


@pytest.mark.parametrize("direction", BOTH)
def test_much_noise_needs_no_large_grid(direction):
    """At sigma = 10^6 the loss is nowhere near its supremum; delta(0) of one round is q (2 Phi(1/(2 sigma)) - 1)."""
    delta = group_mixture_delta(1, 0.1, 1e6, 1, 0.0, direction)
    assert delta == pytest.approx(0.1 * delta_from_mu(0.0, 1e-6), rel=2e-2)
    assert len(loss_distribution(1, 0.1, 1e6, 1, direction).mass) < 10_000
