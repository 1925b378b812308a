"""One client's uploads and calls can do nothing to the pair but lose its own, over real gRPC with mutual TLS.

Failure means one of these:
- an upload that is broken off, stalled or late ends the task, delays a round, costs somebody else theirs, or keeps
  memory;
- a model leaves to somebody who has no part in the round.
"""

from __future__ import annotations

import asyncio
import itertools
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc
import numpy as np
import pytest

from precad.clients.submission import Submission
from precad.clients.upload import session
from precad.clients.upload.patience import until_admitted
from precad.clients.upload.sending import parts_of
from precad.clients.upload.session import ClientSession
from precad.mpc import joint_coin
from precad.mpc.ring import RingArray
from precad.protos.messages import convert
from precad.protos.precad.v1 import aggregator_pb2, common_pb2
from precad.servers.door import servicers
from precad.servers.rounds import receiving, uploads
from tests.harness.harness import AGGREGATORS, Deployment, LeashedClient, Pki, asynchronous, running, small_task, until

CLIENTS = ("alice", "bob", "mallory")
CHUNK = 1 << 16
"""Smaller messages than production's: several of them take a vector whose validation takes no time."""
N_CHUNKS = 3
LARGE = N_CHUNKS * CHUNK // 8


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki.create(tmp_path_factory.mktemp("pki"), (*CLIENTS, "oscar"))


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "CHUNK_BYTES", CHUNK)


def silence(std: float, dim: int) -> RingArray:
    return np.zeros(dim, dtype=np.int64)


async def join_all(deployment: Deployment) -> dict[str, LeashedClient]:
    clients = {name: LeashedClient(name, deployment) for name in deployment.task.clients}
    await asyncio.gather(*(client.join() for client in clients.values()))
    return clients


def vector(task_dim: int) -> RingArray:
    """Return a vector of norm 1 on the grid: everybody's, honest, and the sum tells how many were in it."""
    x = np.zeros(task_dim, dtype=np.int64)
    x[-1] = 1
    return x


async def submit_honestly(*clients: LeashedClient) -> None:
    """One round's uploads of these clients, at the same time."""
    dim = clients[0].task.dim
    submissions = [client.make(vector(dim), await client.invitation()) for client in clients]
    await asyncio.gather(*(client.submit(s) for client, s in zip(clients, submissions, strict=True)))


async def finish(deployment: Deployment, clients: dict[str, LeashedClient]) -> list[list[str]]:
    """Finish the task. Return who was accepted, round by round: equal at both servers, in both models, and nobody
    rejected.
    """
    goodbyes = await asyncio.gather(*(client.goodbye() for client in clients.values()))
    assert {goodbye.finished for goodbye in goodbyes} == {True}
    await deployment.finish()
    records = [deployment.rounds(party) for party in (0, 1)]
    accepted = [record["accepted"] for record in records[0]]
    assert [record["accepted"] for record in records[1]] == accepted
    assert not any(record["rejected"] for record in (*records[0], *records[1]))
    task, expected = deployment.task, np.float32(0)
    for names in accepted:
        expected = np.float32(float(expected) + len(names) / 2**16 * (task.learning_rate / task.divisor))
    for role in AGGREGATORS:
        model = np.load(deployment.folder / role / "model.npy")
        assert model[-1] == expected
        assert not model[:-1].any()
    return accepted


@asynchronous
async def test_a_share_that_takes_long_to_upload_is_not_cut_off_by_the_seed_that_came_at_once(
    pki: Pki, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the `shares` form A gets 16 bytes and B everything else. Everybody's line to B takes longer than B waits once
    A has closed the round: all count all the same, long before the deadline."""
    monkeypatch.setattr(receiving, "PEER_LOCKED_GRACE_S", 0.1)

    async def slowly(submission: Submission, server: int) -> AsyncIterator[aggregator_pb2.SubmitPart]:
        async for part in parts_of(submission, server):
            yield part
            await asyncio.sleep(0.8 * server)

    monkeypatch.setattr(session, "parts_of", slowly)
    task = small_task(CLIENTS, mode="shares", rounds=1)
    async with running(task, pki, tmp_path, noises=(silence, silence)) as deployment:
        clients = [
            ClientSession(
                client=name,
                task=task,
                addresses=deployment.addresses,
                tls=pki.tls(name),
                train=lambda parameters: vector(task.dim),
            )
            for name in CLIENTS
        ]
        async with asyncio.timeout(30):
            await asyncio.gather(*(client.run() for client in clients))
            await deployment.finish()
    for party in (0, 1):
        assert [record["accepted"] for record in deployment.rounds(party)] == [sorted(CLIENTS)]


# Broken off


@dataclass(frozen=True)
class Moment:
    """How far an upload comes before its client breaks it off."""

    n_chunks: int
    ends: bool = False
    delay_s: float = 0.0


MOMENTS = [
    *(Moment(n, delay_s=delay_s) for n in range(N_CHUNKS + 1) for delay_s in (0.0, 0.01)),
    *(Moment(N_CHUNKS, ends=True, delay_s=delay_s) for delay_s in (0.0, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032)),
]


@asynchronous
async def test_an_upload_that_is_cancelled_at_any_moment_ends_nothing(
    pki: Pki, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A moment per round: before, between and after the chunks, and while server A checks and relays the vector. The
    upload counts as a whole or not at all, and everybody else's counts."""
    monkeypatch.setattr(receiving, "PEER_LOCKED_GRACE_S", 0.1)
    task = small_task(CLIENTS, dim=LARGE, rounds=len(MOMENTS))
    async with running(task, pki, tmp_path, noises=(silence, silence)) as deployment:
        clients = await join_all(deployment)
        for moment in MOMENTS:
            honest = asyncio.create_task(submit_honestly(clients["alice"], clients["bob"]))
            await break_off(clients["mallory"], moment)
            await honest
            await give_up(clients["mallory"], deployment)
        accepted = await finish(deployment, clients)
    assert all({"alice", "bob"} <= set(names) for names in accepted)
    # With all chunks it may count, ended or not: gRPC shows a server the end of a cancelled stream as an end.
    is_counted = ["mallory" in names for names in accepted]
    assert not any(counted for counted, moment in zip(is_counted, MOMENTS, strict=True) if moment.n_chunks < N_CHUNKS)


async def break_off(client: LeashedClient, moment: Moment) -> None:
    """Uploads until the moment."""
    submission = client.make(vector(client.task.dim), await client.invitation())
    call = client.stubs[0].Submit()
    async for part in parts_until(submission, moment.n_chunks):
        await call.write(part)
    if moment.ends:
        await call.done_writing()
    await asyncio.sleep(moment.delay_s)
    call.cancel()


async def give_up(client: LeashedClient, deployment: Deployment) -> None:
    """Hang up where the server never heard of a call that was cancelled at once.

    Nobody knows of such a call, so the client, too, lets it be. (Else the round waits for it, until the deadline, as it
    should.)
    """
    collecting = deployment.aggregators[0]._telemetry.collecting
    await asyncio.sleep(0.05)
    if collecting is not None and client.client not in collecting.intake._started:
        await client.rejoin()


async def parts_until(
    submission: Submission, n_chunks: int, party: int = 0
) -> AsyncIterator[aggregator_pb2.SubmitPart]:
    """The binding, by itself, and the first chunks."""
    yield aggregator_pb2.SubmitPart(
        binding=submission.binding, statement=submission.statement, salt=submission.salt_to(party)
    )
    for piece in itertools.islice(convert.pieces(submission.payloads[party]), n_chunks):
        yield aggregator_pb2.SubmitPart(chunk=common_pb2.Chunk(data=piece))


# Stalled


def bytes_kept() -> int:
    """Return the bytes that the servers of this process have taken in and still hold in memory."""
    only_uploads = tracemalloc.Filter(inclusive=True, filename_pattern=uploads.__file__)
    statistics = tracemalloc.take_snapshot().filter_traces([only_uploads]).statistics("filename")
    return sum(statistic.size for statistic in statistics)


@pytest.mark.parametrize(("mode", "party"), [("masked", 0), ("shares", 1)])
@asynchronous
async def test_a_stalled_upload_is_cut_off_at_the_lock_and_its_memory_released(
    mode: str, party: int, pki: Pki, tmp_path: Path
) -> None:
    """At the server that takes the vector. Mallory keeps the call open and says nothing; the others are all that the
    round waits for, once her session is over."""
    task = small_task(CLIENTS, dim=LARGE, rounds=2, mode=mode)
    async with running(task, pki, tmp_path, noises=(silence, silence)) as deployment:
        clients = await join_all(deployment)
        mallory = clients.pop("mallory")
        submission = mallory.make(vector(LARGE), await mallory.invitation())
        tracemalloc.start()
        try:
            call = mallory.stubs[party].Submit()
            async for part in parts_until(submission, N_CHUNKS - 1, party):
                await call.write(part)
            await until(lambda: bytes_kept() >= (N_CHUNKS - 1) * CHUNK)
            for stream in mallory.streams:
                stream.cancel()
            await submit_honestly(*clients.values())
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert (caught.value.code(), caught.value.details()) == (
                grpc.StatusCode.INVALID_ARGUMENT,
                "late: round 0 is locked",
            )
            second = [client.make(vector(LARGE), await client.invitation()) for client in clients.values()]
            assert bytes_kept() < 100_000  # of the honest uploads, too, nothing is left when the round is over
        finally:
            tracemalloc.stop()
        await asyncio.gather(*(c.submit(s) for c, s in zip(clients.values(), second, strict=True)))
        assert await finish(deployment, clients) == [["alice", "bob"]] * 2
        await mallory.leave()


async def hold_a_place(client: LeashedClient, submission: Submission, has_begun: asyncio.Event) -> None:
    """Hold a place for ever, as far as the server lets it.

    A first chunk comes at once, so that the upload seems to be over in time, then a byte now and then. Whenever the
    upload is cut off or refused, it begins again at once.
    """
    parts = [part async for part in parts_until(submission, 1)]
    while True:
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            call = client.stubs[0].Submit()
            for part in parts:
                await call.write(part)
            has_begun.set()
            while not call.done():
                await call.write(aggregator_pb2.SubmitPart(chunk=common_pb2.Chunk(data=b"x")))
                await asyncio.sleep(0.05)


@asynchronous
async def test_slow_uploads_that_hold_every_place_keep_nobody_out(pki: Pki, tmp_path: Path) -> None:
    """Let two slow clients hold as many places.

    Whoever uploads at the pace that is asked for gets in, long before the round's deadline, and loses nothing.
    """
    task = small_task((*CLIENTS, "oscar"), dim=LARGE, rounds=1, submit_timeout_s=100.0)
    pace = {"max_uploads": 2, "transfer_grace_s": 0.5, "min_transfer_bytes_s": 1e6}
    async with running(task, pki, tmp_path, noises=(silence, silence), **pace) as deployment:
        clients = await join_all(deployment)
        submissions = {name: c.make(vector(LARGE), await c.invitation()) for name, c in clients.items()}
        slow, holding = [clients.pop("mallory"), clients.pop("oscar")], []
        for client in slow:
            has_begun = asyncio.Event()
            holding.append(asyncio.create_task(hold_a_place(client, submissions[client.client], has_begun)))
            await has_begun.wait()
        collecting = deployment.aggregators[0]._telemetry.collecting
        assert collecting is not None
        intake = collecting.intake
        await until(lambda: intake.n_receiving == 2)
        async with asyncio.timeout(30):
            await asyncio.gather(
                *(until_admitted(partial(c.submit, submissions[name]), 30.0) for name, c in clients.items())
            )
        assert intake.complete == {"alice", "bob"}
        for task_of_one, client in zip(holding, slow, strict=True):
            task_of_one.cancel()
            await asyncio.gather(task_of_one, return_exceptions=True)
            await client.leave()
        assert await finish(deployment, clients) == [["alice", "bob"]]


@asynchronous
async def test_a_submission_that_never_says_what_it_is_is_refused(
    pki: Pki, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Soon, and without a trace: the client may still submit."""
    monkeypatch.setattr(servicers, "HEADER_TIMEOUT_S", 0.1)
    async with running(small_task(CLIENTS, rounds=1), pki, tmp_path, noises=(silence, silence)) as deployment:
        clients = await join_all(deployment)
        invitation = await clients["mallory"].invitation()
        call = clients["mallory"].stubs[0].Submit()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asyncio.wait_for(call, 30)
        assert caught.value.details() == "malformed: no binding came"
        await clients["mallory"].submit(clients["mallory"].make(vector(24), invitation))
        await submit_honestly(clients["alice"], clients["bob"])
        assert await finish(deployment, clients) == [list(CLIENTS)]


# Not there


@asynchronous
async def test_a_client_that_comes_back_is_not_waited_for_in_the_round_in_progress(pki: Pki, tmp_path: Path) -> None:
    """It is not invited twice to one round, so there is nothing to wait for; the next round has it again."""
    task = small_task(CLIENTS, rounds=2, submit_timeout_s=60.0)
    async with running(task, pki, tmp_path, noises=(silence, silence)) as deployment:
        clients = await join_all(deployment)
        await clients["mallory"].invitation()
        await clients["mallory"].rejoin()
        async with asyncio.timeout(20):
            await submit_honestly(clients["alice"], clients["bob"])
            await submit_honestly(*clients.values())
        assert await finish(deployment, clients) == [["alice", "bob"], list(CLIENTS)]


@asynchronous
async def test_a_client_that_is_not_chosen_cannot_fetch_the_model(
    pki: Pki, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Enrolled and registered, but not drawn: neither model nor upload, at either server."""
    monkeypatch.setattr(joint_coin, "select_poisson", lambda coin, label, clients, rate: ["alice", "bob"])

    async def fetch(client: LeashedClient, party: int, round: int = 0) -> bytes:
        chunks = client.stubs[party].GetModel(aggregator_pb2.ModelRequest(round=round))
        return await convert.collect(chunks, limit=4 * 24)

    async with running(small_task(CLIENTS, rounds=1), pki, tmp_path, noises=(silence, silence)) as deployment:
        clients = await join_all(deployment)
        invitations = {name: await clients[name].invitation() for name in ("alice", "bob")}
        for party in (0, 1):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await fetch(clients["mallory"], party)
            assert (caught.value.code(), caught.value.details()) == (
                grpc.StatusCode.PERMISSION_DENIED,
                "client 'mallory' is not in round 0",
            )
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await fetch(clients["alice"], party, round=1)
            assert caught.value.details() == "round 1 is not open"
            assert convert.sha256(await fetch(clients["alice"], party)) == invitations["alice"].model_digest
        for name, invitation in invitations.items():
            await clients[name].submit(clients[name].make(vector(24), invitation))
        assert await finish(deployment, clients) == [["alice", "bob"]]
