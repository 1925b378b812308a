"""Take from delta what a protocol adds to a mechanism: views that can be simulated only up to a small distance.

Let an adversary's view be within total variation distance eta of a view of an (epsilon, delta')-private mechanism, in
both of two neighbouring worlds. Then the view itself is private at epsilon with

    delta' + (1 + e^epsilon) eta,

since P(S) <= P'(S) + eta <= e^epsilon Q'(S) + delta' + eta <= e^epsilon (Q(S) + eta) + delta' + eta. A statement at a
given delta therefore needs the least epsilon with delta'(epsilon) + (1 + e^epsilon) eta <= delta. It may not exist:
the second term grows without end, so a small delta leaves no room for any epsilon.

`slack` is eta, for all the rounds of a task together. It is fixed before the task. So it does not depend on when the
task ends, and budgets remain filters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from precad.dp.accountants.pld import Event, Label, PrivacyAccountant
from precad.dp.checks import require_delta, require_non_negative

_STEP: Final = 1e-9
"""How far above the accountant's figure, relative to 1 + epsilon, the next candidate is: epsilon is that near its
least."""
_MOST_STEPS: Final = 256
NO_BOUND: Final = "no bound"
"""Words that people read in the place of an infinite epsilon."""


@dataclass(frozen=True, slots=True)
class WithSlack:
    """An accountant whose statements hold for views that are only within `slack` of the mechanism's."""

    accountant: PrivacyAccountant
    slack: float

    def __post_init__(self) -> None:
        require_non_negative("slack", self.slack)

    @property
    def label(self) -> Label:
        """Return the label of the accountant: the step from its figure to this one is proved."""
        return self.accountant.label

    def epsilon(self, event: Event, rounds: int, delta: float) -> float:
        """Return an epsilon with delta'(epsilon) + (1 + e^epsilon) slack <= delta; infinite where none is found.

        It is the least but for 1e-9. Candidates rise from 0, and a candidate is returned once the accountant confirms
        it at the delta that it leaves. So what is returned is a bound wherever the accountant's figures are.

        Raises: as the accountant does.
        """
        return least_with_slack(lambda left: self.accountant.epsilon(event, rounds, left), delta, self.slack)


def least_with_slack(epsilon_at: Callable[[float], float], delta: float, slack: float) -> float:
    """Return an epsilon with delta'(epsilon) + (1 + e^epsilon) slack <= delta; infinite where none is found.

    - epsilon_at: a proved epsilon of the mechanism at a delta.

    Raises: ValueError for a delta that is none; whatever `epsilon_at` raises.
    """
    require_delta(delta)
    if slack == 0:
        return epsilon_at(delta)
    candidate = 0.0
    for _ in range(_MOST_STEPS):
        if (left := left_of_delta(delta, candidate, slack)) <= 0:
            return math.inf
        needed = epsilon_at(left)
        if needed <= candidate:
            return candidate
        candidate = needed + _STEP * (1 + needed)
    return math.inf


def left_of_delta(delta: float, epsilon: float, slack: float) -> float:
    """Return what the mechanism has of delta at this epsilon, delta - (1 + e^epsilon) slack; 0 for nothing."""
    if slack == 0:
        return delta
    if epsilon >= math.log(delta) - math.log(slack):
        return 0.0
    return max(0.0, delta - (1 + math.exp(epsilon)) * slack)


def with_slack(accountant: PrivacyAccountant, slack: float) -> PrivacyAccountant:
    """Return the accountant itself where there is no slack."""
    return accountant if slack == 0 else WithSlack(accountant, slack)


def why_no_bound(delta: float, slack: float) -> str:
    """Say why mode `proved` has no bound at this delta, and what to change. slack: what the mode takes, as eta."""
    return (
        f"{NO_BOUND} at delta = {delta:g}: of it mode proved takes {slack:.1e} (1 + e^epsilon), all from epsilon = "
        f"{most_epsilon(delta, slack):g} on; lower rounds, or raise noise_multiplier or delta"
    )


def most_epsilon(delta: float, slack: float) -> float:
    """Return the epsilon from which on mode `proved` takes all of delta, rounded down to a tenth."""
    return math.floor(10 * math.log(max(delta / slack - 1, 1))) / 10
