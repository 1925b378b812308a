"""The configuration of a run, for people: every public parameter, defaults included; no path, no address, no secret."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from precad.clients.config import WITHHELD, ClientConfig
from precad.deploy.configuration.sections import Deployment
from precad.protos.task.convex_fields import DIRECTIONS_FILE
from precad.protos.task.proved_fields import OF_A_DEALER
from precad.protos.task.record_fields import Column
from precad.protos.task.task import Task

_SYMBOLS: Final = {
    "rounds": "T",
    "client_rate": "q",
    "record_rate": "p",
    "record_clip": "R",
    "client_clip": "C",
    "noise_multiplier": "σ",
    "learning_rate": "η",
    "frac_bits": "f",
    "dim": "d",
}
_OF_A_SERVER: Final = ("engine", "memory_budget_mb", "max_upload_in_memory_mb")
_PATHS: Final = (
    *("certificates", "key_passphrase_file", "authority", "aggregator_a_certificate", "aggregator_b_certificate"),
    *("state_dir", "folder", "records", "trainer_python", "trainer_output", "trainer_config", "trainer_node"),
    *("base_model", "adapter", "colluders"),
)
_NAMED: Final = 8
"""Attackers that are listed one by one; more are counted."""


def shown_configuration(deployment: Deployment) -> dict[str, str]:
    """Return field to value. Servers' sections are cut down to what changes a run's cost."""
    shown = shown_task(deployment.task) | ({} if deployment.client is None else shown_client(deployment.client))
    for letter, server in (("a", deployment.aggregator.a), ("b", deployment.aggregator.b)):
        if server is not None:
            values = server.model_dump(include=set(_OF_A_SERVER))
            shown |= {f"aggregator.{letter}.{name}": _text(values[name]) for name in _OF_A_SERVER}
    shown["localhost.clients_per_process"] = _text(deployment.localhost.clients_per_process)
    if (attackers := deployment.localhost.attackers_per_process) is not None:
        shown["localhost.attackers_per_process"] = _text(attackers)
    return shown


def shown_section(path: str, values: Mapping[str, Any]) -> dict[str, str]:
    """Show every field of a section; of a user's own class, without what may be a secret."""
    return {name: _text(value) for name, value in _leaves(path, values)}


def shown_task(task: Task) -> dict[str, str]:
    """Show a task without its path; of its clients, only how many they are and how many records they have.

    One of mode `proved` has no dealer, and none of its fields.
    """
    values = task.model_dump(exclude={"clients", DIRECTIONS_FILE, *(OF_A_DEALER if task.is_proved else ())})
    sizes = task.clients.values()
    spread = f"{min(sizes)}" if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"
    clients = f"{len(sizes)}, with {spread} records each, {sum(sizes)} in all"
    values["columns"] = [_column(column) for column in task.columns]
    named = {f"task.{name}" + (f" ({_SYMBOLS[name]})" if name in _SYMBOLS else ""): v for name, v in values.items()}
    return {"task.name": task.name, "task.clients": clients} | {name: _text(value) for name, value in named.items()}


def shown_client(client: ClientConfig) -> dict[str, str]:
    """Show a client's section without its paths; its attackers are counted."""
    without: dict[str, Any] = {**dict.fromkeys((*_PATHS, "attacks"), True), "holder": {"ledger"}}
    values = client.model_dump(exclude=without) | {"dataset": client.data_name}
    attacks = {name: str(one) for name, one in client.attacks.items() if one.kind != "none"}
    if len(attacks) <= _NAMED:
        told = ", ".join(f"{name}: {kind}" for name, kind in attacks.items())
    else:
        told = ", ".join(f"{n} × {kind}" for kind, n in Counter(attacks.values()).items())
    return {f"client.{name}": _text(value) for name, value in values.items()} | {"client.attacks": told or "none"}


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _leaves(f"{path}.{name}", "REDACTED" if WITHHELD.search(str(name)) else inner)
    else:
        yield path, value


def _column(column: Column) -> str:
    """Show the constants that a column has."""
    if column.categories:
        return f"{column.name} ({' or '.join(column.categories)})"
    given = column.model_dump(exclude={"name", "categories"}, exclude_none=True)
    return f"{column.name} ({', '.join(f'{name} {_text(value)}' for name, value in given.items())})"


def _text(value: Any) -> str:
    if value is None or value in ({}, []):
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and len(value) > _NAMED:
        return f"{len(value)} of them"
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(inner)}" for name, inner in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)
