"""`precad bench local-training`: several local steps of many clients, stacked and client by client, in one run.

    loop     one client after the other (`precad.clients.gradients.model_stack.ModelByModel`)
    stacked  a step of all clients at a time, each at its own parameters
    (`precad.clients.gradients.model_stack.ModelStack`)

Two kinds of steps: `descent`, as UserDP-FedAvg and attackers train, and `dp-sgd`, clipped record by record, as
InsDP-FedAvg does before its noise. Results are compared with a float64 twin of the loop. Ratios are of processor time
on a CPU, and of wall time on a GPU. `is_chosen` says which way a simulation takes on this device.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from precad.clients.gradients.engine import RecordEngine
from precad.clients.gradients.model_stack import ModelByModel, ModelStack, OwnModels, own_models
from precad.clients.gradients.record_clipping import RecordClip
from precad.clients.models import networks as models
from precad.clients.records import Records, digits, example_of
from precad.lab.bench import machine
from precad.lab.bench.statistics import Spread, Times, in_turns

LOOP, STACKED = "loop", "stacked"
DESCENT, DP_SGD = "descent", "dp-sgd"
CLIP_NORM, RATE = 1.0, 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Sizes, and how they are measured."""

    models: tuple[str, ...] = ("mlp", "cnn")
    clients: tuple[int, ...] = (10, 40)
    records: int = 30
    """Records of a client, all of them in each of its steps."""
    steps: int = 5
    repetitions: int = 20
    threads: int = 1
    device: str = "cpu"


def run(plan: Plan) -> dict[str, Any]:
    """Return the report: `{"rows": [...], "machine": {...}}`."""
    facts = machine.facts()
    with machine.torch_threads(plan.threads):
        rows = [row for model in plan.models for n in plan.clients for row in _measure(plan, model, n)]
    return {"rows": rows, "machine": facts}


def _measure(plan: Plan, model: str, n_clients: int) -> list[dict[str, Any]]:
    """Measure both ways, a row for each and each kind of steps."""
    clients, start = _records(plan, model, n_clients), models.initial_parameters(model, seed=0)
    engine, twin = (
        RecordEngine(models.build(model), example_of(clients[0]), device=device, dtype=dtype)
        for device, dtype in ((plan.device, torch.float32), ("cpu", torch.float64))
    )
    chosen = STACKED if isinstance(own_models(engine), ModelStack) else LOOP
    ways: dict[str, OwnModels] = {LOOP: ModelByModel(engine), STACKED: ModelStack(engine)}
    rows = []
    for kind in (DESCENT, DP_SGD):
        expected = _trained(ModelByModel(twin), kind, start, clients, plan.steps)
        train = {name: partial(_trained, way, kind, start, clients, plan.steps) for name, way in ways.items()}
        seconds, found = in_turns(train, plan.repetitions)
        for name in ways:
            sizes = {"model": model, "kind": kind, "clients": n_clients}
            rows.append({**sizes, **_row(plan, name, seconds, found[name] - start, expected - start, chosen)})
    return rows


def _records(plan: Plan, model: str, n_clients: int) -> list[Records]:
    """Return bundled digits, as often as needed: the pixels do not matter for the time."""
    everything = digits(side=models.image_side(model) or 8).train
    indices = np.arange(n_clients * plan.records) % len(everything)
    return [everything.take(own) for own in indices.reshape(n_clients, plan.records)]


def _trained(
    way: OwnModels, kind: str, start: NDArray[np.float32], clients: list[Records], steps: int
) -> NDArray[np.float64]:
    """Return parameters of all clients after so many steps on all of their records; (n, d)."""
    at = np.repeat(start.astype(np.float64)[None], len(clients), axis=0)
    for _ in range(steps):
        sums = (
            way.gradient_sums(at, clients) if kind == DESCENT else way.clipped_sums(at, clients, RecordClip(CLIP_NORM))
        )
        at -= RATE / len(clients[0]) * sums
    return at


def _row(
    plan: Plan,
    name: str,
    seconds: dict[str, Times],
    moved: NDArray[np.float64],
    expected: NDArray[np.float64],
    chosen: str,
) -> dict[str, Any]:
    wall = Spread.of([both[0] for both in seconds[name]])
    cpu = {way: Spread.of([both[1] for both in times]).median for way, times in seconds.items()}
    counted = cpu if plan.device == "cpu" else {w: Spread.of([b[0] for b in t]).median for w, t in seconds.items()}
    n_samples = len(moved) * plan.records * plan.steps
    return {
        "implementation": name,
        "is_chosen": name == chosen,
        "records_per_step": plan.records,
        "steps": plan.steps,
        "threads": plan.threads,
        "device": plan.device,
        **wall.scaled(1e3).fields("ms_per_round"),
        "cpu_ms_per_round": 1e3 * cpu[name],
        "samples_per_s": n_samples / wall.median,
        "samples_per_cpu_s": n_samples / cpu[name],
        "ratio": {LOOP: counted[LOOP] / counted[name]},
        "relative_error": float(np.max(np.linalg.norm(moved - expected, axis=1) / np.linalg.norm(expected, axis=1))),
    }
