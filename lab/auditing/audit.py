"""Run a whole audit: train with canaries, score them at every seat, and compare with what is printed."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

from precad.clients.attacks.named import attacks_of
from precad.deploy.errors import ConfigError, UnfulfilledError
from precad.deploy.reporting.audits import MECHANISM
from precad.dp.accountants.pld import SampledGaussian
from precad.dp.auditing import f_dp, per_round, strict
from precad.dp.auditing.observed import Observed, planned_guesses
from precad.dp.task_privacy import task_privacy
from precad.lab.auditing.audited import AuditedRound, Seat, Seen
from precad.lab.auditing.kinks import Kinks, audit_kinks
from precad.lab.auditing.members import AuditedTask, with_canaries
from precad.lab.auditing.randomness import KeptNoise, SystemRandomness
from precad.lab.simulation import RoundMetrics, SeededRandomness, Simulation
from precad.lab.simulation.randomness import Randomness
from precad.lab.simulation.simulate import Plan

OBSERVATIONS: Final = 100_000
"""Pairs of a round and a canary that an audit has unless told otherwise: enough for 98 % of the printed epsilon."""
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
    Raises: ConfigError; UnfulfilledError where no round was run.
    """
    if not 0.5 <= confidence < 1:
        raise ConfigError(f"--confidence: expected at least 0.5 and below 1, found {confidence}")
    n = default_canaries(plan.task.rounds) if canaries is None else canaries
    if not FEWEST <= n <= MOST:
        raise ConfigError(f"--canaries: expected {FEWEST} to {MOST}, found {n}")
    source: Randomness = SystemRandomness() if seed is None else SeededRandomness(seed)
    audited = with_canaries(plan, n, os.urandom if seed is None else source.records(0, "coins"))
    simulation, seen = simulation_of(audited, source)
    _run(simulation, seen, on_round)
    shape = next(iter(plan.records.values())).shape
    engine, theta = simulation.federation.engine, simulation.progress.parameters
    return _report(audited, seen, audit_kinks(engine, theta, shape, plan.task.record_clip), confidence)


def seen_of(audited: AuditedTask, source: Randomness) -> Seen:
    """Run all rounds of a training, and return what was seen. Raises UnfulfilledError as `audit`."""
    simulation, seen = simulation_of(audited, source)
    _run(simulation, seen)
    return seen


def _run(simulation: Simulation, seen: Seen, on_round: Callable[[RoundMetrics], None] = lambda metrics: None) -> None:
    """Run all rounds."""
    for done in simulation.run():
        on_round(done)
    if not any(row.any() for row in seen.present):
        raise UnfulfilledError("expected a round with an audit client in it, found none: more rounds are needed")


def simulation_of(audited: AuditedTask, source: Randomness) -> tuple[Simulation, Seen]:
    """Return a training that has not begun, and where its rounds write what they see."""
    plan = audited.plan
    kept = KeptNoise(source, audited.head)
    attacks = attacks_of(plan.client)
    simulation = Simulation(
        task=plan.task,
        settings=plan.settings.model_copy(update={"algorithm": _ROUND}),
        records=plan.records,
        test=plan.split.test,
        randomness=kept,
        attacks={**attacks, **audited.conducts},
        held_out=plan.held_out,
        device=plan.client.device,
        memory_mb=plan.client.memory_mb,
        initial=plan.initial,
        learning=plan.learning,
    )
    assert isinstance(simulation.algorithm, AuditedRound)
    return simulation, simulation.algorithm.begin(audited.conducts, audited.head, kept)


def _report(audited: AuditedTask, seen: Seen, kinks: Kinks, confidence: float) -> dict[str, Any]:
    """Return the report as one JSON object."""
    task = audited.plan.task
    views = [_of_seat(seat, audited, seen, confidence) for seat in Seat]
    return {
        "name": task.name,
        "label": label_of(confidence),
        "confidence": confidence,
        "delta": task.delta,
        "mechanism": {name: float(getattr(task, name)) for name in MECHANISM},
        "rounds": len(seen.present),
        "canaries": len(audited.coins),
        "audit_clients": len(audited.conducts),
        "observations": len(seen.present) * len(audited.coins),
        "seats": views,
        "kinks": {"pairs": kinks.pairs, "most": kinks.most, "alarms": kinks.alarms},
        "passed": not kinks.alarms and not any(view["alarms"] or view["exceeded"] for view in views),
    }


def label_of(confidence: float) -> str:
    """Return how a figure of an audit is labelled; never as a bound."""
    return f"audit ({100 * confidence:g} %)"


def _of_seat(seat: Seat, audited: AuditedTask, seen: Seen, confidence: float) -> dict[str, Any]:
    """Return the printed epsilon of a seat, three lower figures, and what contradicts the printed round."""
    task = audited.plan.task
    privacy, observed = task_privacy(task), seen.observed(seat, audited.coins)
    event, rounds = privacy.events[seat.view], observed.most_rounds
    assert isinstance(event, SampledGaussian)  # of the algorithm `precad`
    printed = privacy.epsilon(seat.view, rounds, task.delta)
    found = per_round.limits(observed, confidence)
    figures = {"per_round": found.epsilon(rounds, task.delta, event.group_size)} | _in_one_run(
        observed, event, rounds, task.delta, confidence
    )
    return {
        "seat": seat.value,
        "view": seat.view.value,
        "participation": rounds,
        "printed": printed,
        "figures": figures,
        "exceeded": sorted(name for name, figure in figures.items() if figure > printed),
        "alarms": per_round.alarms(found, event),
        "limits": {
            "noise_at_most": found.noise_at_most,
            "rate_at_least": found.rate_at_least,
            "clip_at_least": found.clip_at_least,
            "clip_at_most": found.clip_at_most,
            "arrival": list(found.arrival),
        },
    }


def _in_one_run(
    observed: Observed, event: SampledGaussian, rounds: int, delta: float, confidence: float
) -> dict[str, float]:
    made = planned_guesses(observed, event, delta, confidence)
    guesses = observed.guesses(event, made)
    return {
        "f_dp": f_dp.refuted_epsilon(guesses, event, rounds, delta, confidence),
        "strict": strict.refuted_epsilon(guesses, delta, confidence),
    }
