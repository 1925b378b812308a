"""A limit on rounds that are chosen one after the other: no strategy passes it, and little room is lost."""

from __future__ import annotations

import itertools
import math
from functools import cache

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.signal import fftconvolve
from scipy.stats import binom

from precad.dp.accountants.calibration import most_rounds
from precad.dp.accountants.pld import PldAccountant, SampledGaussian
from precad.dp.accountants.renyi import rdp_sgm_group, rdp_sgm_poisson
from precad.dp.accountants.renyi_accounting import rdp_to_eps_balle
from precad.dp.accountants.renyi_filter import SLACK_SHARE, divergence, most, most_slack, usual_orders
from tests.dp.accountants.optional_stopping import Vector, losses


@pytest.mark.parametrize(("k", "p", "sigma", "alpha"), [(2, 0.05, 1.0, 3), (4, 0.25, 0.8, 5), (3, 0.9, 2.0, 4)])
def test_a_group_s_divergence_is_the_closed_form_at_whole_orders(k: int, p: float, sigma: float, alpha: int) -> None:
    """E[(P/Q)^alpha] is a sum over all alpha-tuples of numbers drawn: e^{((sum j)^2 - sum j^2)/(2 sigma^2)} each."""
    weights = binom.pmf(range(k + 1), k, p)
    tuples = itertools.product(range(k + 1), repeat=alpha)
    moment = sum(
        math.prod(weights[j] for j in drawn) * math.exp((sum(drawn) ** 2 - sum(j * j for j in drawn)) / 2 / sigma**2)
        for drawn in tuples
    )
    forward = math.log(moment) / (alpha - 1)
    found = rdp_sgm_group(alpha, k, p, sigma)
    assert found == pytest.approx(max(forward, _backward(k, p, sigma, alpha)), rel=1e-7)
    assert found >= forward


def _backward(k: int, p: float, sigma: float, alpha: float) -> float:
    """Return the divergence of N(0, sigma^2) from the mixture, by adaptive quadrature."""
    weights = binom.pmf(range(k + 1), k, p)

    def integrand(x: float) -> float:
        ratio = sum(w * math.exp(j * (2 * x - j) / 2 / sigma**2) for j, w in enumerate(weights))
        return math.exp(-((x / sigma) ** 2) / 2) / sigma / math.sqrt(2 * math.pi) * float(ratio) ** (1 - alpha)

    value = quad(integrand, -(alpha * k) - 12 * sigma, 12 * sigma, points=(-k, 0.0), limit=500)[0]
    return math.log(value) / (alpha - 1)


def test_a_group_of_one_is_a_record_and_one_without_sampling_a_longer_one() -> None:
    """The trapezoidal rule gives what the rule for one record gives, at whole orders and others."""
    from precad.dp.accountants.renyi import _group_divergence

    for alpha, p, sigma in ((5.9, 0.05, 1.0), (2.0, 0.3, 0.7), (1.3, 0.01, 3.0)):
        step, end = min(sigma / 8, sigma**2 / 4), max(alpha, 2.0) + 13 * sigma
        assert _group_divergence(alpha, 1, p, sigma, step, end) == pytest.approx(
            rdp_sgm_poisson(alpha, p, sigma), rel=1e-6, abs=2e-9
        )
    assert rdp_sgm_group(4.0, 3, 1.0, 2.0) == pytest.approx(4.0 * (3 / 2) ** 2 / 2)
    assert rdp_sgm_group(4.0, 3, 0.0, 2.0) == 0


@pytest.mark.parametrize("k", [2, 5])
@pytest.mark.parametrize("alpha", [1.5, 4.0, 20.0])
def test_a_group_pays_more_than_a_record_and_less_than_a_longer_one(k: int, alpha: float) -> None:
    """Between one record drawn with the same rate and k records drawn together in every round."""
    found = rdp_sgm_group(alpha, k, 0.1, 1.5)
    assert rdp_sgm_poisson(alpha, 0.1, 1.5) < found < alpha * (k / 1.5) ** 2 / 2


@pytest.mark.parametrize(
    ("event", "at_least"),
    [
        (SampledGaussian(1.0, 10.0), 0.75),
        (SampledGaussian(0.05, 1.0), 0.65),
        (SampledGaussian(0.05, 2.0, group_size=4), 0.7),
    ],
)
def test_what_the_filter_costs_in_rounds_that_are_all_alike(event: SampledGaussian, at_least: float) -> None:
    """At epsilon 8 a limit fixed before leaves most of the rounds of the tightest accountant, and never more."""
    limit, delta = 8.0, 1e-5
    orders = usual_orders(limit, delta)
    rounds = max(
        int(budget / divergence(event, order)) for budget, order in zip(most(limit, delta, orders), orders, strict=True)
    )
    assert at_least <= rounds / most_rounds(limit, event, delta, PldAccountant()) <= 1


def test_no_strategy_passes_the_limit() -> None:
    """The worst adversary, by dynamic programming over the privacy loss, chooses each round for the loss so far.

    It may take rounds of either kind in any order, as long as the filter lets it, and stops when it likes. Its best
    delta, E[(1 - e^{epsilon - L})+], must stay within the share of delta that the filter has. Nothing of the
    Renyi accounting is in the game but the rule that says whether a further round is let through.
    """
    limit, delta = 1.5, 1e-2
    kinds = (SampledGaussian(1.0, 4.0), SampledGaussian(0.2, 1.2))
    orders = usual_orders(limit, delta)
    budgets = most(limit, delta, orders)

    def is_let_through(counts: tuple[int, ...]) -> bool:
        return any(
            sum(n * divergence(kind, order) for n, kind in zip(counts, kinds, strict=True)) <= budget
            for order, budget in zip(orders, budgets, strict=True)
        )

    for is_added in (True, False):
        found = _worst(kinds, is_let_through, limit, is_added)
        assert delta / 100 < found <= (1 - SLACK_SHARE) * delta, (is_added, found)
        # a rule that lets three times as much through is found out: the game can tell
        assert _worst(kinds, lambda counts: is_let_through(tuple(n // 3 for n in counts)), limit, is_added) > delta


def _worst(kinds: tuple[SampledGaussian, ...], is_let_through: object, limit: float, is_added: bool) -> float:
    """Return the supremum over all strategies. Losses are on a grid of 0.01 from -8 to 12."""
    step, lowest, points = 0.01, -8.0, 2001
    loss = lowest + step * np.arange(points)
    stopping = np.maximum(0.0, -np.expm1(limit - loss))
    assert callable(is_let_through)

    @cache
    def value(counts: tuple[int, ...]) -> Vector:
        best = stopping
        for i, kind in enumerate(kinds):
            after = tuple(n + (j == i) for j, n in enumerate(counts))
            if is_let_through(after):
                best = np.maximum(best, _expected(value(after), kind, step, is_added))
        return best

    return float(np.interp(0.0, loss, value((0,) * len(kinds))))


def _expected(after: Vector, kind: SampledGaussian, step: float, is_added: bool) -> Vector:
    """Return the mean of a value after a round: beyond the grid it is that of the nearest end."""
    law = losses(kind, step, is_added)
    n = len(law.masses)
    low, high = max(0, -law.first), max(0, law.first + n)
    padded = np.concatenate([np.full(low, after[0]), after, np.full(high, 1.0)])
    spread = fftconvolve(padded, law.masses[::-1], mode="valid")
    start = law.first + low
    return np.asarray(np.clip(spread[start : start + len(after)], 0.0, 1.0))


@pytest.mark.parametrize("orders", [(5.0,), (5.9, 4.1), (2.0, 7.5, 40.0)])
def test_deltas_of_all_orders_and_of_protocols_add_up_to_delta(orders: tuple[float, ...]) -> None:
    """Each order at its limit is the limit's epsilon at an equal part of three quarters of delta."""
    limit, delta = 30.0, 1e-5
    for alpha, largest in zip(orders, most(limit, delta, orders), strict=True):
        assert rdp_to_eps_balle(alpha, largest, 0.75 * delta / len(orders)) == pytest.approx(limit, rel=1e-12)
    assert most_slack(limit, delta) * (1 + math.exp(limit)) == pytest.approx(0.25 * delta)


@pytest.mark.parametrize("limit", [0.1, 1.0, 8.0, 60.0])
def test_the_slack_of_protocols_stays_within_its_share(limit: float) -> None:
    """(1 + e^epsilon) eta is the share, and no number overflows on the way."""
    eta = most_slack(limit, 1e-5)
    assert (1 + math.exp(limit)) * eta == pytest.approx(SLACK_SHARE * 1e-5)
    assert most_slack(900.0, 1e-5) == 0 or most_slack(900.0, 1e-5) < 1e-300


def test_a_limit_without_room_for_any_round_is_refused() -> None:
    """At a delta so small that no order converts to it."""
    with pytest.raises(ValueError, match=r"limit_epsilon: expected room for a round at delta = 1e-30, found 0\.01"):
        usual_orders(0.01, 1e-30)
