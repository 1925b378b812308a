"""A client of mode `proved` between its upload and its proof: what it takes for news of its own round.

Failure means: a challenge from before the upload counts as one for it; a client waits for a round that is over. Or it
uploads a second time in a round.
"""

from __future__ import annotations

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from precad.clients.errors import ProtocolError
from precad.clients.upload.events import Waiting
from precad.clients.upload.session import ClientSession, Inbox
from precad.protos.precad.v1 import aggregator_pb2
from tests.harness.harness import asynchronous, small_task

CHALLENGE = bytes(range(16))


def session() -> ClientSession:
    task = small_task(["alice", "bob"], mode="proved")
    zeros = np.zeros(task.dim, dtype=np.int64)
    return ClientSession(client="alice", task=task, addresses=("a:1", "b:1"), tls=None, train=lambda model: zeros)  # type: ignore[arg-type]


def invitation(task: str, t: int) -> aggregator_pb2.Invitation:
    return aggregator_pb2.Invitation(task=task, round=t)


def upload_of(task: str, t: int) -> Any:
    """Return an upload that proves once both servers have said the same."""
    heard: dict[int, bytes] = {}

    def hears(server: int, challenge: bytes) -> bool:
        heard[server] = challenge
        return len(heard) == 2

    return SimpleNamespace(task=task, round=t, hears=hears, prove=lambda: "proof", heard=heard)


@asynchronous
async def test_a_challenge_from_before_the_invitation_is_none_of_its_round() -> None:
    """Servers that lost their disks begin a new task, from round 0: one of them knew the old challenge before."""
    client = session()
    client._tell(1, aggregator_pb2.Challenge(round=0, challenge=bytes(16)))
    client._tell(0, invitation("new", 0))
    client._tell(1, invitation("new", 0))
    client._tell(0, invitation("new", 1))
    client._forget_news_before(invitation("new", 0))
    assert len(client._news) == 1
    server, news = await client._news.get()
    assert (server, news.round) == (0, 1)


@asynchronous
async def test_whoever_takes_part_in_a_round_has_forgotten_what_came_before_its_invitation() -> None:
    """Both servers' challenge of an earlier task's round of this number: whoever knew it may have chosen by it."""
    client, found = session(), asyncio.Queue[int]()

    async def take_part(*_: Any) -> None:
        found.put_nowait(len(client._news))

    client._take_part_and_prove = take_part  # type: ignore[method-assign]
    inboxes: tuple[Inbox, Inbox] = (Waiting(), Waiting())
    for server, inbox in enumerate(inboxes):
        client._tell(server, aggregator_pb2.Challenge(round=0, challenge=CHALLENGE))
        told = whole_invitation(client, server, bytes(16))
        inbox.put(server, told)
        client._tell(server, told)
    answering = asyncio.create_task(client._answer([], inboxes))
    try:
        assert await asyncio.wait_for(found.get(), 30.0) == 0
    finally:
        answering.cancel()


@asynchronous
async def test_a_share_seed_is_held_by_no_frame_while_the_next_round_is_awaited() -> None:
    """Rule S4 at the client: with the seed, whoever reads its memory later learns the update from the holder's part."""
    client, ended, inboxes = session(), asyncio.Event(), (Waiting[Any](), Waiting[Any]())

    async def take_part(*_: Any) -> None:
        ended.set()

    client._take_part_and_prove = take_part  # type: ignore[method-assign]
    for server, inbox in enumerate(inboxes):
        inbox.put(server, whole_invitation(client, server, CHALLENGE))
    answering = asyncio.create_task(client._answer([], inboxes))
    try:
        await asyncio.wait_for(ended.wait(), 30.0)
        await asyncio.sleep(0.01)
        held, coroutine = list[Any](), answering.get_coro()
        while (frame := getattr(coroutine, "cr_frame", None)) is not None:
            held += frame.f_locals.values()
            coroutine = coroutine.cr_await  # type: ignore[union-attr]
        assert len(held) > 3
        assert not [value for value in held if isinstance(value, aggregator_pb2.Invitation)]
    finally:
        answering.cancel()


def whole_invitation(client: ClientSession, server: int, seed: bytes) -> aggregator_pb2.Invitation:
    """Return one server's to round 0, slot 0, of which A is the holder and B the seeded server."""
    told = invitation("new", 0)
    told.slot, told.dim, told.model_digest = 0, client.task.dim, bytes(32)
    told.mask_seed = seed if server else b""
    return told


@asynchronous
async def test_no_second_upload_is_made_in_a_round_whose_first_one_broke_off() -> None:
    """Bytes of the first may have left: another invitation to the round, with another seed, is not answered."""
    client, begun, inboxes = session(), asyncio.Queue[int](), (Waiting(), Waiting())

    async def breaks_off(stub: Any, upload: Any, ends_at: float) -> None:
        begun.put_nowait(upload.round)
        raise ProtocolError("the upload broke off")

    async def model(*_: Any) -> Any:
        return np.zeros(client.task.dim, dtype=np.float32)

    client._upload_and_prove, client._model = breaks_off, model  # type: ignore[method-assign]
    for seed in (bytes(16), CHALLENGE):
        for server, inbox in enumerate(inboxes):
            inbox.put(server, whole_invitation(client, server, seed))
    answering = asyncio.create_task(client._answer([None, None], inboxes))  # type: ignore[list-item]
    try:
        assert await asyncio.wait_for(begun.get(), 30.0) == 0
        while any(len(inbox) for inbox in inboxes):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert begun.empty()
        assert not answering.done()
    finally:
        answering.cancel()


@asynchronous
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize(("number", "costs"), [(7, 0), (0, 1)])
async def test_an_invitation_of_an_earlier_task_that_one_server_made_alone_costs_hardly_a_round_of_the_next(
    first: int, number: int, costs: int
) -> None:
    """Whoever invited is lost before the other does. A new task begins, with the same parameters. Where its first round
    has that number, the client finds that the invitations to it differ in task."""
    client, inboxes = session(), (Waiting[Any](), Waiting[Any]())
    inboxes[first].put(first, invitation("old", number))
    for t in range(9):
        for server in (1 - first, first):
            inboxes[server].put(server, invitation("new", t))
    if costs:
        differing = await asyncio.wait_for(client._invited_by_both(*inboxes), 30.0)
        assert {told.task for told in differing} == {"old", "new"}
    for t in range(costs, 9):
        both = await asyncio.wait_for(client._invited_by_both(*inboxes), 30.0)
        assert [(told.task, told.round) for told in both] == [("new", t)] * 2


@asynchronous
async def test_rounds_of_two_tasks_that_come_crosswise_end_in_common_rounds() -> None:
    """The servers begin anew at moments that lie far apart; a round or two may be lost, and no more."""
    client, inboxes = session(), (Waiting[Any](), Waiting[Any]())
    for server, task, t in [(0, "new", 0), (1, "old", 7), (0, "new", 1), (1, "new", 0), (1, "new", 1), (0, "new", 2)]:
        inboxes[server].put(server, invitation(task, t))
    inboxes[1].put(1, invitation("new", 2))
    found = [await asyncio.wait_for(client._invited_by_both(*inboxes), 30.0) for _ in range(2)]
    assert [[(told.task, told.round) for told in both] for both in found] == [[("new", t)] * 2 for t in (1, 2)]


@asynchronous
async def test_a_client_answers_both_servers_and_waits_for_none_once_another_round_begins() -> None:
    for told in (invitation("old", 6), invitation("new", 0), invitation("new", 5)):
        client, upload = session(), upload_of("old", 5)
        client._tell(0, aggregator_pb2.Challenge(round=5, challenge=CHALLENGE))
        client._tell(0, invitation("old", 5))
        client._tell(1, told)
        assert await asyncio.wait_for(client._proof(upload), 30.0) is None
        assert upload.heard == {0: CHALLENGE}
    client, upload = session(), upload_of("old", 5)
    for server in (0, 1):
        client._tell(server, aggregator_pb2.Challenge(round=4, challenge=bytes(16)))
        client._tell(server, aggregator_pb2.Challenge(round=5, challenge=CHALLENGE))
    assert await asyncio.wait_for(client._proof(upload), 30.0) == "proof"
    assert upload.heard == {0: CHALLENGE, 1: CHALLENGE}


@asynchronous
async def test_a_refused_upload_ends_once_nothing_is_computed_of_it() -> None:
    """Rule S4 at the client: no thread goes on with the update and its seed when the round is over for it."""
    client, began, may_end = session(), threading.Event(), threading.Event()
    ended = list[str]()

    async def submit(parts: Any) -> bytes:
        while not began.is_set():
            await asyncio.sleep(0.01)
        asyncio.get_running_loop().call_later(0.2, may_end.set)
        raise ProtocolError("refused")

    def prepare() -> None:
        began.set()
        assert may_end.wait(30)
        ended.append("prepare")

    upload: Any = SimpleNamespace(task="t", round=0, holder=0, parts=lambda: None, prepare=prepare)
    stubs: Any = [SimpleNamespace(Submit=submit)] * 2
    with pytest.raises(ProtocolError, match="refused"):
        await client._upload_and_prove(stubs, upload, time.monotonic() + 30)
    assert ended == ["prepare"]
