"""Read ledgers of finished tasks, so that a later task of the same clients counts what they have spent already."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from precad.dp.accountants.bins_event import BinnedGaussian, bins_of
from precad.dp.accountants.earlier_rounds import EarlierTask, conditions_of_fields
from precad.dp.accountants.pld import Release, SampledGaussian, Unit, View, event_of, release_of
from precad.dp.accountants.task_cost import Evaluations, Level, evaluations_of, everybody_drawn
from precad.dp.errors import LedgerCorruptedError, MostRoundsError
from precad.dp.ledgers.lines import participation, read_lines, replay


def earlier_tasks(ledgers: Iterable[tuple[Path, int | None]]) -> tuple[EarlierTask, ...]:
    """Return the tasks of these ledgers, and those that each counts itself.

    Each ledger comes with the most rounds that a client can have been in, if known. A path counts once. A task that two
    of the ledgers count themselves counts twice: two tasks alike have the same lines, and so the same chain. An
    incomplete last line does not count. Raises: LedgerCorruptedError; MostRoundsError; OSError as the file system
    gives it.
    """
    once = {path.resolve(): (path, most_rounds) for path, most_rounds in ledgers}
    found = [task for path, most_rounds in once.values() for task in _tasks(path, most_rounds)]
    return tuple(sorted(found, key=lambda task: task.chain))


def counted_in(path: Path) -> tuple[EarlierTask, ...]:
    """Return the earlier tasks that a ledger counts; none where it is not there yet. Raises as `earlier_tasks`."""
    if not path.exists():
        return ()
    content = path.read_bytes()
    header: dict[str, Any] = {}
    first = content[: content.find(b"\n") + 1]
    replay(path, first, header.update, lambda _: None)
    return tasks_of_header(path, header)


def described(tasks: Sequence[EarlierTask], names: Mapping[Path, str] = MappingProxyType({})) -> str:
    """Say how many earlier tasks these are, and each by its file, where that is known, rounds and last chain value.

    names: words in place of files.
    """
    each = [
        f"{'a ledger' if task.path is None else names.get(task.path, task.path)} (rounds {task.rounds}, "
        f"most_rounds {task.most_rounds or 'not known'}, chain {task.chain[:16]}{_resting(task)})"
        for task in tasks
    ]
    return f"{len(each)}: {', '.join(each)}" if each else "none"


def _resting(task: EarlierTask) -> str:
    return "".join(f", rests on: {why}" for why in dict.fromkeys(task.rests_on.values()))


def _tasks(path: Path, most_rounds: int | None) -> list[EarlierTask]:
    header, charges, chain = read_lines(path)
    try:
        events = {view: event_of_header(header["events"][view]) for view in View}
        steps, bins = header.get("steps_per_round", 1), bins_of(events.values())
        charged = max(participation(charges, bins=bins).values(), default=0)
        own = EarlierTask(
            unit=Unit(header.get("unit", Unit.RECORD)),
            events=events,
            rounds=steps * charged,
            most_rounds=None if most_rounds is None else steps * _whole_epochs(path, most_rounds, bins, charged),
            levels={level: _drawn(event) for level, event in header.get("every_round", {}).items()} | _in_bins(events),
            slack=header.get("slack", 0.0),
            chain=chain,
            rests_on=conditions_of_fields(header),
            path=path,
        )
        answered = max(participation(charges, is_evaluation=True).values(), default=0)
        of_evaluations = _evaluations(evaluations_of(header), own, answered)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LedgerCorruptedError(path, line=1, problem=f"expected a ledger's parameters, found {error}") from error
    return [own, *of_evaluations, *tasks_of_header(path, header)]


def _whole_epochs(path: Path, most_rounds: int, bins: int, charged: int) -> int:
    """Return the most rounds of a client in whole epochs. Raises MostRoundsError where more were charged."""
    most = -(-most_rounds // bins) * bins
    if most < charged:
        raise MostRoundsError(path, charged=charged, most_rounds=most_rounds)
    return most


def _evaluations(evaluations: Evaluations | None, task: EarlierTask, rounds: int) -> list[EarlierTask]:
    """Return a task's evaluations as a further task, which compose with it as its rounds do; none where it had none.

    rounds: of the client that was in most of them. What the protocol takes from delta is the task's already.
    """
    if evaluations is None:
        return []
    return [
        replace(
            task,
            events=evaluations.events,
            rounds=rounds,
            most_rounds=evaluations.most,
            levels={str(level): everybody_drawn(event) for level, event in evaluations.levels.items()},
            slack=0.0,
        )
    ]


def tasks_of_header(path: Path, header: Mapping[str, Any]) -> tuple[EarlierTask, ...]:
    """Return the earlier tasks in the first line of the ledger at `path`. Raises LedgerCorruptedError."""
    try:
        return tuple(EarlierTask.of_fields(fields) for fields in header.get("earlier", ()))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LedgerCorruptedError(path, line=1, problem=f"expected earlier tasks, found {error}") from error


def event_of_header(fields: dict[str, Any] | None) -> Release | None:
    """Return a view's round as a header has it; None where the view has no guarantee."""
    return None if fields is None else release_of(fields)


def _drawn(fields: dict[str, Any]) -> SampledGaussian:
    return everybody_drawn(event_of(fields))


def _in_bins(events: Mapping[View, Release | None]) -> dict[str, SampledGaussian]:
    """Return the level of a record of a task of bins, by round: T of these are one release at the task's noise."""
    event = events[View.CLIENTS_ONLY]
    if not isinstance(event, BinnedGaussian):
        return {}
    return {Level.DRAWN_RECORD: SampledGaussian(1.0, math.sqrt(event.bins) * event.noise_multiplier, event.group_size)}
