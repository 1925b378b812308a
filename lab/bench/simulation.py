"""`precad bench simulation`: rounds of PRECAD in one process, the round in the clear, and where their time goes.

One sweep is over the clients that a round draws, each with so many records in expectation. The other is over the
clients that are registered. `gradients` is what the engine takes for clipped gradient sums, on its device. `rest` is
all else, on the processor: draws, clipping and encoding of updates, the norm check, the sum, both servers' noise, the
model. A device that took no time at all would have 1 / rest rounds a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from precad.clients.gradients.engine import RecordEngine
from precad.clients.gradients.record_clipping import RecordClip
from precad.clients.models import networks
from precad.clients.records import Records, digits, example_of
from precad.lab.bench import machine
from precad.lab.bench.statistics import Spread, log_log_slope
from precad.lab.simulation import SeededRandomness, Simulation, SimulationSettings
from precad.protos.task.task import Task

MODEL: Final = "cnn"
CLIENT_RATE, RECORD_RATE = 0.1, 0.05
"""q and p of PRECAD, Sec. 6.1, along the drawn clients; q is what draws the same number along the registered ones."""
DRAWN_ALONG_REGISTERED, RECORDS_ALONG_REGISTERED = 50, 6
WARM_UP = 3
DRAWN, REGISTERED = "drawn", "registered"


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Sizes, and how they are measured."""

    drawn: tuple[int, ...] = (10, 30, 100)
    """Clients of a round in expectation; ten times as many are registered."""
    records: int = 30
    """Records of a drawn client, in expectation."""
    registered: tuple[int, ...] = (100, 1_000, 10_000, 100_000)
    rounds: int = 40
    """Rounds of each size, after a warm-up."""
    threads: int = 1
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class _Size:
    along: str
    registered: int
    client_rate: float
    records: int


class TimedEngine(RecordEngine):
    """Add up the seconds of `clipped_sums`."""

    seconds = 0.0

    def clipped_sums(
        self, parameters: NDArray[np.float32] | NDArray[np.float64], clients: Sequence[Records], clip: RecordClip
    ) -> NDArray[np.float64]:
        """Sum clipped gradients as an engine does."""
        start = time.perf_counter()
        sums = super().clipped_sums(parameters, clients, clip)
        self.seconds += time.perf_counter() - start
        return sums


def run(plan: Plan, *, say: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Return the report: `{"rows": [...], "slope": .., "machine": {...}}`. slope: a of ms = c records^a along the
    drawn."""
    facts = machine.facts()
    with machine.torch_threads(plan.threads):
        rows = []
        for size in _sizes(plan):
            say(f"{size.registered:,} registered clients, {size.client_rate * size.registered:g} in a round")
            rows.append(_measure(plan, size))
    along = [row for row in rows if row["along"] == DRAWN]
    slope = log_log_slope([row["records"] for row in along], [row["ms_per_round"] for row in along])
    return {"rows": rows, "slope": slope, "machine": facts}


def _sizes(plan: Plan) -> list[_Size]:
    along_drawn = [_Size(DRAWN, round(n / CLIENT_RATE), CLIENT_RATE, plan.records) for n in plan.drawn]
    return along_drawn + [
        _Size(REGISTERED, n, min(1.0, DRAWN_ALONG_REGISTERED / n), RECORDS_ALONG_REGISTERED) for n in plan.registered
    ]


def _measure(plan: Plan, size: _Size) -> dict[str, Any]:
    """Measure one size. The memory's peak is the process's, so it is that of the sizes before as well."""
    engine, simulation = _simulation(plan, size)
    for _ in range(WARM_UP):
        simulation.run_round()
    machine.reset_peak_rss()
    whole, gradients, processor, drawn = [], [], [], 0
    for _ in range(plan.rounds):
        engine.seconds, cpu_start = 0.0, time.process_time()
        found = simulation.run_round()
        whole.append(found.seconds)
        gradients.append(engine.seconds)
        processor.append(time.process_time() - cpu_start)
        drawn += found.n_chosen
    return {
        "along": size.along,
        "model": MODEL,
        "registered": size.registered,
        "drawn": drawn / plan.rounds,
        "records": size.client_rate * size.registered * size.records,
        "threads": plan.threads,
        "device": plan.device,
        **Spread.of(whole).scaled(1e3).fields("ms_per_round"),
        "gradients_ms": 1e3 * Spread.of(gradients).median,
        "rest_ms": 1e3 * Spread.of([a - b for a, b in zip(whole, gradients, strict=True)]).median,
        "cpu_ms_per_round": 1e3 * Spread.of(processor).median,
        "rounds_per_s": plan.rounds / sum(whole),
        "peak_rss_bytes": machine.peak_rss(),
    }


def _simulation(plan: Plan, size: _Size) -> tuple[TimedEngine, Simulation]:
    """Return a simulation in which everybody holds the same records: what is in them does not matter for the time, nor
    where they lie."""
    n_records = round(size.records / RECORD_RATE)
    split = digits(side=28)
    own = split.train.take(np.arange(n_records) % len(split.train))
    clients = dict.fromkeys((f"client-{i}" for i in range(size.registered)), n_records)
    engine = TimedEngine(networks.build(MODEL), example_of(own), device=plan.device)
    task = Task(
        clients=clients,
        rounds=WARM_UP + plan.rounds + 1,  # the last round of a task is evaluated
        client_rate=size.client_rate,
        record_rate=RECORD_RATE,
        record_clip=2.0,
        client_clip=20.0,
        noise_multiplier=1.0,
        learning_rate=0.1,
        model=MODEL,
        dim=engine.dim,
    )
    simulation = Simulation(
        task=task,
        settings=SimulationSettings(algorithm="precad", evaluate_every=task.rounds),
        records=dict.fromkeys(clients, own),
        test=split.test,
        randomness=SeededRandomness(0),
        engine=engine,
    )
    return engine, simulation
