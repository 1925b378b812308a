"""A client process: its records, Algorithm 2 on them, and one session per client that it hosts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from clients import datasets, models
from clients.attacks import ATTACKS, Attack
from clients.config import ClientConfig
from clients.datasets import Records
from clients.errors import ArgumentError, StoppedError, UnknownNameError
from clients.local_update import local_update
from clients.session import ClientSession
from mpc import fixed_point
from mpc.ring import RingArray
from protos.task import Task

_TRAINING = threading.Lock()
"""One gradient computation at a time in a process: virtual clients share the processor, not the memory."""


class Trainer:
    """Algorithm 2 up to the encoding, for one client."""

    def __init__(self, *, task: Task, records: Records, attack: Attack, device: str = "auto") -> None:
        self._task, self._records, self._attack, self._device = task, records, attack, device
        self._model = models.build(task.model, seed=task.model_seed)
        self(models.flatten(self._model))  # the first pass loads kernels and costs a second: not in the first round

    def __call__(self, parameters: NDArray[np.float32]) -> RingArray:
        """The global model (d,) to the encoded update (d,)."""
        with _TRAINING:
            update = local_update(
                parameters,
                self._records,
                model=self._model,
                sample_rate=self._task.record_rate,
                record_clip_norm=self._task.record_clip,
                client_clip_norm=self._task.client_clip,
                device=self._device,
            )
        return self._attack.on_encoded(self._encode(self._attack.on_update(update)))

    def _encode(self, update: NDArray[np.float64]) -> RingArray:
        if self._attack.name == "none":
            threshold = self._task.norm_bound.threshold
            return fixed_point.encode_within(update, squared_norm_threshold=threshold, frac_bits=self._task.frac_bits)
        return fixed_point.encode(update, self._task.frac_bits)


def load_records(task: Task, config: ClientConfig, client: str) -> Records:
    """The client's records: its part of the bundled digits. Raises ArgumentError when it declared fewer than it has."""
    if task.model not in models.IMAGE_SIDE:
        raise UnknownNameError("task.model", task.model, known=sorted(models.IMAGE_SIDE))
    side = models.IMAGE_SIDE[task.model]
    parts = datasets.partition(datasets.digits(side=side).train, len(task.clients), seed=config.partition_seed)
    records = parts[sorted(task.clients).index(client)]
    if len(records) != task.clients[client]:
        raise ArgumentError(
            f"task.clients.{client}: expected the {len(records)} records that it has, declared {task.clients[client]}"
        )
    return records


class ClientProcess:
    """Hosts one client, or several virtual ones."""

    def __init__(self, *, task: Task, config: ClientConfig, clients: Sequence[str], addresses: tuple[str, str]) -> None:
        torch.set_num_threads(1)  # a machine may host many client processes, and one update is small
        self._stop = asyncio.Event()
        self._sessions = [
            ClientSession(
                client=client,
                task=task,
                addresses=addresses,
                tls=config.tls(client),
                train=Trainer(
                    task=task,
                    records=load_records(task, config, client),
                    attack=ATTACKS[config.attacks.get(client, "none")](),
                    device=config.device,
                ),
                connect_timeout_s=config.connect_timeout_s,
            )
            for client in clients
        ]

    def stop(self) -> None:
        """Leaves the task at the next possible moment."""
        self._stop.set()

    async def run(self) -> None:
        """Returns when every client's task is finished. Raises what ended one of them early; StoppedError."""
        sessions = [asyncio.create_task(session.run()) for session in self._sessions]
        stopping = asyncio.create_task(self._stop.wait())
        try:
            waiting = {*sessions, stopping}
            while any(not session.done() for session in sessions):
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if stopping in done:
                    raise StoppedError("the client was stopped by its operator")
                for session in done:
                    session.result()
        finally:
            for task in (*sessions, stopping):
                task.cancel()
            await asyncio.gather(*sessions, stopping, return_exceptions=True)
