"""Propose-test-release by two servers: the joint threshold, and what one server's view costs, integrated itself."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from scipy.special import ndtr

from precad.dp.accountants.pld import View
from precad.dp.accountants.ptr_loss import ptr_loss_distribution
from precad.dp.accountants.ptr_privacy import ptr_threshold
from precad.dp.noise import rounded_laplace
from precad.dp.trimmed.aggregation import SampledProposeTestRelease
from precad.dp.trimmed.propose_test_release import ProposeTestRelease
from precad.dp.trimmed.two_servers import MARGIN_BITS, JointProposeTestRelease, joint_threshold
from precad.mpc.robust import proposal


def joint(**changed) -> JointProposeTestRelease:
    fields = {"clip": 2.0, "frac_bits": 16, "tau": 0.5, "trim_count": 40, "laplace_scale": 1.0}
    return JointProposeTestRelease(
        ProposeTestRelease(**(fields | {"test_failure": 1e-8, "noise_multiplier": 1.1} | changed))
    )


@pytest.mark.parametrize("b", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("delta0", [0.4, 1e-2, 1e-8, 1e-30])
def test_two_draws_exceed_the_threshold_with_probability_delta0(b, delta0):
    """By integration of the convolution of two Laplace densities, in 50 digits."""
    t = joint_threshold(b, delta0)
    with mpmath.workdps(50):
        tail = lambda x: mpmath.exp(-x / b) / 2 if x >= 0 else 1 - mpmath.exp(x / b) / 2  # noqa: E731
        law = lambda n: mpmath.exp(-abs(n) / b) / (2 * b) * tail(t - n)  # noqa: E731
        exceeds = mpmath.quad(law, [-40 * b, -5 * b, 0, t / 2, t, t + 5 * b, t + 40 * b])
    assert delta0 * (1 - 1e-9) <= float(exceeds) <= delta0
    assert t > ptr_threshold(b, delta0)


def test_rounded_draws_pass_no_more_often():
    """By the exact law of the rounded draws, on a coarser grid where rounding is felt: one step of 1/4 in b."""
    b, delta0 = 4.0, 1e-3
    k = np.arange(-400, 401)
    tail = np.where(k >= 1, np.exp(-(k - 0.5) / b) / 2, 1 - np.exp((k - 0.5) / b) / 2)  # P(K >= k)
    law = -np.diff(np.append(tail, 0.0))
    both = np.convolve(law, law)
    n = np.arange(-800, 801)
    assert both[n > joint_threshold(b, delta0) + 1].sum() <= delta0
    random_bytes = np.random.default_rng(3).bytes
    drawn = np.array([rounded_laplace.sample(b, random_bytes) for _ in range(4000)])
    assert (drawn >= 5).mean() == pytest.approx(tail[k == 5][0], abs=5 * math.sqrt(tail[k == 5][0] / 4000))


def test_noise_and_verdict_are_on_the_grid_of_the_protocol():
    """Margins are in steps of 2^-20 on both sides; a server's draw has the scale b of one."""
    assert MARGIN_BITS == proposal.MARGIN_BITS
    it, random_bytes = joint(laplace_scale=2.0), np.random.default_rng(8).bytes
    drawn = np.array([rounded_laplace.sample(it.margin_scale, random_bytes) for _ in range(4000)]) / 2**MARGIN_BITS
    assert np.abs(drawn).mean() == pytest.approx(2.0, rel=0.08)  # 5 standard errors
    at = int(it.threshold * 2**MARGIN_BITS)
    assert it.has_passed(at + 3)
    assert not it.has_passed(at + 1)
    assert it.noise_std(has_passed=True) == it.noise_std(has_passed=False) / 2 == 1.1 * 2**16
    with pytest.raises(ValueError, match="tau: expected a number below 1"):
        joint(tau=1.0)


def gaussian_delta(epsilon, mu):
    return ndtr(-epsilon / mu + mu / 2) - np.exp(epsilon) * ndtr(-epsilon / mu - mu / 2)


def delta_of_one_server(before, after, epsilon, *, sigma, tau, b, threshold):
    """The hockey-stick divergence of what one server sees: its own draw n, the noisy margin s of its peer's, the sum.

    before, after: (margin, full sum, trimmed sum). Given n and s the branch is known, and two Gaussians are left.
    """
    nodes, weights = np.polynomial.legendre.leggauss(16)

    def points(edges):
        spans = [(low, high) for low, high in pairwise(sorted(edges)) if high > low]
        x = np.concatenate([(low + high) / 2 + (high - low) / 2 * nodes for low, high in spans])
        return x, np.concatenate([(high - low) / 2 * weights for low, high in spans])

    total, (m0, full0, trimmed0), (m1, full1, trimmed1) = 0.0, before, after
    for n, w in zip(*points({0.0, *np.linspace(-25 * b, 25 * b, 41)}), strict=True):
        s, ds = points({m0, m1, threshold - n, *np.linspace(-25 * b, 30 * b, 41)})
        law0, law1 = (np.exp(-np.abs(s - m) / b) / (2 * b) for m in (m0, m1))
        has_passed = s + n > threshold
        mu = np.where(has_passed, abs(trimmed1 - trimmed0) / (tau * sigma), abs(full1 - full0) / sigma)
        delta = law1 * gaussian_delta(epsilon + np.log(law0 / law1), np.maximum(mu, 1e-6))
        total += w * math.exp(-abs(n) / b) / (2 * b) * float((ds * delta).sum())
    return total


NEIGHBOURS = {
    "both margins 0: a wrong pass shows a whole vector": ((0, 2.0, 1.0), (0, 3.0, 2.0)),
    "the last client that the margin has": ((1, 2.0, 1.0), (0, 3.0, 1.5)),
    "margins 5 and 4": ((5, 2.0, 1.0), (4, 3.0, 1.5)),
    "margins 4 and 5": ((4, 3.0, 1.5), (5, 2.0, 1.0)),
}


@pytest.mark.parametrize("name", NEIGHBOURS)
@pytest.mark.parametrize("delta0", [0.2, 0.01])
@pytest.mark.parametrize("epsilon", [0.2, 1.0, 2.5])
def test_what_one_server_sees_costs_no_more_than_the_accountant_says(name, delta0, epsilon):
    """Hostile neighbours, by integration over the server's own draw; and the bound is not far above."""
    sigma, tau, b = 1.5, 0.5, 1.2
    threshold = joint_threshold(b, delta0)
    found = delta_of_one_server(*NEIGHBOURS[name], epsilon, sigma=sigma, tau=tau, b=b, threshold=threshold)
    bound = ptr_loss_distribution(1.0, sigma, tau, b, delta0, 1, is_reversed=False).delta(epsilon)
    assert found <= bound + 1e-9
    if name == "margins 5 and 4" and delta0 == 0.01:
        assert found > 0.3 * bound


def test_the_threshold_of_one_draw_would_break_the_bound():
    """With b ln(1/(2 delta0)) two draws pass too often, and a server sees more than delta0 allows."""
    sigma, tau, b, delta0, epsilon = 40.0, 0.02, 1.0, 0.01, 0.75
    name = "both margins 0: a wrong pass shows a whole vector"
    view = {"sigma": sigma, "tau": tau, "b": b}
    mechanism = (1.0, sigma, tau, b, delta0)
    wrong = delta_of_one_server(*NEIGHBOURS[name], epsilon, **view, threshold=ptr_threshold(b, delta0))
    right = delta_of_one_server(*NEIGHBOURS[name], epsilon, **view, threshold=joint_threshold(b, delta0))
    both_margins_0 = delta0 * gaussian_delta(epsilon, 1 / (tau * sigma))
    assert right <= both_margins_0 + 1e-9 < wrong
    assert right <= ptr_loss_distribution(*mechanism, 1, is_reversed=False).delta(epsilon)


def test_views_and_rounds():
    """One server: its peer's noise alone. Clients: sqrt(2) sigma. A round that a client is in is not amplified."""
    it = joint()
    events = {view: it.event(view) for view in View}
    assert events[View.ONE_SERVER] == SampledProposeTestRelease(
        sampling_rate=1.0, noise_multiplier=1.1, tau=0.5, laplace_scale=1.0, test_failure=1e-8
    )
    assert events[View.CLIENTS_ONLY].noise_multiplier == pytest.approx(1.1 * math.sqrt(2))
    one, clients = (it.event(view).epsilon(3, 1e-5) for view in (View.ONE_SERVER, View.CLIENTS_ONLY))
    assert clients < one
    assert it.event(View.ONE_SERVER).epsilon(1, 1e-5) < one
    assert it.event(View.ONE_SERVER).epsilon(0, 1e-5) == 0.0
    of_a_round = [round(it.event(view).epsilon(1, 1e-5), 2) for view in (View.ONE_SERVER, View.CLIENTS_ONLY)]
    assert [*of_a_round, round(it.threshold, 2)] == [4.79, 3.55, 20.13], "docs/reference/protocol-trimmed-sums.md"
    assert round(ptr_threshold(1.0, 1e-8), 2) == 17.73
    assert replace(it, mechanism=replace(it.mechanism, trim_count=3)).event(View.ONE_SERVER).epsilon(3, 1e-5) == one
