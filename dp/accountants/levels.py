"""The budget of a training of whole users: a round is tested before it runs, on the budget after it."""

from precad.dp.accountants.pld import Event, PrivacyAccountant
from precad.dp.checks import require_count, require_positive


def may_start(event: Event, rounds_done: int, delta: float, budget: float, accountant: PrivacyAccountant) -> bool:
    """Tell whether the coming round leaves the budget kept: epsilon after it, not before, is what counts."""
    require_count("rounds_done", rounds_done)
    require_positive("budget", budget)
    return accountant.epsilon(event, rounds_done + 1, delta) <= budget
