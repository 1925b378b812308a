"""Compare what a server's ledger charged with what the task's rounds cost: every printed epsilon comes from there.

A charge that is missing, of other clients or of a cheaper round makes what is printed too small, and no score shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from precad.deploy.errors import refusing
from precad.dp.accountants.pld import event_fields
from precad.dp.ledgers.lines import read_lines
from precad.dp.task_privacy import task_privacy
from precad.protos.task.task import Task
from precad.servers.errors import SetupError
from precad.servers.store.folder import ledger_path


def charge_alarms(task: Task, folder: Path, releases: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Return a line for each fault of the ledger in a state_dir; nothing where it charged all that was released.

    releases: entries in a server's log of rounds that were committed, or evaluated a model, by number.
    Raises: SetupError for a ledger that is missing; LedgerCorruptedError for one that was changed.
    """
    path = ledger_path(folder)
    with refusing(OSError, f"{path}: expected the privacy ledger, found none", SetupError):
        header, charges, _ = read_lines(path)
    return [*_of_parameters(task, header, path), *_of_rounds(charges, releases, path)]


def _of_parameters(task: Task, header: Mapping[str, Any], path: Path) -> list[str]:
    privacy = task_privacy(task)
    expected = {
        "delta": task.delta,
        "slack": privacy.slack,
        "events": {str(view): event and event_fields(event) for view, event in privacy.events.items()},
        "every_round": {str(level): event_fields(event) for level, event in privacy.every_round.items()},
    }
    found: dict[str, Any] = {"slack": 0.0, "every_round": {}, **header}
    return [
        f"charging: expected {name} {value} in {path}, found {found.get(name)}"
        for name, value in expected.items()
        if found.get(name) != value
    ]


def _of_rounds(charges: Mapping[int, Any], releases: Mapping[int, Mapping[str, Any]], path: Path) -> list[str]:
    lines = []
    for number, release in releases.items():
        charged = set(charges[number].clients) if number in charges else set[str]()
        if free := sorted(set(release["accepted"]) - charged):
            lines.append(f"charging: expected round {number} charged to {', '.join(free)} in {path}, found no charge")
    return lines
