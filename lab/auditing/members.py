"""Make audit clients members of a task: their canaries, their coins, and the model's head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from torch import nn

from precad.clients.attacks.attack import Attack
from precad.clients.attacks.canaries import Canaries, RealRecords
from precad.clients.auditing.head import CanaryHead
from precad.clients.models.learning import Learning
from precad.clients.models.losses import CROSS_ENTROPY
from precad.clients.records import Records
from precad.deploy.configuration.sections import parse_section
from precad.deploy.errors import ConfigError
from precad.lab.auditing.real_records import CLIENT as REAL
from precad.lab.auditing.real_records import MOST as MOST_REAL
from precad.lab.auditing.real_records import RealAudit
from precad.lab.simulation.algorithms import Deployed
from precad.lab.simulation.simulate import Plan
from precad.protos.task.audit_fields import most_canaries
from precad.protos.task.task import Task

CLIENT: Final = "audit-{:04}"
"""Ids of audit clients, which everybody sees."""


@dataclass(frozen=True, slots=True, eq=False)
class AuditedTask:
    """A plan with audit clients, and their canaries."""

    plan: Plan
    conducts: dict[str, Canaries]
    """By audit client."""
    coins: NDArray[np.bool_]
    """(m,)."""
    real: RealAudit | None = None
    """The audit of one more client, with real records; None where there are none of nobody's."""

    @property
    def attacks(self) -> dict[str, Attack]:
        """Return what each audit client does."""
        return {**self.conducts, **({} if self.real is None else {REAL: self.real.conduct})}

    @property
    def head(self) -> slice:
        """Return where the canaries' parameters are in the task's vector."""
        return slice(self.plan.task.dim - len(self.coins), self.plan.task.dim)


def with_canaries(plan: Plan, n_canaries: int, random_bytes: Callable[[int], bytes]) -> AuditedTask:
    """Return the plan with as many audit clients as hold so many canaries, and a head on its model.

    random_bytes: of the coins, a byte for each.
    Raises: ConfigError for a setting that the audit cannot judge, among them one whose projection shrinks canaries.
    """
    task = plan.task
    _require_auditable(plan)
    per_client = most_canaries(task.record_clip, task.client_clip)
    if per_client < 1:
        raise ConfigError(
            f"task.client_clip: expected at least task.record_clip, {task.record_clip:g}: the projection shrinks a "
            f"single canary; found {task.client_clip:g}"
        )
    coins = np.frombuffer(random_bytes(n_canaries), dtype=np.uint8) % 2 == 1
    d = task.dim
    parts = [np.arange(start, min(start + per_client, n_canaries)) for start in range(0, n_canaries, per_client)]
    head = slice(d, d + n_canaries)
    conducts = {CLIENT.format(i): Canaries(part, coins[part], head) for i, part in enumerate(parts)}
    real = plan.split.test.take(np.arange(min(MOST_REAL, per_client, len(plan.split.test))))
    if taken := sorted({*conducts, REAL} & task.clients.keys()):
        raise ConfigError(f"task.clients: expected other ids than those of audit clients, found {taken[0]!r}")
    held = {client: len(of_client.places) for client, of_client in conducts.items()} | {REAL: len(real)}
    declared = {**task.clients, **{client: n for client, n in held.items() if n}}
    fields = task.model_dump(exclude_none=True, exclude={"model_digest"})
    valid = parse_section(Task, fields | {"clients": declared, "dim": d + n_canaries}, "task", base=Path())
    nobodys = next(iter(plan.records.values())).take(np.zeros(0, dtype=np.int64))
    records: dict[str, Records] = {**plan.records, **dict.fromkeys(declared.keys() - task.clients.keys(), nobodys)}
    learning = _headed(plan, n_canaries)
    initial = None if plan.initial is None else np.pad(plan.initial, (0, n_canaries))
    audited = replace(plan, task=valid, records=records, learning=learning, initial=initial)
    return AuditedTask(audited, conducts, coins, RealAudit(RealRecords(real), task.record_clip) if len(real) else None)


def _headed(plan: Plan, n_canaries: int) -> Learning:
    """Return how to make the plan's model with a head."""
    of_task = Learning.of_task(plan.task, plan.client.metrics) if plan.learning is None else plan.learning

    def build(seed: int) -> nn.Module:
        return CanaryHead(of_task.build(seed), n_canaries, plan.task.record_clip)

    return replace(of_task, build=build)


def _require_auditable(plan: Plan) -> None:
    """Raise ConfigError, with a line for each fault."""
    task, settings = plan.task, plan.settings
    found: tuple[tuple[str, Any, Any], ...] = (
        ("task.algorithm", "precad", task.algorithm),
        ("task.server_optimizer", "sgd", task.server_optimizer),
        ("task.loss", CROSS_ENTROPY.name, task.loss),
        ("task.record_rates", {}, dict(task.record_rates)),
        ("task.record_bins", None, task.record_bins),
        ("task.audit_clients", [], task.audit_clients),
        ("task.record_clipping", "flat", task.record_clipping),
        ("task.layer_clips", [], task.layer_clips),
        ("task.half_spaces", [], task.half_spaces),
        ("task.sum_function", None, task.sum_function),
    )
    faults = [
        f"{name}: expected {wanted!r} in an audit, found {value!r}" for name, wanted, value in found if value != wanted
    ]
    if {settings.algorithm} - {task.algorithm, Deployed.name}:
        faults.append(f"simulation.algorithm: expected 'deployed' in an audit, found {settings.algorithm!r}")
    if next(iter(plan.records.values())).is_text:
        faults.append("client.dataset: expected features that are numbers in an audit, found texts")
    if faults:
        raise ConfigError("\n".join(faults))
