"""`precad bench training`: one round's clipped gradient sums of many clients, beside what one would otherwise use.

    precad              one pass over the records of all clients (`precad.clients.gradients.engine`)
    precad-per-client   the same engine, client after client
    vmap-per-client     torch.func on each client's records: the loop over clients
    opacus              Opacus' hooks, client after client, in the peers' environment
    plain               the gradient of the same records without privacy, one per client: nothing is clipped
    plain-batch         one gradient of all records together: no client has its own. The limit

All have the same model (the CNN of 26 010 parameters), parameters and records. Both plain rows have images in
channels-last layout, which is the faster one on a CPU. Every result but the plain ones is compared with a float64 twin.
Ratios are of processor time: ours and Opacus run one after the other, and other work of the machine in between does not
count.
On a GPU, where the processor only waits, they are of wall time.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.func import functional_call, grad, vmap

from precad.clients.gradients.engine import RecordEngine, resolve_device
from precad.clients.gradients.record_clipping import RecordClip
from precad.clients.models import networks
from precad.clients.records import Records, channels_last, digits, example_of
from precad.lab.bench import machine, peer_runs
from precad.lab.bench.errors import ProcessFailedError
from precad.lab.bench.peer_runs import OPACUS
from precad.lab.bench.statistics import Spread, Times, in_turns

OURS, PER_CLIENT, VMAP, PLAIN, PLAIN_BATCH = "precad", "precad-per-client", "vmap-per-client", "plain", "plain-batch"
MODEL, CLIP_NORM = "cnn", 1.0
IMPLEMENTATION = "implementation"
TIMEOUT_S = 600.0

Sums = Callable[[], NDArray[np.float64]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """One round's size, and how it is measured."""

    clients: int = 10
    records: int = 30
    repetitions: int = 20
    threads: int = 1
    device: str = "cpu"


def run(plan: Plan, *, peers_python: Path, say: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Return the report: `{"rows": [...], "missing": {...}, "machine": {...}}`. Raises ProcessFailedError."""
    facts = machine.facts()
    with machine.torch_threads(plan.threads):
        clients, parameters = _records(plan), networks.initial_parameters(MODEL, seed=0)
        twin = _engine(plan, clients, torch.float64, "cpu").clipped_sums(
            parameters.astype(np.float64), clients, RecordClip(CLIP_NORM)
        )
        seconds, sums = _measure_here(plan, clients, parameters)
    missing = {}
    if (why := peer_runs.missing(OPACUS, peers_python)) is None:
        say(f"{OPACUS}: {peers_python}")
        seconds[OPACUS], sums[OPACUS] = _opacus(plan, clients, parameters, peers_python)
    else:
        missing[OPACUS] = why
        say(why)
    rows = [_row(plan, name, seconds[name], sums.get(name), twin) for name in seconds]
    unit = "cpu_ms_per_round" if plan.device == "cpu" else "ms_per_round"
    for row in rows:
        row["ratio"] = {other[IMPLEMENTATION]: other[unit] / row[unit] for other in rows}
    return {"rows": rows, "missing": missing, "machine": facts}


def _records(plan: Plan) -> list[Records]:
    """Return bundled digits at 28x28, as often as needed: the pixels do not matter for the time."""
    everything = digits(side=28).train
    indices = np.arange(plan.clients * plan.records) % len(everything)
    return [everything.take(own) for own in indices.reshape(plan.clients, plan.records)]


def _engine(plan: Plan, clients: list[Records], dtype: torch.dtype, device: str) -> RecordEngine:
    return RecordEngine(networks.build(MODEL), example_of(clients[0]), device=device, dtype=dtype)


def _measure_here(
    plan: Plan, clients: list[Records], parameters: NDArray[np.float32]
) -> tuple[dict[str, Times], dict[str, NDArray[np.float64]]]:
    """Measure all but the peer. The model is built, and records are joined, outside the clock."""
    engine, clip = _engine(plan, clients, torch.float32, plan.device), RecordClip(CLIP_NORM)
    model = networks.build(MODEL).to(resolve_device(plan.device))
    together = [_together(clients)]
    contenders: dict[str, Sums] = {
        OURS: lambda: engine.clipped_sums(parameters, clients, clip),
        PER_CLIENT: lambda: np.concatenate([engine.clipped_sums(parameters, [own], clip) for own in clients]),
        VMAP: lambda: _vmap_per_client(model, parameters, clients),
        PLAIN: lambda: _plain(model, parameters, clients),
        PLAIN_BATCH: lambda: _plain(model, parameters, together),
    }
    seconds, sums = in_turns(contenders, plan.repetitions)
    return seconds, {name: value for name, value in sums.items() if name not in (PLAIN, PLAIN_BATCH)}


def _vmap_per_client(model: nn.Module, parameters: NDArray[np.float32], clients: list[Records]) -> NDArray[np.float64]:
    place = next(model.parameters()).device
    weights = networks.unflatten(torch.from_numpy(parameters).to(place), model)

    def loss(at: dict[str, torch.Tensor], image: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(functional_call(model, at, (image.unsqueeze(0),)), label.unsqueeze(0))

    totals = []
    for own in clients:
        features, labels = torch.from_numpy(own.features).to(place), torch.from_numpy(own.labels).to(place)
        rows = vmap(grad(loss), in_dims=(None, 0, 0))(weights, features, labels)
        flat = torch.cat([rows[name].flatten(start_dim=1) for name in weights], dim=1)
        factors = CLIP_NORM / torch.linalg.vector_norm(flat, dim=1, dtype=torch.float64).clamp(min=CLIP_NORM)
        totals.append((factors @ flat.double()).cpu().numpy())
    return np.stack(totals)


def _plain(model: nn.Module, parameters: NDArray[np.float32], clients: list[Records]) -> NDArray[np.float64]:
    place = next(model.parameters()).device
    nn.utils.vector_to_parameters(torch.from_numpy(parameters).to(place), model.parameters())
    totals = []
    for own in clients:
        features = channels_last(torch.from_numpy(own.features).to(place))
        loss = nn.functional.cross_entropy(model(features), torch.from_numpy(own.labels).to(place), reduction="sum")
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        totals.append(torch.cat([gradient.reshape(-1) for gradient in gradients]).double().cpu().numpy())
    return np.stack(totals)


def _together(clients: list[Records]) -> Records:
    return Records(np.concatenate([own.features for own in clients]), np.concatenate([own.labels for own in clients]))


def _opacus(
    plan: Plan, clients: list[Records], parameters: NDArray[np.float32], peers_python: Path
) -> tuple[Times, NDArray[np.float64]]:
    with tempfile.TemporaryDirectory(prefix="precad-opacus-") as folder:
        job, result = Path(folder) / "job.npz", Path(folder) / "result.npz"
        np.savez(
            job,
            features=np.stack([own.features for own in clients]),
            labels=np.stack([own.labels for own in clients]),
            parameters=parameters,
            clip_norm=CLIP_NORM,
            repetitions=plan.repetitions,
            threads=plan.threads,
            device=plan.device,
        )
        command = [str(peers_python), str(peer_runs.SCRIPTS / "opacus_clients.py"), str(job), str(result)]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=TIMEOUT_S)
        if done.returncode:
            raise ProcessFailedError(f"{OPACUS} ended with code {done.returncode}: {done.stderr.strip()[-400:]}")
        found = np.load(result)
        return [(float(wall), float(cpu)) for wall, cpu in found["seconds"].T], found["sums"].astype(np.float64)


def _row(
    plan: Plan, name: str, times: Times, sums: NDArray[np.float64] | None, twin: NDArray[np.float64]
) -> dict[str, Any]:
    wall = Spread.of([seconds for seconds, _ in times])
    error = None if sums is None else float(np.max(np.linalg.norm(sums - twin, axis=1) / np.linalg.norm(twin, axis=1)))
    return {
        IMPLEMENTATION: name,
        "model": MODEL,
        "clients": plan.clients,
        "records_per_client": plan.records,
        "threads": plan.threads,
        "device": plan.device,
        **wall.scaled(1e3).fields("ms_per_round"),
        "cpu_ms_per_round": 1e3 * Spread.of([seconds for _, seconds in times]).median,
        "samples_per_s": plan.clients * plan.records / wall.median,
        "relative_error": error,
    }
