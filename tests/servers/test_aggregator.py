"""An aggregator's start, and what one client can do to the pair.

Failure means: a start that failed and left something behind, or a client that ends the task for everybody.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from precad.clients.submission import RoundInvitation
from precad.clients.upload.sending import parts_of
from precad.deploy.errors import exit_code_of
from precad.dp.accountants.pld import View
from precad.mpc import joint_coin
from precad.mpc.prg import Seed
from precad.mpc.ring import RingArray
from precad.mpc.tuples.held import BatchShape, ServerTuples
from precad.protos.task.task import Task
from precad.protos.tls.files import TransportError
from precad.protos.tls.identity import Role
from precad.servers.aggregator import Aggregator
from precad.servers.errors import PeerUnreachableError, StoppedError, TaskRefusedError, TaskUnfulfilledError
from precad.servers.links.dealer import TupleSource
from precad.servers.links.peer import PeerLink
from precad.servers.links.step_limits import NO_LIMITS
from precad.servers.operations.metrics import StatusCollector
from precad.servers.rounds.equipment import SYSTEM_RANDOMNESS, NoiseSource
from precad.servers.store.rounds import CommittedRound
from precad.servers.store.state import TaskState
from precad.servers.task import run as task_run
from tests.harness.harness import (
    FixedBytes,
    LeashedClient,
    Pki,
    asynchronous,
    free_addresses,
    running,
    small_task,
    until,
)

TASK = small_task()


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki.create(tmp_path_factory.mktemp("pki"), TASK.clients)


def aggregator_a(
    pki: Pki, folder: Path, *, listen: str = "127.0.0.1:0", task: Task = TASK, connect_timeout_s: float = 0.3
) -> Aggregator:
    """One that finds neither B nor a dealer."""
    np.save(folder / "initial.npy", np.zeros(task.dim, dtype=np.float32))
    waits = {"connect_timeout_s": connect_timeout_s}
    config = pki.aggregator(0, listen=listen, folder=folder).model_copy(update=waits)
    b, dealer = free_addresses(2)
    return Aggregator(party=0, task=task, config=config, addresses=(b, dealer))


@asynchronous
async def test_a_start_that_found_its_port_taken_can_be_tried_again(pki: Pki, tmp_path: Path) -> None:
    """Nothing was computed or released: the second try fails for its own reason, not because of the first."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for _ in range(2):
            with pytest.raises(TransportError, match="Address already in use"):
                await aggregator_a(pki, tmp_path, listen=address).run()
            assert not (tmp_path / "aggregator-a").exists()


@contextlib.asynccontextmanager
async def with_two_charges(folder: Path, task: Task) -> AsyncIterator[TaskState]:
    """Give the state of a server that has checked and charged two rounds."""
    async with contextlib.AsyncExitStack() as stack:
        state = TaskState.open(stack, folder, task, np.zeros(task.dim, dtype=np.float32), None, ())
        state.store.begin("small-1", Role.AGGREGATOR_A)
        for number in (0, 1):
            state.store.reserve(number)
            state.store.checking(number, chosen=("alice",), active=("alice",))
            state.ledger.charge(number, ["alice"])
        yield state


@asynchronous
async def test_a_server_that_waits_for_the_other_one_shows_what_its_ledger_has(pki: Pki, tmp_path: Path) -> None:
    """Two rounds were charged and lost. Status, dashboard and metrics say so before any other server answers."""
    task = small_task(rounds=12, epsilon_budget_one_server=40.0, noise_multiplier=2.0)
    async with with_two_charges(tmp_path / "aggregator-a", task) as state:
        spent = state.ledger.statement(View.ONE_SERVER).epsilon
        left = state.ledger.cost.rounds_left(View.ONE_SERVER, state.ledger.charged_before(2))
    waiting = aggregator_a(pki, tmp_path, task=task)
    with pytest.raises(PeerUnreachableError):
        await waiting.run()
    (shown,) = (one for one in waiting._snapshots.take().epsilons if one.view is View.ONE_SERVER and not one.is_level)
    assert spent > 0
    assert (shown.spent, shown.rounds_left) == (spent, left)


@asynchronous
async def test_a_server_started_again_shows_its_last_commit_and_losses_before_it_meets(
    pki: Pki, tmp_path: Path
) -> None:
    """Alerts go by these: a server that waits for the other one has committed nothing since then."""
    before = time.time()
    async with with_two_charges(tmp_path / "aggregator-a", TASK) as state:
        state.store.validated(0, accepted=("alice",), rejected=())
        record = CommittedRound(0, ("alice",), ("alice",), (), state.model.digest, 1.0, 1.0)
        state.commit(record, state.model, np.zeros(TASK.dim, dtype=np.uint64))
    waiting = aggregator_a(pki, tmp_path)
    runs = asyncio.create_task(waiting.run())
    while waiting._telemetry.state != "linking":
        assert not runs.done()
        await asyncio.sleep(0.01)
    waiting._telemetry.registry.register(StatusCollector(waiting._snapshots.take))
    value = waiting._telemetry.registry.get_sample_value
    shown = [value(f"precad_{name}") for name in ("rounds_lost", "verdicts_unknown", "last_commit_timestamp_seconds")]
    with pytest.raises(PeerUnreachableError):
        await runs
    assert shown[:2] == [1.0, 1.0]
    assert shown[2] is not None
    assert before - 0.001 <= shown[2] <= time.time()


@asynchronous
async def test_a_start_that_found_no_peer_can_be_tried_again(pki: Pki, tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(PeerUnreachableError, match=r"no link within .* nothing listens there"):
            await aggregator_a(pki, tmp_path, connect_timeout_s=3.0).run()  # enough to find that out


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as dialling:
        return dialling.connect_ex((host, int(port))) == 0


@asynchronous
async def test_a_closed_lane_is_the_last_word_of_a_server_that_waited(pki: Pki, tmp_path: Path) -> None:
    """B's lane is where A cannot reach it. A tries again; when time is up, it mostly stands before a busy link."""
    np.save(tmp_path / "initial.npy", np.zeros(TASK.dim, dtype=np.float32))
    b, dealer = free_addresses(2)
    waits = ({"connect_timeout_s": 1.0}, {"connect_timeout_s": 3.0, "lane_listen": "127.0.0.2:0"})
    servers = []
    for party, listen in ((0, "127.0.0.1:0"), (1, b)):
        config = pki.aggregator(party, listen=listen, folder=tmp_path, reconnect_timeout_s=1.0)
        config = config.model_copy(update=waits[party])
        servers.append(Aggregator(party=party, task=TASK, config=config, addresses=(b, dealer)))
    b_runs = asyncio.create_task(servers[1].run())
    while not await asyncio.to_thread(_answers, b):
        await asyncio.sleep(0.05)
    try:
        with pytest.raises(PeerUnreachableError, match=r"no lane to aggregator B at .*; it must be open to us$"):
            await servers[0].run()
    finally:
        b_runs.cancel()
        await asyncio.gather(b_runs, return_exceptions=True)


@asynchronous
async def test_a_client_that_answers_server_a_at_once_does_not_end_the_task(
    pki: Pki, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B's part of a batch is longer than A's, so A invites first.

    Mallory uploads to A without waiting for B's invitation (she makes up the half of the mask that she lacks). At most
    her own upload is lost.
    """
    b_may_go_on, batch = asyncio.Event(), TupleSource.batch

    async def slow_at_b(self: TupleSource, shape: BatchShape) -> ServerTuples:
        tuples = await batch(self, shape)
        if tuples.party == 1:
            await b_may_go_on.wait()
        return tuples

    def silence(std: float, dim: int) -> RingArray:
        return np.zeros(dim, dtype=np.int64)

    monkeypatch.setattr(TupleSource, "batch", slow_at_b)
    async with running(small_task(rounds=1), pki, tmp_path, noises=(silence, silence)) as deployment:
        clients = {name: LeashedClient(name, deployment) for name in TASK.clients}
        await asyncio.gather(*(client.join() for client in clients.values()))
        mallory, vector = clients.pop("mallory"), np.ones(TASK.dim, dtype=np.int64)
        from_a = (await mallory.streams[0].read()).invitation
        seeds = (Seed(from_a.mask_seed), Seed(bytes(16)))
        invitation = RoundInvitation(from_a.task, from_a.round, from_a.slot, from_a.model_digest, seeds)
        await mallory.stubs[0].Submit(parts_of(mallory.make(vector, invitation), 0))
        await mallory.leave()
        b_may_go_on.set()
        for client in clients.values():
            await client.submit(client.make(vector, await client.invitation()))
        await asyncio.gather(*(client.goodbye() for client in clients.values()))
        await deployment.finish()
        assert [record["accepted"] for record in deployment.rounds(1)] == [sorted(clients)]


@asynchronous
async def test_a_task_whose_budget_allows_no_round_is_no_success(pki: Pki, tmp_path: Path) -> None:
    """Both servers end with the reason, which stands for exit code 3, whether or not a client has come."""
    task = small_task(rounds=1, epsilon_budget_one_server=1e-6)
    noises = (SYSTEM_RANDOMNESS.noise, SYSTEM_RANDOMNESS.noise)
    async with running(task, pki, tmp_path, noises=noises) as deployment:
        ends = await asyncio.gather(*deployment._runs, return_exceptions=True)
    _require_no_success(ends, "the task ended without a round: the privacy budget is spent after 0")


@asynchronous
async def test_all_that_servers_draw_comes_from_the_randomness_that_they_are_given(pki: Pki, tmp_path: Path) -> None:
    """The task's name, both halves of every joint coin, the dealer's seeds and the noise, as often as each is due."""
    task, n_noises = small_task(rounds=2, client_rate=1e-6), [0, 0]
    coins, tuples = (FixedBytes("a"), FixedBytes("b")), FixedBytes("dealer")

    def counted(party: int) -> NoiseSource:
        def noise(std: float, dim: int) -> RingArray:
            n_noises[party] += 1
            return np.zeros(dim, dtype=np.int64)

        return noise

    noises = (counted(0), counted(1))
    async with running(task, pki, tmp_path, noises=noises, coins=coins, tuples=tuples) as deployment:
        clients = [LeashedClient(name, deployment) for name in task.clients]
        await asyncio.gather(*(client.join() for client in clients))
        await asyncio.gather(*(client.goodbye() for client in clients))
        await deployment.finish()
        names = {aggregator._telemetry.task_id for aggregator in deployment.aggregators}
    name = joint_coin.digest(b"task id", coins[0].drawn[0], coins[1].drawn[0])
    assert names == {f"small-{name.hex()[:16]}"}
    for coin in coins:  # then, of each round, one half for its clients and one for its challenge
        assert [len(value) for value in coin.drawn] == [16, 32, 32, 32, 32]
    assert [len(value) for value in tuples.drawn] == [16, 16] * 2
    assert n_noises == [2, 2]


@asynchronous
async def test_a_task_whose_model_diverged_is_no_success(pki: Pki, tmp_path: Path) -> None:
    """Both servers end with the reason, which stands for exit code 3; their clients are told that the task is over."""
    task = small_task(rounds=1, learning_rate=1e20, client_rate=1e-6)
    noises = (SYSTEM_RANDOMNESS.noise, SYSTEM_RANDOMNESS.noise)
    async with running(task, pki, tmp_path, noises=noises) as deployment:
        clients = [LeashedClient(name, deployment) for name in task.clients]
        await asyncio.gather(*(client.join() for client in clients))
        await asyncio.gather(*(client.goodbye() for client in clients))
        ends = await asyncio.gather(*deployment._runs, return_exceptions=True)
    _require_no_success(ends, "the training diverged: .*; 1 round done")


def _require_no_success(ends: list[BaseException | None], reason: str) -> None:
    dealer, *servers = ends
    for error in servers:
        assert isinstance(error, TaskUnfulfilledError)
        assert re.match(reason, str(error))
        assert exit_code_of(error) == 3
    assert dealer is None


@asynchronous
async def test_a_server_that_is_stopped_says_so_to_the_others(pki: Pki, tmp_path: Path) -> None:
    """Their last line says who ended the task, and why."""

    def silence(std: float, dim: int) -> RingArray:
        return np.zeros(dim, dtype=np.int64)

    task = small_task(rounds=1)
    async with running(task, pki, tmp_path, noises=(silence, silence), reconnect_timeout_s=0.0) as deployment:
        client = LeashedClient("alice", deployment)
        await client.join()
        await until(lambda: deployment.dealers[0]._n_connected == 2)  # it hears the reason of those who came
        deployment.aggregators[0].stop()
        dealer, a, b = await asyncio.gather(*deployment._runs, return_exceptions=True)
        await client.leave()
    assert isinstance(a, StoppedError)
    assert str(dealer) in {
        f"waited 0 s for both aggregators: aggregator-a ended the task: it was stopped; {of_b}"
        for of_b in (
            "aggregator-b is here (see aggregator-a's log)",
            "aggregator-b ended the task: the other aggregator ended the task: it was stopped "
            "(see aggregator-a's log, aggregator-b's log)",
        )
    }
    assert str(b) == "the other aggregator ended the task: it was stopped"


@asynchronous
async def test_what_the_mpc_thread_still_writes_down_is_there_when_the_servers_meet_again(
    pki: Pki, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link breaks while the other server's round is being taken over. Who meets says what the disk says: a hello
    that is older would end the task when the servers go on from it."""
    begun, may_end, told = threading.Event(), threading.Event(), list[int]()

    async def nothing_more() -> None:
        while not begun.is_set():
            await asyncio.sleep(0.01)
        asyncio.get_running_loop().call_later(1.0, may_end.set)

    async def send(_: object) -> None: ...

    async def meet(_: object, state: TaskState, *__: Any, **___: Any) -> Any:
        if begun.is_set():
            told.append(state.standing.next_round)
            may_end.set()
            raise TaskRefusedError("enough")
        link, lane = PeerLink(0, send, nothing_more), SimpleNamespace(limits=NO_LIMITS)
        return SimpleNamespace(link=link, lane=lane, agreement=SimpleNamespace(task_id="task-1"))

    def level(state: TaskState, *_: object) -> None:
        begun.set()
        assert may_end.wait(30)
        state.store.reserve(7)

    monkeypatch.setattr(task_run, "meet", meet)
    monkeypatch.setattr(task_run, "level", level)
    a = aggregator_a(pki, tmp_path)
    a.config = a.config.model_copy(update={"connect_timeout_s": 30.0, "reconnect_timeout_s": 30.0})
    with pytest.raises(TaskRefusedError, match="enough"):
        await a.run()
    assert told == [8]
