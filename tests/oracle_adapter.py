"""Our functions under the names and arguments of the acceptance files, so that anyone with cases can check us.

A case is {"id", "fn", "args", "expect", "rtol", "atol"}, see tests/vectors/oracle_public.json. `CALLS` maps every `fn`
that the specification names to a callable of ours with those argument names and return conventions. An "inf" in the
arguments stands for infinity. `check` runs one case. tests/dp/test_oracle.py runs a file of them:

    PRECAD_ORACLE=cases.json python -m pytest tests/dp/test_oracle.py
"""

import math
import warnings
from collections.abc import Callable
from typing import Any

from precad.dp.accountants import (
    gaussian_dp,
    group_privacy,
    precad_client,
    ptr_privacy,
    renyi,
    renyi_accounting,
)
from precad.dp.certificates import attack_inefficacy, monte_carlo, prediction
from precad.dp.published import gaussian as published_gaussian
from precad.dp.published import (
    grid_sensitivity,
    propose_test_release,
    renyi_amplification,
    xie,
)
from precad.dp.published import precad as published_precad


def renamed(function: Callable[..., Any], **theirs: str) -> Callable[..., Any]:
    """`function`, called with other argument names: renamed(f, eps="epsilon")(eps=1) is f(epsilon=1)."""

    def call(**arguments: Any) -> Any:
        return function(**{theirs.get(name, name): value for name, value in arguments.items()})

    return call


def with_threat(function: Callable[..., Any], group: str) -> Callable[..., Any]:
    """`function` with an argument `threat`: to replace k units is to go the group distance 2 k."""

    def call(threat: str = "add", **arguments: Any) -> Any:
        threat = prediction.Threat(threat)
        if threat is prediction.Threat.REPLACE:
            arguments[group] *= 2
        return function(**arguments)

    return call


def rdp_poisson_blackbox(alpha: float, q: float, eps: Any) -> float:
    """The black box on given divergences: a number of ours by order, or a list for the orders 2 .. alpha."""
    values = {int(order): value for order, value in eps.items()} if isinstance(eps, dict) else dict(enumerate(eps, 2))
    return renyi_amplification.rdp_poisson_blackbox(alpha, q, lambda j: values[j])


def rdp_gaussian(alpha: float, sigma: float, sens: float = 1.0, sensitivity: float | None = None) -> float:
    """alpha sens^2/(2 sigma^2); the specification writes the sensitivity both ways."""
    return renyi.rdp_gaussian(alpha, sigma, sens if sensitivity is None else sensitivity)


CALLS: dict[str, Callable[..., Any]] = {
    # section 3
    "delta_from_mu": renamed(gaussian_dp.delta_from_mu, eps="epsilon"),
    "eps_from_mu": gaussian_dp.eps_from_mu,
    "analytic_gaussian_eps": published_gaussian.analytic_gaussian_eps,
    "classical_gaussian_eps": published_gaussian.classical_gaussian_eps,
    "gdp_tradeoff": published_gaussian.gdp_tradeoff,
    "mu_from_eps_delta": renamed(gaussian_dp.mu_from_eps_delta, eps="epsilon"),
    "gdp_clt": gaussian_dp.gdp_clt,
    # section 4
    "gdp_mu_precad_server_corrupt": published_precad.gdp_mu_precad_server_corrupt,
    "gdp_mu_precad_clients_only": published_precad.gdp_mu_precad_clients_only,
    "gdp_mu_precad_clients_only_corrected": published_precad.gdp_mu_precad_clients_only_corrected,
    "participation_quantile": precad_client.participation_quantile,
    # section 5
    "client_noise_multiplier": precad_client.client_noise_multiplier,
    "client_level_mu": published_precad.client_level_mu,
    "precad_theorem2_bounds": with_threat(published_precad.precad_theorem2_bounds, "K"),
    "gdp_robust_bounds": published_precad.gdp_robust_bounds,
    "group_mixture_delta": published_gaussian.group_mixture_delta,
    # section 6
    "fixed_point_record_sensitivity": grid_sensitivity.fixed_point_record_sensitivity,
    "fixed_point_client_bound": grid_sensitivity.fixed_point_client_bound,
    "clipped_effective_sigma": grid_sensitivity.clipped_effective_sigma,
    # section 7
    "group_dp": with_threat(renamed(group_privacy.group_dp, eps="epsilon"), "k"),
    "xie_condition_one": renamed(xie.xie_condition_one, eps="epsilon"),
    "xie_certified_K": renamed(prediction.xie_certified_k, eps="epsilon"),
    "certified_integer": prediction.certified_integer,
    # section 8
    "xie_attack_inefficacy_bounds": with_threat(
        renamed(attack_inefficacy.xie_attack_inefficacy_bounds, eps="epsilon"), "k"
    ),
    "xie_corollary_k": renamed(attack_inefficacy.xie_corollary_k, eps="epsilon"),
    # section 9
    "hoeffding_radius": renamed(monte_carlo.hoeffding_radius, O="n_trainings"),
    "hoeffding_class_bounds": renamed(monte_carlo.hoeffding_class_bounds, O="n_trainings"),
    "certified_accuracy": monte_carlo.certified_accuracy,
    "monte_carlo_privacy": renamed(monte_carlo.monte_carlo_privacy, eps="epsilon", O="n_trainings"),
    # section 10
    "rdp_gaussian": rdp_gaussian,
    "rdp_laplace": renyi.rdp_laplace,
    "rdp_sgm_poisson": renyi.rdp_sgm_poisson,
    "rdp_sgm_two_stage": renyi.rdp_sgm_two_stage,
    "rdp_wor_wbk": renyi_amplification.rdp_wor_wbk,
    "rdp_poisson_blackbox": rdp_poisson_blackbox,
    "rdp_to_eps_mironov": renyi_accounting.rdp_to_eps_mironov,
    "rdp_to_eps_balle": renyi_accounting.rdp_to_eps_balle,
    "rdp_to_eps_optimal": renyi_accounting.rdp_to_eps_optimal,
    "eps_sgm_rdp": published_gaussian.eps_sgm_rdp,
    # section 11
    "pld_eps_sgm": published_gaussian.pld_eps_sgm,
    # section 12
    "ptr_threshold": ptr_privacy.ptr_threshold,
    "tsum_safety_margin": propose_test_release.tsum_safety_margin,
    "tsum_local_sensitivity": propose_test_release.tsum_local_sensitivity,
    "ptr_direct_dp": propose_test_release.ptr_direct_dp,
    "ptr_direct_dp_refined": propose_test_release.ptr_direct_dp_refined,
    "ptr_rdp": propose_test_release.ptr_rdp,
    "subsampled_ptr_rdp_closed": ptr_privacy.subsampled_ptr_rdp_closed,
    "subsampled_ptr_rdp_thm44": propose_test_release.subsampled_ptr_rdp_thm44,
    "subsampled_ptr_rdp_blackbox": propose_test_release.subsampled_ptr_rdp_blackbox,
    "ptr_thm44_valid": propose_test_release.ptr_thm44_valid,
    "eps_ptr_rounds": ptr_privacy.eps_ptr_rounds,
}


def check(case: dict[str, Any]) -> None:
    """Run one case. Raises AssertionError if we differ from what it expects, KeyError if we lack the function."""
    function = CALLS[case["fn"]]
    arguments = {name: _number(value) for name, value in case["args"].items()}
    expect = case["expect"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", renyi_accounting.OrderGridWarning)
        if isinstance(expect, dict) and "error" in expect:
            try:
                got = function(**arguments)
            except Exception as error:  # noqa: BLE001 - which one is the question
                assert type(error).__name__ == expect["error"], f"{case['id']}: {error!r}"  # noqa: PT017
                return
            raise AssertionError(f"{case['id']}: expected {expect['error']}, got {got}")
        got = function(**arguments)
    theirs = expect if isinstance(expect, list) else [expect]
    ours = list(got) if isinstance(got, tuple | list) else [got]
    assert len(ours) == len(theirs), f"{case['id']}: expected {expect}, got {got}"
    for mine, other in zip(ours, map(_number, theirs), strict=True):
        assert _agree(mine, other, case.get("rtol", 1e-8), case.get("atol", 0.0)), (
            f"{case['id']} {case['fn']}: expected {expect}, got {got}"
        )


def _agree(got: Any, expect: Any, rtol: float, atol: float) -> bool:
    if isinstance(expect, bool) or isinstance(got, bool):
        return got is expect
    if math.isinf(expect) or math.isinf(got):
        return bool(got == expect)
    return bool(abs(got - expect) <= atol + rtol * abs(expect))


def _number(value: Any) -> Any:
    """ "inf" and "-inf" of JSON as floats."""
    if isinstance(value, list):
        return [_number(entry) for entry in value]
    return float(value) if value in ("inf", "-inf", "nan") else value
