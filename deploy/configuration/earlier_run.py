"""Let a query count what a finished run on this machine has spent, from its ledgers and its configuration.

Ledgers say what was charged. How much could be charged is in the configuration alone, which the servers' logs name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from precad.deploy.configuration.sections import load
from precad.deploy.errors import ConfigError, refusing
from precad.deploy.run_files.folder import RunFolder, require_deployed
from precad.deploy.run_files.own_task import require_own_task
from precad.dp.accountants.bins_event import bins_of
from precad.dp.accountants.pld import Unit, View
from precad.dp.errors import DpError
from precad.dp.ledgers.earlier import event_of_header
from precad.dp.ledgers.lines import participation, read_lines
from precad.dp.task_privacy import task_cost, task_privacy
from precad.protos.task.task import Task
from precad.servers.errors import SetupError
from precad.servers.store.counted import counting
from precad.servers.store.folder import ledger_path


def go_on(resolved: Mapping[str, Any], after: Path) -> None:
    """Let a query count what a finished run has spent, and its clients go on with their own record of answers.

    Raises ConfigError unless the folder holds a run that is over, with the configuration that its servers ran.
    """
    require_deployed(after, f"--after {after}")
    before = RunFolder(after.absolute())
    if not before.summary.is_file():
        raise ConfigError(f"--after: expected the folder of a run that is over, found no summary.json in {after}")
    found = load(before.config)
    if (unit := task_privacy(found.task).unit) is not Unit.RECORD:
        raise ConfigError(
            f"--after: expected a run whose figures are of a record, as a query's are, found {found.task.algorithm} "
            f"in {before.config}, whose figures are of a {unit}"
        )
    for letter, server in resolved["aggregator"].items():
        server["earlier_ledgers"] = [_earlier(before, letter, found.task)]
    if found.client is not None:
        resolved["client"]["state_dir"] = str(found.client.state_dir)


def _earlier(before: RunFolder, letter: str, task: Task) -> dict[str, Any]:
    """Return a server's ledger, and in how many rounds a client can have been. Raises ConfigError."""
    state_dir, most = before.state_dir(letter), task_cost(task).most_of_a_client
    require_own_task(state_dir, task, before.config, where="--after")
    path = ledger_path(state_dir)
    with refusing(SetupError, f"--after {before.root}"):
        later = counting(state_dir)
    if later:
        raise ConfigError(
            f"--after: expected the run that spent last, found {before.root}, which {later[-1]} counts already: "
            "name the run of that ledger, so that this query counts both"
        )
    expected = f"--after: expected the run's ledger at {path}, found"
    with refusing((OSError, DpError, LookupError, TypeError, ValueError), expected):
        rounds = _rounds_of_a_client(path)
    if most is None:
        return {"path": str(path)}
    if most < rounds:
        raise ConfigError(
            f"--after: expected most_rounds of at least {rounds}, as {path} charged a client for so many, found {most} "
            f"by the task in {before.config}"
        )
    return {"path": str(path), "most_rounds": max(1, most)}


def _rounds_of_a_client(path: Path) -> int:
    """Return the charged rounds of the client that was in most of them."""
    header, charges, _ = read_lines(path)
    bins = bins_of(event_of_header(header["events"][view]) for view in View)
    return max(participation(charges, bins=bins).values(), default=0)
