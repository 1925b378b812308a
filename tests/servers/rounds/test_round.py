"""A round at both servers, over an in-memory link: what reaches B before B is ready for it, and what is fetched ahead.

Failure means: a client that is faster than server B ends the task, or costs another one its upload. It also means: a
batch is fetched twice, too late, or for nobody.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precad.clients.submission import RoundInvitation, agree, make_submission
from precad.mpc.channel import memory_pair
from precad.mpc.prg import RandomBytes, Seed
from precad.mpc.ring import RingArray
from precad.mpc.tuples.held import BatchShape, ServerTuples
from precad.protos.task.task import Task
from precad.servers.errors import PeerUnreachableError
from precad.servers.rounds.equipment import SYSTEM_RANDOMNESS, NoiseSource
from precad.servers.rounds.states import Collecting, Locked
from precad.servers.store.rounds import TaskStore
from precad.servers.store.state import TaskState
from tests.harness.harness import (
    AGGREGATORS,
    DealerInMemory,
    FixedBytes,
    ServerInProcess,
    TuplesInMemory,
    asynchronous,
    link_pair,
    small_task,
    until,
    upload_to,
)

TASK = small_task(rounds=1)
CLIENTS = sorted(TASK.clients)


@asynccontextmanager
async def both_servers(
    task: Task,
    folder: Path,
    coins: Sequence[RandomBytes] = (SYSTEM_RANDOMNESS.coin, SYSTEM_RANDOMNESS.coin),
    noise: NoiseSource | None = None,
) -> AsyncIterator[tuple[ServerInProcess, ServerInProcess]]:
    """Linked, with every client registered. noise: of each server; none is added without one."""
    dealer, links, lanes = DealerInMemory(), link_pair(), memory_pair()
    silence = np.zeros((task.rounds, task.dim), dtype=np.int64) if noise is None else noise
    a, b = (
        ServerInProcess(
            *(task, links[party], lanes[party], dealer.source(party), silence, folder / AGGREGATORS[party]),
            coin=coins[party],
        )
        for party in (0, 1)
    )
    runs = [asyncio.create_task(link.run()) for link in links]
    try:
        yield a, b
        assert not any(run.done() for run in runs)
    finally:
        for run in runs:
            run.cancel()
        await asyncio.gather(*runs, return_exceptions=True)


@asynchronous
async def test_an_upload_that_reaches_b_before_its_invitation_costs_its_client_the_round(tmp_path: Path) -> None:
    """Server B waits for its tuples when A has invited and relayed already. Mallory has to make up what B has not told
    her; the others wait for it, and count."""
    async with both_servers(TASK, tmp_path) as (a, b):
        queues = {client: (a.sessions.enter(client), b.sessions.enter(client)) for client in CLIENTS}
        b.tuples.may_deal.clear()
        rounds = [asyncio.create_task(server.runner.run_round(0)) for server in (a, b)]
        told = {client: (await from_a.get()).invitation for client, (from_a, _) in queues.items()}
        early = told["mallory"]
        seeds = (Seed(early.mask_seed), Seed(bytes(16)))
        known = RoundInvitation(early.task, 0, early.slot, early.model_digest, seeds)
        await upload_to(a.intake, make_submission(vector(0), known, task=TASK, client="mallory"))
        await a.link.flush()
        assert not b.of_kind(Collecting)
        b.tuples.may_deal.set()
        honest = [client for client in CLIENTS if client != "mallory"]
        for client in honest:
            invitation = agree(told[client], (await queues[client][1].get()).invitation, TASK)
            await upload_to(a.intake, make_submission(vector(invitation.slot), invitation, task=TASK, client=client))
        for record in await asyncio.gather(*rounds):
            assert list(record.accepted) == honest
            assert list(record.missing) == ["mallory"]


def vector(value: int) -> RingArray:
    return np.full(TASK.dim, value, dtype=np.int64)


@pytest.mark.parametrize("client", ["mallory", "nobody"])
@asynchronous
async def test_a_relay_that_comes_before_the_first_round_does_not_end_the_task(client: str, tmp_path: Path) -> None:
    """Only its own upload may suffer: nonsense in a name is no upload of anybody."""
    async with both_servers(TASK, tmp_path) as (a, b):
        a.link.relay(0, client, b"early", bytes(32))
        await a.link.flush()
        honest = [name for name in CLIENTS if name != client]
        queues = {name: (a.sessions.enter(name), b.sessions.enter(name)) for name in honest}
        rounds = [asyncio.create_task(server.runner.run_round(0)) for server in (a, b)]
        for name, (from_a, from_b) in queues.items():
            invitation = agree((await from_a.get()).invitation, (await from_b.get()).invitation, TASK)
            await upload_to(a.intake, make_submission(vector(1), invitation, task=TASK, client=name))
        for record in await asyncio.gather(*rounds):
            assert list(record.accepted) == honest


async def take_part(client: str, servers: tuple[ServerInProcess, ServerInProcess]) -> None:
    """An honest client in every round that it is invited to."""
    queues = [server.sessions.enter(client) for server in servers]
    while True:
        from_a, from_b = [(await queue.get()).invitation for queue in queues]
        submission = make_submission(
            np.ones(TASK.dim, dtype=np.int64),
            agree(from_a, from_b, servers[0].task),
            task=servers[0].task,
            client=client,
        )
        await upload_to(servers[0].intake, submission)


@pytest.mark.parametrize(("ahead", "client_rate"), [(0, 1.0), (1, 1.0), (3, 1.0), (16, 0.5)])
@asynchronous
async def test_batches_are_fetched_ahead_each_once(
    ahead: int, client_rate: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While round t waits for its clients, those of the next rounds are drawn and their tuples are on their way."""
    task = small_task(rounds=4, batches_ahead=ahead, client_rate=client_rate)
    asked: dict[int, list[int]] = {0: [], 1: []}
    batch = TuplesInMemory.batch

    async def noted(self: TuplesInMemory, shape: BatchShape) -> ServerTuples:
        asked[self._party].append(shape.round)
        return await batch(self, shape)

    monkeypatch.setattr(TuplesInMemory, "batch", noted)
    async with both_servers(task, tmp_path) as servers:
        rounds = [asyncio.create_task(server.runner.run_round(0)) for server in servers]
        if client_rate == 1.0:  # nobody is connected, so the round ends as soon as it may
            await until(lambda: all(len(found) == min(1 + ahead, 4) for found in asked.values()))
        await asyncio.gather(*rounds)
        clients = [asyncio.create_task(take_part(client, servers)) for client in CLIENTS]
        for t in range(1, 4):
            records = await asyncio.gather(*(server.runner.run_round(t) for server in servers))
            assert list(records[0].accepted) == list(records[0].chosen) == list(records[1].accepted)
            assert all(found == list(range(min(t + ahead, 3) + 1)) for found in asked.values())
            assert all(len(server.runner.form.ahead) == min(ahead, 3 - t) for server in servers)
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)


@asynchronous
async def test_a_batch_that_fails_ahead_ends_the_round_that_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the one before; and closing forgets what nobody will use."""
    batch = TuplesInMemory.batch

    async def failing(self: TuplesInMemory, shape: BatchShape) -> ServerTuples:
        if shape.round == 1:
            raise PeerUnreachableError("the dealer is gone")
        return await batch(self, shape)

    monkeypatch.setattr(TuplesInMemory, "batch", failing)
    async with both_servers(small_task(rounds=4, batches_ahead=2), tmp_path) as servers:
        await asyncio.gather(*(server.runner.run_round(0) for server in servers))
        for server in servers:
            with pytest.raises(PeerUnreachableError, match="the dealer is gone"):
                await server.runner.run_round(1)
            server.runner.close()
            assert not server.runner.form.ahead


@pytest.mark.parametrize(
    ("place", "name"),
    [(TaskStore, "reserve"), (TaskStore, "validated"), (TaskState, "charge"), (TaskState, "commit")],
    ids=["number", "verdicts", "charge", "model"],
)
@asynchronous
async def test_a_round_that_is_given_up_while_it_is_written_down_ends_when_that_is_done(
    place: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The servers meet again from what their disks say: nothing may come to be there afterwards."""
    write, may_end = getattr(place, name), threading.Event()
    begun, written = list[str](), list[str]()

    def slow(*arguments: Any, **more: Any) -> Any:
        begun.append(name)
        assert may_end.wait(30)
        try:
            return write(*arguments, **more)
        finally:
            written.append(name)

    monkeypatch.setattr(place, name, slow)
    async with both_servers(TASK, tmp_path) as servers:
        rounds = [asyncio.create_task(server.runner.run_round(0)) for server in servers]
        await until(lambda: bool(begun))
        for given_up in rounds:
            given_up.cancel()
        asyncio.get_running_loop().call_later(0.2, may_end.set)
        await asyncio.gather(*rounds, return_exceptions=True)
        assert begun == written


@asynchronous
async def test_fixed_coins_fix_who_is_drawn_and_the_challenge(tmp_path: Path) -> None:
    """Twice alike, and not alike with one other half."""
    task = small_task([f"client-{i:02}" for i in range(40)], client_rate=0.5)

    async def drawn(folder: str, *names: str) -> tuple[list[tuple[str, ...]], list[bytes]]:
        async with both_servers(task, tmp_path / folder, [FixedBytes(name) for name in names]) as servers:
            for t in range(task.rounds):
                await asyncio.gather(*(server.runner.run_round(t) for server in servers))
            locked = [state for state in servers[0].of_kind(Locked) if isinstance(state, Locked)]
            return [state.chosen for state in locked], [state.lock.coin.value for state in locked]

    first, again, other = [await drawn(*run) for run in (("1", "a", "b"), ("2", "a", "b"), ("3", "a", "c"))]
    assert first == again
    assert first[0] != other[0]
    assert first[1] == other[1]  # server A's own halves
