"""Complete the `[task]` section of a local run that has audit clients: how many canaries or records each declares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from precad.deploy.errors import ConfigError
from precad.protos.task.audit_fields import MOST_REAL, SHARE, most_canaries


def audit_ids(task: Mapping[str, Any], name: str = "audit_clients") -> list[str]:
    """Return the audit clients of a `[task]` section. Raises ConfigError for anything but a list of ids."""
    found = task.get(name, [])
    if not isinstance(found, list) or not all(isinstance(client, str) for client in found):
        raise ConfigError(f"task.{name}: expected a list of ids, found {found!r:.60}")
    return found


def audited_records(task: Mapping[str, Any], declared: Mapping[str, int]) -> dict[str, int]:
    """Return how many records each client declares: a real audit client no more than an audit tells apart.

    It may declare fewer. declared: by the sizes of the clients' parts. Raises ConfigError.
    """
    real, fit = audit_ids(task, "real_audit_clients"), _canaries_that_fit(task)
    if fit is None:
        return dict(declared)  # the task is refused for its clips
    most = max(1, min(MOST_REAL, fit))
    given = clients if isinstance(clients := task.get("clients"), Mapping) else {}
    return {
        client: min(number, most, given.get(client, most)) if client in real else number
        for client, number in declared.items()
    }


def declared_canaries(task: Mapping[str, Any], n_parameters: int) -> dict[str, int]:
    """Return how many canaries each audit client declares: as the section says, else as many as are allowed.

    n_parameters: of the model. Raises ConfigError.
    """
    ids, clients = audit_ids(task), task.get("clients")
    if isinstance(clients, Mapping):
        numbers = {client: clients.get(client, 0) for client in ids}
        return {client: number for client, number in numbers.items() if isinstance(number, int)}
    fit = _canaries_that_fit(task)
    if not ids or fit is None:
        return dict.fromkeys(ids, 1)  # the task is refused for its clips
    return dict.fromkeys(ids, max(1, min(fit, n_parameters // SHARE // len(ids))))


def _canaries_that_fit(task: Mapping[str, Any]) -> int | None:
    """Return how many canaries a client's bound has room for; None where R or C is no bound, or C is beyond floats."""
    of_record, of_client = task.get("record_clip"), task.get("client_clip")
    if not isinstance(of_record, int | float) or not isinstance(of_client, int | float) or not of_record > 0:
        return None
    try:
        return most_canaries(of_record, of_client)
    except (OverflowError, ValueError):
        return None


def refuse_audit_clients(task: Mapping[str, Any]) -> None:
    """Refuse audit clients in a simulation, to which an audit adds its own. Raises ConfigError."""
    for name in ("audit_clients", "real_audit_clients"):
        if audit_ids(task, name):
            raise ConfigError(f"task.{name}: expected none in a simulation, found some (`precad audit privacy`)")
