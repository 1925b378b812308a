"""The link in mode `proved`, whose rounds have two phases, and a peer that names others than the one in flight.

Failure means a relay that reaches a phase before or after its own, or data where none is relayed. Or a peer closes the
intake of proofs before this server has closed that of uploads.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from precad.mpc.errors import MalformedMessageError, PeerMismatchError
from precad.mpc.proved.submission import Relay
from precad.protos.precad.v1 import common_pb2, peer_pb2
from precad.servers.links.peer import MAX_MESSAGE_BYTES, PeerLink
from precad.servers.links.words import WORDS_AT_ONCE, WORDS_WAIT_S
from tests.harness.harness import asynchronous, until

GOODBYE = peer_pb2.PeerMessage(goodbye=common_pb2.Goodbye(finished=True))


def closed(t: int, phase: int) -> peer_pb2.PeerMessage:
    return peer_pb2.PeerMessage(closed=peer_pb2.Closed(round=t, phase=phase))


def relay(t: int, phase: int, **changed: Any) -> peer_pb2.PeerMessage:
    return peer_pb2.PeerMessage(
        relay=peer_pb2.Relay(round=t, phase=phase, client="alice", digest=bytes(32), statement=bytes(32), **changed)
    )


def relays(*messages: peer_pb2.PeerMessage) -> peer_pb2.PeerMessage:
    return peer_pb2.PeerMessage(relays=peer_pb2.Relays(relays=[message.relay for message in messages]))


class Ours:
    """This server's end, in round 3, with what the peer says to it."""

    def __init__(self) -> None:
        self.inbox: asyncio.Queue[peer_pb2.PeerMessage] = asyncio.Queue()
        self.words: list[tuple[int, Relay]] = []
        self.sent: list[peer_pb2.PeerMessage] = []
        self.link = PeerLink(0, self._send, self.inbox.get)
        self.link.begin(3, n_phases=2)
        self.link.on_word = lambda phase, word: self.words.append((phase, word))

    async def _send(self, message: peer_pb2.PeerMessage) -> None:
        self.sent.append(message)

    def tell(self, *clients: str, phase: int = 0) -> None:
        """Hand over a word of each client."""
        for client in clients:
            self.link.tell(phase, Relay(3, client, bytes(32), bytes(32)))

    @property
    def told(self) -> list[list[str]]:
        """Return the clients of each message of relays that has left."""
        return [[one.client for one in message.relays.relays] for message in self.sent if message.HasField("relays")]

    async def hears(self, *said: peer_pb2.PeerMessage) -> None:
        """Let the peer say all of it, and then goodbye. Raises what ends the link."""
        for message in (*said, GOODBYE):
            self.inbox.put_nowait(message)
        await self.link.run()


@asynchronous
async def test_each_phase_comes_after_the_one_before() -> None:
    ours = Ours()
    await ours.hears(relay(3, 0), closed(3, 0))
    assert [phase for phase, _ in ours.words] == [0]
    ours = Ours()
    ours.link.close_round(3, 0)
    await ours.hears(relay(3, 0), closed(3, 0), relay(3, 1), closed(3, 1))
    assert [phase for phase, _ in ours.words] == [0, 1]
    await until(lambda: ours.link.closed_by_peer(3, 1).is_set())


@asynchronous
async def test_relays_in_one_message_are_taken_in_their_order() -> None:
    ours = Ours()
    ours.link.close_round(3, 0)
    await ours.hears(relays(relay(3, 0), relay(3, 0)), closed(3, 0), relays(relay(3, 1)))
    assert [phase for phase, _ in ours.words] == [0, 0, 1]


@asynchronous
async def test_many_relays_with_one_of_another_phase_end_the_link_there() -> None:
    ours = Ours()
    ours.link.close_round(3, 0)
    with pytest.raises(MalformedMessageError):
        await ours.hears(relays(relay(3, 0), relay(3, 1), relay(3, 0)))
    assert [phase for phase, _ in ours.words] == [0]


@asynchronous
async def test_modes_with_a_dealer_take_no_relays_in_one_message() -> None:
    """Nor does a server there that takes relays, one by one."""
    ours, taken = Ours(), list[str]()
    ours.link.begin(3)
    ours.link.on_relay = lambda t, client, *_: taken.append(client)
    with pytest.raises(PeerMismatchError):
        await ours.hears(relay(3, 0), relays(relay(3, 0)))
    assert taken == ["alice"]


@asynchronous
async def test_words_leave_together_before_the_close_of_their_phase() -> None:
    """And at once when they are all, or after a while: who waits for the last one waits no longer for it."""
    ours = Ours()
    running = asyncio.create_task(ours.link.run())
    ours.tell("alice", "bob")
    ours.link.close_round(3, 0)
    await ours.link.flush()
    assert [message.WhichOneof("message") for message in ours.sent] == ["relays", "closed"]
    assert ours.told == [["alice", "bob"]]
    ours.tell("alice", phase=1)
    ours.link.send_words()
    ours.tell("bob", phase=1)
    await until(lambda: len(ours.told) == 3)  # nobody closes or flushes here
    assert ours.told[1:] == [["alice"], ["bob"]]
    ours.tell("carol", phase=1)
    await ours.link.say_goodbye(common_pb2.Goodbye(finished=True), 5.0)
    assert ours.told[3:] == [["carol"]]
    assert ours.sent[-1].HasField("goodbye")
    ours.tell("dora", phase=1)
    await asyncio.sleep(2 * WORDS_WAIT_S)
    assert len(ours.told) == 4
    running.cancel()


@asynchronous
async def test_many_words_leave_in_messages_that_the_other_end_takes() -> None:
    ours, name = Ours(), "c" * 63
    running = asyncio.create_task(ours.link.run())
    ours.tell(*[name] * (2 * WORDS_AT_ONCE + 1))
    await ours.link.flush()
    assert [len(told) for told in ours.told] == [WORDS_AT_ONCE, WORDS_AT_ONCE, 1]
    assert max(message.ByteSize() for message in ours.sent) < MAX_MESSAGE_BYTES / 10
    running.cancel()


@asynchronous
async def test_words_of_a_link_that_has_ended_do_not_leave() -> None:
    ours = Ours()
    running = asyncio.create_task(ours.link.run())
    await asyncio.sleep(0)
    ours.tell("alice")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    ours.tell("bob")
    await asyncio.sleep(2 * WORDS_WAIT_S)
    assert ours.sent == []
    assert ours.link._outbox.empty()


@pytest.mark.parametrize(
    ("said", "n_closed_by_us"),
    [
        pytest.param([closed(3, 1)], 1, id="proofs closed first"),
        pytest.param([closed(3, 0), closed(3, 1)], 0, id="proofs closed before our uploads"),
        pytest.param([closed(3, 0), relay(3, 1)], 0, id="proof before our uploads are closed"),
        pytest.param([relay(3, 1)], 1, id="proof before its uploads are closed"),
        pytest.param([closed(3, 0), relay(3, 0)], 1, id="upload after its close"),
        pytest.param([closed(3, 0), closed(3, 0)], 1, id="closed twice"),
        pytest.param([closed(3, 0), closed(3, 1), relay(3, 1)], 2, id="proof after its close"),
        pytest.param([closed(3, 0), closed(3, 1), relay(4, 0)], 1, id="next round before our proofs are closed"),
        pytest.param([closed(3, 0), relay(4, 0)], 2, id="next round without this one's proofs"),
        pytest.param([closed(3, 2)], 2, id="a third phase"),
        pytest.param([relay(2, 0)], 0, id="round before"),
        pytest.param([relay(3, 0, data=b"x")], 0, id="data"),
        pytest.param([relay(3, 0, last=True)], 0, id="last piece"),
        pytest.param([relay(3, 0, data=bytes(MAX_MESSAGE_BYTES))], 0, id="too long"),
        pytest.param([relays()], 0, id="no relay in many"),
        pytest.param([relays(*[relay(3, 0)] * (WORDS_AT_ONCE + 1))], 0, id="too many"),
        pytest.param([relays(relay(3, 1), relay(3, 0))], 0, id="proof before our uploads are closed, in many"),
        pytest.param([closed(3, 0), relays(relay(3, 0))], 1, id="upload after its close, in many"),
        pytest.param([relays(relay(3, 0, data=b"x"))], 0, id="data in many"),
        pytest.param([relays(relay(3, 0, data=bytes(MAX_MESSAGE_BYTES)))], 0, id="too long, in many"),
    ],
)
@asynchronous
async def test_what_is_not_of_the_phase_in_flight_ends_the_link(
    said: list[peer_pb2.PeerMessage], n_closed_by_us: int
) -> None:
    ours = Ours()
    for phase in range(n_closed_by_us):
        ours.link.close_round(3, phase)
    with pytest.raises(MalformedMessageError):
        await ours.hears(*said)
    assert not ours.words


@asynchronous
async def test_events_of_phases_that_are_over_are_forgotten() -> None:
    ours = Ours()
    for t in range(3, 50):
        for phase in (0, 1):
            ours.link.closed_by_peer(t, phase)
            ours.link.close_round(t, phase)
    assert len(ours.link._closed_by_peer) == 1
