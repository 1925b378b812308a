"""Reasons that another server gives for the end of a task, which ours passes on to clients and operators.

Failure means a text that a terminal obeys, or one that is too long for a client's event.
"""

from __future__ import annotations

import asyncio

import pytest

from precad.clients.upload.events import MOST_EVENT_BYTES
from precad.mpc.errors import PeerMismatchError
from precad.protos.messages.spoken import LONGEST_REASON, shown
from precad.protos.precad.v1 import aggregator_pb2, common_pb2, peer_pb2
from precad.protos.tls.identity import Role
from precad.servers.errors import PeerUnreachableError
from precad.servers.links.peer import PeerLink
from precad.servers.task.run import _stays, public_reason
from tests.harness.harness import asynchronous

OBEYED = "\x1b]0;owned\x07\x1b[2J\r\nprecad: all is well\u202e"
LONG = OBEYED + "x" * 900_000


async def heard(message: peer_pb2.PeerMessage) -> Exception:
    """Return what ends our side of a link in mode `proved` on which the other server says this before any round."""
    inbox: asyncio.Queue[peer_pb2.PeerMessage] = asyncio.Queue()

    async def send(_: peer_pb2.PeerMessage) -> None:
        raise AssertionError("nothing was handed over")

    link = PeerLink(0, send, inbox.get)
    link.begin(0, n_phases=2)
    inbox.put_nowait(message)
    with pytest.raises((PeerUnreachableError, PeerMismatchError)) as ended:
        await _stays(link)
    return ended.value


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(peer_pb2.PeerMessage(goodbye=common_pb2.Goodbye(reason=LONG)), id="goodbye"),
        pytest.param(
            peer_pb2.PeerMessage(relay=peer_pb2.Relay(client=LONG, digest=bytes(32), statement=bytes(32))), id="relay"
        ),
    ],
)
@asynchronous
async def test_what_ends_a_link_is_passed_on_short_and_printable(message: peer_pb2.PeerMessage) -> None:
    reason = public_reason(Role.AGGREGATOR_A, await heard(message))
    assert reason.isprintable()
    event = aggregator_pb2.ClientEvent(goodbye=common_pb2.Goodbye(reason=reason))
    assert event.ByteSize() < MOST_EVENT_BYTES / 10


def test_printable_text_is_passed_on_as_it_is() -> None:
    text = "the disk is full: größer als 3 GB [red]"
    assert shown(text) == text
    assert shown(OBEYED) == "?]0;owned??[2J??precad: all is well?"
    assert len(shown(LONG, LONGEST_REASON)) == LONGEST_REASON
