"""The same federated training without PRECAD: one server that sees every update, and the same four client processes.

For `precad bench overhead`. Records, model and gradients come from `clients`, as in a deployment. Updates travel
through the pipes of a process pool instead of TLS and gRPC, which is in this baseline's favour.

    no-privacy   the sum of the sampled records' gradients, clipped by nothing
    local-dp     Algorithm 2's clipped update; each client adds the noise that protects it alone
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

from clients import datasets, models
from clients.datasets import Records
from clients.local_update import local_update, sample_records
from clients.per_record import clipped_gradient_sum
from dp import rounded_gaussian
from protos.task import Task

NO_PRIVACY, LOCAL_DP = "no-privacy", "local-dp"
NO_CLIP = 1e12
"""A bound on a record's gradient that none reaches."""


@dataclass(slots=True)
class Hosted:
    """The virtual clients of one process."""

    task: Task
    records: dict[str, Records]
    model: torch.nn.Module


_hosted: Hosted | None = None
"""Of this worker process; set once, when it starts."""


def host(fields: dict[str, Any], ids: Sequence[str]) -> None:
    """Loads what one client process holds. The first pass loads kernels, as in `clients.process.Trainer`."""
    global _hosted  # noqa: PLW0603 - a process pool gives its workers no other place
    torch.set_num_threads(1)
    task = Task.model_validate(fields)
    parts = datasets.partition(datasets.digits(side=models.IMAGE_SIDE[task.model]).train, len(task.clients), seed=0)
    everybody = sorted(task.clients)
    records = {client: parts[everybody.index(client)] for client in ids}
    _hosted = Hosted(task, records, models.build(task.model, seed=task.model_seed))
    train(LOCAL_DP, models.flatten(_hosted.model), ids[:1])


def train(setting: str, parameters: NDArray[np.float32], ids: Sequence[str]) -> list[NDArray[np.float32]]:
    """The updates of some hosted clients, one after the other."""
    assert _hosted is not None  # the pool's initializer has run
    return [_update(setting, parameters, _hosted.records[client], _hosted) for client in ids]


def _update(setting: str, parameters: NDArray[np.float32], records: Records, hosted: Hosted) -> NDArray[np.float32]:
    task = hosted.task
    if setting == NO_PRIVACY:
        sample = records.take(sample_records(len(records), task.record_rate))
        update = -clipped_gradient_sum(parameters, sample, model=hosted.model, record_clip_norm=NO_CLIP)
    else:
        update = local_update(
            parameters,
            records,
            model=hosted.model,
            sample_rate=task.record_rate,
            record_clip_norm=task.record_clip,
            client_clip_norm=task.client_clip,
        )
        noise = rounded_gaussian.sample(task.noise_std_on_grid, task.dim)
        update += noise * math.ldexp(1.0, -task.frac_bits)
    return update.astype(np.float32)


class PlainTraining:
    """The server, with its client processes; a context manager."""

    def __init__(self, task: Task, clients_per_process: int) -> None:
        ids = sorted(task.clients)
        self._task, self._random = task, np.random.default_rng(0)
        groups = [ids[i : i + clients_per_process] for i in range(0, len(ids), clients_per_process)]
        spawn = multiprocessing.get_context("spawn")
        fields = task.model_dump(mode="json")
        self._pools = [
            (group, ProcessPoolExecutor(1, mp_context=spawn, initializer=host, initargs=(fields, group)))
            for group in groups
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for _, pool in self._pools:
            pool.shutdown(cancel_futures=True)

    def rounds(self, setting: str, n: int) -> list[dict[str, float]]:
        """Seconds of each phase, round by round: `collect` (training and transport), `update`."""
        parameters = models.initial_parameters(self._task.model, seed=self._task.model_seed)
        measured = []
        for _ in range(n):
            start = time.perf_counter()
            chosen = [c for c in sorted(self._task.clients) if self._random.random() < self._task.client_rate]
            updates = self._collect(setting, parameters, chosen)
            collected = time.perf_counter()
            total = np.zeros(self._task.dim)
            for update in updates:
                total += update
            step = total * (self._task.learning_rate / self._task.divisor)
            parameters = (parameters + step).astype(np.float32)
            measured.append({"collect": collected - start, "update": time.perf_counter() - collected})
        return measured

    def _collect(
        self, setting: str, parameters: NDArray[np.float32], chosen: Sequence[str]
    ) -> list[NDArray[np.float32]]:
        """Every process trains its chosen clients, all processes at once."""
        futures = [
            pool.submit(train, setting, parameters, own)
            for group, pool in self._pools
            if (own := [client for client in group if client in chosen])
        ]
        return [update for future in futures for update in future.result()]
