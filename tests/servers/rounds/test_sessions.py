"""Which clients are registered, and what each of them is sent."""

from __future__ import annotations

import asyncio

import pytest

from precad.protos.precad.v1 import aggregator_pb2, common_pb2
from precad.servers.errors import AlreadyConnectedError, NotEnrolledError
from precad.servers.rounds.sessions import MAX_EVENTS, Sessions, events_of
from tests.harness.harness import asynchronous

INVITATION = aggregator_pb2.ClientEvent(invitation=aggregator_pb2.Invitation(round=3))
GOODBYE = common_pb2.Goodbye(finished=True, reason="done")


def test_only_enrolled_clients_enter_and_each_once() -> None:
    sessions = Sessions({"alice": 10, "bob": 11})
    sessions.enter("alice")
    with pytest.raises(NotEnrolledError, match="'mallory' is not enrolled"):
        sessions.enter("mallory")
    with pytest.raises(AlreadyConnectedError, match="'alice' has another open session"):
        sessions.enter("alice")
    assert sessions.connected == {"alice"}


def test_a_client_that_left_may_enter_again_and_starts_afresh() -> None:
    sessions = Sessions(["alice"])
    sessions.enter("alice")
    sessions.send("alice", INVITATION)
    sessions.leave("alice")
    assert not sessions.connected
    assert sessions.enter("alice").empty()


def test_the_absent_are_named_longest_first_and_no_more_than_a_few() -> None:
    """Since the start or since they left; the others are counted, whatever their number."""
    now = [0.0]
    sessions = Sessions([f"client-{i:05}" for i in range(10_000)], lambda: now[0])
    sessions.enter("client-00000")
    sessions.enter("client-00001")
    now[0] = 60.0
    sessions.leave("client-00001")
    assert sessions.absent() == tuple((f"client-{i:05}", 0.0) for i in range(2, 7))
    said = sessions.describe_absent()
    assert said.startswith("'client-00002' since 1970-01-01 00:00:00 UTC, ")
    assert said.endswith(" and 9994 more")
    assert len(said) < 300
    few = Sessions(["alice", "bob"], lambda: now[0])
    few.enter("bob")
    assert few.describe_absent() == "'alice' since 1970-01-01 00:01:00 UTC"


def test_events_reach_their_client_alone_and_nobody_who_is_gone() -> None:
    sessions = Sessions(["alice", "bob"])
    alice, bob = sessions.enter("alice"), sessions.enter("bob")
    sessions.send("alice", INVITATION)
    sessions.leave("bob")
    for gone in ("bob", "nobody"):
        with pytest.raises(KeyError):
            sessions.send(gone, INVITATION)
    assert alice.get_nowait() == INVITATION
    assert alice.empty()
    assert bob.empty()


def test_the_oldest_event_of_a_client_that_does_not_read_gives_way_to_the_newest() -> None:
    """Whoever reads again after many rounds finds the invitation to the one that is open, and the goodbye at last."""
    sessions = Sessions(["alice"])
    queue, n_rounds = sessions.enter("alice"), 3 * MAX_EVENTS
    for t in range(n_rounds):
        sessions.send("alice", aggregator_pb2.ClientEvent(invitation=aggregator_pb2.Invitation(round=t)))
    sessions.say_goodbye(GOODBYE)
    waiting = [queue.get_nowait() for _ in range(queue.qsize())]
    assert [event.invitation.round for event in waiting[:-1]] == list(range(n_rounds - MAX_EVENTS + 1, n_rounds))
    assert waiting[-1].goodbye == GOODBYE


@asynchronous
async def test_a_stream_ends_with_the_goodbye() -> None:
    """Everybody gets it, after what was queued before; nothing is read after it."""
    sessions = Sessions(["alice", "bob"])
    queues = [sessions.enter(client) for client in ("alice", "bob")]
    sessions.send("alice", INVITATION)
    sessions.say_goodbye(GOODBYE)
    sessions.send("alice", INVITATION)
    kinds = [[event.WhichOneof("event") async for event in events_of(queue)] for queue in queues]
    assert kinds == [["invitation", "goodbye"], ["goodbye"]]


@asynchronous
async def test_waiting_for_clients_to_come_and_to_go() -> None:
    sessions = Sessions(["alice", "bob"])
    coming = asyncio.create_task(sessions.wait_for(2))
    for client in ("alice", "bob"):
        await asyncio.sleep(0.01)
        assert not coming.done()
        sessions.enter(client)
        await sessions.notify()
    await asyncio.wait_for(coming, 20)
    going = asyncio.create_task(sessions.wait_until_gone())
    for client in ("alice", "bob"):
        await asyncio.sleep(0.01)
        assert not going.done()
        sessions.leave(client)
        await sessions.notify()
    await asyncio.wait_for(going, 20)
