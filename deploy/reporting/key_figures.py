"""The figures that a reader looks for first, each with its exact value beside what is shown."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from deploy.reporting.numbers import Format, shown
from deploy.reporting.runs import Run, Trained
from dp.accounting import Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFigure:
    """One figure of one run."""

    name: str
    shown: str
    exact: float | None
    """As the summary has it; a mean over seeds; None where there is no finite number."""
    note: str = ""


def key_figures(run: Run) -> list[KeyFigure]:
    """Outcome first, then cost."""
    return [*_outcome(run), *_privacy(run), *_uploads(run), *_cost(run)]


def _outcome(run: Run) -> Iterator[KeyFigure]:
    yield _over_seeds("test accuracy", [trained.accuracy for trained in run.trainings])
    success = [trained.attack_success for trained in run.trainings if trained.attack_success is not None]
    if success:
        yield _over_seeds("attack success (estimate)", success)


def _over_seeds(name: str, values: list[float]) -> KeyFigure:
    mean = statistics.fmean(values)
    spread = f"{min(values):.3f} to {max(values):.3f} over {len(values)} seeds" if len(values) > 1 else ""
    return KeyFigure(name=name, shown=shown(mean, Format.SHARE), exact=mean, note=spread)


def _privacy(run: Run) -> Iterator[KeyFigure]:
    for statement in run.statements:
        name = f"ε of one {'whole client' if statement.unit is Unit.CLIENT else 'record'}, against {statement.against}"
        value = statement.epsilon
        text = "no guarantee" if value is None else f"≤ {shown(value, Format.EPSILON)}"
        exact = value if value is not None and math.isfinite(value) else None
        yield KeyFigure(name=name, shown=text, exact=exact, note=f"at δ = {statement.delta:g}")


def _uploads(run: Run) -> Iterator[KeyFigure]:
    per = " (mean over seeds)" if len(run.trainings) > 1 else ""
    counts = {
        "accepted": [sum(done.n_accepted for done in trained.rounds) for trained in run.trainings],
        "rejected": [sum(done.n_rejected for done in trained.rounds) for trained in run.trainings],
        "missing": [sum(done.n_missing for done in trained.rounds) for trained in run.trainings],
    }
    rejected = sorted({client for trained in run.trainings for client in trained.rejected_clients})
    for name, found in counts.items():
        mean = statistics.fmean(found)
        note = _some(rejected) if name == "rejected" else ""
        yield KeyFigure(name=f"uploads {name}{per}", shown=shown(mean, Format.COUNT), exact=mean, note=note)


def _some(clients: list[str]) -> str:
    return ", ".join(clients[:4]) + (f" and {len(clients) - 4} more" if len(clients) > 4 else "")


def _cost(run: Run) -> Iterator[KeyFigure]:
    rounds = [len(trained.rounds) for trained in run.trainings]
    ends = ", ".join(dict.fromkeys(trained.ended for trained in run.trainings))
    mean = statistics.fmean(rounds)
    yield KeyFigure(name="rounds", shown=shown(mean, Format.COUNT), exact=mean, note=ends)
    seconds = [_seconds_per_round(trained) for trained in run.trainings if trained.rounds]
    if seconds:
        mean = statistics.fmean(seconds)
        yield KeyFigure(name="seconds per round", shown=shown(mean, Format.SECONDS), exact=mean)
    if (cost := run.cost) is not None:
        yield KeyFigure(
            name="seconds in all",
            shown=shown(cost.seconds_total, Format.SECONDS),
            exact=cost.seconds_total,
            note=f"{cost.n_processes} processes on one machine",
        )
        for name, n_bytes in (
            ("bytes from clients", cost.bytes_from_clients),
            ("bytes between the servers", cost.bytes_between_servers),
        ):
            yield KeyFigure(name=name, shown=shown(n_bytes, Format.BYTES), exact=n_bytes)


def _seconds_per_round(trained: Trained) -> float:
    return statistics.fmean(done.seconds for done in trained.rounds)
