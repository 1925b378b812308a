"""A client that is asked for the same model again and again, over real gRPC with mutual TLS.

Its servers are doubles that speak the protocol. Either one alone says something else than the other, or both say the
same. The latter is so when one of them hangs up in every round.

Failure means one of these:
- an upload more than the client's configuration allows for one model and number of committed rounds;
- a restart that allows more;
- a client that honest servers lose.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import structlog

from precad.clients.errors import StateFileError, UploadLimitError
from precad.clients.upload.session import ClientSession
from precad.clients.upload_limit import UploadLimit
from precad.mpc.ring import RingArray
from precad.protos.messages import convert
from precad.protos.precad.v1 import aggregator_pb2, aggregator_pb2_grpc, common_pb2
from precad.protos.tls.transport import bind_server
from tests.harness.harness import AGGREGATORS, Pki, asynchronous, small_task, until

MODEL = bytes(4)
MODELS = {convert.sha256(model): model for model in (MODEL, b"\x00\x00\x80\x3f")}
DIGEST, OTHER = MODELS
Told: TypeAlias = dict[str, Any]
"""The fields of an invitation that are not the usual ones."""


def task_of(mode: str) -> Any:
    return small_task(["alice", "bob"], dim=1, rounds=20, mode=mode)


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki.create(tmp_path_factory.mktemp("pki"), ["alice"])


class Inviting(aggregator_pb2_grpc.AggregatorServicer):
    """Invites to everything at once, and takes every upload."""

    def __init__(self, invitations: Iterable[Told], mode: str) -> None:
        self._invitations, self._seed = list(invitations), bytes(16) if mode == "masked" else b""
        self.uploads: list[int] = []
        self.is_over = asyncio.Event()

    async def Join(self, request: Any, context: Any) -> AsyncIterator[aggregator_pb2.ClientEvent]:
        yield aggregator_pb2.ClientEvent(welcome=aggregator_pb2.Welcome())
        usual: Told = {"task": "small-1", "dim": 1, "model_digest": DIGEST, "mask_seed": self._seed}
        usual["peer_mask_seed_digest"] = convert.sha256(self._seed) if self._seed else b""
        for t, told in enumerate(self._invitations):
            yield aggregator_pb2.ClientEvent(invitation=aggregator_pb2.Invitation(**{**usual, "round": t, **told}))
        await self.is_over.wait()
        yield aggregator_pb2.ClientEvent(goodbye=common_pb2.Goodbye(finished=True))

    async def GetModel(self, request: Any, context: Any) -> AsyncIterator[common_pb2.Chunk]:
        yield common_pb2.Chunk(data=MODEL)

    async def Submit(self, parts: AsyncIterator[Any], context: Any) -> aggregator_pb2.SubmitReply:
        received = [part async for part in parts]
        self.uploads.append(received[0].binding.round)
        return aggregator_pb2.SubmitReply()


@contextlib.asynccontextmanager
async def serving(
    pki: Pki, servers: Sequence[aggregator_pb2_grpc.AggregatorServicer]
) -> AsyncIterator[tuple[str, str]]:
    """Addresses of A and B."""
    async with contextlib.AsyncExitStack() as stack:
        ports = []
        for role, servicer in zip(AGGREGATORS, servers, strict=True):
            server, port = bind_server("127.0.0.1:0", pki.tls(role))
            aggregator_pb2_grpc.add_AggregatorServicer_to_server(servicer, server)
            await server.start()
            stack.push_async_callback(server.stop, None)
            ports.append(port)
        yield f"127.0.0.1:{ports[0]}", f"127.0.0.1:{ports[1]}"


def trained(_: Any) -> RingArray:
    return np.zeros(1, dtype=np.int64)


async def alice(
    pki: Pki, of_a: Iterable[Told], of_b: Iterable[Told], *, limit: UploadLimit | None = None, mode: str = "masked"
) -> tuple[list[int], list[str], UploadLimitError | None]:
    """In which rounds she uploaded (to B, where it gets some), why not in others, and why she stopped if she did."""
    servers = Inviting(of_a, mode), Inviting(of_b, mode)
    n_rounds = len(servers[0]._invitations)
    with structlog.testing.capture_logs() as lines:

        def has_answered_all() -> bool:
            return sum(line["event"] in {"client.submitted", "client.skipped"} for line in lines) == n_rounds

        async with serving(pki, servers) as addresses:
            session = asyncio.create_task(
                ClientSession(
                    client="alice",
                    task=task_of(mode),
                    addresses=addresses,
                    tls=pki.tls("alice"),
                    train=trained,
                    limit=limit,
                ).run()
            )
            await until(lambda: session.done() or has_answered_all())
            for server in servers:
                server.is_over.set()
            stopped = (await asyncio.gather(session, return_exceptions=True))[0]
    assert stopped is None or isinstance(stopped, UploadLimitError), stopped
    skipped = [line["reason"] for line in lines if line["event"] == "client.skipped"]
    return servers[0 if mode == "masked" else 1].uploads, skipped, stopped


@pytest.mark.parametrize("mode", ["masked", "shares"])
@asynchronous
async def test_a_client_uploads_three_times_for_one_model_and_says_why_it_stops(pki: Pki, mode: str) -> None:
    told: list[Told] = [{}] * 10
    uploads, skipped, stopped = await alice(pki, told, told, mode=mode)
    assert (uploads, skipped) == ([0, 1, 2], [])
    assert "alice stops: expected at most 3 uploads for one model (client.uploads_per_model)" in str(stopped)


@asynchronous
async def test_a_client_that_is_started_again_uploads_no_more(pki: Pki, tmp_path: Path) -> None:
    """In a loop, as by a hurried operator, for one invitation each time."""
    counts = []
    for _ in range(5):
        limit = UploadLimit("alice", task_of("masked").digest(), most=3, file=tmp_path / "alice.uploads")
        uploads, _, stopped = await alice(pki, [{}], [{}], limit=limit)
        counts.append((len(uploads), stopped is not None))
    assert counts == [(1, False)] * 3 + [(0, True)] * 2


@asynchronous
async def test_committed_rounds_count_anew_also_where_they_leave_the_model_as_it_was(pki: Pki) -> None:
    """Honest servers say this when they lose up to two rounds for each that they commit."""
    told: list[Told] = [{"n_committed": n} for n in (0, 0, 0, 1, 2, 2, 2, 3)]
    assert await alice(pki, told, told) == (list(range(8)), [], None)


LIES: dict[str, tuple[Told, str]] = {
    "committed rounds": ({"n_committed": 1}, "the servers' invitations differ in n_committed"),
    "model": ({"model_digest": OTHER}, "the servers' invitations differ in model_digest"),
    "task": ({"task": "small-2"}, "the servers' invitations differ in task"),
    "slot": ({"slot": 1}, "the servers' invitations differ in slot"),
}


@pytest.mark.parametrize("liar", [0, 1])
@pytest.mark.parametrize(("lie", "reason"), LIES.values(), ids=LIES.keys())
@asynchronous
async def test_one_server_alone_gets_no_upload_by_what_it_says(pki: Pki, lie: Told, reason: str, liar: int) -> None:
    """Before the limit is reached and after. The client stays where honest servers may still ask it."""
    honest: list[Told] = [{}] * 7
    lying: list[Told] = [lie, lie, {}, {}, {}, lie, lie]
    uploads, skipped, stopped = await alice(pki, *((honest, lying) if liar else (lying, honest)))
    assert (uploads, skipped, stopped) == ([2, 3, 4], [reason] * 4, None)


@pytest.mark.parametrize("liar", [0, 1])
@asynchronous
async def test_one_server_alone_gets_no_upload_under_another_mask_seed(pki: Pki, liar: int) -> None:
    """Nor by a digest that contradicts the other server's seed, or by none."""
    honest: list[Told] = [{}] * 4
    lying: list[Told] = [
        {"mask_seed": b"another seed...."},
        {"peer_mask_seed_digest": convert.sha256(b"another seed....")},
        {"peer_mask_seed_digest": b""},
        {},
    ]
    uploads, skipped, stopped = await alice(pki, *((honest, lying) if liar else (lying, honest)))
    assert (uploads, stopped) == ([3], None)
    own, other = AGGREGATORS[liar], AGGREGATORS[1 - liar]
    assert skipped == [
        f"mask_seed: expected from {own} the seed that {other} says was dealt to it, found another one",
        f"mask_seed: expected from {other} the seed that {own} says was dealt to it, found another one",
        f"peer_mask_seed_digest: expected 32 bytes from {own}, found 0",
    ]


@asynchronous
async def test_a_model_that_is_not_the_invited_one_gets_no_upload(pki: Pki) -> None:
    """Server A sends a model of its own choice, of the right length, where both servers named another."""
    told: list[Told] = [{"model_digest": OTHER}, {}]
    uploads, skipped, stopped = await alice(pki, told, told)
    assert (uploads, stopped) == ([1], None)
    assert skipped == ["the downloaded model does not have the digest that both servers named"]


@asynchronous
async def test_another_task_id_or_round_number_gets_no_further_upload(pki: Pki) -> None:
    """Both servers say what one may have chosen: the id of a task that begins, the next round's number."""
    told: list[Told] = [{"task": f"small-{t}", "round": 1000 * t} for t in range(6)]
    uploads, _, stopped = await alice(pki, told, told)
    assert (uploads, type(stopped)) == ([0, 1000, 2000], UploadLimitError)


@asynchronous
async def test_more_committed_rounds_than_the_task_has_are_refused(pki: Pki) -> None:
    told: list[Told] = [{"n_committed": n} for n in (19, 20, 2**64 - 1)]
    uploads, skipped, _ = await alice(pki, told, told)
    reasons = [f"n_committed: expected fewer than 20, the servers say {n}" for n in (20, 2**64 - 1)]
    assert (uploads, skipped) == ([0], reasons)


@asynchronous
async def test_nothing_leaves_before_it_is_counted(pki: Pki, tmp_path: Path) -> None:
    """The file is taken away under the client: the round's upload is never begun."""
    file = tmp_path / "state" / "alice.uploads"
    limit = UploadLimit("alice", task_of("masked").digest(), most=3, file=file)
    file.unlink()
    file.mkdir()
    servers = Inviting([{}], "masked"), Inviting([{}], "masked")
    async with serving(pki, servers) as addresses:
        session = ClientSession(
            client="alice",
            task=task_of("masked"),
            addresses=addresses,
            tls=pki.tls("alice"),
            train=trained,
            limit=limit,
        )
        with pytest.raises(StateFileError, match=r"client\.state_dir: expected a file of uploads to read and write"):
            await session.run()
    assert servers[0].uploads == []
