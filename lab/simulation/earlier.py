"""Count finished tasks of the same clients in a simulation: those that its servers' ledgers would count.

A file of `precad run` names them in `[aggregator.a]` and `[aggregator.b]`, as `earlier_ledgers`. Without them a
simulation would say less than a run of the same file, and go on behind its budget.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from precad.deploy.configuration.sections import parse_section
from precad.deploy.errors import ConfigError, refusing
from precad.dp.accountants.earlier_rounds import EarlierTask
from precad.dp.errors import DpError
from precad.dp.task_privacy import task_privacy
from precad.protos.task.task import Task
from precad.servers.config import EarlierLedger
from precad.servers.errors import SetupError
from precad.servers.store.folder import tasks_named

FIELD = "earlier_ledgers"


class _Named(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    earlier_ledgers: list[EarlierLedger] = []


def earlier_of(raw: Mapping[str, Any], task: Task) -> tuple[dict[str, Any], tuple[tuple[EarlierTask, ...], ...]]:
    """Return a run folder's part that names earlier ledgers, by full paths, and their tasks by server; nothing without.

    Raises ConfigError.
    """
    part, found = dict[str, Any](), list[tuple[EarlierTask, ...]]()
    for letter, section in _sections_of(raw).items():
        where = f"aggregator.{letter}"
        named = parse_section(_Named, {FIELD: section[FIELD]}, where, base=Path().absolute()).earlier_ledgers
        with refusing(SetupError), refusing(DpError, f"{where}.{FIELD}: expected ledgers to read, found"):
            tasks = tasks_named(named, f"{where}.{FIELD}")
        if foreign := [one.unit for one in tasks if one.unit is not task_privacy(task).unit]:
            unit = task_privacy(task).unit
            raise ConfigError(f"{where}.{FIELD}: expected tasks about a {unit}, found one about a {foreign[0]}")
        part[letter] = {FIELD: [one.model_dump(mode="json", exclude_none=True) for one in named]}
        found.append(tasks)
    return ({"aggregator": part} if part else {}), tuple(found)


def counts_earlier(raw: Mapping[str, Any]) -> bool:
    """Return whether a server of this configuration counts earlier tasks."""
    return bool(_sections_of(raw))


def _sections_of(raw: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the sections of servers that name earlier ledgers, by letter."""
    servers = raw.get("aggregator", {})
    sections = {letter: servers.get(letter) for letter in ("a", "b")} if isinstance(servers, Mapping) else {}
    return {letter: one for letter, one in sections.items() if isinstance(one, Mapping) and one.get(FIELD)}
