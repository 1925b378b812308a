"""One abstract test for every accountant, each event that it supports; then one against another."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import binom, norm

from precad.dp.accountants.calibration import most_rounds, smallest_noise_multiplier
from precad.dp.accountants.gaussian_dp import delta_from_mu
from precad.dp.accountants.pld import Label, PldAccountant, SampledGaussian, TwoStageSampledGaussian, View
from precad.dp.accountants.side_by_side import (
    ACCOUNTANTS,
    GdpAccountant,
    GdpCltAccountant,
    PrecadAccountant,
    RdpAccountant,
    side_by_side,
    statement,
)
from precad.dp.errors import UnsupportedEventError
from precad.dp.published.gaussian import pld_eps_sgm
from tests.harness.examples import SMALL_RATE, examples

pytestmark = pytest.mark.filterwarnings("ignore::precad.dp.accountants.renyi_accounting.OrderGridWarning")

SAMPLED = [SampledGaussian(0.1, 1.0), SampledGaussian(0.02, 2.0)]
TWO_STAGE = [TwoStageSampledGaussian(0.2, 0.05, 1.0), TwoStageSampledGaussian(0.5, 0.1, 3.0)]
ALWAYS = [SampledGaussian(1.0, 6.0), TwoStageSampledGaussian(1.0, 1.0, 6.0)]
CASES = [(name, event) for name in ACCOUNTANTS for event in ([] if name == "gdp" else SAMPLED + TWO_STAGE) + ALWAYS]


def less_noise(event):
    """Return the event with a tenth of the noise less."""
    if isinstance(event, TwoStageSampledGaussian):
        return TwoStageSampledGaussian(event.selection_rate, event.record_rate, 0.9 * event.noise_multiplier)
    return SampledGaussian(event.sampling_rate, 0.9 * event.noise_multiplier)


@pytest.mark.parametrize(("name", "event"), CASES)
class TestEveryAccountant:
    """Check what holds of each: zero of nothing, monotone, composing, labelled, and no bound below the truth."""

    def test_nothing_costs_nothing(self, name, event):
        assert ACCOUNTANTS[name].epsilon(event, 0, 1e-5) == 0
        assert ACCOUNTANTS[name].epsilon(SampledGaussian(0.0, 1.0), 100, 1e-5) == 0

    def test_more_of_it_costs_more(self, name, event):
        """Rounds, noise, delta."""
        accountant = ACCOUNTANTS[name]
        epsilon = accountant.epsilon(event, 20, 1e-5)
        assert epsilon > 0
        assert accountant.epsilon(event, 21, 1e-5) >= epsilon
        assert accountant.epsilon(event, 20, 1e-6) >= epsilon
        assert accountant.epsilon(less_noise(event), 20, 1e-5) > epsilon

    def test_composition_is_not_worse_than_adding(self, name, event):
        """epsilon(2 T, 2 delta) <= 2 epsilon(T, delta): basic composition of the two halves."""
        accountant = ACCOUNTANTS[name]
        assert accountant.epsilon(event, 40, 2e-5) <= 2 * accountant.epsilon(event, 20, 1e-5) * (1 + 1e-6)

    def test_the_label_is_on_every_statement(self, name, event):
        """And only a bound is written with <=."""
        made = statement(ACCOUNTANTS[name], event, 20, delta=1e-5, view=View.ONE_SERVER)
        assert made.label is ACCOUNTANTS[name].label
        assert ("<=" in str(made)) == (made.label is Label.BOUND)

    def test_a_bound_is_above_the_truth(self, name, event):
        """The truth to 2e-3 from PLD; an approximation has no such duty."""
        if ACCOUNTANTS[name].label is Label.BOUND:
            truth = PldAccountant().epsilon(event, 20, 1e-5) / (1 + 2e-3) - 2e-3
            assert ACCOUNTANTS[name].epsilon(event, 20, 1e-5) >= truth

    @pytest.mark.parametrize(("rounds", "delta"), [(-1, 1e-5), (1.5, 1e-5), (3, 0.0), (3, 1.0), (3, math.nan)])
    def test_arguments_are_checked(self, name, event, rounds, delta):
        with pytest.raises(ValueError, match=r"rounds: expected|delta: expected"):
            ACCOUNTANTS[name].epsilon(event, rounds, delta)


@examples(6, 20)
@given(
    q=st.floats(SMALL_RATE / 2, 0.9), sigma=st.floats(0.6, 6.0), T=st.integers(1, 200), log10_delta=st.floats(-8, -2)
)
def test_rdp_is_above_pld(q, sigma, T, log10_delta):
    """For one stage and for two, at any parameters; a little is left for the grid of the latter."""
    for event in (SampledGaussian(q, sigma), TwoStageSampledGaussian(0.3, q, sigma)):
        tight = PldAccountant().epsilon(event, T, 10**log10_delta)
        assert RdpAccountant().epsilon(event, T, 10**log10_delta) >= tight * (1 - 2e-3) - 2e-3


@examples(3, 10)
@given(w=st.floats(SMALL_RATE, 0.99), q=st.floats(SMALL_RATE, 0.9), sigma=st.floats(0.6, 6.0), T=st.integers(1, 100))
def test_two_stages_lie_between_nothing_and_one(w, q, sigma, T):
    """Visible selection helps a record at random, and never as much as sampling with rate w q would."""
    two = pld_eps_sgm(q, sigma, T, 1e-5, visible=w)
    assert two <= pld_eps_sgm(q, sigma, T, 1e-5) * (1 + 2e-3) + 2e-3
    assert two >= pld_eps_sgm(w * q, sigma, T, 1e-5) * (1 - 2e-3) - 2e-3


def test_the_limit_is_below_the_truth():
    """Why an approximation is no guarantee: PRECAD's setting, and its printed formula with q p."""
    clients = TwoStageSampledGaussian(0.1, 0.05, math.sqrt(2))
    found = side_by_side(clients, 5000, delta=1e-5, view=View.CLIENTS_ONLY)
    assert found["pld"].epsilon == pytest.approx(4.1525, rel=2e-3)
    assert found["gdp_clt"].epsilon < found["pld"].epsilon < found["rdp"].epsilon
    assert found["precad"].epsilon == pytest.approx(1.069, abs=1e-3)
    assert "gdp" not in found


def test_exact_gaussian_refuses_what_it_cannot_say():
    with pytest.raises(
        UnsupportedEventError, match=r"^event: expected rounds without sampling for .*, found SampledGaussian"
    ):
        GdpAccountant().epsilon(SampledGaussian(0.5, 1.0), 3, 1e-5)
    tight = PldAccountant().epsilon(SampledGaussian(1.0, 5.0), 20, 1e-5)
    assert GdpAccountant().epsilon(SampledGaussian(1.0, 5.0), 20, 1e-5) == pytest.approx(tight, rel=1e-6)


def test_an_overflowing_limit_is_infinite():
    assert PrecadAccountant().epsilon(SampledGaussian(0.1, 0.01), 5, 1e-5) == math.inf


@examples(2, 6)
@given(q=st.floats(0.01, 1.0), T=st.integers(1, 100), target=st.floats(0.2, 8.0))
def test_calibrated_noise_meets_its_target_and_is_least(q, T, target):
    accountant = RdpAccountant("mironov", "opacus")
    sigma = smallest_noise_multiplier(target, lambda s: SampledGaussian(q, s), T, 1e-5, accountant)
    assert accountant.epsilon(SampledGaussian(q, sigma), T, 1e-5) <= target
    assert accountant.epsilon(SampledGaussian(q, sigma * 0.999), T, 1e-5) > target


def test_calibration_by_the_default_accountant():
    """sigma for epsilon = 2 in 500 rounds; then the rounds that sigma allows are those 500 or a few more."""
    sigma = smallest_noise_multiplier(2.0, lambda s: SampledGaussian(0.05, s), 500, 1e-5, PldAccountant())
    assert sigma == pytest.approx(2.4031, rel=1e-3)
    rounds = most_rounds(2.0, SampledGaussian(0.05, sigma), 1e-5, PldAccountant())
    assert 500 <= rounds <= 502
    assert most_rounds(1e-6, SampledGaussian(0.5, 0.5), 1e-5, PldAccountant()) == 0
    assert most_rounds(1e9, SampledGaussian(0.5, 5.0), 1e-5, RdpAccountant(), at_most=37) == 37


def test_calibration_says_when_there_is_no_such_noise():
    with pytest.raises(ValueError, match="target_epsilon: expected one that a noise multiplier of at most 1e6 reaches"):
        smallest_noise_multiplier(1e-9, lambda _: SampledGaussian(1.0, 1.0), 10, 1e-5, GdpAccountant())


@pytest.mark.parametrize(("sigma", "epsilon"), [(1e300, 0.0), (1e-300, math.inf)])
def test_a_group_in_noise_whose_square_no_float_holds(sigma, epsilon):
    """The limit of a group's mixture is that of all noise, or none."""
    assert GdpCltAccountant().epsilon(SampledGaussian(0.1, sigma, 2), 10, 1e-5) == epsilon


@pytest.mark.parametrize(
    ("event", "visible"), [(SampledGaussian(0.1, 1.5, 3), 1.0), (TwoStageSampledGaussian(0.4, 0.1, 1.5, 3), 0.4)]
)
def test_the_limit_of_a_group_has_the_chi_squared_divergence_of_its_mixture(event, visible):
    """By quadrature of P^2 / Q; the mixture is of three records. The paper's own is k times that of one record."""
    odds = binom.pmf(range(4), 3, 0.1)

    def squared(x):
        mixture = sum(weight * norm.pdf(x, j, 1.5) for j, weight in enumerate(odds))
        return mixture**2 / norm.pdf(x, 0, 1.5)

    chi_squared = quad(squared, -20, 30, limit=200)[0] - 1
    found = GdpCltAccountant().epsilon(event, 20, 1e-5)
    assert delta_from_mu(found, math.sqrt(20 * visible * chi_squared)) == pytest.approx(1e-5, rel=1e-5)
    printed = PrecadAccountant().epsilon(event, 20, 1e-5)
    mu = 3 * visible * 0.1 * math.sqrt(20 * math.expm1(1.5**-2))
    assert delta_from_mu(printed, mu) == pytest.approx(1e-5, rel=1e-5)
