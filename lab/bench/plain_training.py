"""Federated training with nothing around it: one server that sees every update, the same client processes, pipes.

For `precad bench overhead`: the cost of training alone. Records, model and gradient engine come from `clients`, as in a
deployment. Parameters and updates travel through the pipes of a process pool, without TLS or gRPC. Nobody could deploy
such a federation; `precad.lab.bench.plain_federation` is one to deploy.
"""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from precad.clients.config import ClientConfig
from precad.clients.gradients.engine import RecordEngine
from precad.clients.gradients.record_clipping import RecordClip
from precad.clients.loading import load_records
from precad.clients.models import networks
from precad.clients.records import Records, example_of
from precad.clients.training.local_update import local_updates
from precad.dp.noise import rounded_gaussian
from precad.mpc.prg import expanded_bytes
from precad.protos.task.task import Task

LOCAL_DP_PIPES = "local-dp-pipes"


@dataclass(slots=True)
class Hosted:
    """The virtual clients of one process."""

    task: Task
    records: dict[str, Records]
    engine: RecordEngine


_hosted: Hosted | None = None
"""Clients that this worker process hosts; set once, when it starts."""


def host(fields: dict[str, Any], client: dict[str, Any], ids: Sequence[str]) -> None:
    """Load what one client process holds. The first pass loads kernels, as in `precad.clients.process.Trainer`."""
    global _hosted  # noqa: PLW0603 - a process pool gives its workers no other place
    torch.set_num_threads(1)
    task = Task.model_validate(fields)
    config = ClientConfig.model_validate({**client, "certificates": "/", "authority": "/"}, context={"base": "/"})
    records = load_records(task, config, ids)
    model = networks.build(task.model, arguments=task.model_arguments)
    _hosted = Hosted(task, records, RecordEngine(model, example_of(records[ids[0]]), device=config.device))
    train(networks.flatten(model), ids[:1])


def train(parameters: NDArray[np.float32], ids: Sequence[str]) -> list[NDArray[np.float32]]:
    """Return the noisy updates of some hosted clients, in one pass."""
    assert _hosted is not None  # the pool's initializer has run
    task = _hosted.task
    updates = local_updates(
        parameters,
        [_hosted.records[client] for client in ids],
        engine=_hosted.engine,
        sample_rate=task.record_rate,
        record_clip=RecordClip(task.record_clip),
        client_clip_norm=task.client_clip,
    )
    step = math.ldexp(1.0, -task.frac_bits)
    return [
        (update + step * rounded_gaussian.sample(task.noise_std_on_grid, task.dim, expanded_bytes())).astype(np.float32)
        for update in updates
    ]


class PlainTraining:
    """The server, with its client processes; a context manager."""

    def __init__(self, task: Task, client: dict[str, Any], clients_per_process: int) -> None:
        ids = sorted(task.clients)
        self._task = task
        groups = [ids[i : i + clients_per_process] for i in range(0, len(ids), clients_per_process)]
        spawn = multiprocessing.get_context("spawn")
        fields = task.model_dump(mode="json")
        self._pools = [
            (group, ProcessPoolExecutor(1, mp_context=spawn, initializer=host, initargs=(fields, client, group)))
            for group in groups
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for _, pool in self._pools:
            pool.shutdown(cancel_futures=True)

    def rounds(self, chosen: Sequence[Sequence[str]]) -> list[dict[str, float]]:
        """Return seconds of each phase, a round for every set of chosen clients: `collect` (training, transport),
        `update`."""
        parameters = networks.initial_vector(self._task)
        measured = []
        for clients in chosen:
            start = time.perf_counter()
            updates = self._collect(parameters, clients)
            collected = time.perf_counter()
            total = np.zeros(self._task.dim)
            for update in updates:
                total += update
            step = total * (self._task.learning_rate / self._task.divisor)
            parameters = (parameters + step).astype(np.float32)
            measured.append({"collect": collected - start, "update": time.perf_counter() - collected})
        return measured

    def _collect(self, parameters: NDArray[np.float32], chosen: Sequence[str]) -> list[NDArray[np.float32]]:
        """Have every process train its chosen clients, all processes at once."""
        futures = [
            pool.submit(train, parameters, own)
            for group, pool in self._pools
            if (own := [client for client in group if client in chosen])
        ]
        return [update for future in futures for update in future.result()]
