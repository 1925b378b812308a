"""Registration: whom servers wait for before rounds begin, after a server was lost too, and what operators are told of
who is absent.

Failure means one of these:
- a restarted dealer that makes the servers wait for clients which rounds had gone on without;
- a client that comes back after the end, is refused, and does not learn that the task finished;
- an end for want of clients that does not say whose, or one that tells clients of one another.
"""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from precad.clients.upload.session import ClientSession
from precad.mpc.ring import RingArray
from precad.servers.dealer import Dealer
from precad.servers.errors import TooFewClientsError
from precad.servers.telemetry.quality import Program
from tests.harness.harness import Deployment, LeashedClient, Pki, asynchronous, running, small_task, until

CLIENTS = ("alice", "bob")
LONG_S = 100.0
"""Nobody waits so long here: a test that has to fails before."""


def silence(std: float, dim: int) -> RingArray:
    return np.zeros(dim, dtype=np.int64)


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki.create(tmp_path_factory.mktemp("pki"), CLIENTS)


async def take_part(client: LeashedClient, *, after: int) -> int:
    """Submit in the next round with a larger number; its number."""
    while (invitation := await client.invitation()).round <= after:
        pass
    await client.submit(client.make(np.ones(client.task.dim, dtype=np.int64), invitation))
    return invitation.round


async def restart_dealer(deployment: Deployment) -> None:
    """Without a last word, as after SIGKILL; on the same address and folder."""
    deployment._runs[0].cancel()
    await asyncio.wait(deployment._runs[:1])
    config = deployment.pki.dealer(listen=deployment.dealer_address, folder=deployment.folder)
    deployment._runs.append(asyncio.create_task(Dealer(task=deployment.task, config=config).run()))


@asynchronous
async def test_after_a_dealers_restart_absent_clients_are_not_waited_for_again(pki: Pki, tmp_path: Path) -> None:
    """Rounds had gone on without bob; `min_clients`, which counts him in, is for the start."""
    task = small_task(CLIENTS, rounds=100, min_clients=2, registration_timeout_s=LONG_S)
    waits = {"reconnect_timeout_s": LONG_S, "rejoin_timeout_s": 0.5}
    async with running(task, pki, tmp_path, noises=(silence, silence), **waits) as deployment:
        alice, bob = (LeashedClient(client, deployment) for client in CLIENTS)
        await asyncio.gather(alice.join(), bob.join())
        numbers = await asyncio.gather(take_part(alice, after=-1), take_part(bob, after=-1))
        await bob.leave()
        without_bob = await take_part(alice, after=numbers[0])
        await until(lambda: any(record["round"] == str(without_bob) for record in deployment.rounds(0)))
        (absent,) = deployment.aggregators[0]._snapshots.take().absent
        assert absent.client == "bob"
        interrupted = [aggregator._telemetry for aggregator in deployment.aggregators]
        await restart_dealer(deployment)
        await until(lambda: all(telemetry.state in {"linking", "waiting for the dealer"} for telemetry in interrupted))
        async with asyncio.timeout(LONG_S / 4):
            await take_part(alice, after=without_bob + 1)
        await alice.leave()


@asynchronous
async def test_clients_that_leave_while_others_are_waited_for_may_come_back(tmp_path: Path) -> None:
    """There were enough, and there are again before the time is over."""
    task = small_task((*CLIENTS, "carol"), rounds=100, min_clients=2, registration_timeout_s=LONG_S, gate="native")
    waits = {"reconnect_timeout_s": LONG_S, "rejoin_timeout_s": 1.0}
    three = Pki.create(tmp_path / "pki", task.clients)
    async with running(task, three, tmp_path, noises=(silence, silence), **waits) as deployment:
        alice, bob, carol = clients = [LeashedClient(client, deployment) for client in task.clients]
        await asyncio.gather(*(client.join() for client in clients))
        numbers = await asyncio.gather(*(take_part(client, after=-1) for client in clients))
        await carol.leave()
        await restart_dealer(deployment)
        servers = [aggregator._telemetry for aggregator in deployment.aggregators]
        await until(lambda: all(server.state == "registering clients" for server in servers))
        await bob.leave()
        await asyncio.sleep(2 * waits["rejoin_timeout_s"])
        bob = LeashedClient("bob", deployment)
        async with asyncio.timeout(LONG_S / 4):
            await bob.join()
            await asyncio.gather(*(take_part(client, after=numbers[0] + 1) for client in (alice, bob)))
        await asyncio.gather(alice.leave(), bob.leave())


MEASURES_ON_WORD = """
import pathlib, sys, time
sys.stdin.buffer.readline()
print('{"ready": 1}', flush=True)
sys.stdin.buffer.readline()
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.01)
"""
"""A measuring program that is over with its first model once a file is there."""


@asynchronous
async def test_a_client_that_comes_back_after_the_end_learns_of_it(pki: Pki, tmp_path: Path) -> None:
    """Both servers are up for a last figure alone, every stream having ended: bob's session ends as if it had stayed.

    Servers that wait for nothing are gone with their last stream, and nobody would answer.
    """
    word = tmp_path / "measured"
    slow = Program(
        command=(sys.executable, "-c", MEASURES_ON_WORD, str(word)), environment={}, opening=b"\n", timeout_s=LONG_S
    )
    task = small_task(CLIENTS, rounds=1, gate="native")
    async with running(task, pki, tmp_path, noises=(silence, silence), measuring=lambda party: slow) as deployment:
        alice, bob = (LeashedClient(client, deployment) for client in CLIENTS)
        await asyncio.gather(alice.join(), bob.join())
        await asyncio.gather(take_part(alice, after=-1), take_part(bob, after=-1))
        await bob.leave()
        assert (await alice.goodbye()).finished
        back = ClientSession(
            client="bob", task=task, addresses=deployment.addresses, tls=pki.tls("bob"), train=must_not_train
        )
        await back.run()
        word.touch()
        await deployment.finish()


def must_not_train(parameters: NDArray[np.float32]) -> RingArray:
    raise AssertionError("no round is left")


@asynchronous
async def test_an_end_for_want_of_clients_names_them_to_operators_alone(pki: Pki, tmp_path: Path) -> None:
    task = small_task(CLIENTS, min_clients=2, registration_timeout_s=0.5)
    async with running(task, pki, tmp_path, noises=(silence, silence)) as deployment:
        alice = LeashedClient("alice", deployment)
        await alice.join()
        for aggregator in deployment.aggregators:
            (absent,) = aggregator._snapshots.take().absent
            assert (absent.client, absent.since <= aggregator._telemetry.started_at + 20) == ("bob", True)
        words = [(await stream.read()).goodbye.reason for stream in alice.streams]
        await alice.leave()
        ends = await asyncio.gather(*deployment._runs, return_exceptions=True)
        found = "min_clients: expected 2 registered within 0.5 s, found 1"
        assert found in words
        assert set(words) <= {found, f"the other aggregator ended the task: {found}"}  # who is later hears it first
        last_lines = [str(error) for error in ends if isinstance(error, TooFewClientsError)]
        assert last_lines  # the other server may hear it from this one before it finds out
        for line in last_lines:
            assert re.search(r"within 0\.5 s, found 1; absent: 'bob' since \d{4}-.* UTC$", line)
