"""`precad bench audit-figures`: what audits show of sound systems, and how often they accuse them.

    whole      simulated trainings, each with canaries, real records and records at kinks, from three seats
    demo       the same of the demo's task, as `precad audit privacy` does it unless told otherwise
    per round  100,000 observations of the mechanism in the clear, at the confidence that a whole audit leaves
    f-DP       2,000 canaries in one run of the mechanism in the clear, at 95 %

A mechanism in the clear is a Poisson-sampled Gaussian with nothing around it. Draws are NumPy's, of seeds from 0 on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Final

import numpy as np
from rich.console import Console
from scipy.stats import binom

from precad.deploy.configuration.demo import demo_config
from precad.dp.accountants.pld import PldAccountant, SampledGaussian
from precad.dp.auditing import f_dp, per_round
from precad.dp.auditing.observed import Observed
from precad.dp.auditing.plans import planned
from precad.dp.auditing.shares import Shares
from precad.lab.auditing.audit import audit
from precad.lab.auditing.seats import Seat
from precad.lab.bench import machine
from precad.lab.bench.tables import print_rows
from precad.lab.simulation.simulate import Plan as Training
from precad.lab.simulation.simulate import resolve

CONFIDENCE: Final = 0.95
DELTA: Final = 1e-5
WHOLE, DEMO, PER_ROUND, ONE_RUN = "whole", "demo", "per round", "f-DP"
LEAST: Final = 0.95
"""Share of the printed epsilon that single rounds of the demo's task, or of its mechanism, show at least."""
OF_ONE_RUN: Final = (0.45, 0.70)
"""Median share that one run shows by the accountant's curves."""
_LUCK: Final = 0.985
"""Chance of no more false alarms than are allowed, where each audit has one with a chance of 5 %: 17 of 200."""
_CANARIES: Final = 2000
_RECORDS: Final = 20
CONFIG: Final[dict[str, Any]] = {
    "task": {
        "name": "sound",
        "clients": ["one", "two"],
        "rounds": 10,
        "client_rate": 1.0,
        "record_rate": 0.25,
        "record_clip": 1.0,
        "client_clip": 16.0,
        "noise_multiplier": 1.0,
        "learning_rate": 0.5,
        "model": "mlp",
        "delta": DELTA,
    },
    "client": {"dataset": "digits"},
    "simulation": {"evaluate_every": 1000},
}


@dataclass(frozen=True, slots=True)
class Mechanism:
    """A printed round, and how many of them there are."""

    rate: float
    noise: float
    rounds: int
    is_judged: bool = True
    """Whether it has a target."""

    @property
    def event(self) -> SampledGaussian:
        """Return the round."""
        return SampledGaussian(self.rate, self.noise)

    @property
    def printed(self) -> float:
        """Return the epsilon of all rounds."""
        return PldAccountant().epsilon(self.event, self.rounds, DELTA)

    def observed(self, canaries: int, seed: int) -> Observed:
        """Return what one run in the clear shows."""
        draws, shape = np.random.default_rng(seed), (self.rounds, canaries)
        coins = draws.random(canaries) < 0.5
        added = ((draws.random(shape) < self.rate) & coins).astype(np.float64)
        return Observed(added + draws.normal(0.0, self.noise, shape), added, np.ones(shape, dtype=np.bool_), coins)


IN_ONE_RUN: Final = (
    Mechanism(1.0, 1.0, 1),
    Mechanism(0.05, 1.0, 100),
    Mechanism(0.1, 1.0, 100),
    Mechanism(0.05, 1.0, 1000),
    Mechanism(0.05, math.sqrt(2), 1000),
    Mechanism(0.25, math.sqrt(2), 100),
    Mechanism(0.25, 1.0, 20),
    Mechanism(0.5, 4.6, 30),
)
"""Eight that print an epsilon of 2 to 11 at q = 1."""
BY_ROUNDS: Final = (
    Mechanism(0.5, 4.6, 30),
    Mechanism(0.5, 4.6 * math.sqrt(2), 30),
    Mechanism(0.05, 1.0, 500, is_judged=False),
    Mechanism(0.05, math.sqrt(2), 500, is_judged=False),
)
"""The demo's in both views, and PRECAD's of a rare draw."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """How often each is done."""

    audits: int = 200
    canaries: int = 128
    runs: int = 40
    """In the clear: a fifth of it for mechanisms of 1,000 rounds, and for 100,000 observations each, the demo's too."""
    observations: int = 100_000
    one_run: tuple[Mechanism, ...] = IN_ONE_RUN
    by_rounds: tuple[Mechanism, ...] = BY_ROUNDS

    @property
    def repeated(self) -> int:
        """Return how often 100,000 observations are made."""
        return max(1, self.runs // 5)


def run(plan: Plan, *, say: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Return the report: `{"rows": [...], "targets": [...], "machine": {...}}`."""
    facts = machine.facts()
    rows = []
    if plan.audits:
        rows.append(_whole(WHOLE, _training(), plan.canaries, plan.audits, say))
        rows.append(_whole(DEMO, resolve(demo_config()), None, plan.repeated, say))
    for mechanism in plan.by_rounds:
        say(f"{PER_ROUND}: p = {mechanism.rate:g}, sigma = {mechanism.noise:.4g}")
        rows.append(_by_rounds(mechanism, plan))
    for mechanism in plan.one_run:
        say(f"{ONE_RUN}: p = {mechanism.rate:g}, sigma = {mechanism.noise:.4g}, {mechanism.rounds} rounds")
        rows.append(_in_one_run(mechanism, plan))
    return {"rows": rows, "targets": list(_targets(rows)), "machine": facts}


def _whole(
    what: str, training: Training, canaries: int | None, audits: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """Return the row of whole audits of a training. `above`: runs with a figure above the printed one."""
    shares, accused, above = [], 0, 0
    for seed in range(audits):
        report = audit(training, canaries=canaries, confidence=CONFIDENCE, seed=seed)
        seats = report["seats"]
        shares += [seat["figures"]["per_round"] / seat["printed"] for seat in seats]
        above += any(max(seat["figures"].values()) > seat["printed"] for seat in seats)
        accused += not report["passed"]
        say(f"{what}: {seed + 1} of {audits} audits, {accused} accused")
    mechanism = Mechanism(training.task.record_rate, training.task.noise_multiplier, training.task.rounds)
    return _row(what, mechanism, seats[0]["printed"], shares, runs=audits, above=above, accused=accused)


@cache
def _training() -> Training:
    """Return a small task, with few records beside the canaries."""
    found = resolve(CONFIG)
    return replace(found, records={client: own.take(np.arange(_RECORDS)) for client, own in found.records.items()})


def _by_rounds(mechanism: Mechanism, plan: Plan) -> dict[str, Any]:
    shares, printed, found = Shares.of(CONFIDENCE, len(Seat), has_real=True), mechanism.printed, []
    canaries = -(-plan.observations // mechanism.rounds)
    for seed in range(plan.repeated):
        seen = per_round.limits(mechanism.observed(canaries, seed), mechanism.event, 1 - shares.canaries, shares.seats)
        found.append(seen.epsilon(mechanism.rounds, DELTA) / printed)
    return _row(PER_ROUND, mechanism, printed, found, runs=len(found), above=sum(share > 1 for share in found))


def _in_one_run(mechanism: Mechanism, plan: Plan) -> dict[str, Any]:
    event, rounds, printed = mechanism.event, mechanism.rounds, mechanism.printed
    best = partial(f_dp.best_of, event=event, rounds=rounds, confidence=CONFIDENCE)
    guessing, found = planned(np.ones((rounds, _CANARIES), dtype=np.bool_), event, best), []
    for seed in range(plan.runs if rounds < 1000 else plan.repeated):
        guesses = mechanism.observed(_CANARIES, seed).guesses(event, guessing)
        found.append(f_dp.refuted_epsilon(guesses, event, rounds, DELTA, CONFIDENCE) / printed)
    return _row(ONE_RUN, mechanism, printed, found, runs=len(found), above=sum(share > 1 for share in found))


def _row(
    what: str,
    mechanism: Mechanism,
    printed: float,
    shares: list[float],
    *,
    runs: int,
    above: int,
    accused: int | None = None,
) -> dict[str, Any]:
    least, median, most = np.quantile(shares, [0.0, 0.5, 1.0])
    return {
        "what": what,
        "rate": mechanism.rate,
        "noise": mechanism.noise,
        "rounds": mechanism.rounds,
        "is_judged": mechanism.is_judged,
        "printed": printed,
        "runs": runs,
        "least": float(least),
        "median": float(median),
        "most": float(most),
        "above": above,
        "accused": accused,
    }


def _targets(rows: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    """Yield each target, with what was measured."""
    low, high = OF_ONE_RUN
    for row in rows:
        name = f"{row['what']}, p = {row['rate']:g}, sigma = {row['noise']:.4g}, {row['rounds']} rounds"
        if row["accused"] is not None:
            most = int(binom.ppf(_LUCK, row["runs"], 1 - CONFIDENCE))
            for count in ("accused", "above"):
                yield _target(f"{name}: {count}", f"at most {most} of {row['runs']}", row[count], row[count] <= most)
        if row["is_judged"] and row["what"] in (DEMO, PER_ROUND):
            yield _target(f"{name}: least share", f"at least {LEAST}", row["least"], row["least"] >= LEAST)
        elif row["is_judged"] and row["what"] == ONE_RUN:
            yield _target(f"{name}: median share", f"{low} to {high}", row["median"], low <= row["median"] <= high)


def _target(what: str, target: str, measured: float, met: bool) -> dict[str, Any]:
    return {"what": what, "target": target, "measured": measured, "met": met}


_COLUMNS: Final = {
    "audit": "{what}",
    "p": "{rate:g}",
    "sigma": "{noise:.4g}",
    "rounds": "{rounds}",
    "printed": "{printed:.4g}",
    "runs": "{runs}",
    "least share": "{least:.3f}",
    "median": "{median:.3f}",
    "most": "{most:.3f}",
    "above": "{above}",
    "accused": "{accused}",
}


def print_audit_figures(console: Console, report: Mapping[str, Any]) -> None:
    """Print one line per mechanism, then every target beside what was measured."""
    print_rows(
        console,
        _COLUMNS,
        ({**row, "accused": row["accused"] if row["accused"] is not None else ""} for row in report["rows"]),
    )
    for target in report["targets"]:
        said = f"{target['what']}: {target['measured']:.4g}, {target['target']}{'' if target['met'] else ': not met'}"
        console.print(said, highlight=False, soft_wrap=True)
