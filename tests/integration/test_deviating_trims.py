"""A dealer or a server B that deviates in rounds that test a margin and trim a sum. Everybody else is honest.

Failure means one of these:
- a model that moves by a sum that the dealer's or B's words made;
- a margin that B learns, and that server A did not pay for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from precad.mpc.channel import Prefixed
from precad.mpc.errors import PeerMismatchError
from precad.mpc.tuples.dealt import deal
from precad.mpc.tuples.held import BatchShape, Dealt
from precad.protos.task.task import Task
from precad.servers import dealer as dealer_module
from precad.servers.errors import TaskRefusedError
from precad.servers.store.folder import open_task_store
from tests.harness.harness import AGGREGATORS, asynchronous, small_task
from tests.integration.deviating import HangsUpAt, deviating_b
from tests.integration.test_deviating_server import charges, deployment, end_of_a, entries, update

CLIENTS = ("alice", "bob", "carol")
LENGTHS = {"alice": 0.1, "bob": 0.2, "carol": 0.3}
LOST_ROUNDS = 3


def task_of(**changes: Any) -> Task:
    """Every update is within tau C, and F is 1 of three: a test passes but for e^-90, by the noise of its margin."""
    fields = {"trim_tau": 0.5, "trim_noise": 0.01, "trim_failure": 0.4, "trim_count": 1, "noise_multiplier": 1.0}
    return small_task(
        CLIENTS, algorithm="tsgd-ptr", gate="native", rounds=5, lost_rounds=LOST_ROUNDS, batches_ahead=0,
        **fields | changes,
    )  # fmt: skip


@contextlib.asynccontextmanager
async def attacked(task: Task, folder: Path) -> AsyncIterator[Any]:
    """Three servers and the clients, without noise on sums."""
    vectors = {client: update(task, length) for client, length in LENGTHS.items()}
    async with deployment(task, folder, vectors=vectors) as (servers, _):
        yield servers


def committed(task: Task, folder: Path) -> list[int]:
    """Return the rounds that server A released."""
    initial = np.zeros(task.dim, dtype=np.float32).tobytes()
    with open_task_store(folder / AGGREGATORS[0], task, initial) as store:
        return [one.number for one in store.committed()]


def longer(b: Dealt) -> Dealt:
    return replace(b, trims=np.append(b.trims, np.int64(0)))


def shorter(b: Dealt) -> Dealt:
    return replace(b, trims=b.trims[:-1])


def other_words(b: Dealt) -> Dealt:
    """Corrections that fit in their number alone."""
    words = np.random.default_rng(7).integers(-(2**63), 2**63 - 1, size=b.trims.size)
    return replace(b, trims=words.astype(np.int64))


@pytest.mark.parametrize("change", [longer, shorter, other_words])
@asynchronous
async def test_no_model_moves_by_what_a_dealer_makes_up(change: Callable[[Dealt], Dealt], tmp_path: Path) -> None:
    """Words of another number are refused before a round, others with the sum that they make. F of three is one."""
    task = task_of()

    def lying(shape: BatchShape, random_bytes: Any) -> tuple[Dealt, Dealt]:
        a, b = deal(shape, random_bytes)
        return a, change(b)

    with patch.object(dealer_module, "deal", lying):
        async with attacked(task, tmp_path) as servers:
            (ended, *_), _ = await asyncio.wait(servers._runs[1:], return_when=asyncio.FIRST_COMPLETED)
            error = ended.exception()
    if change is other_words:
        assert isinstance(error, TaskRefusedError)
        assert "opened sum: expected accepted updates and both servers' noise" in str(error)
        assert charges(tmp_path)
    else:
        assert any(why in str(error) for why in ("trims of a batch must have", "corrections exceed"))
        assert not charges(tmp_path)
    assert committed(task, tmp_path) == []


class Changes(Prefixed):
    """A round's channel that sends another word in one step."""

    def __init__(self, channel: Any, step: str) -> None:
        super().__init__(channel._inner, channel._prefix)
        self._step = step

    def exchange(self, label: str, payload: bytes, at_most: int | None = None) -> bytes:
        """See `Channel.exchange`."""
        if label == self._step:
            payload = bytes([payload[0] ^ 1]) + payload[1:]
        return super().exchange(label, payload, at_most)


@pytest.mark.parametrize("step", ["robust/test/margin", "robust/test/compare"])
@asynchronous
async def test_a_margin_on_which_servers_differ_ends_the_task_paid_and_without_a_sum(step: str, tmp_path: Path) -> None:
    task = task_of()
    with deviating_b(lambda channel: Changes(channel, step)):
        async with attacked(task, tmp_path) as servers:
            error = await end_of_a(servers)
    assert isinstance(error, PeerMismatchError)
    assert "noisy margin" in str(error)
    assert charges(tmp_path) == {0: sorted(CLIENTS)}
    assert committed(task, tmp_path) == []
    assert entries(tmp_path, "validated") == []  # nothing of a sum had left


@asynchronous
async def test_every_margin_that_b_reads_before_it_hangs_up_is_paid_and_there_are_at_most_lost_rounds(
    tmp_path: Path,
) -> None:
    task, margins = task_of(), list[int]()

    def seen(ours: bytes, theirs: bytes) -> None:
        word = int.from_bytes(ours, "little") + int.from_bytes(theirs, "little")
        margins.append(word % 2**64)

    with deviating_b(lambda channel: HangsUpAt(channel, "robust/test/margin", seen)):
        async with attacked(task, tmp_path) as servers:
            error = await end_of_a(servers)
    assert isinstance(error, TaskRefusedError)
    assert f"lost_rounds: expected fewer than {LOST_ROUNDS}" in str(error)
    assert margins == pytest.approx([1 << 20] * LOST_ROUNDS, rel=0.9)  # F stays: a lost round moves it nowhere
    assert charges(tmp_path) == dict.fromkeys(range(LOST_ROUNDS), sorted(CLIENTS))
    assert committed(task, tmp_path) == []
