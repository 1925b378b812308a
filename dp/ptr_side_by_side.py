"""Bound rounds of propose-test-release at one server that is trusted: what is proved, beside what its paper prints.

Sensitivities are one: sigma is the noise on the full sum over R, tau times that on the trimmed one.
Source: Wang et al., NeurIPS '22; what is corrected is in docs/explanation/privacy.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from precad.dp.accountants.pld import Label
from precad.dp.accountants.ptr_loss import pld_eps_ptr
from precad.dp.accountants.ptr_privacy import INTEGER_ORDERS, eps_ptr_rounds
from precad.dp.accountants.renyi_accounting import eps_from_rdp
from precad.dp.published import propose_test_release as published

Bound = Callable[[int], float]
"""Epsilon after so many rounds. Raises ValueError where the formula does not apply, which says why."""


def ptr_side_by_side(
    *, sigma: float, tau: float, b: float, delta0: float, q: float, delta: float
) -> Mapping[str, tuple[Bound, Label]]:
    """Return each formula by its name."""

    def direct(rounds: int) -> float:
        if rounds > 1 or q < 1:
            raise ValueError("of one release without sampling")
        return published.ptr_direct_dp(b, sigma, delta0, delta)

    def converted(rounds: int) -> float:
        if q < 1:
            return eps_from_rdp(
                lambda order: rounds * published.subsampled_ptr_rdp_blackbox(order, q, sigma, tau, b, delta0),
                delta, "balle", INTEGER_ORDERS,
            )  # fmt: skip
        return eps_from_rdp(
            lambda order: rounds * published.ptr_rdp(order, sigma, tau, b, delta0), delta, "balle", INTEGER_ORDERS
        )

    def sampled(rounds: int) -> float:
        orders = [a for a in INTEGER_ORDERS if published.ptr_thm44_valid(a, q, sigma, tau, b, delta0)]
        losses = {a: published.subsampled_ptr_rdp_thm44(a, q, sigma, tau, b, delta0) for a in orders or (2,)}
        return eps_from_rdp(lambda order: rounds * losses[int(order)], delta, "balle", orders)

    proved, printed = Label.BOUND, Label.PUBLISHED_REPRODUCTION
    return {
        "loss distributions": (lambda rounds: pld_eps_ptr(q, sigma, tau, b, delta0, rounds, delta), proved),
        "Renyi divergences": (lambda rounds: eps_ptr_rounds(q, sigma, tau, b, delta0, rounds, delta), proved),
        "Theorem 4.2, corrected": (direct, printed),
        "Theorem 4.3": (converted, printed),
        "Theorem 4.4, corrected": (sampled, printed),
    }
