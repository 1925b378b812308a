"""Every function of the specification, in every parameter in which it is monotone, and which way.

What other files test is left out: the sampled Gaussian's divergences, PTR's closed form, loss distributions, groups of
units and certificates. Each case draws arguments, raises one of them, and compares; 1e-9 is left to rounding.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracle_adapter import CALLS

pytestmark = pytest.mark.filterwarnings("ignore::precad.dp.accountants.renyi_accounting.OrderGridWarning")

RATE, SIGMA, COUNT = st.floats(0.01, 0.9), st.floats(0.5, 8.0), st.integers(1, 300)
EPS, DELTA, CLIP = st.floats(0.01, 4.0), st.floats(1e-9, 0.05), st.floats(0.1, 30.0)
ORDER, INTEGER_ORDER = st.floats(1.1, 40.0), st.integers(2, 24)
DIM, BITS = st.integers(1, 10**6), st.integers(8, 20)
PTR = {"sigma1": st.floats(0.8, 12.0), "tau": st.floats(0.1, 0.8), "b": st.floats(0.3, 3.0)}
PTR_DELTA = {"delta0": st.floats(1e-10, 1e-6), "delta": st.floats(1e-5, 1e-2)}
NORMS = st.just([0.1, 0.2, 0.3, 0.5, 0.5, 0.8, 1.0])

ARGUMENTS = {
    "delta_from_mu": ({"eps": EPS, "mu": SIGMA}, {"eps": -1, "mu": 1}),
    "eps_from_mu": ({"delta": DELTA, "mu": SIGMA}, {"delta": -1, "mu": 1}),
    "analytic_gaussian_eps": ({"sigma": SIGMA, "delta": DELTA}, {"sigma": -1, "delta": -1}),
    "classical_gaussian_eps": ({"sigma": st.floats(7, 50), "delta": DELTA}, {"sigma": -1, "delta": -1}),
    "gdp_tradeoff": ({"a": RATE, "mu": SIGMA}, {"a": -1, "mu": -1}),
    "mu_from_eps_delta": ({"eps": EPS, "delta": DELTA}, {"eps": 1, "delta": 1}),
    "gdp_clt": ({"p": RATE, "sigma": SIGMA, "T": COUNT}, {"p": 1, "sigma": -1, "T": 1}),
    "gdp_mu_precad_server_corrupt": (
        {"p_i": RATE, "sigma": SIGMA, "T_i": COUNT},
        {"p_i": 1, "sigma": -1, "T_i": 1},
    ),
    "gdp_mu_precad_clients_only": (
        {"q": RATE, "p_i": RATE, "sigma": SIGMA, "T": COUNT},
        {"q": 1, "p_i": 1, "sigma": -1, "T": 1},
    ),
    "gdp_mu_precad_clients_only_corrected": (
        {"q": RATE, "p_i": RATE, "sigma": SIGMA, "T": COUNT},
        {"q": 1, "p_i": 1, "sigma": -1, "T": 1},
    ),
    "participation_quantile": ({"T": COUNT, "q": RATE, "beta": DELTA}, {"T": 1, "q": 1, "beta": -1}),
    "client_noise_multiplier": ({"sigma": SIGMA, "R": CLIP, "C": CLIP}, {"sigma": 1, "R": 1, "C": -1}),
    "client_level_mu": (
        {"q": RATE, "T": COUNT, "sigma": SIGMA, "R": CLIP, "C": CLIP},
        {"q": 1, "T": 1, "sigma": -1, "R": -1, "C": 1},
    ),
    "fixed_point_record_sensitivity": (
        {"R": CLIP, "d": DIM, "f": BITS, "rounding": st.just("nearest")},
        {"R": 1, "d": 1, "f": -1},
    ),
    "fixed_point_client_bound": (
        {"C": CLIP, "d": DIM, "f": BITS, "rounding": st.just("floor")},
        {"C": 1, "d": 1, "f": -1},
    ),
    "clipped_effective_sigma": (
        {"sigma": SIGMA, "R": CLIP, "d": DIM, "f": BITS, "rounding": st.just("toward_zero")},
        {"sigma": 1, "R": 1, "d": -1, "f": 1},
    ),
    "group_dp": ({"eps": EPS, "delta": DELTA, "k": st.integers(1, 20)}, {"eps": 1, "delta": 1, "k": 1}),
    "xie_corollary_k": (
        {
            "J": st.floats(0.01, 0.4),
            "tau": st.floats(1, 5),
            "eps": EPS,
            "delta": DELTA,
            "Cbar": st.floats(1, 3),
            "sign": st.just("nonneg"),
        },
        {"J": 1, "tau": 1, "delta": -1, "Cbar": -1},
    ),
    "certified_integer": ({"K": st.floats(0, 50)}, {"K": 1}),
    "hoeffding_radius": (
        {"O": COUNT, "psi": DELTA, "width": CLIP, "n_events": COUNT},
        {"O": -1, "psi": -1, "width": 1, "n_events": 1},
    ),
    "certified_accuracy": (
        {"Ks": st.just([0.0, 1.0, 2.5, 7.0]), "correct": st.just([True, True, False, True]), "k": st.integers(0, 8)},
        {"k": -1},
    ),
    "monte_carlo_privacy": ({"eps": EPS, "delta": DELTA, "O": COUNT}, {"eps": 1, "delta": 1, "O": 1}),
    "rdp_gaussian": ({"alpha": ORDER, "sigma": SIGMA, "sens": CLIP}, {"alpha": 1, "sigma": -1, "sens": 1}),
    "rdp_laplace": ({"alpha": ORDER, "b": SIGMA}, {"alpha": 1, "b": -1}),
    "rdp_sgm_two_stage": (
        {"alpha": INTEGER_ORDER, "q": RATE, "p": RATE, "sigma": SIGMA},
        {"alpha": 1, "q": 1, "p": 1, "sigma": -1},
    ),
    "rdp_wor_wbk": (
        {"alpha": INTEGER_ORDER, "q": RATE, "sigma": SIGMA, "sensitivity": st.just(2.0)},
        {"q": 1, "sigma": -1},
    ),
    "rdp_to_eps_mironov": ({"alpha": ORDER, "rho": EPS, "delta": DELTA}, {"rho": 1, "delta": -1}),
    "rdp_to_eps_balle": ({"alpha": ORDER, "rho": EPS, "delta": DELTA}, {"rho": 1, "delta": -1}),
    "rdp_to_eps_optimal": ({"alpha": ORDER, "rho": EPS, "delta": DELTA}, {"rho": 1, "delta": -1}),
    "eps_sgm_rdp": (
        {"q": RATE, "sigma": SIGMA, "steps": COUNT, "delta": DELTA, "orders": st.just([2, 4, 8, 16, 32])},
        {"q": 1, "sigma": -1, "steps": 1, "delta": -1},
    ),
    "ptr_threshold": ({"b": SIGMA, "delta0": DELTA}, {"b": 1, "delta0": -1}),
    "tsum_safety_margin": (
        {"norms": NORMS, "F": st.integers(0, 8), "tau": st.floats(0.05, 0.9), "R": st.just(1.0)},
        {"F": 1, "tau": 1},
    ),
    "tsum_local_sensitivity": (
        {"norms": NORMS, "F": st.integers(1, 8), "r": st.integers(0, 8), "R": st.just(1.0)},
        {"F": -1, "r": 1},
    ),
    "ptr_direct_dp": (
        {"b": PTR["b"], "sigma1": PTR["sigma1"], **PTR_DELTA},
        {"b": -1, "sigma1": -1, "delta0": 1, "delta": -1},
    ),
    "ptr_direct_dp_refined": (
        {"b": PTR["b"], "sigma1": PTR["sigma1"], **PTR_DELTA},
        {"b": -1, "sigma1": -1, "delta0": 1, "delta": -1},
    ),
    "ptr_rdp": (
        {"alpha": ORDER, **PTR, "delta0": DELTA},
        {"alpha": 1, "sigma1": -1, "tau": -1, "b": -1, "delta0": 1},
    ),
    "subsampled_ptr_rdp_blackbox": (
        {"alpha": INTEGER_ORDER, "q": st.floats(0.001, 0.3), **PTR, "delta0": DELTA},
        {"q": 1, "sigma1": -1, "tau": -1, "b": -1, "delta0": 1},
    ),
    "eps_ptr_rounds": (
        {"q": RATE, **PTR, "delta0": st.just(1e-8), "T": COUNT, "delta": DELTA, "orders": st.just([2, 8, 32])},
        {"q": 1, "sigma1": -1, "tau": -1, "b": -1, "T": 1, "delta": -1},
    ),
}
"""For each function: arguments to draw, and 1 or -1 for those in which it rises or falls."""

INTERVALS = {
    "precad_theorem2_bounds": (
        {"L": RATE, "B": st.just(1.0), "mu": st.floats(0.01, 3), "K": st.integers(1, 5)},
        ("mu", "K"),
    ),
    "gdp_robust_bounds": ({"L": RATE, "B": st.just(1.0), "mu_total": st.floats(0.01, 5)}, ("mu_total",)),
    "xie_attack_inefficacy_bounds": (
        {
            "J": RATE,
            "k": st.integers(1, 8),
            "eps": EPS,
            "delta": DELTA,
            "Cbar": st.floats(1, 4),
            "sign": st.sampled_from(["nonneg", "mixed"]),
        },
        ("k", "eps", "delta"),
    ),
}
"""Functions whose interval widens with an argument."""

ELSEWHERE = {
    "group_mixture_delta",  # test_group_mixture
    "pld_eps_sgm",  # test_accounting, test_accountants
    "rdp_sgm_poisson",  # test_renyi
    "rdp_poisson_blackbox",  # by subsampled_ptr_rdp_blackbox
    "xie_condition_one",  # test_certificates: it is certified K > 1
    "xie_certified_K",  # test_certificates
    "hoeffding_class_bounds",  # by hoeffding_radius
    "subsampled_ptr_rdp_closed",  # test_propose_test_release
    "subsampled_ptr_rdp_thm44",  # held between the closed form and its own conditions there
    "ptr_thm44_valid",
}


def raised(name, value, by):
    """A larger value of the same kind, inside its range."""
    if isinstance(value, int):
        return value + max(1, round(value * (by - 1)))
    return min(value * by, 1.0) if name in ("q", "p", "p_i", "a", "tau", "beta", "psi") and value < 1 else value * by


def numbers(result):
    """One value or several, as a list."""
    return list(result) if isinstance(result, tuple) else [result]


def at_most(first, second):
    return first <= second * (1 + 1e-9) + 1e-12 if second >= 0 else first <= second * (1 - 1e-9) + 1e-12


CASES = [(function, name) for function, (_, signs) in ARGUMENTS.items() for name in signs]
WIDENING = [(function, name) for function, (_, names) in INTERVALS.items() for name in names]


def test_no_function_is_left_out():
    assert set(ARGUMENTS) | set(INTERVALS) | ELSEWHERE == set(CALLS)


@pytest.mark.parametrize(("function", "name"), CASES)
@settings(max_examples=12, deadline=None)
@given(data=st.data(), by=st.floats(1.01, 1.5))
def test_it_rises_or_falls_as_it_must(function, name, data, by):
    """f at the raised argument against f at the argument, each number of a pair by itself."""
    strategies, signs = ARGUMENTS[function]
    arguments = data.draw(st.fixed_dictionaries(strategies))
    before = numbers(CALLS[function](**arguments))
    after = numbers(CALLS[function](**(arguments | {name: raised(name, arguments[name], by)})))
    for low, high in zip(*((before, after) if signs[name] > 0 else (after, before)), strict=True):
        assert at_most(low, high), (arguments, before, after)


@pytest.mark.parametrize(("function", "name"), WIDENING)
@settings(max_examples=12, deadline=None)
@given(data=st.data(), by=st.floats(1.01, 1.5))
def test_an_interval_widens(function, name, data, by):
    strategies, _ = INTERVALS[function]
    arguments = data.draw(st.fixed_dictionaries(strategies))
    low, high = CALLS[function](**arguments)
    lower, higher = CALLS[function](**(arguments | {name: raised(name, arguments[name], by)}))
    assert at_most(lower, low), (arguments, lower, low)
    assert at_most(high, higher), (arguments, high, higher)
