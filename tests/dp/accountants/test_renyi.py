"""Renyi divergences against multiprecision quadrature and each other; conversions against their definitions."""

import math
import warnings

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precad.dp.accountants.renyi import rdp_composed, rdp_gaussian, rdp_laplace, rdp_sgm_poisson, rdp_sgm_two_stage
from precad.dp.accountants.renyi_accounting import (
    ORDERS,
    OrderGridWarning,
    eps_from_rdp,
    rdp_to_eps_balle,
    rdp_to_eps_mironov,
    rdp_to_eps_optimal,
)
from precad.dp.published.gaussian import analytic_gaussian_eps, eps_sgm_rdp
from precad.dp.published.renyi_amplification import rdp_poisson_blackbox, rdp_wor_wbk

RATES, SIGMAS = st.floats(1e-4, 0.99), st.floats(0.3, 8.0)
ORDER = st.floats(1.01, 40.0)


def by_quadrature(alpha: float, q: float, sigma: float) -> float:
    """ln(1 + E[(1 + q u)^alpha - 1 - alpha q u])/(alpha - 1) with 30 digits, panels of two sigma."""
    with mpmath.workdps(30):
        a, q, s = mpmath.mpf(alpha), mpmath.mpf(q), mpmath.mpf(sigma)

        def integrand(x):
            u = mpmath.expm1((2 * x - 1) / (2 * s * s))
            return mpmath.npdf(x, 0, s) * ((1 + q * u) ** a - 1 - a * q * u)

        top = max(alpha, 2) + 14 * sigma
        panels = math.ceil(top / sigma / 2)
        points = [-14 * s, -7 * s, -3 * s, *(top * i / panels for i in range(panels + 1))]
        return float(mpmath.log1p(mpmath.quad(integrand, points)) / (a - 1))


@pytest.mark.parametrize(
    ("alpha", "q", "sigma"),
    [
        (1.01, 0.1, 1.0),
        (1.1, 0.001, 2.0),
        (2.5, 1e-6, 1.3),
        pytest.param(10.9, 0.3, 0.5, marks=pytest.mark.slow),
        (1.5, 0.9, 0.2),
        pytest.param(63.5, 0.01, 0.7, marks=pytest.mark.slow),
        (1.01, 1e-3, 0.04),
        (20.5, 0.5, 50.0),
        (8.0, 1e-4, 10.0),
    ],
)
def test_sampled_gaussian_is_its_integral(alpha, q, sigma):
    """1e-9 relative, where 1e-6 is asked for; tiny values and the separated Gaussians of small sigma included."""
    assert rdp_sgm_poisson(alpha, q, sigma) == pytest.approx(by_quadrature(alpha, q, sigma), rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(alpha=st.integers(2, 40), q=RATES, sigma=SIGMAS)
def test_integer_and_fractional_orders_meet(alpha, q, sigma):
    """The sum at alpha and the integral just beside it: two methods for one function, continuous in alpha."""
    beside = rdp_sgm_poisson(alpha + 1e-9, q, sigma)
    assert rdp_sgm_poisson(alpha, q, sigma) == pytest.approx(beside, rel=1e-6)


@settings(max_examples=60, deadline=None)
@given(alpha=ORDER, q=RATES, sigma=SIGMAS, more=st.floats(1.01, 1.5))
def test_sampled_gaussian_is_monotone(alpha, q, sigma, more):
    """In the order, the rate and the noise; between nothing and the Gaussian without sampling."""
    rho = rdp_sgm_poisson(alpha, q, sigma)
    slack = 1 + 1e-9
    assert 0 < rho <= rdp_gaussian(alpha, sigma) * slack
    assert rdp_sgm_poisson(alpha * more, q, sigma) * slack >= rho
    assert rdp_sgm_poisson(alpha, min(1.0, q * more), sigma) * slack >= rho
    assert rdp_sgm_poisson(alpha, q, sigma / more) * slack >= rho


@settings(max_examples=40, deadline=None)
@given(alpha=st.integers(2, 24), q=RATES, sigma=SIGMAS, selection=st.floats(0, 1))
def test_general_bounds_are_above_the_exact_divergence(alpha, q, sigma, selection):
    """The black box knows less than the mechanism itself; visible selection can only lower a round's cost."""
    exact = rdp_sgm_poisson(alpha, q, sigma)
    assert rdp_poisson_blackbox(alpha, q, lambda j: rdp_gaussian(j, sigma)) >= exact * (1 - 1e-9)
    assert rdp_sgm_two_stage(alpha, selection, q, sigma) <= exact * (1 + 1e-9)
    assert 0 <= rdp_wor_wbk(alpha, q, sigma) <= rdp_gaussian(alpha, sigma, 2.0) * (1 + 1e-9)


def test_edges_of_sampling():
    assert rdp_sgm_poisson(3.5, 0.0, 1.0) == 0
    assert rdp_sgm_poisson(3.5, 1.0, 2.0) == rdp_gaussian(3.5, 2.0) == 3.5 / 8
    assert rdp_sgm_two_stage(4.0, 1.0, 0.1, 1.0) == pytest.approx(rdp_sgm_poisson(4.0, 0.1, 1.0))
    assert rdp_sgm_two_stage(4.0, 0.0, 0.1, 1.0) == rdp_wor_wbk(4, 0.0, 1.0) == 0
    assert rdp_poisson_blackbox(4, 0.0, lambda j: j) == 0
    assert rdp_poisson_blackbox(4, 1.0, lambda j: j) == 4
    assert rdp_wor_wbk(4, 1.0, 1.0) == rdp_gaussian(4, 1.0, 2.0)
    assert rdp_gaussian(1, 2.0) == 1 / 8


@pytest.mark.parametrize("alpha", [2.0, 3.5])
@pytest.mark.parametrize("q", [0.1, 1.0])
def test_edges_of_noise(alpha, q):
    """Where squares of sigma leave float64: an infinite divergence, in any number of rounds, or next to none."""
    assert rdp_composed(rdp_sgm_poisson(alpha, q, 1e-200), 3) == math.inf
    assert rdp_composed(math.inf, 0) == 0
    assert rdp_sgm_poisson(alpha, q, 1e200) <= 1e-190


@pytest.mark.parametrize("sigma", [1e-9, 1e-6, 1e-4, 1e-3])
def test_noise_below_the_grid_is_bounded_without_sampling(sigma):
    """At once, where the integral would take gigabytes."""
    assert rdp_sgm_poisson(1.1, 0.05, sigma) == rdp_gaussian(1.1, sigma)


@pytest.mark.parametrize("q", [0.05, 1e-6])
def test_little_noise_leaves_the_gaussian_at_alpha_alone(q):
    """E[(1 - q + q e^v)^alpha] is q^alpha E[e^{alpha v}], next to which the rest vanishes; the bound below is above."""
    for sigma, rel in ((2e-3, 1e-9), (1e-3, 1e-3)):
        alone = rdp_gaussian(1.1, sigma) + 1.1 / 0.1 * math.log(q)
        assert alone * (1 - 1e-9) <= rdp_sgm_poisson(1.1, q, sigma) == pytest.approx(alone, rel=rel)


def test_a_huge_order_is_bounded_without_sampling():
    """A whole order has a sum of as many terms, a fractional one an integral as long."""
    for alpha in (1e9, 1e9 + 0.5, 1e300):
        assert rdp_sgm_poisson(alpha, 0.05, 2.0) == rdp_gaussian(alpha, 2.0)


@given(alpha=st.floats(1.01, 200.0), b=st.floats(0.02, 50.0))
def test_laplace_is_its_definition(alpha, b):
    """Against the two exponentials as printed, with 50 digits; and never above the pure bound 1/b."""
    with mpmath.workdps(50):
        a, scale = mpmath.mpf(alpha), mpmath.mpf(b)
        moment = a / (2 * a - 1) * mpmath.exp((a - 1) / scale) + (a - 1) / (2 * a - 1) * mpmath.exp(-a / scale)
        exact = float(mpmath.log(moment) / (a - 1))
    assert rdp_laplace(alpha, b) == pytest.approx(exact, rel=1e-9)
    assert rdp_laplace(alpha, b) <= rdp_laplace(math.inf, b) == 1 / b


@settings(max_examples=60, deadline=None)
@given(alpha=st.floats(1.1, 60.0), rho=st.floats(0, 10), log10_delta=st.floats(-12, -0.5))
def test_conversions_in_order_of_tightness(alpha, rho, log10_delta):
    """optimal <= Balle et al. <= Mironov, and all rise with rho."""
    delta = 10**log10_delta
    optimal, balle, mironov = (f(alpha, rho, delta) for f in (rdp_to_eps_optimal, rdp_to_eps_balle, rdp_to_eps_mironov))
    assert optimal <= balle <= mironov + 1e-12
    assert rdp_to_eps_optimal(alpha, rho + 0.1, delta) >= optimal


def test_the_optimal_conversion_meets_its_equation():
    """At the root the smallest moment over a fine grid of p is e^{(alpha-1) rho}, by the printed formula."""
    alpha, rho, delta = 10.0, 0.5, 1e-5
    e = rdp_to_eps_optimal(alpha, rho, delta)
    grid = (delta + (1 - delta) * 10 ** (-8 * (1 - i / 20000)) for i in range(20000))
    smallest = min(
        math.exp((alpha - 1) * e)
        * (p**alpha * (p - delta) ** (1 - alpha) + (1 - p) ** alpha * (math.exp(e) - p + delta) ** (1 - alpha))
        for p in grid
    )
    assert smallest == pytest.approx(math.exp((alpha - 1) * rho), rel=1e-6)


def test_converted_gaussian_is_above_the_exact_one():
    """Renyi, then the best conversion of each order: a bound, some percent above the truth."""
    exact = analytic_gaussian_eps(2.0, 1e-5)
    optimal = eps_from_rdp(lambda a: rdp_gaussian(a, 2.0), 1e-5, "optimal")
    assert exact < optimal < 1.1 * exact


def test_grids_and_their_ends():
    """The sizes of the grids as specified; a warning where the best order is the last one."""
    assert len(ORDERS["opacus"]) == 99 + 52
    assert len(ORDERS["wide"]) == 99 + 52 + 16
    with pytest.warns(OrderGridWarning, match="63, is an end of the grid"):
        eps_sgm_rdp(0.1, 6.0, 3, 0.0029, "mironov", "opacus")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        eps_sgm_rdp(0.1, 1.0, 100, 1e-5, "balle", "wide")


@pytest.mark.filterwarnings("ignore::precad.dp.accountants.renyi_accounting.OrderGridWarning")
def test_two_stages_of_one_are_one():
    assert eps_sgm_rdp(0.1, 1.8, 3, 0.0029, orders=[2.0, 8.0]) == pytest.approx(
        eps_from_rdp(lambda a: 3 * rdp_sgm_two_stage(a, 1.0, 0.1, 1.8), 0.0029, orders=[8.0, 2.0])
    )
