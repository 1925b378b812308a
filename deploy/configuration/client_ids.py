"""Read a task's clients: a number of them, a list of ids, or a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from precad.deploy.errors import ConfigError

_MOST: Final = 1_000_000
"""Clients of a task that are named by their number."""


def require_ids(ids: list[Any]) -> None:
    """Raise ConfigError unless they are distinct strings, at least one."""
    wrong = [name for name in ids if not isinstance(name, str)]
    twice = [] if wrong else [name for name, n in Counter(ids).items() if n > 1]
    if wrong or twice or not ids:
        found = f"{(wrong or twice)[0]!r:.60}{' twice' if twice else ''}" if ids else "none"
        raise ConfigError(
            "task.clients: expected a number, a table of ids and numbers of records, or a list of distinct ids, "
            f"found {found}"
        )


def ids_of(clients: object) -> list[Any]:
    """Return ids of a number of clients, or a list of them. Raises ConfigError."""
    if isinstance(clients, int) and not isinstance(clients, bool):
        if not 2 <= clients <= _MOST:
            raise ConfigError(f"task.clients: expected between 2 and {_MOST} clients, found {clients}")
        return _numbered(clients)
    if isinstance(clients, list):
        return clients
    raise ConfigError(f"task.clients: expected a number, a list of ids or a table, found {clients!r:.60}")


def _numbered(n_clients: int) -> list[Any]:
    return [f"client-{i:0{len(str(n_clients - 1))}}" for i in range(n_clients)]


def with_clients(raw: Mapping[str, Any], n_clients: int) -> dict[str, Any]:
    """Return a configuration whose task has so many clients, by the name of `--clients`. Raises ConfigError."""
    given: object = n_clients
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        belongs = "; names of clients belong in task.clients" if isinstance(given, list | tuple | dict) else ""
        raise ConfigError(f"--clients: expected an integer of at least 1, found {given!r:.60}{belongs}")
    if given > _MOST:
        raise ConfigError(f"--clients: expected at most {_MOST}, found {given}")
    task = raw.get("task", {})
    if not isinstance(task, Mapping):
        raise ConfigError(f"task: expected a section, found {task!r:.60}")
    if "clients" in task:
        raise ConfigError(f"--clients: expected none beside task.clients = {task['clients']!r:.60}, found {n_clients}")
    return {**raw, "task": {**task, "clients": _numbered(n_clients)}}
