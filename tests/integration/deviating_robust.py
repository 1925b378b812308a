"""A dealer or a server B that deviates in rounds of robust sums, and what honest servers make of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from precad.mpc.channel import Prefixed
from precad.mpc.tuples.dealt import deal
from precad.mpc.tuples.held import BatchShape, Dealt
from precad.protos.task.task import Task
from precad.servers import dealer as dealer_module
from precad.servers.errors import TaskRefusedError
from precad.servers.store.folder import open_task_store
from tests.harness.harness import AGGREGATORS
from tests.integration.deviating import deviating_b
from tests.integration.test_deviating_server import charges, deployment, end_of_a, entries, update


@contextlib.asynccontextmanager
async def attacked(task: Task, folder: Path, lengths: Mapping[str, float]) -> AsyncIterator[Any]:
    """Three servers and the clients, whose updates have these lengths along one line, without noise on sums."""
    vectors = {client: update(task, length) for client, length in lengths.items()}
    async with deployment(task, folder, vectors=vectors) as (servers, _):
        yield servers


def committed(task: Task, folder: Path) -> list[int]:
    """Return the rounds that server A released."""
    initial = np.zeros(task.dim, dtype=np.float32).tobytes()
    with open_task_store(folder / AGGREGATORS[0], task, initial) as store:
        return [one.number for one in store.committed()]


def other_trims(b: Dealt) -> Dealt:
    """Corrections that fit in their number alone."""
    words = np.random.default_rng(7).integers(-(2**63), 2**63 - 1, size=b.trims.size)
    return replace(b, trims=words.astype(np.int64))


async def require_no_model_by_a_lying_dealer(
    task: Task, folder: Path, lengths: Mapping[str, float], change: Callable[[Dealt], Dealt], *, sum_of: str, words: str
) -> None:
    """Let a dealer change what it deals to B. Nothing is released: with `other_trims` the opened sum is refused, as
    `sum_of` says, and else what came, before a round, as of `words`."""

    def lying(shape: BatchShape, random_bytes: Any) -> tuple[Dealt, Dealt]:
        a, b = deal(shape, random_bytes)
        return a, change(b)

    with patch.object(dealer_module, "deal", lying):
        async with attacked(task, folder, lengths) as servers:
            (ended, *_), _ = await asyncio.wait(servers._runs[1:], return_when=asyncio.FIRST_COMPLETED)
            error = ended.exception()
    if change is other_trims:
        assert isinstance(error, TaskRefusedError)
        assert f"opened sum: expected accepted updates{sum_of}" in str(error)
        assert charges(folder)
    else:
        assert any(why in str(error) for why in (f"{words} of a batch: expected", "corrections exceed"))
        assert not charges(folder)
    assert committed(task, folder) == []


class Alters(Prefixed):
    """A round's channel that sends something else in one step, and takes a message as long as its own would be."""

    def __init__(self, channel: Any, step: str, change: Callable[[bytes], bytes]) -> None:
        super().__init__(channel._inner, channel._prefix)
        self._step, self._change = step, change

    def exchange(self, label: str, payload: bytes, at_most: int | None = None) -> bytes:
        """See `Channel.exchange`."""
        if label == self._step:
            return super().exchange(label, self._change(payload), len(payload) if at_most is None else at_most)
        return super().exchange(label, payload, at_most)


async def require_the_end_of_a_paid_task_without_a_sum(
    task: Task, folder: Path, lengths: Mapping[str, float], step: str, change: Callable[[bytes], bytes]
) -> BaseException:
    """Let B send something else in one step of the first round. Return what ended server A."""
    with deviating_b(lambda channel: Alters(channel, step, change)):
        async with attacked(task, folder, lengths) as servers:
            error = await end_of_a(servers)
    assert charges(folder) == {0: sorted(lengths)}
    assert committed(task, folder) == []
    assert entries(folder, "validated") == []  # nothing of a sum had left
    return error
