"""Read what a run's files say of its epsilons, each with the adversary that it names
(`precad.dp.accountants.task_cost`)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from precad.deploy.run_files.folder import RunFolder
from precad.deploy.shown.figures import plain
from precad.dp.accountants.earlier_rounds import EarlierTask
from precad.dp.accountants.pld import Conduct, View, release_of
from precad.dp.accountants.task_cost import TaskCost
from precad.dp.errors import LedgerCorruptedError
from precad.dp.ledgers.earlier import counted_in, tasks_of_header
from precad.dp.ledgers.ledger import Ledger, Level
from precad.dp.ledgers.lines import read_lines
from precad.dp.task_privacy import task_cost
from precad.protos.task.task import Task
from precad.servers.store.folder import ledger_path, open_ledger

Written = dict[str, float | str | int | None]


def spent_epsilons(state_dir: Path, task: Task, last: Mapping[str, Any] | None) -> Written:
    """Return the summary's part about privacy, from the ledger of a server that has ended.

    `epsilon_NAME` holds whoever discards draws, `realised_epsilon_NAME` if nobody does. The ledger may have more rounds
    than metrics.jsonl: servers that are stopped with the run finish their round first.

    - last: the line of metrics.jsonl of the last round, whose epsilons are realised ones; None where there was none

    Raises: SetupError, DpError.
    """
    stated = dict.fromkeys(View, 0.0) if last is None else {view: float(last[f"epsilon_{view}"]) for view in View}
    with _ledger_of(state_dir, task) as ledger:
        found = {view.value: ledger.statement(view, conduct=Conduct.MAY_DISCARD).epsilon for view in View}
        realised = {view.value: plain(max(stated[view], ledger.statement(view).epsilon)) for view in View}
        for level in ledger.levels.intersection((Level.CLIENT, Level.HIDDEN_CLIENT)):
            found[level.value] = ledger.task_statement(level, Conduct.MAY_DISCARD).epsilon
            realised[level.value] = plain(ledger.task_statement(level).epsilon)
        return {
            **{f"epsilon_{name}": plain(epsilon) for name, epsilon in found.items()},
            **{f"realised_epsilon_{name}": epsilon for name, epsilon in realised.items()},
            "most_rounds_of_a_client": ledger.most_rounds_of_a_client,
            "rounds_of_a_client": max(ledger.participation.values(), default=0),
            "discarded_draws": ledger.discarded_draws,
            **_evaluations(ledger, task),
        }


def spent_in_run(folder: RunFolder, task: Task, last: Mapping[str, Any] | None) -> Written:
    """Return the same of both servers of a run, of each figure the larger: one may have charged a round more.

    Raises: SetupError, DpError.
    """
    return larger_of(*(spent_epsilons(state_dir, task, last) for state_dir in folder.state_dirs))


def larger_of(one: Written, other: Written) -> Written:
    """Return the larger of each figure of two servers; None, which is without a limit, is the largest."""
    return {name: max(one[name], other[name], key=lambda n: math.inf if n is None else float(n)) for name in one}


@contextmanager
def _ledger_of(state_dir: Path, task: Task) -> Iterator[Ledger]:
    """Read a server's ledger; an empty one elsewhere where the server was stopped before it made its own.

    A ledger that we made there would stand alone, and the server would refuse the folder. Raises SetupError, DpError.
    """
    with ExitStack() as stack:
        is_there = ledger_path(state_dir).exists()
        if not is_there:
            state_dir = Path(stack.enter_context(TemporaryDirectory()))
        yield stack.enter_context(open_ledger(state_dir, task, only_reads=is_there))


def _evaluations(ledger: Ledger, task: Task) -> Written:
    """Return how many evaluations the figures count; nothing of a task without any."""
    if task.evaluation_round is None:
        return {}
    return {
        "most_evaluations": task.most_evaluations,
        "evaluations_of_a_client": max(ledger.evaluations_of.values(), default=0),
    }


def epsilon_of_a_client(cost: TaskCost, round: int, evaluations: int = 0) -> Written:
    """Return what a round's line says of a whole client, drawn or not: what a budget limits, as the budget counts.

    evaluations: those that were due before the round, whose numbers are no draws of the training.
    """
    if Level.CLIENT not in cost.budgets:
        return {}
    drawn = round + 1 - evaluations
    return {"epsilon_client": plain(cost.level_after_draws(Level.CLIENT, drawn, evaluations=evaluations))}


def costs_of_run(folder: RunFolder, task: Task) -> tuple[TaskCost, TaskCost]:
    """Return what the ledger of each server counts. Raises as `cost_in`."""
    of_a, of_b = (cost_in(ledger_path(state_dir), task) for state_dir in folder.state_dirs)
    return of_a, of_b


def earlier_in(folder: RunFolder) -> tuple[EarlierTask, ...]:
    """Return the earlier tasks that the ledgers of a run's servers count. Raises LedgerCorruptedError, OSError."""
    return tuple(task for state_dir in folder.state_dirs for task in counted_in(ledger_path(state_dir)))


def epsilon_of_several(
    costs: Sequence[Sequence[TaskCost]], view: View, rounds: int, *, discarded: bool = False
) -> float:
    """Return epsilon of a client that is in all of several trainings, by the server whose ledgers count more.

    An earlier task that several of them count, counts once.

    - costs: by training, then by server
    - rounds: those of the client in all of them
    - discarded: whether the most rounds that it can be in count, where they are more
    """
    found: list[float] = []
    for of_server, earlier in zip(zip(*costs, strict=True), earlier_of_several(costs), strict=True):
        most = sum(cost.most_of_a_client or 0 for cost in of_server) if discarded else 0
        cost = replace(of_server[0], earlier=earlier)
        found.append(cost.of_several(len(of_server), view, max(rounds, most), discarded=discarded))
    return max(found)


def earlier_of_several(costs: Sequence[Sequence[TaskCost]]) -> tuple[tuple[EarlierTask, ...], ...]:
    """Return by server the earlier tasks that its ledgers of several trainings count.

    An earlier task that several of them count, counts once. costs: by training, then by server.
    """
    return tuple(_all_of(one.earlier for one in of_server) for of_server in zip(*costs, strict=True))


def _all_of(each: Iterable[tuple[EarlierTask, ...]]) -> tuple[EarlierTask, ...]:
    """Return all tasks that any of these hold, each as often as the one that holds it most often."""
    found: list[EarlierTask] = []
    for tasks in each:
        known = list(found)
        for task in tasks:
            if task in known:
                known.remove(task)
            else:
                found.append(task)
    return tuple(found)


def cost_in(ledger: Path, task: Task) -> TaskCost:
    """Return the cost of a task whose ledger this is, with the earlier tasks that it counts; alone without a file.

    Raises LedgerCorruptedError, also for the ledger of other parameters; OSError as the file system gives it.
    """
    cost = task_cost(task)
    header = read_lines(ledger)[0] if ledger.is_file() else {}
    if not header:
        return cost
    try:
        events = {view: None if (event := header["events"][view]) is None else release_of(event) for view in View}
        is_of_task = (events, header["delta"]) == (cost.events, cost.delta)
    except (KeyError, TypeError, ValueError) as error:
        raise LedgerCorruptedError(ledger, line=1, problem=f"expected a ledger's parameters, found {error}") from error
    if not is_of_task:
        raise LedgerCorruptedError(ledger, line=1, problem="these are not the rounds of the configuration's task")
    return task_cost(task, tasks_of_header(ledger, header))
