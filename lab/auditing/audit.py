"""Run a whole audit: train with canaries, score them at every seat, and compare with what is printed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from precad.clients.auditing.kinks import Kinks, audit_kinks
from precad.clients.gradients.record_clipping import RecordClip
from precad.clients.records import Records
from precad.deploy.errors import ConfigError, UnfulfilledError
from precad.deploy.reporting.audits import MECHANISM
from precad.deploy.shown.figures import audit_label
from precad.dp.auditing.shares import Shares
from precad.lab.auditing.deployment_round import AuditedRound, Seen
from precad.lab.auditing.members import AuditedTask, with_canaries
from precad.lab.auditing.randomness import KeptNoise, SystemRandomness
from precad.lab.auditing.real_records import CLIENT as REAL
from precad.lab.auditing.real_records import has_failed
from precad.lab.auditing.seat_verdicts import judged
from precad.lab.auditing.seats import Seat
from precad.lab.simulation import RoundMetrics, SeededRandomness, Simulation
from precad.lab.simulation.holder_charge import HolderCharge, owed_at_most
from precad.lab.simulation.randomness import Sources
from precad.lab.simulation.simulate import Plan
from precad.mpc.prg import SYSTEM_BYTES

OBSERVATIONS: Final = 100_000
"""Pairs of a round and a canary that an audit has unless told otherwise. The rarer a draw, the less of the printed
epsilon they show, as the limit of its rate is wider."""
FEWEST: Final = 64
"""Canaries, at least."""
MOST: Final = 20_000
_ROUND: Final = f"{AuditedRound.__module__}:{AuditedRound.__qualname__}"


def default_canaries(rounds: int) -> int:
    """Return how many canaries have `OBSERVATIONS` in so many rounds, within bounds."""
    return min(MOST, max(FEWEST, -(-OBSERVATIONS // rounds)))


def audit(
    plan: Plan,
    *,
    canaries: int | None = None,
    confidence: float = 0.95,
    seed: int | None = None,
    on_round: Callable[[RoundMetrics], None] = lambda metrics: None,
) -> dict[str, Any]:
    """Audit a simulated training of the plan, and return the report.

    canaries: m; None: enough for `OBSERVATIONS`. seed: None draws from the operating system, as a deployment does.
    Under `[client.holder]` every client pays all rounds before, as if it was in each.
    Raises: ConfigError; UnfulfilledError where no round was run.
    """
    if not 0.5 <= confidence < 1:
        raise ConfigError(f"--confidence: expected a number in [0.5, 1), found {confidence}")
    n = default_canaries(plan.task.rounds) if canaries is None else canaries
    if not FEWEST <= n <= MOST:
        raise ConfigError(f"--canaries: expected {FEWEST} to {MOST}, found {n}")
    if seed is not None and plan.client.holder is not None:
        raise ConfigError(
            "--seed: expected none with client.holder: the operating system's generator protects its records, "
            f"found {seed}"
        )
    source: Sources = SystemRandomness() if seed is None else SeededRandomness(seed)
    audited = with_canaries(plan, n, SYSTEM_BYTES if seed is None else source.records(0, "coins"))
    simulation, seen = simulation_of(audited, source)
    _pay(plan)
    for done in simulation.run():
        on_round(done)
    if not any(row.any() for row in seen.present):
        raise UnfulfilledError("expected a round with an audit client in it, found none: more rounds are needed")
    return _report(audited, seen, _kinks(simulation, plan), confidence)


def _pay(plan: Plan) -> None:
    """Pay from the ledgers of the clients' holders, if they have any. Raises as `HolderCharge`."""
    if plan.client.holder is not None:
        charge = HolderCharge(plan.task, plan.settings, plan.client, [owed_at_most(plan.task)])
        charge.require_room()
        charge.pay()


def _kinks(simulation: Simulation, plan: Plan) -> Kinks:
    """Audit the clip in floating point, with the last model."""
    engine, theta = simulation.federation.engine, simulation.progress.parameters
    shape, clip = next(iter(plan.records.values())).shape, plan.task.record_clip

    def clipped_sum(records: Records) -> NDArray[np.float64]:
        return np.asarray(engine.clipped_sums(theta, [records], RecordClip(clip))[0])

    return audit_kinks(engine.model_copy(), theta, shape, clip, clipped_sum)


def simulation_of(audited: AuditedTask, source: Sources) -> tuple[Simulation, Seen]:
    """Return a training that has not begun, and where its rounds write what they see."""
    kept = KeptNoise(source, audited.head)
    plan = replace(audited.plan, settings=audited.plan.settings.model_copy(update={"algorithm": _ROUND}))
    simulation = plan.drawing(kept, attacks=audited.attacks)
    assert isinstance(simulation.algorithm, AuditedRound)
    real = None if audited.real is None else (REAL, audited.real)
    return simulation, simulation.algorithm.begin(audited.conducts, audited.head, kept, real)


def _report(audited: AuditedTask, seen: Seen, kinks: Kinks, confidence: float) -> dict[str, Any]:
    """Return the report as one JSON object."""
    task = audited.plan.task
    shares = Shares.of(confidence, len(Seat), has_real=audited.real is not None)
    views = [judged(seat, task, seen.observed(seat, audited.coins), shares) for seat in Seat]
    real = None if audited.real is None else audited.real.report(task, shares)
    return {
        "name": task.name,
        "label": audit_label(confidence),
        "confidence": confidence,
        "delta": task.delta,
        "mechanism": {name: float(getattr(task, name)) for name in MECHANISM},
        "records_per_person": task.records_per_person,
        "rounds": len(seen.present),
        "canaries": len(audited.coins),
        "audit_clients": len(audited.conducts),
        "observations": len(seen.present) * len(audited.coins),
        "seats": views,
        "kinks": {"pairs": kinks.pairs, "most": kinks.most, "alarms": kinks.alarms},
        **({} if real is None else {"real": real}),
        "passed": not (kinks.alarms or has_failed(real))
        and not any(view["alarms"] or view["exceeded"] for view in views),
    }
