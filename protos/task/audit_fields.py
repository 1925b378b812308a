"""Name the members of a task that audit it: their records are canaries, in coordinates that no model has.

The vector of an audited task is the model's parameters, then a number for each canary. A canary's gradient is R in its
own coordinate and 0 elsewhere; any other record's is 0 there. So the model moves as without an audit: only its own
coordinates have the canaries' noise, and the divisor W does not count them.

An audit client declares how many canaries it has. Which of them are among its records is its secret.

A real audit client trains on records of its own, those that its coins leave in. They move the model as any member's do.
What it uploads must be a sum of their clipped gradients, which the auditor computes from the models that it was sent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Final

from pydantic import BaseModel, Field, field_validator

from precad.protos.task.parameters import TaskParameters

SHARE: Final = 50
"""Parameters of the model for each canary, at least: what servers do for d numbers costs 2 % more, at most."""
MOST_REAL: Final = 64
"""Records of a real audit client, at most: their weights in an update are solved for."""
FEWEST_REAL: Final = 2
MOST_NUMBERS: Final = 2**26
"""Parameters times rounds, at most, of a task with real audit clients: each keeps every model that it trained on."""


class AuditFields(BaseModel, defer_build=True):
    """A part of `precad.protos.task.task.Task`."""

    audit_clients: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    """Clients of the task that audit it (`precad audit privacy --run`). Everybody sees who they are. Each declares as
    many records as it has canaries, and no more than C bounds together: k R^2 <= C^2."""

    real_audit_clients: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    """Clients that audit the task with records of their own, each left out or not by a secret coin. Everybody sees who
    they are. Needs audit_clients, whose canaries measure the noise. Each declares 2 to 64 records: k R^2 <= C^2."""

    @field_validator("audit_clients", "real_audit_clients")
    @classmethod
    def _sort_audit_clients(cls, clients: list[str]) -> list[str]:
        """Return them in order, so that the digest depends on who they are alone."""
        if len(set(clients)) != len(clients):
            raise ValueError("expected different clients, found one twice")
        return sorted(clients)


AUDIT_FIELDS: Final = tuple(AuditFields.model_fields)


_PLAIN: Final = (
    *("algorithm", "record_rates", "record_clipping", "update_clipping", "server_optimizer"),
    *("loss", "query", "base_model_sha256", "adapter_sha256"),
)
"""Fields at whose default alone a canary's coordinate is what the audit takes it for."""


def canary_places(audit_clients: Sequence[str], clients: Mapping[str, int]) -> dict[str, range]:
    """Return which canaries each audit client has, counted from the first coordinate after the model's."""
    places, start = {}, 0
    for client in sorted(audit_clients):
        places[client] = range(start, start + clients[client])
        start += clients[client]
    return places


def refuse_audit(task: TaskParameters, given: Collection[str]) -> None:
    """Refuse audit clients in a task whose projection shrinks canaries, or that an audit cannot judge.

    given: fields that are not at their default. Raises ValueError.
    """
    if not task.audit_clients:
        if task.real_audit_clients:
            raise ValueError(
                "real_audit_clients: expected audit_clients beside them, whose canaries measure the noise, found none"
            )
        return
    for client in task.audit_clients:
        if client not in task.clients:
            raise ValueError(f"audit_clients: expected enrolled clients, found {client!r:.80}")
    if len(task.clients) - len(task.audit_clients) < 1:
        raise ValueError("audit_clients: expected a client that is none of them, found none")
    for name in _PLAIN:
        if name in given:
            raise ValueError(f"{name}: expected none beside audit_clients, found a value")
    for client in task.audit_clients:
        held, most = task.clients[client], most_canaries(task.record_clip, task.client_clip)
        if held > most:
            raise ValueError(
                f"client_clip: expected at least record_clip * sqrt({held}), as the projection shrinks the {held} "
                f"canaries of {client} else, found {task.client_clip:g}"
            )
    n = sum(task.clients[client] for client in task.audit_clients)
    if task.n_parameters < SHARE * n:
        raise ValueError(
            f"audit_clients: expected a model with {SHARE} parameters for each of the {n} canaries, "
            f"found {max(task.n_parameters, 0)}"
        )
    _refuse_real(task)


def _refuse_real(task: TaskParameters) -> None:
    """Refuse real audit clients whose updates cannot be taken apart into single records. Raises ValueError."""
    most = min(MOST_REAL, most_canaries(task.record_clip, task.client_clip), task.n_parameters // SHARE)
    for client in task.real_audit_clients:
        if client not in task.clients or client in task.audit_clients:
            raise ValueError(
                f"real_audit_clients: expected enrolled clients that are not in audit_clients, found {client!r:.80}"
            )
        if not FEWEST_REAL <= (held := task.clients[client]) <= most:
            raise ValueError(
                f"real_audit_clients: expected {FEWEST_REAL} to {most} records of {client}, whose sum the projection "
                f"never shrinks and which can be told apart, found {held}"
            )
    if len(task.clients) - len(task.audit_clients) - len(task.real_audit_clients) < 1:
        raise ValueError("real_audit_clients: expected a client that does not audit, found none")
    if task.real_audit_clients and task.n_parameters * task.rounds > MOST_NUMBERS:
        raise ValueError(
            f"real_audit_clients: expected at most {MOST_NUMBERS} parameters times rounds, as they keep every model, "
            f"found {task.n_parameters * task.rounds}"
        )


def most_canaries(record_clip: float, client_clip: float) -> int:
    """Return how many canaries of norm R a client may hold, so that the projection onto C never shrinks them."""
    return int((client_clip / record_clip) ** 2)
