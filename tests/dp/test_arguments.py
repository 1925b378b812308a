"""Every exception of the specification's section 13: a ValueError that names argument, condition and value."""

import math
import re
from fractions import Fraction

import pytest

from precad.dp import checks
from tests.oracle_adapter import CALLS

GOOD: dict[str, dict] = {
    "delta_from_mu": {"eps": 1.0, "mu": 1.0},
    "eps_from_mu": {"delta": 1e-5, "mu": 1.0},
    "analytic_gaussian_eps": {"sigma": 1.0, "delta": 1e-5},
    "classical_gaussian_eps": {"sigma": 8.0, "delta": 1e-5},
    "gdp_tradeoff": {"a": 0.3, "mu": 1.0},
    "mu_from_eps_delta": {"eps": 1.0, "delta": 1e-5},
    "gdp_clt": {"p": 0.05, "sigma": 1.0, "T": 500},
    "gdp_mu_precad_server_corrupt": {"p_i": 0.05, "sigma": 1.0, "T_i": 500},
    "gdp_mu_precad_clients_only": {"q": 0.1, "p_i": 0.05, "sigma": 1.0, "T": 500},
    "gdp_mu_precad_clients_only_corrected": {"q": 0.1, "p_i": 0.05, "sigma": 1.0, "T": 500},
    "participation_quantile": {"T": 50, "q": 0.1, "beta": 1e-6},
    "client_noise_multiplier": {"sigma": 1.0, "R": 2.0, "C": 20.0},
    "client_level_mu": {"q": 0.02, "T": 100, "sigma": 4.0, "R": 2.0, "C": 4.0},
    "precad_theorem2_bounds": {"L": 0.2, "B": 1.0, "mu": 0.25, "K": 2},
    "gdp_robust_bounds": {"L": 0.2, "B": 1.0, "mu_total": 0.25},
    "group_mixture_delta": {"K": 2, "q": 0.1, "sigma_bar": 2.0, "T": 3, "eps": 1.0, "direction": "attacked_vs_benign"},
    "fixed_point_record_sensitivity": {"R": 2.0, "d": 100, "f": 16, "rounding": "nearest"},
    "fixed_point_client_bound": {"C": 2.0, "d": 100, "f": 16, "rounding": "nearest"},
    "clipped_effective_sigma": {"sigma": 1.0, "R": 2.0, "d": 100, "f": 16, "rounding": "nearest"},
    "group_dp": {"eps": 0.5, "delta": 1e-5, "k": 4},
    "xie_condition_one": {"FA": 0.9, "FB": 0.1, "eps": 0.5, "delta": 1e-5},
    "xie_certified_K": {"FA": 0.9, "FB": 0.1, "eps": 0.5, "delta": 1e-5},
    "certified_integer": {"K": 2.5},
    "xie_attack_inefficacy_bounds": {"J": 0.3, "k": 2, "eps": 0.4, "delta": 1e-3, "Cbar": 0.5, "sign": "nonneg"},
    "xie_corollary_k": {"J": 0.3, "tau": 2.0, "eps": 0.4, "delta": 1e-3, "Cbar": 0.5, "sign": "nonneg"},
    "hoeffding_radius": {"O": 100, "psi": 0.01, "width": 1.0, "n_events": 2},
    "hoeffding_class_bounds": {"fhat": [0.9, 0.1], "O": 100, "psi": 0.01, "scheme": "union"},
    "certified_accuracy": {"Ks": [1.0, 2.0], "correct": [True, False], "k": 1},
    "monte_carlo_privacy": {"eps": 0.1, "delta": 1e-3, "O": 70},
    "rdp_gaussian": {"alpha": 8.0, "sigma": 2.0},
    "rdp_laplace": {"alpha": 2.0, "b": 1.0},
    "rdp_sgm_poisson": {"alpha": 8.0, "q": 0.1, "sigma": 1.8},
    "rdp_sgm_two_stage": {"alpha": 4.0, "q": 0.1, "p": 0.05, "sigma": 1.4},
    "rdp_wor_wbk": {"alpha": 8, "q": 0.1, "sigma": 3.0},
    "rdp_poisson_blackbox": {"alpha": 3, "q": 0.1, "eps": [0.1, 0.2]},
    "rdp_to_eps_mironov": {"alpha": 10.0, "rho": 0.5, "delta": 1e-5},
    "rdp_to_eps_balle": {"alpha": 10.0, "rho": 0.5, "delta": 1e-5},
    "rdp_to_eps_optimal": {"alpha": 10.0, "rho": 0.5, "delta": 1e-5},
    "eps_sgm_rdp": {"q": 0.1, "sigma": 1.8, "steps": 3, "delta": 1e-3, "method": "balle", "orders": [2, 8, 32]},
    "pld_eps_sgm": {"q": 0.1, "sigma": 1.8, "T": 3, "delta": 1e-3, "visible": 0.5},
    "ptr_threshold": {"b": 1.0, "delta0": 1e-8},
    "tsum_safety_margin": {"norms": [0.1, 0.9], "F": 1, "tau": 0.5, "R": 1.0},
    "tsum_local_sensitivity": {"norms": [0.1, 0.9], "F": 1, "r": 1, "R": 1.0},
    "ptr_direct_dp": {"b": 1.0, "sigma1": 1.1, "delta0": 1e-8, "delta": 1e-5},
    "ptr_direct_dp_refined": {"b": 1.0, "sigma1": 1.1, "delta0": 1e-8, "delta": 1e-5},
    "ptr_rdp": {"alpha": 4.0, "sigma1": 1.1, "tau": 0.5, "b": 1.0, "delta0": 1e-8},
    "subsampled_ptr_rdp_closed": {"alpha": 8, "q": 0.01, "sigma1": 8.0, "tau": 0.5, "b": 1.0, "delta0": 1e-8},
    "subsampled_ptr_rdp_thm44": {"alpha": 8, "q": 0.01, "sigma1": 8.0, "tau": 0.5, "b": 1.0, "delta0": 1e-8},
    "subsampled_ptr_rdp_blackbox": {"alpha": 8, "q": 0.01, "sigma1": 8.0, "tau": 0.5, "b": 1.0, "delta0": 1e-8},
    "ptr_thm44_valid": {"alpha": 8, "q": 0.01, "sigma1": 8.0, "tau": 0.5, "b": 1.0, "delta0": 1e-8},
    "eps_ptr_rounds": {"q": 0.01, "sigma1": 1.1, "tau": 0.5, "b": 1.0, "delta0": 1e-8, "T": 9, "delta": 1e-5},
}

PROBABILITIES = ("q", "p", "p_i", "a", "beta", "visible", "FA", "FB", "psi")
POSITIVE = ("sigma", "sigma1", "sigma_bar", "b", "R", "C", "B", "Cbar", "width")
COUNTS = ("K", "k", "F", "O", "d", "T", "T_i", "steps", "f", "r", "n_events")
WORDS = ("rounding", "sign", "scheme", "method", "direction")
NEVER_ZERO_DELTA = {"group_dp", "xie_condition_one", "xie_certified_K", "xie_attack_inefficacy_bounds"} | {
    "xie_corollary_k",
    "monte_carlo_privacy",
}
INTEGER_ORDERS = {
    "rdp_wor_wbk",
    "rdp_poisson_blackbox",
    "subsampled_ptr_rdp_closed",
    "subsampled_ptr_rdp_blackbox",
}


def wrong_values(function: str, name: str) -> list[object]:
    """Return what section 13 refuses of this argument, in this function."""
    if name in PROBABILITIES:
        return [-0.1, 1.1, math.nan, math.inf, True]
    if name in POSITIVE:
        return [0.0, -1.0, math.nan, math.inf, True]
    if name == "K" and function == "certified_integer":
        return [math.nan, True]
    if name in COUNTS:
        return [-1, 2.5, math.nan, math.inf, True]
    if name in WORDS:
        return ["unknown"]
    match name:
        case "delta":
            return [-0.1, 1.0, math.nan, True] + ([] if function in NEVER_ZERO_DELTA else [0.0])
        case "mu" | "mu_total" | "rho":
            return [-1.0, math.nan, True]
        case "alpha":
            wrong = [0.5, -2.0, math.nan, True]
            return wrong + ([1.0] if function != "rdp_gaussian" else []) + ([8.5] if function in INTEGER_ORDERS else [])
        case "eps" if function not in (
            "delta_from_mu",
            "mu_from_eps_delta",
            "group_mixture_delta",
            "rdp_poisson_blackbox",
        ):
            return [-0.5, math.nan, math.inf, True]
        case "delta0":
            return [0.0, 0.5, 1e-2 if function in ("ptr_direct_dp", "ptr_direct_dp_refined") else 0.7, math.nan]
        case "tau":
            return [0.0, -1.0, math.nan, True] + ([1.5] if "ptr" in function else [])
        case "L":
            return [-0.1, 1.1, math.nan, True]
        case "J":
            return [-0.1, 0.6, math.nan, True]
        case "norms":
            return [[0.1, 1.2], [-0.1], [math.nan]]
        case "fhat":
            return [[], [0.5], [0.5, 1.5], [0.5, math.nan]]
        case "Ks":
            return [[], [1.0], [1.0, -1.0]]
        case "orders":
            return [[], [1.0], "unknown"]
    return []


CASES = [
    pytest.param(function, name, wrong, id=f"{function}-{name}={wrong}")
    for function, arguments in GOOD.items()
    for name in arguments
    for wrong in wrong_values(function, name)
]


def test_every_function_is_tried():
    """None is left out, and each accepts its good arguments."""
    assert set(GOOD) == set(CALLS)
    for function, arguments in GOOD.items():
        CALLS[function](**arguments)


@pytest.mark.parametrize(("function", "name", "wrong"), CASES)
@pytest.mark.filterwarnings("ignore::precad.dp.accountants.renyi_accounting.OrderGridWarning")
def test_a_wrong_argument_is_named(function, name, wrong):
    """`name: expected <condition>, found <value>`, the name ours where it differs."""
    with pytest.raises(ValueError, match=": expected ") as caught:
        CALLS[function](**(GOOD[function] | {name: wrong}))
    message = str(caught.value)
    ours = {"eps": "epsilon", "O": "n_trainings", "orders": "(orders|alpha)", "Ks": "Ks(, correct)?"}.get(name, name)
    assert re.match(rf"{ours}: expected ", message), message
    assert ", found " in message


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (
            "classical_gaussian_eps",
            {"sigma": 1.0, "delta": 1e-5},
            "^sigma: expected one whose classical epsilon is at most 1, found 1.0",
        ),
        ("xie_corollary_k", GOOD["xie_corollary_k"] | {"tau": 0.5}, "tau: expected at least 1, found 0.5"),
        (
            "xie_corollary_k",
            GOOD["xie_corollary_k"] | {"J": -0.2, "tau": 3.0, "sign": "nonpos"},
            "tau: expected at most -Cbar/J = 2.5, found 3.0",
        ),
        ("xie_corollary_k", GOOD["xie_corollary_k"] | {"J": 0.0, "sign": "nonpos"}, "J: expected a number below 0"),
        ("xie_corollary_k", GOOD["xie_corollary_k"] | {"eps": 0.0}, "epsilon: expected a finite number above 0"),
        (
            "xie_attack_inefficacy_bounds",
            GOOD["xie_attack_inefficacy_bounds"] | {"sign": "nonpos"},
            "J: expected a number in",
        ),
        (
            "ptr_direct_dp",
            GOOD["ptr_direct_dp"] | {"delta0": 1e-5},
            "delta0: expected a number below delta = 1e-05, found 1e-05",
        ),
        (
            "subsampled_ptr_rdp_thm44",
            GOOD["ptr_thm44_valid"] | {"sigma1": 1.1},
            r"sigma2 = tau \* sigma1: expected at least 4",
        ),
        ("subsampled_ptr_rdp_thm44", GOOD["ptr_thm44_valid"] | {"q": 0.3}, r"q: expected at most e\^\(-1/b\)"),
        ("subsampled_ptr_rdp_thm44", GOOD["ptr_thm44_valid"] | {"alpha": 500}, "alpha: expected at most sigma2"),
        (
            "certified_accuracy",
            {"Ks": [], "correct": [], "k": 0},
            "^Ks, correct: expected as many entries, at least one, found 0 and 0",
        ),
    ],
)
def test_conditions_between_arguments(function, arguments, message):
    """Those that no single argument decides; Theorem 4.4's name the condition."""
    with pytest.raises(ValueError, match=message):
        CALLS[function](**arguments)


def test_integral_floats_are_integers():
    """8.0 is 8, as JSON may write it."""
    assert CALLS["rdp_wor_wbk"](alpha=8.0, q=0.1, sigma=3.0) == CALLS["rdp_wor_wbk"](alpha=8, q=0.1, sigma=3.0)
    assert CALLS["pld_eps_sgm"](q=0.1, sigma=1.8, T=3.0, delta=1e-3) == CALLS["pld_eps_sgm"](
        q=0.1, sigma=1.8, T=3, delta=1e-3
    )


@pytest.mark.parametrize("beyond", [10**400, -(10**400), 10**5000, Fraction(10**400)], ids=["1", "-1", "long", "ratio"])
@pytest.mark.parametrize(
    "check",
    [
        checks.require_positive,
        checks.require_probability,
        checks.require_count,
        checks.require_finite,
        checks.require_non_negative,
        checks.integral,
        lambda name, value: checks.require_delta(value),
        lambda name, value: checks.require_delta_or_zero(value),
        lambda name, value: checks.require_order(value),
    ],
    ids=["positive", "probability", "count", "finite", "non-negative", "integral", "delta", "delta or zero", "order"],
)
def test_a_number_that_no_float64_holds_is_named(check, beyond):
    """JSON may write one, and comparing or converting it raises OverflowError; nor does Python write 5000 digits."""
    with pytest.raises(
        ValueError, match=r"^(T|delta|alpha): expected .*, found ([0-9]|Fraction|an integer beyond float64)"
    ):
        check("T", beyond)


def test_a_count_may_have_an_end():
    """And is still a count."""
    checks.require_count("T", 5, at_most=5)
    with pytest.raises(ValueError, match=r"^T: expected at most 5, found 6$"):
        checks.require_count("T", 6, at_most=5)
    with pytest.raises(ValueError, match=r"^T: expected an integer of at least 0, found True$"):
        checks.require_count("T", True, at_most=5)
