"""delta(epsilon; mu) against multiprecision, its inverses, and the parameters built on it."""

import math

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtri

from precad.dp.accountants.gaussian_dp import delta_from_mu, eps_from_mu, gdp_clt, gdp_composed_mu, mu_from_eps_delta
from precad.dp.accountants.precad_client import expected_participation, participation_quantile
from precad.dp.published.gaussian import analytic_gaussian_eps, classical_gaussian_eps, gdp_tradeoff
from precad.dp.published.precad import (
    client_level_mu,
    gdp_mu_precad_clients_only,
    gdp_mu_precad_clients_only_corrected,
)


def exact_delta(epsilon: float, mu: float) -> mpmath.mpf:
    """The definition, with 60 digits."""
    with mpmath.workdps(60):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
        return mpmath.ncdf(-e / m + m / 2) - mpmath.exp(e) * mpmath.ncdf(-e / m - m / 2)


@settings(max_examples=300, deadline=None)
@given(t=st.floats(-12, 10), log10_mu=st.floats(-6, 3))
def test_delta_keeps_its_relative_precision(t, log10_mu):
    """1e-7 is asked for down to delta = 1e-22; what is left over is the rounding of epsilon / mu."""
    mu = 10**log10_mu
    epsilon = mu * (t + mu / 2)
    exact = exact_delta(epsilon, mu)
    if exact > 1e-22:
        assert delta_from_mu(epsilon, mu) == pytest.approx(float(exact), rel=1e-8)


@given(log10_delta=st.floats(-20, -0.01), log10_mu=st.floats(-4, 4))
def test_epsilon_inverts_delta(log10_delta, log10_mu):
    delta, mu = 10**log10_delta, 10**log10_mu
    epsilon = eps_from_mu(delta, mu)
    if epsilon == 0:
        assert delta_from_mu(0.0, mu) <= delta * (1 + 1e-9)
    else:
        assert delta_from_mu(epsilon, mu) == pytest.approx(delta, rel=1e-6)


@given(epsilon=st.floats(0, 50), log10_delta=st.floats(-20, -0.1))
def test_mu_inverts_delta(epsilon, log10_delta):
    mu = mu_from_eps_delta(epsilon, 10**log10_delta)
    assert delta_from_mu(epsilon, mu) == pytest.approx(10**log10_delta, rel=1e-9)


@given(epsilon=st.floats(0.01, 20), mu=st.floats(0.05, 10), more=st.floats(1.01, 2))
def test_delta_falls_with_epsilon_and_rises_with_mu(epsilon, mu, more):
    delta = delta_from_mu(epsilon, mu)
    assert delta_from_mu(epsilon * more, mu) <= delta
    assert delta_from_mu(epsilon, mu * more) >= delta


def test_edges():
    """No noise at all, no difference at all, negative epsilon, and a mu beyond any use."""
    assert delta_from_mu(3.0, 0.0) == 0
    assert delta_from_mu(-1.0, 0.0) == pytest.approx(1 - math.exp(-1))
    assert delta_from_mu(-1.0, 1.0) == pytest.approx(float(exact_delta(-1.0, 1.0)), rel=1e-12)
    assert eps_from_mu(0.5, 0.3) == 0
    assert eps_from_mu(1e-5, 1e25) == pytest.approx(5e49, rel=1e-12)
    assert delta_from_mu(-1.0, mu_from_eps_delta(-1.0, 1 - math.exp(-1))) == pytest.approx(1 - math.exp(-1), rel=1e-14)
    with pytest.raises(ValueError, match=r"delta: expected at least 1 - e\^epsilon"):
        mu_from_eps_delta(-1.0, 0.1)


@given(a=st.floats(0, 1), mu=st.floats(0, 5))
def test_the_tradeoff_is_symmetric(a, mu):
    """Type I against type II error: f(f(a)) = a, as either input may be called the neighbour."""
    assert gdp_tradeoff(gdp_tradeoff(a, mu), mu) == pytest.approx(a, abs=1e-9)


def test_releases_compose_as_squares_add():
    """n releases of multiplier sigma are one of sigma / sqrt(n)."""
    assert eps_from_mu(1e-5, gdp_composed_mu(4.0, 16)) == pytest.approx(analytic_gaussian_eps(1.0, 1e-5), rel=1e-12)


@pytest.mark.parametrize("delta", [1e-300, 1e-5, 0.3, 0.5, 0.9, 1 - 1e-9])
@pytest.mark.parametrize("mu", [1e3, 1e6, math.sqrt(15) * 1e9, math.sqrt(30) * 1e9, 1e100])
def test_nearly_no_noise(mu, delta):
    """delta(epsilon; mu) tends to Phi(-t), so that epsilon tends to mu (mu/2 + Phi^-1(1 - delta))."""
    quantile = -float(ndtri(delta))
    assert eps_from_mu(delta, mu) == pytest.approx(mu * (mu / 2 + quantile), rel=1e-5)


def test_the_classical_formula_is_above_the_exact_one():
    assert classical_gaussian_eps(8.0, 1e-5) > analytic_gaussian_eps(8.0, 1e-5)
    with pytest.raises(ValueError, match="sigma: expected one whose classical epsilon is at most 1"):
        classical_gaussian_eps(1.0, 1e-5)


def test_the_limit_overflows_to_infinity_and_is_zero_for_nothing():
    assert gdp_clt(0.1, 0.01, 5) == math.inf
    assert client_level_mu(0.1, 5000, 0.1, 2.0, 30.0) == math.inf
    assert gdp_clt(0.0, 0.01, 5) == gdp_clt(0.1, 0.01, 0) == 0


def test_the_printed_parameter_is_too_small_by_the_root_of_q():
    """Case 2 of PRECAD's Theorem 1 beside the limit with visible selection."""
    printed, corrected = (
        f(0.04, 0.05, 1.0, 100) for f in (gdp_mu_precad_clients_only, gdp_mu_precad_clients_only_corrected)
    )
    assert corrected / printed == pytest.approx(5.0)


def test_the_expected_participation_is_rounded_up():
    """A client that may be drawn is counted in a round, however rarely. Rounding of a product counts for nothing."""
    assert [expected_participation(q, 30) for q in (0.0, 1e-12, 0.1, 0.11, 1.0)] == [0, 1, 3, 4, 30]


@given(T=st.integers(0, 60), q=st.floats(0, 1), beta=st.floats(0, 1))
def test_participation_quantile_is_the_smallest(T, q, beta):
    """P(Bin(T, q) > t) <= beta at t, not at t - 1; by summing the law. Rounding at the very boundary is let pass."""

    def tail(t):
        return math.fsum(math.comb(T, j) * q**j * (1 - q) ** (T - j) for j in range(t + 1, T + 1))

    t = participation_quantile(T, q, beta)
    assert tail(t) <= beta + 1e-12
    assert t == 0 or tail(t - 1) > beta - 1e-12
