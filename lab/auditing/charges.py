"""Compare what a server's ledger charged with what the task's rounds cost: every printed epsilon comes from there.

A charge that is missing, of other clients, of a cheaper round or of another kind makes what is printed too small. No
score shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from precad.deploy.errors import refusing
from precad.dp.accountants.pld import Unit, event_fields
from precad.dp.accountants.task_cost import evaluation_fields
from precad.dp.ledgers.lines import Charge, read_lines
from precad.dp.task_privacy import task_privacy
from precad.protos.task.task import Task
from precad.servers.errors import SetupError
from precad.servers.store.folder import ledger_path

Releases = Mapping[int, Mapping[str, Any]]
"""Entries in a server's log, by the number of their round."""


def charge_alarms(task: Task, folder: Path, committed: Releases, evaluated: Releases) -> list[str]:
    """Return a line for each fault of the ledger in a state_dir; nothing where it charged all that was released.

    committed: rounds of the training. evaluated: those that evaluated a model.
    Raises: SetupError for a ledger that is missing; LedgerCorruptedError for one that was changed.
    """
    path = ledger_path(folder)
    with refusing(OSError, f"{path}: expected the privacy ledger, found none", SetupError):
        header, charges, _ = read_lines(path)
    trained, answered = _of_rounds(charges, committed, path), _of_rounds(charges, evaluated, path, is_evaluation=True)
    return [*_of_parameters(task, header, path), *trained, *answered]


def _of_parameters(task: Task, header: Mapping[str, Any], path: Path) -> list[str]:
    privacy = task_privacy(task)
    expected = {
        "delta": task.delta,
        "slack": privacy.slack,
        "events": {str(view): event and event_fields(event) for view, event in privacy.events.items()},
        "every_round": {str(level): event_fields(event) for level, event in privacy.every_round.items()},
        "evaluations": privacy.evaluations and evaluation_fields(privacy.evaluations),
        "unit": str(privacy.unit),
        "steps_per_round": privacy.steps_per_round,
    }
    found: dict[str, Any] = {"slack": 0.0, "every_round": {}, "unit": str(Unit.RECORD), "steps_per_round": 1, **header}
    return [
        f"charging: expected {name} {value} in {path}, found {found.get(name)}"
        for name, value in expected.items()
        if found.get(name) != value
    ]


def _of_rounds(
    charges: Mapping[int, Charge], releases: Releases, path: Path, *, is_evaluation: bool = False
) -> list[str]:
    """Return a line for each release that was not charged to all that it accepted, or as a round of another kind."""
    lines, kinds = [], ("a round of the training", "an evaluation")
    for number, release in releases.items():
        charge = charges.get(number, Charge([], is_evaluation))
        if free := sorted(set(release["accepted"]) - set(charge.clients)):
            lines.append(f"charging: expected round {number} charged to {', '.join(free)} in {path}, found no charge")
        if charge.is_evaluation is not is_evaluation:
            expected, found = kinds[is_evaluation], kinds[charge.is_evaluation]
            lines.append(f"charging: expected round {number} charged as {expected} in {path}, found {found}")
    return lines
