"""Turn rounds into numbers by name, and say what each name stands for. Clients are counted and never named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from precad.dp.accountants.pld import unit_words
from precad.dp.accountants.task_cost import Level
from precad.dp.conditions import AGAINST_BRIEFLY
from precad.servers.telemetry.status import Epsilon, RoundSummary, Status

_SPENT, _MOST, _LEFT = "no_draw_discarded", "draws_discarded_or_not", "budget_left"


@dataclass(frozen=True, slots=True)
class Point:
    """One number of one round."""

    name: str
    round: int
    value: float
    at: float
    """When the round was committed, or was first seen here; in seconds since the epoch."""
    is_bound: bool = False
    """Whether it is proved to be at most this, so that rounding may only go up."""


def points_of(round: RoundSummary, epsilons: tuple[Epsilon, ...], at: float) -> Iterator[Point]:
    """Yield a round's numbers. Quality is missing until it is measured, and a budget where the status has none.

    epsilons: those of the status that the round is in; of these the task's budgets and the most rounds are read.
    """
    for verdict in ("chosen", "accepted", "rejected", "missing"):
        yield Point(f"uploads/{verdict}", round.round, float(getattr(round, f"n_{verdict}")), at)
    for phase, seconds in {**round.seconds, "total": round.seconds_total}.items():
        yield Point(f"seconds/{phase}", round.round, seconds, at)
    for figure, value in round.quality.items():
        yield Point(f"quality/{figure}", round.round, value, at)
    by_name = {epsilon.name: epsilon for epsilon in epsilons}
    spent = {str(view): value for view, value in round.epsilon.items()}
    if round.epsilon_client is not None:
        spent[Level.CLIENT] = round.epsilon_client
    for name, value in spent.items():
        yield from _epsilon(name, by_name.get(name), round.round, value, at)


def _epsilon(name: str, told: Epsilon | None, round: int, spent: float, at: float) -> Iterator[Point]:
    """Yield what a round's record says was spent, what its budget then had left, and the bound of the most rounds."""
    yield Point(f"epsilon/{name}/{_SPENT}", round, spent, at, is_bound=True)
    if told is not None and told.budget is not None:
        yield Point(f"epsilon/{name}/{_LEFT}", round, max(0.0, told.budget - spent), at)
    if told is not None and told.if_discarded is not None:
        yield Point(f"epsilon/{name}/{_MOST}", round, told.if_discarded, at, is_bound=True)


def labels_of(status: Status) -> dict[str, str]:
    """Return what the epsilons' names stand for, by name."""
    found: dict[str, str] = {}
    for epsilon in status.epsilons:
        whose = unit_words(epsilon.unit, epsilon.group_size)
        drawn = ", drawn or not" if epsilon.is_level else " in the rounds that it was drawn for"
        about = f"for {whose}{drawn}, against {AGAINST_BRIEFLY[epsilon.view]}, at delta = {epsilon.delta:g}"
        about += f", {epsilon.rests_on}" if epsilon.rests_on else ""
        found[f"epsilon/{epsilon.name}/{_SPENT}"] = f"Proved epsilon so far {about}. Holds if no draw is discarded."
        if epsilon.if_discarded is not None:
            found[f"epsilon/{epsilon.name}/{_MOST}"] = f"Proved epsilon of the most rounds that there can be, {about}."
        if epsilon.budget is not None:
            found[f"epsilon/{epsilon.name}/{_LEFT}"] = f"What the budget of {epsilon.budget:g} has left, {about}."
    return found
