"""The figures that a reader looks for first, each with its exact value beside what is shown."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum

from precad.deploy.reporting.numbers import Format, power_of_ten, shown
from precad.deploy.reporting.runs import Run
from precad.deploy.shown.figures import NO_USEFUL_BOUND
from precad.dp.accountants.pld import Unit
from precad.dp.accountants.slack import NO_BOUND


class Group(IntEnum):
    """In which order figures of several runs are told."""

    OUTCOME = 0
    PRIVACY = 1
    UPLOADS = 2
    COST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFigure:
    """One figure of one run."""

    group: Group
    name: str
    shown: str
    exact: float | None
    """As the summary has it; a mean over seeds; None where there is no finite number."""
    note: str = ""

    @property
    def on_page(self) -> float | None:
        """Return the exact value, if the page has it: a bound that says nothing has its figure in JSON alone."""
        return None if self.shown == NO_USEFUL_BOUND else self.exact


def key_figures(run: Run) -> list[KeyFigure]:
    """Return the key figures: outcome first, then cost."""
    return [*_outcome(run), *_privacy(run), *_uploads(run), *_cost(run)]


def _outcome(run: Run) -> Iterator[KeyFigure]:
    if (answer := run.answer) is not None and (found := answer.estimate) is not None:
        yield KeyFigure(group=Group.OUTCOME, name=answer.name, shown=found.text, exact=found.value, note=answer.note)
    accuracies = [trained.accuracy for trained in run.trainings if trained.accuracy is not None]
    if accuracies:
        yield _over_seeds("test accuracy", accuracies)
    for name in dict.fromkeys(name for trained in run.trainings for name in trained.metrics):
        yield _measured(f"test {name}", [trained.metrics[name] for trained in run.trainings if name in trained.metrics])
    for letter, public in run.trainings[0].public_quality.items():
        late = "" if public.n_done == len(run.trainings[0].rounds) else f"of the model after {public.n_done} rounds"
        for name, value in public.figures.items():
            figure = _measured(f"{name} on public records, measured at server {letter.upper()}", [value])
            yield replace(figure, note=late)
    yield from _last_evaluation(run)
    success = [trained.attack_success for trained in run.trainings if trained.attack_success is not None]
    if success:
        yield _over_seeds("attack success (estimate)", success)


def _last_evaluation(run: Run) -> Iterator[KeyFigure]:
    """Yield what the clients found last on records that they hold out, of a run's one training."""
    evaluations = run.trainings[0].evaluations
    if not evaluations or len(run.trainings) > 1:
        return
    last = evaluations[-1]
    late = "" if last.n_done == len(run.trainings[0].rounds) else f" of the model after {last.n_done} rounds,"
    for name, found in last.figures.items():
        yield KeyFigure(
            group=Group.OUTCOME,
            name=f"{name} on clients' held-out records" if name != "records" else "records that clients held out",
            shown=found.text,
            exact=found.value,
            note=f"{late} error bar at 95\u00a0%: of the noise, for the clients that were accepted".strip(),
        )


def _over_seeds(name: str, values: list[float]) -> KeyFigure:
    mean = statistics.fmean(values)
    spread = f"{min(values):.3f} to {max(values):.3f} over {len(values)} seeds" if len(values) > 1 else ""
    return KeyFigure(group=Group.OUTCOME, name=name, shown=shown(mean, Format.SHARE), exact=mean, note=spread)


def _measured(name: str, values: list[float]) -> KeyFigure:
    """Show a metric of the user's choice: a number of any size, or none."""
    mean = statistics.fmean(values)
    spread = f"{min(values):.4g} to {max(values):.4g} over {len(values)} seeds" if len(values) > 1 else ""
    exact = mean if math.isfinite(mean) else None
    return KeyFigure(group=Group.OUTCOME, name=name, shown=f"{mean:.4g}", exact=exact, note=spread)


def _privacy(run: Run) -> Iterator[KeyFigure]:
    """Yield for each statement the figure that assumes less, then that of the rounds there were."""
    for statement in run.statements:
        whose = "one whole client" if statement.unit is Unit.CLIENT else statement.whose
        name = f"ε of {whose}, against {statement.against}"
        if statement.realised is None:
            yield _epsilon(name, statement.epsilon, statement.delta)
        else:
            yield _epsilon(f"{name}, draws discarded or not", statement.epsilon, statement.delta)
            yield _epsilon(f"{name}, if no draw is discarded", statement.realised, statement.delta)


def _epsilon(name: str, value: float | None, delta: float) -> KeyFigure:
    text = "no guarantee" if value is None else shown(value, Format.EPSILON)
    if text not in ("no guarantee", NO_USEFUL_BOUND, NO_BOUND):
        text = f"≤\u00a0{text}"
    exact = value if value is not None and math.isfinite(value) else None
    return KeyFigure(
        group=Group.PRIVACY, name=name, shown=text, exact=exact, note=f"at δ\u00a0=\u00a0{power_of_ten(delta)}"
    )


def _uploads(run: Run) -> Iterator[KeyFigure]:
    counts = {
        "accepted": [sum(done.n_accepted for done in trained.rounds) for trained in run.trainings],
        "rejected": [sum(done.n_rejected for done in trained.rounds) for trained in run.trainings],
        "missing": [sum(done.n_missing for done in trained.rounds) for trained in run.trainings],
    }
    rejected = sorted({client for trained in run.trainings for client in trained.rejected_clients})
    for name, found in counts.items():
        mean = statistics.fmean(found)
        notes = ["mean over seeds"] if len(found) > 1 else []
        notes += [_some(rejected)] if name == "rejected" and rejected else []
        yield KeyFigure(
            group=Group.UPLOADS,
            name=f"uploads {name}",
            shown=shown(mean, Format.COUNT),
            exact=mean,
            note="; ".join(notes),
        )


def _some(clients: list[str]) -> str:
    return ", ".join(clients[:4]) + (f" and {len(clients) - 4} more" if len(clients) > 4 else "")


def _cost(run: Run) -> Iterator[KeyFigure]:
    rounds = statistics.fmean(len(trained.rounds) for trained in run.trainings)
    ends = ", ".join(dict.fromkeys(trained.ended for trained in run.trainings))
    yield _amount("rounds", rounds, Format.COUNT, note=ends)
    seconds = [statistics.fmean(done.seconds for done in trained.rounds) for trained in run.trainings if trained.rounds]
    if seconds:
        yield _amount("seconds per round", statistics.fmean(seconds), Format.SECONDS)
    if (cost := run.cost) is not None:
        note = f"{cost.n_processes} processes on one machine"
        yield _amount("seconds in all", cost.seconds_total, Format.SECONDS, note=note)
        yield _amount("bytes from clients", cost.bytes_from_clients, Format.BYTES)
        yield _amount("bytes between the servers", cost.bytes_between_servers, Format.BYTES)


def _amount(name: str, value: float, kind: Format, *, note: str = "") -> KeyFigure:
    return KeyFigure(group=Group.COST, name=name, shown=shown(value, kind), exact=value, note=note)
