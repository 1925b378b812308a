"""Epsilon against published values, a closed form, and an exact quadrature; the statements made of it."""

import itertools
import math
import warnings
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import log_ndtr, logsumexp
from scipy.stats import binom, norm

from precad.dp.accountants import pld as accounting
from precad.dp.accountants.bins_event import BinnedGaussian
from precad.dp.accountants.gaussian_dp import delta_from_mu, eps_from_mu
from precad.dp.accountants.pld import (
    Label,
    PldAccountant,
    PrivacyStatement,
    SampledGaussian,
    TwoStageSampledGaussian,
    View,
    effective_noise_multiplier,
    round_event,
)
from precad.dp.accountants.renyi_accounting import OrderGridWarning
from precad.dp.accountants.side_by_side import RdpAccountant
from tests.harness.examples import SMALL_RATE, examples

ACCOUNTANT = PldAccountant()
ROUNDING_UP = 2e-3  # what a pessimistic grid may add, relative


def gaussian_delta(epsilon: float, mu: float) -> float:
    """delta(epsilon) of mu-GDP: Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2)."""
    return math.exp(log_ndtr(-epsilon / mu + mu / 2)) - math.exp(epsilon + log_ndtr(-epsilon / mu - mu / 2))


def one_round_epsilon(event: SampledGaussian, delta: float) -> float:
    """Exact epsilon of one round: the hockey-stick divergence by quadrature, the larger of both directions.

    Gauss-Legendre with 8 nodes on 4000 panels over +-12 sigma; the one panel with the kink errs by about 1e-9.
    """
    p, sigma = event.sampling_rate, event.noise_multiplier
    nodes, weights = np.polynomial.legendre.leggauss(8)
    edges = np.linspace(-12 * sigma, 1 + 12 * sigma, 4001)
    half_width = (edges[1] - edges[0]) / 2
    x = (edges[:-1, None] + half_width * (1 + nodes)).ravel()
    weight = np.tile(half_width * weights, 4000)
    without = norm.pdf(x, scale=sigma)
    with_record = (1 - p) * without + p * norm.pdf(x, loc=1, scale=sigma)

    def epsilon(first, second) -> float:
        def hockey_stick(e: float) -> float:
            return float(weight @ np.maximum(first - math.exp(e) * second, 0.0))

        return brentq(lambda e: hockey_stick(e) - delta, 0.0, 20.0, xtol=1e-9) if hockey_stick(0.0) > delta else 0.0

    return max(epsilon(with_record, without), epsilon(without, with_record))


@pytest.mark.parametrize(
    ("rate", "sigma", "rounds", "delta", "expected"),
    [
        (0.05, 1.0, 500, 1e-5, 7.5237),
        (0.05, 1.5, 500, 1e-5, 3.785),
        (0.05, 2.0, 500, 1e-5, 2.5321),
        (0.1, 1.8, 3, 0.0029, 0.21134),
    ],
)
def test_values_of_the_specification(rate, sigma, rounds, delta, expected):
    """Values of an independent oracle (mpmath, quadrature and FFT), to 2e-3 either way."""
    assert ACCOUNTANT.epsilon(SampledGaussian(rate, sigma), rounds, delta) == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize(("rate", "sigma", "delta"), [(0.2, 1.5, 1e-5), (0.05, 1.0, 1e-5), (0.5, 0.7, 1e-3)])
def test_one_round_is_just_above_the_exact_divergence(rate, sigma, delta):
    """Never below the quadrature, and above it by no more than the grid explains. Both directions are in the max."""
    event = SampledGaussian(rate, sigma)
    exact = one_round_epsilon(event, delta)
    assert exact - 1e-6 <= ACCOUNTANT.epsilon(event, 1, delta) <= exact * (1 + ROUNDING_UP)


@pytest.mark.parametrize("rounds", [1, 30, 200])
def test_epsilon_is_the_larger_of_adding_and_removing(rounds):
    """The two directions differ, and the accountant reports the larger."""
    event, delta = SampledGaussian(0.2, 1.5), 1e-5
    pld = privacy_loss_distribution.from_gaussian_mechanism(
        1.5, sampling_prob=0.2, value_discretization_interval=1e-3
    ).self_compose(rounds)
    directions = [pmf.get_epsilon_for_delta(delta) for pmf in (pld._pmf_remove, pld._pmf_add)]
    assert directions[0] != directions[1]
    assert ACCOUNTANT.epsilon(event, rounds, delta) == pytest.approx(max(directions), rel=1e-6)


def test_composition_is_above_what_a_simulated_attack_proves():
    """A lower bound on delta from 10^6 simulated likelihood ratios of 10 rounds lies below the bound's delta.

    The losses are drawn with the record in. By Hoeffding the mean of 1 - e^{eps - loss} over losses > eps is within
    3e-3 of delta(eps) but for a false-alarm rate of 2e-8. A bound too small by 5 % in epsilon would be found.
    """
    rate, sigma, rounds, n = 0.2, 1.0, 10, 10**6
    rng = np.random.default_rng(7)
    loss = np.zeros(n)
    for _ in range(rounds):
        x = sigma * rng.standard_normal(n) + (rng.random(n) < rate)
        loss += np.log1p(rate * np.expm1((2 * x - 1) / (2 * sigma**2)))
    epsilon = ACCOUNTANT.epsilon(SampledGaussian(rate, sigma), rounds, 0.05)

    def simulated_delta(e: float) -> float:
        return float(np.mean(np.maximum(0.0, -np.expm1(e - loss))))

    assert simulated_delta(epsilon) <= 0.05 + 3e-3
    assert simulated_delta(0.95 * epsilon) > 0.05 + 3e-3


@pytest.mark.parametrize(("sigma", "rounds"), [(1.0, 1), (2.0, 50), (0.5, 3)])
def test_without_sampling_the_composition_is_exactly_gaussian(sigma, rounds):
    """At rate 1, T rounds are sqrt(T)/sigma-GDP: inverting epsilon gives delta back, from below."""
    epsilon = ACCOUNTANT.epsilon(SampledGaussian(1.0, sigma), rounds, 1e-5)
    delta = gaussian_delta(epsilon, math.sqrt(rounds) / sigma)
    assert delta <= 1e-5
    assert delta == pytest.approx(1e-5, rel=1e-6)


def test_rate_one_is_the_limit_of_sampling():
    """The closed form and the distribution meet: two methods for one number, the grid's a little above."""
    closed = ACCOUNTANT.epsilon(SampledGaussian(1.0, 2.0), 20, 1e-5)
    gridded = ACCOUNTANT.epsilon(SampledGaussian(1 - 1e-12, 2.0), 20, 1e-5)
    assert closed - 1e-6 <= gridded <= closed * (1 + ROUNDING_UP)


def test_rounding_in_the_transform_is_below_what_is_set_aside():
    """delta - 1e-13 T covers the FFT: at rate 1 a composed distribution misses the closed form by less."""
    sigma, rounds = 30.0, 500
    composed = privacy_loss_distribution.from_gaussian_mechanism(
        sigma, value_discretization_interval=3e-4
    ).self_compose(rounds)
    for epsilon in (5.0, 5.5, 6.0, 7.0, 8.0):
        exact = gaussian_delta(epsilon, math.sqrt(rounds) / sigma)
        assert composed.get_delta_for_epsilon(epsilon) > exact - 1e-13 * rounds


@pytest.mark.parametrize("event", [SampledGaussian(0.2, 1.5), SampledGaussian(0.05, 3.0)])
def test_one_round_at_a_time_gives_what_all_at_once_gives(event):
    """Adding round after round to a distribution reaches the composed one, so per-round charging loses nothing."""
    step = 1e-3 if event.sampling_rate == 0.2 else 0.03 * 0.05 * math.sqrt(math.expm1(1 / 9))
    one = privacy_loss_distribution.from_gaussian_mechanism(
        event.noise_multiplier, sampling_prob=event.sampling_rate, value_discretization_interval=step
    )
    running = one
    for rounds in range(1, 21):
        assert ACCOUNTANT.epsilon(event, rounds, 1e-5) == pytest.approx(running.get_epsilon_for_delta(1e-5), rel=1e-6)
        running = running.compose(one)


def test_epsilon_does_not_depend_on_earlier_questions():
    """A server restarted at round 40 gets the bits of one that asked at every round."""
    event = SampledGaussian(0.11, 1.7)
    for rounds in range(1, 41):
        asked_every_round = ACCOUNTANT.epsilon(event, rounds, 1e-6)
    accounting._epsilon.cache_clear()
    accounting._one_round.cache_clear()
    assert PldAccountant().epsilon(event, 40, 1e-6) == asked_every_round


@examples(4, 12)
@given(
    rate=st.floats(SMALL_RATE, 0.9),
    sigma=st.floats(0.6, 5.0),
    rounds=st.integers(1, 60),
    log10_delta=st.floats(-8, -3),
    more=st.floats(1.05, 1.5),
)
def test_monotone_in_every_parameter(rate, sigma, rounds, log10_delta, more):
    """More rounds, a higher rate, less noise or a smaller delta: never a smaller epsilon."""
    delta = 10**log10_delta
    epsilon = ACCOUNTANT.epsilon(SampledGaussian(rate, sigma), rounds, delta)
    assert ACCOUNTANT.epsilon(SampledGaussian(rate, sigma), rounds + 1, delta) >= epsilon
    assert ACCOUNTANT.epsilon(SampledGaussian(min(1.0, rate * more), sigma), rounds, delta) >= epsilon
    assert ACCOUNTANT.epsilon(SampledGaussian(rate, sigma / more), rounds, delta) >= epsilon
    assert ACCOUNTANT.epsilon(SampledGaussian(rate, sigma), rounds, delta / more) >= epsilon


@pytest.mark.parametrize("number", [np.float16, np.float32, np.float64, np.longdouble, Fraction])
def test_epsilon_does_not_depend_on_the_type_of_a_number(number):
    """In few digits epsilon would be too small, by 6 of 1840, and a later question in floats would find it cached."""
    half, eighth, one = number(0.5), number(0.125), number(1.0)
    asked = [
        (SampledGaussian, (half, one), 50),
        (SampledGaussian, (one, eighth), 50),
        (lambda p, s: TwoStageSampledGaussian(p, p, s), (half, one), 50),
        (lambda p, s: SampledGaussian(p, s, 3), (half, one), 50),
        (lambda _, s: BinnedGaussian(8, s), (half, one), 50),
    ]
    for made, numbers, rounds in asked:
        in_floats = made(*map(float, numbers))
        accounting._epsilon.cache_clear()
        found = PldAccountant().epsilon(made(*numbers), rounds, number(2**-14))
        assert PldAccountant().epsilon(in_floats, rounds, 2**-14) == found
        accounting._epsilon.cache_clear()
        assert PldAccountant().epsilon(in_floats, rounds, 2**-14) == found
    assert effective_noise_multiplier(one, number(2.0), 26010, 8) == effective_noise_multiplier(1.0, 2.0, 26010, 8)
    assert eps_from_mu(number(2**-14), number(8.0)) == eps_from_mu(2**-14, 8.0)
    assert delta_from_mu(number(4.0), one) == delta_from_mu(4.0, 1.0)


def test_nothing_released_costs_nothing():
    assert ACCOUNTANT.epsilon(SampledGaussian(0.2, 1.0), 0, 1e-5) == 0.0
    assert ACCOUNTANT.epsilon(SampledGaussian(0.0, 1.0), 100, 1e-5) == 0.0


@pytest.mark.parametrize(
    ("event", "larger"),
    [
        (SampledGaussian(0.2, 0.05), SampledGaussian(1.0, 0.05)),
        (SampledGaussian(0.2, 1e9), SampledGaussian(0.2, 1e3)),
        (SampledGaussian(1.0, 1e-200), SampledGaussian(1.0, 1e-200)),
    ],
)
def test_extreme_events_are_bounded_by_a_lossier_one(event, larger):
    """Outside the region the grid can hold, the answer is finite where it can be and never too small."""
    epsilon = ACCOUNTANT.epsilon(event, 3, 1e-5)
    assert 0 <= epsilon <= ACCOUNTANT.epsilon(larger, 3, 1e-5)


@pytest.mark.parametrize(
    "event",
    [SampledGaussian(0.1, 1.0), SampledGaussian(1e-3, 0.7), TwoStageSampledGaussian(0.3, 0.1, 1.0)],
    ids=str,
)
@pytest.mark.parametrize("delta", [1e-11, 1e-30])
def test_a_delta_below_the_transform_is_answered_by_renyi_divergences(event, delta):
    """Finite, and the bound of that accountant, which goes another way to the two-stage one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OrderGridWarning)
        by_renyi = RdpAccountant().epsilon(event, 1000, delta)
    assert 0 < by_renyi < math.inf
    assert ACCOUNTANT.epsilon(event, 1000, delta) == pytest.approx(by_renyi, rel=1e-9)


@pytest.mark.parametrize(
    ("k", "p", "sigma", "rounds", "delta"), [(2, 0.01, 2.0, 10_000, 1e-9), (3, 0.05, 5.0, 400, 1e-13)]
)
@pytest.mark.parametrize("visible", [1.0, 0.3])
def test_a_groups_delta_below_the_transform_is_answered_so_as_well(k, p, sigma, rounds, delta, visible):
    """By quadrature of a mixture's divergences in both directions, and by the definition of a visible draw's. No less
    than at a larger delta, and less than for all records in every round."""
    event = SampledGaussian(p, sigma, k) if visible == 1 else TwoStageSampledGaussian(visible, p, sigma, k)
    found = ACCOUNTANT.epsilon(event, rounds, delta)

    def mixture(x):
        drawn = np.arange(k + 1)
        return logsumexp(norm.logpdf(x, drawn, sigma) + binom.logpmf(drawn, k, p))

    def benign(x):
        return norm.logpdf(x, 0, sigma)

    def epsilon_at(alpha):
        each = []
        for above, below in ((mixture, benign), (benign, mixture)):

            def density(x, above=above, below=below):
                return math.exp(alpha * above(x) + (1 - alpha) * below(x))

            moment, _ = quad(density, -12 * sigma, alpha * k + 12 * sigma, limit=400, points=[0, alpha * k])
            each.append(rounds * math.log1p(visible * (moment - 1)) / (alpha - 1))
        return max(each) + math.log1p(-1 / alpha) - math.log(delta * alpha) / (alpha - 1)  # Balle et al., Theorem 21

    by_quadrature = min(epsilon_at(alpha) for alpha in (2, 3, 4, 6, 8, 12))
    assert found <= by_quadrature * (1 + 1e-6)
    assert found >= ACCOUNTANT.epsilon(event, rounds, 1e-5)
    assert found < 0.5 * ACCOUNTANT.epsilon(SampledGaussian(1.0, sigma, k), rounds, delta)


@pytest.mark.parametrize("delta", [1.5e-13, 5e-14, 1e-15])
def test_below_the_transform_one_round_and_the_gaussian_limit_are_not_undercut(delta):
    """Exact epsilons by quadrature, and of the Gaussian release that nearly certain sampling is."""
    event = SampledGaussian(0.1, 1.0)
    assert (
        one_round_epsilon(event, delta) <= ACCOUNTANT.epsilon(event, 1, delta) < 1.3 * one_round_epsilon(event, delta)
    )
    closed = ACCOUNTANT.epsilon(SampledGaussian(1.0, 2.0), 20, delta)
    assert closed - 1e-6 <= ACCOUNTANT.epsilon(SampledGaussian(1 - 1e-12, 2.0), 20, delta) < 1.1 * closed


@pytest.mark.parametrize("event", [SampledGaussian(0.1, 1.0), TwoStageSampledGaussian(0.3, 0.1, 1.0)], ids=str)
def test_epsilon_rises_with_the_rounds_across_the_change_of_method(event):
    """From 500 rounds on, rounding may cost half of this delta, and from 1000 on all of it."""
    epsilons = [ACCOUNTANT.epsilon(event, rounds, 1e-10) for rounds in (490, 500, 501, 510, 900, 999, 1000, 1001, 1010)]
    assert all(earlier < later < math.inf for earlier, later in itertools.pairwise(epsilons))


def test_where_the_transform_loses_little_its_answer_stands_to_the_bit():
    """As dp-accounting gives it after what is set aside, also where Renyi divergences would say less."""
    event = SampledGaussian(0.1, 1.0)
    for rounds, delta in ((100, 2e-11), (100, 1e-9), (1000, 1e-5)):
        composed = accounting._one_round(event).self_compose(rounds)
        assert ACCOUNTANT.epsilon(event, rounds, delta) == composed.get_epsilon_for_delta(delta - 1e-13 * rounds)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan, True])
def test_delta_must_be_a_failure_probability(delta):
    with pytest.raises(ValueError, match=r"delta: expected a number in \(0, 1\), found"):
        ACCOUNTANT.epsilon(SampledGaussian(0.1, 1.0), 1, delta)


@pytest.mark.parametrize("rounds", [-1, 1.0, True])
def test_rounds_must_be_a_count(rounds):
    with pytest.raises(ValueError, match="rounds: expected an integer of at least 0, found"):
        ACCOUNTANT.epsilon(SampledGaussian(0.1, 1.0), rounds, 1e-5)


@pytest.mark.parametrize(
    ("rate", "sigma", "message"),
    [
        (-0.1, 1.0, "sampling_rate: expected a number in"),
        (1.1, 1.0, "sampling_rate: expected a number in"),
        (math.nan, 1.0, "sampling_rate: expected a number in"),
        (True, 1.0, "sampling_rate: expected a number in"),
        (0.1, 0.0, "noise_multiplier: expected a finite number above 0"),
        (0.1, math.inf, "noise_multiplier: expected a finite number above 0"),
        (0.1, math.nan, "noise_multiplier: expected a finite number above 0"),
    ],
)
def test_event_checks_its_fields(rate, sigma, message):
    with pytest.raises(ValueError, match=message):
        SampledGaussian(rate, sigma)


def test_effective_multiplier_of_the_errata():
    """d = 26010, R = 2: -0.12 % at 16 fractional bits and -24 % at 8. Specification, erratum P8."""
    assert effective_noise_multiplier(1.0, 2.0, 26010, 16) == pytest.approx(2 / 2.002460878916, rel=1e-12)
    assert effective_noise_multiplier(1.0, 2.0, 26010, 8) == pytest.approx(0.76, abs=5e-3)


@given(seed=st.integers(0, 2**32 - 1), frac_bits=st.integers(0, 10))
def test_record_sensitivity_after_rounding_towards_zero(seed, frac_bits):
    """||trunc(x + g) - trunc(x)|| <= ||g|| + sqrt(d) 2^-f on the grid, for any x and g."""
    rng = np.random.default_rng(seed)
    dim = 50
    x, g = 3 * rng.standard_normal(dim), rng.standard_normal(dim)
    moved = (np.trunc((x + g) * 2.0**frac_bits) - np.trunc(x * 2.0**frac_bits)) / 2.0**frac_bits
    clip = float(np.linalg.norm(g))
    sensitivity = clip / effective_noise_multiplier(1.0, clip, dim, frac_bits)
    assert np.linalg.norm(moved) <= sensitivity * (1 + 1e-9)


def test_round_event_of_each_view():
    """One server sees one noise, clients see both: the multipliers differ by sqrt(2), the rate does not."""
    setting = {
        "record_sampling_rate": 0.05, "noise_multiplier": 1.5, "record_clip": 2.0, "dim": 26010, "frac_bits": 16,
    }  # fmt: skip
    server, clients = (round_event(view, **setting) for view in (View.ONE_SERVER, View.CLIENTS_ONLY))
    assert server.noise_multiplier == pytest.approx(1.5 * 2 / 2.002460878916, rel=1e-12)
    assert clients.noise_multiplier == math.sqrt(2) * server.noise_multiplier
    assert clients.sampling_rate == server.sampling_rate == 0.05
    assert round_event("one_server", **setting) == server
    with pytest.raises(ValueError, match="not a valid View"):
        round_event("nobody", **setting)


def test_clients_only_needs_noise_wider_than_the_grid():
    """Below 8 grid steps the sum of two rounded draws is no longer a rounded Gaussian; one draw still is."""
    setting = {"record_sampling_rate": 0.05, "noise_multiplier": 1.0, "record_clip": 1.0, "dim": 1, "frac_bits": 2}
    round_event(View.ONE_SERVER, **setting)
    with pytest.raises(ValueError, match=r"2\^frac_bits: expected at least 8 against clients, found 4"):
        round_event(View.CLIENTS_ONLY, **setting)


def test_noise_that_is_beyond_a_float_on_the_grid_is_wide_enough():
    """The search for a target's noise meets such noise before anything says that the clip is too large."""
    setting = {"record_sampling_rate": 0.05, "noise_multiplier": 1.0, "record_clip": 1e308, "dim": 1, "frac_bits": 16}
    assert round_event(View.CLIENTS_ONLY, **setting).noise_multiplier == math.sqrt(2)


@pytest.mark.parametrize("std", [1, 1.5, 2, 2.5])
def test_two_rounded_draws_are_a_rounded_gaussian_but_for_a_vanishing_term(std):
    """round(s Z1) + round(s Z2) against round(s Z1 + s Z2 + V), V uniform on [-1/2, 1/2]: distance below e^{-(pi s)^2}.

    The second is post-processing of the Gaussian release with noise sqrt(2) s. Its law is the second difference of t
    G(k / t), with t = sqrt(2) s and G(x) = x Phi(x) + phi(x). The reason is that V and rounding together are a
    triangle.
    """
    mp = mpmath.MPContext()
    mp.dps = 60
    s = mp.mpf(std)
    t = mp.sqrt(2) * s
    n = int(14 * std)
    one = {k: mp.ncdf((k + 0.5) / s) - mp.ncdf((k - 0.5) / s) for k in range(-2 * n, 2 * n + 1)}
    integral = {k: k * mp.ncdf(k / t) + t * mp.npdf(k / t) for k in range(-n - 1, n + 2)}
    distance = sum(
        abs(sum(one[j] * one[k - j] for j in range(k - n if k > 0 else -n, (n if k > 0 else k + n) + 1))
            - (integral[k + 1] - 2 * integral[k] + integral[k - 1]))
        for k in range(-n, n + 1)
    ) / 2  # fmt: skip
    assert mp.exp(-1) < distance * mp.exp((mp.pi * s) ** 2) < 1


def test_a_bound_prints_as_a_bound_and_is_rounded_up():
    statement = PrivacyStatement(7.5201, 1e-5, View.ONE_SERVER, Label.BOUND)
    assert str(statement) == (
        "epsilon <= 7.53 at delta = 1e-05 (proved bound, one server corrupted, add/remove one record)"
    )


@pytest.mark.parametrize("label", [Label.APPROXIMATION, Label.PUBLISHED_REPRODUCTION])
@pytest.mark.parametrize("view", View)
def test_nothing_but_a_bound_prints_as_a_bound(label, view):
    text = str(PrivacyStatement(6.858, 1e-5, view, label))
    assert text.startswith("epsilon ~ 6.86 at delta = 1e-05 (")
    assert "not a guarantee" in text
    assert "<=" not in text


@given(epsilon=st.floats(0, 1e6))
def test_a_printed_bound_is_never_below_the_bound(epsilon):
    text = str(PrivacyStatement(epsilon, 1e-5, View.CLIENTS_ONLY, Label.BOUND))
    assert float(text.split()[2]) >= epsilon


def test_a_vacuous_statement_says_so():
    assert str(PrivacyStatement(math.inf, 1e-5, View.ONE_SERVER, Label.BOUND)).startswith("epsilon <= Infinity at")


@pytest.mark.parametrize("epsilon", [-1e-9, math.nan, True])
def test_statement_checks_epsilon(epsilon):
    with pytest.raises(ValueError, match="epsilon: expected a number of at least 0"):
        PrivacyStatement(epsilon, 1e-5, View.ONE_SERVER, Label.BOUND)
