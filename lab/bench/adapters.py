"""`precad bench adapters`: a round of private adapters, beside Opacus' hooks and the pass without privacy.

    precad   one pass over the records of all clients (`precad.clients.gradients.engine`)
    opacus   Opacus' hooks on the same adapters, client after client, in the peers' environment
    plain    the gradient of a client's records without privacy, client after client: nothing is clipped

All have the same transformer (`precad.lab.bench.peers.adapted_transformer`), constants, parameters and texts. They take
turns. A ratio is the median over the turns of one turn's processor times, so a busy moment hits both sides. Sums are
compared with a float64 twin. Memory is what a fresh process takes beyond its model. The round is of real processes.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from precad.clients.gradients.engine import RecordEngine
from precad.clients.gradients.record_clipping import RecordClip
from precad.clients.models import networks
from precad.clients.models.adapters import adapted, lora
from precad.clients.records import Records, example_of
from precad.lab.bench import machine, measured_run, peer_runs, proved_client, validation
from precad.lab.bench.errors import ProcessFailedError
from precad.lab.bench.peer_runs import OPACUS
from precad.lab.bench.peers.adapted_transformer import N_CLASSES, N_PLACES, TARGETS, VOCABULARY, Transformer
from precad.lab.bench.statistics import Spread, Times
from precad.mpc.parameters import Mode

OURS, PLAIN = "precad", "plain"
RANK, CLIP_NORM, TIMEOUT_S = 32, 1.0, 60.0
OPACUS_TARGET, MEMORY_TARGET, ROUND_TARGET = 1.5, 1.5, 2.0
WARM_UP: Final = 2
Sums = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """One round's size, and how it is measured."""

    clients: int = 10
    records: tuple[int, ...] = (10, 30)
    """Records of a client."""
    repetitions: int = 20
    threads: int = 1
    rounds: int = 10
    """Rounds of real processes; none: that is not measured."""


def model() -> nn.Module:
    """Return the transformer with adapters on the targets of `precad experiment adapters`."""
    return lora(Transformer(), RANK, TARGETS)


def run(plan: Plan, *, peers_python: Path, say: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Return the report: `{"rows": [...], "memory": [...], "targets": [...], "missing": {...}, "machine": {...}}`.

    Raises ProcessFailedError, RunFailedError.
    """
    facts = machine.facts()
    why = peer_runs.missing(OPACUS, peers_python)
    if why is not None:
        say(why)
    rows: list[dict[str, Any]] = []
    with machine.torch_threads(plan.threads):
        for n_records in plan.records:
            say(f"{plan.clients} clients of {n_records} records")
            rows += _rows(plan, n_records, None if why else peers_python)
    memory = [_memory(plan, n_records, name) for n_records in plan.records for name in (OURS, PLAIN)]
    seconds = _round_seconds(plan, say) if plan.rounds else None
    return {
        "rows": rows,
        "memory": memory,
        "round": None if seconds is None else seconds.fields("seconds_per_round"),
        "targets": _targets(rows, memory, seconds),
        "missing": {} if why is None else {OPACUS: why},
        "machine": facts,
    }


def texts(n_clients: int, n_records: int) -> list[Records]:
    """Draw every client's texts. What they say does not matter for the time."""
    generator = np.random.default_rng(0)
    drawn = generator.integers(1, VOCABULARY, (n_clients, n_records, N_PLACES)).astype(np.int64)
    labels = generator.integers(0, N_CLASSES, (n_clients, n_records)).astype(np.int64)
    return [Records(own, label) for own, label in zip(drawn, labels, strict=True)]


def _start() -> nn.Module:
    """Return the model at parameters that are not zero."""
    made = networks.build(model)
    drawn = np.random.default_rng(1).standard_normal(networks.parameter_count(made))
    nn.utils.vector_to_parameters(torch.from_numpy(0.1 * drawn).float(), made.parameters())
    return made


def _rows(plan: Plan, n_records: int, peers_python: Path | None) -> list[dict[str, Any]]:
    """Measure all ways at one size, in turns."""
    clients, start, clip = texts(plan.clients, n_records), _start(), RecordClip(CLIP_NORM)
    at, example = networks.flatten(start), example_of(clients[0])
    engine = RecordEngine(start, example, device="cpu")
    twin = RecordEngine(start, example, device="cpu", dtype=torch.float64).clipped_sums(at, clients, clip)
    sums: dict[str, Sums] = {}

    def ours() -> tuple[float, float]:
        return _timed(lambda: sums.__setitem__(OURS, engine.clipped_sums(at, clients, clip)))

    ways = {OURS: ours, PLAIN: lambda: _timed(lambda: _plain(start, clients))}
    if peers_python is None:
        times = _turns(ways, plan.repetitions)
    else:
        with _opacus(plan, start, clients, peers_python, sums) as turn:
            times = _turns({**ways, OPACUS: turn}, plan.repetitions)
    return [
        {
            "implementation": name,
            "d": engine.dim,
            "clients": plan.clients,
            "records_per_client": n_records,
            "threads": plan.threads,
            **Spread.of([wall for wall, _ in measured]).scaled(1e3).fields("ms_per_round"),
            "cpu_ms_per_round": 1e3 * Spread.of([cpu for _, cpu in measured]).median,
            "ratio": {other: _ratio(times[other], measured) for other in times},
            "relative_error": _error(sums[name], twin) if name in sums else None,
        }
        for name, measured in times.items()
    ]


def _turns(ways: Mapping[str, Callable[[], tuple[float, float]]], repetitions: int) -> dict[str, Times]:
    """Let all ways take turns; the first turns do not count."""
    found: dict[str, Times] = {name: [] for name in ways}
    for i in range(WARM_UP + repetitions):
        for name, work in ways.items():
            seconds = work()
            if i >= WARM_UP:
                found[name].append(seconds)
    return found


def _timed(work: Callable[[], object]) -> tuple[float, float]:
    """Return seconds of the wall and of the processor."""
    start, cpu_start = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - start, time.process_time() - cpu_start


def _ratio(other: Times, own: Times) -> float:
    """Return how many times the processor time of `own` the other takes, in the median turn."""
    return statistics.median(theirs / ours for (_, theirs), (_, ours) in zip(other, own, strict=True))


def _error(found: Sums, twin: Sums) -> float:
    return float(np.max(np.linalg.norm(found - twin, axis=1) / np.linalg.norm(twin, axis=1)))


def _plain(start: nn.Module, clients: list[Records]) -> None:
    """Take the plain gradient of each client's records."""
    trained = list(start.parameters())
    for own in clients:
        logits = start(torch.from_numpy(own.features))
        loss = nn.functional.cross_entropy(logits, torch.from_numpy(own.labels), reduction="sum")
        torch.autograd.grad(loss, trained)


@contextmanager
def _opacus(
    plan: Plan, start: nn.Module, clients: list[Records], python: Path, sums: dict[str, Sums]
) -> Iterator[Callable[[], tuple[float, float]]]:
    """Start the peer and yield what takes its turns; its sums are there afterwards. Raises ProcessFailedError."""
    part = adapted(start)
    assert part is not None
    with tempfile.TemporaryDirectory(prefix="precad-opacus-") as folder:
        job, result, log = (Path(folder) / name for name in ("job.npz", "result.npz", "log"))
        np.savez(
            job,
            features=np.stack([own.features for own in clients]),
            labels=np.stack([own.labels for own in clients]),
            adapters=[layer.name for layer in part.layers()],
            clip_norm=CLIP_NORM,
            threads=plan.threads,
            **{f"tensor:{name}": value.numpy() for name, value in start.state_dict().items()},
        )
        command = [str(python.absolute()), str(peer_runs.SCRIPTS / "opacus_adapters.py"), str(job), str(result)]
        with log.open("wb") as errors:
            child = subprocess.Popen(
                command,
                env={**os.environ, "PYTHONPATH": str(peer_runs.SCRIPTS)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                bufsize=1,
            )
        assert child.stdin is not None
        assert child.stdout is not None
        asked, answers = child.stdin, child.stdout

        def turn() -> tuple[float, float]:
            try:
                asked.write("\n")
                wall, cpu = map(float, answers.readline().split())
            except (OSError, ValueError):
                raise ProcessFailedError(f"{OPACUS} ended: {log.read_text(errors='replace')[-400:]}") from None
            return wall, cpu

        try:
            yield turn
            asked.close()
            child.wait(TIMEOUT_S)
            sums[OPACUS] = np.load(result)["sums"].astype(np.float64)
        finally:
            child.kill()
            child.wait()
            answers.close()


# -- memory, bytes and the round ---------------------------------------------------------------------------------------


def _memory(plan: Plan, n_records: int, name: str) -> dict[str, Any]:
    """Measure a round's memory in a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        of_model, peak = pool.apply(_peak_bytes, (name, plan.clients, n_records, plan.threads))
    return {
        "implementation": name,
        "records_per_client": n_records,
        "model_bytes": of_model,
        "peak_bytes": peak,
        "pass_bytes": peak - of_model,
    }


def _peak_bytes(name: str, n_clients: int, n_records: int, threads: int) -> tuple[int, int]:
    """Return the memory of this process once it has the model, and at the peak of all that comes then."""
    torch.set_num_threads(threads)
    clients, start = texts(n_clients, n_records), _start()
    machine.reset_peak_rss()
    before = machine.peak_rss()
    if name == PLAIN:
        _plain(start, clients)
    else:
        engine = RecordEngine(start, example_of(clients[0]), device="cpu")
        engine.clipped_sums(networks.flatten(start), clients, RecordClip(CLIP_NORM))
    return before, machine.peak_rss()


def _round_seconds(plan: Plan, say: Callable[[str], None]) -> Spread:
    """Measure a round of real processes in mode `masked`, every client with all of its records."""
    names = [f"client-{i:02d}" for i in range(plan.clients)]
    say(f"{WARM_UP + plan.rounds} rounds of {plan.clients} clients, as processes")
    with tempfile.TemporaryDirectory(prefix="precad-adapters-") as folder:
        for name, own in zip(names, texts(plan.clients, max(plan.records)), strict=True):
            np.savez(Path(folder) / f"{name}.npz", features=own.features, labels=own.labels)
        config = {
            "task": {
                "name": "adapters",
                "clients": names,
                "rounds": WARM_UP + plan.rounds,
                "client_rate": 1.0,
                "record_rate": 1.0,
                "record_clip": CLIP_NORM,
                "client_clip": 64.0,
                "noise_multiplier": 1.0,
                "learning_rate": 0.1,
                "model": f"{__name__}:model",
                "gate": "native",
            },
            "client": {"records": f"npz:{folder}/{{client}}.npz", "device": "cpu"},
            "localhost": {"clients_per_process": -(-plan.clients // 2)},
        }
        measured = measured_run.run(config, warm_up=WARM_UP)
    return Spread.of([sum(phases.values()) for phases in measured.phases[WARM_UP:]])


def _targets(rows: list[dict[str, Any]], memory: list[dict[str, Any]], seconds: Spread | None) -> list[dict[str, Any]]:
    """Return what each target asks for, and what was measured."""
    dim = rows[0]["d"]
    proved = proved_client.bytes_of_share(dim) + proved_client.bytes_of_proof(dim)
    found = [
        (f"{OPACUS} / {OURS}, {row['records_per_client']} records", "at least", OPACUS_TARGET, row["ratio"][OPACUS])
        for row in rows
        if row["implementation"] == OURS and OPACUS in row["ratio"]
    ]
    found += [
        (
            f"memory of the pass / plain, {ours['records_per_client']} records",
            "at most",
            MEMORY_TARGET,
            ours["pass_bytes"] / plain["pass_bytes"],
        )
        for ours, plain in zip(memory[::2], memory[1::2], strict=True)
    ]
    found += [
        ("bytes of an upload, masked", "at most", 8 * dim + 1e3, validation.bytes_up(Mode.MASKED, dim)),
        ("bytes of an upload, proved", "at most", 7.1 * dim + 60e3, proved),
    ]
    if seconds is not None:
        found.append(("seconds of a round", "at most", ROUND_TARGET, seconds.median))
    return [
        {
            "what": what,
            "bound": bound,
            "target": target,
            "measured": measured,
            "met": measured >= target if bound == "at least" else measured <= target,
        }
        for what, bound, target, measured in found
    ]
