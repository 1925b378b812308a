"""A Renyi filter: a limit on what rounds cost one person together, however they are chosen one after the other.

Every round has a Renyi divergence of each of a few orders alpha, fixed before the first round. A round is run only if
after it the sum at one order at least is within `most` of that order. All rounds run are then (epsilon, delta)-DP
together at the limit, even where each was chosen for what was released before.

Proof. Stop the same rounds before the first that takes the sum at alpha over `most`. What was released until then is
(alpha, most)-RDP (Feldman and Zrnic, "Individual Privacy Accounting via a Renyi Filter", NeurIPS '21, Theorem 3.1),
hence (epsilon, delta_alpha)-DP. Sums never fall, so an order within its limit at the end was so throughout. Sort all
endings by the first such order. On the endings of alpha, the stopped rounds are all the rounds. So P(S) is at most
e^epsilon Q(S) + delta_alpha for a set S of such endings. The sum over the orders has the sum of all delta_alpha.
The sorting over orders is our derivation. Conversion: Balle et al., see `precad.dp.accountants.renyi_accounting`.

Protocols that can be simulated only nearly take a part of delta, `precad.dp.accountants.slack`. A quarter of delta is
kept for all of them together, and the orders share the rest alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from precad.dp.accountants.pld import SampledGaussian, tractable
from precad.dp.accountants.renyi import rdp_gaussian, rdp_sgm_group
from precad.dp.accountants.renyi_accounting import ORDERS
from precad.dp.checks import require_delta, require_order, require_positive

SLACK_SHARE: Final = 0.25
"""The share of delta that is kept for what protocols take."""
_LOWER: Final = 0.7
"""The second order's ratio to the first: sampled rounds cost less there, and others more."""


def divergence(event: SampledGaussian | None, alpha: float) -> float:
    """Return the larger Renyi divergence of order alpha of one round, with and without the unit. None: infinite."""
    if event is None:
        return math.inf
    require_order(alpha)
    if event.sampling_rate == 0:
        return 0.0
    bounded = tractable(event)
    k, p, sigma = bounded.group_size, bounded.sampling_rate, bounded.noise_multiplier
    return rdp_gaussian(alpha, sigma, k) if p == 1 else rdp_sgm_group(alpha, k, p, sigma)


def most(limit_epsilon: float, delta: float, orders: Sequence[float]) -> tuple[float, ...]:
    """Return for each order the largest sum of divergences; not above 0 where the order leaves room for nothing."""
    require_positive("limit_epsilon", limit_epsilon)
    require_delta(delta)
    log_left = math.log(1 - SLACK_SHARE) + math.log(delta) - math.log(len(orders))
    for alpha in orders:
        require_order(alpha)
    return tuple(
        limit_epsilon - math.log1p(-1 / alpha) + (log_left + math.log(alpha)) / (alpha - 1) for alpha in orders
    )


def most_slack(limit_epsilon: float, delta: float) -> float:
    """Return the largest sum of eta with (1 + e^limit_epsilon) eta within its share of delta."""
    require_positive("limit_epsilon", limit_epsilon)
    require_delta(delta)
    return SLACK_SHARE * delta * math.exp(-limit_epsilon) / (1 + math.exp(-limit_epsilon))


def usual_orders(limit_epsilon: float, delta: float) -> tuple[float, float]:
    """Return the order at which most rounds without sampling fit the limit, and a lower one for sampled rounds.

    Raises: ValueError where no order leaves room for any round.
    """
    grid = ORDERS["wide"]

    def room(alpha: float) -> float:
        return most(limit_epsilon, delta, (alpha, alpha))[0] / alpha

    best = max(grid, key=room)
    if room(best) <= 0:
        raise ValueError(f"limit_epsilon: expected room for a round at delta = {delta:g}, found {limit_epsilon:g}")
    lower = min((alpha for alpha in grid if alpha < best), key=lambda alpha: abs(alpha - _LOWER * best), default=None)
    return best, best if lower is None else lower
