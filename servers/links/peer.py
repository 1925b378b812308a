"""The link between the two aggregators: one ordered gRPC stream for the whole task.

It carries what is not MPC: hello, the word that a server has closed a round's intake, and goodbye. With a dealer, A
relays uploads to B by it. In mode `proved` each server relays what it has taken, without data.

One task of the link writes to it, a whole message sequence at a time. So relays of two clients never mix, and no
handler of a client's call can break the stream. Whatever was handed to the link before a round is closed arrives before
the word of that. The steps of MPC have a connection of their own (`precad.servers.links.lane`).

A peer may deviate. Each of its messages is of the first round that it has not closed yet. It comes to no round before
we have closed the one before. Whatever else it names ends the link. Who reads the stream holds a few messages. A peer
that does not read ours loses the link after a while.

The link lives on the event loop.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeAlias

import grpc

from precad.mpc.errors import MalformedMessageError, PeerMismatchError, raised_as
from precad.mpc.proved.submission import Relay
from precad.mpc.sharing import Party
from precad.protos.messages import convert, proved
from precad.protos.messages.spoken import LONGEST_REFUSAL, shown
from precad.protos.messages.undecoded import decoded, stub_of_bytes
from precad.protos.precad.v1 import common_pb2, peer_pb2
from precad.protos.tls.identity import AGGREGATORS, Role
from precad.protos.tls.transport import explain, require_not_cancelled
from precad.servers.errors import PeerUnreachableError, TaskRefusedError
from precad.servers.links.step_limits import SLOWEST_LINE_BYTES_S
from precad.servers.links.words import WORDS_AT_ONCE, Words
from precad.servers.supervision import first_error_or_result

Send: TypeAlias = Callable[[peer_pb2.PeerMessage], Awaitable[None]]
Receive: TypeAlias = Callable[[], Awaitable[peer_pb2.PeerMessage | None]]
"""The next message, or None at the end of the stream. Raises TaskRefusedError for what is no message."""
Phase: TypeAlias = tuple[int, int]
"""(round, phase): what both servers close, in order. Mode `proved` has two phases a round, the others one."""
OnWord: TypeAlias = Callable[[int, Relay], None]
"""(phase, relay): word of an upload or a proof of mode `proved`, without data."""
OnRelay: TypeAlias = Callable[[int, str, bytes, bool, bytes], None]
"""(round, client, next piece of its masked vector, whether it is the last, then the client's statement). Clients'
pieces never mix."""

_SERVICE = peer_pb2.DESCRIPTOR.services_by_name["Peer"]
RETRY_S = 0.2
MAX_MESSAGE_BYTES = convert.CHUNK_BYTES + 1024
"""Limit on every message: a piece of an upload, with its client's name and statement."""
WORTH_ASKING_AGAIN = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.INTERNAL,  # a refusal while we still write can show so; asked again, the server says more
        grpc.StatusCode.ALREADY_EXISTS,  # B has not noticed yet that our last link broke
        grpc.StatusCode.CANCELLED,  # B hung up: it is stopping, or has lost the dealer in the meantime
        grpc.StatusCode.OK,
    }
)
"""Before a link stands."""


class PeerLink:
    """One server's end. `run` must be running for anything to leave or arrive."""

    def __init__(self, party: Party, send: Send, receive: Receive) -> None:
        self.party: Party = party
        self._peer = AGGREGATORS[1 - party]
        self._send, self._receive = send, receive
        self._outbox: asyncio.Queue[Iterator[peer_pb2.PeerMessage]] = asyncio.Queue()
        self._closed_by_peer: dict[Phase, asyncio.Event] = {}
        self._has_ended = self._is_mute = self._is_leaving = False
        self._sending: asyncio.Task[None] | None = None
        self._open: Phase = (0, 0)
        self._peers_open: Phase = (0, 0)
        self._n_phases, self._patience_s = 1, math.inf
        self.on_relay: OnRelay = _refuse_relay
        self.on_word: OnWord = _refuse_word
        self._words = Words(self._hand_over)
        self.bytes_sent = 0

    def begin(self, round: int, patience_s: float = math.inf, *, n_phases: int = 1) -> None:
        """Set, before `run`, the first round of this meeting and how many phases a round has.

        patience_s: how long the peer may let what we send lie.
        """
        self._open = self._peers_open = (round, 0)
        self._patience_s, self._n_phases = patience_s, n_phases

    def _after(self, phase: Phase) -> Phase:
        """Return the pair that is closed next."""
        return (phase[0], phase[1] + 1) if phase[1] + 1 < self._n_phases else (phase[0] + 1, 0)

    async def run(self) -> common_pb2.Goodbye:
        """Send what is handed over and take in messages until the peer says goodbye, which is returned.

        What is handed over still leaves then, up to our own goodbye.

        Raises:
        - PeerUnreachableError when the stream ends without one, or the peer reads nothing of it for too long
        - PeerMismatchError on messages that do not belong here
        - MalformedMessageError on messages that no round can need
        - TaskRefusedError on a message that does not parse
        - what reading a relay raises: nothing leaves behind a message that has not left, so a round would wait for ever
        """
        self._sending = asyncio.create_task(self._send_outbox())
        try:
            return await first_error_or_result(self._take_in(), guards=(self._sending,))
        except BaseException:
            self._fall_silent()
            raise
        finally:
            self._has_ended = True
            for event in self._closed_by_peer.values():
                event.set()

    def _fall_silent(self) -> None:
        """Nothing can leave any more, and `say_goodbye` need not wait for it."""
        self._is_mute = True
        self._words.drop()
        if self._sending is not None:
            self._sending.cancel()
        while not self._outbox.empty():
            self._outbox.get_nowait()
            self._outbox.task_done()

    async def _send_outbox(self) -> None:
        now = asyncio.get_running_loop().time
        deadline = now() + self._patience_s
        while True:
            was_idle = self._outbox.empty()
            messages = await self._outbox.get()
            if was_idle:
                deadline = now() + self._patience_s
            try:
                for message in messages:
                    deadline += message.ByteSize() / SLOWEST_LINE_BYTES_S
                    await self._send_by(deadline, message)
            except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError):
                self._is_mute = True  # the reading side hears of the end, and says so
            finally:
                self._outbox.task_done()

    async def _send_by(self, deadline: float, message: peer_pb2.PeerMessage) -> None:
        """deadline: for all that waits, and goes out in a row. Raises PeerUnreachableError."""
        try:
            async with asyncio.timeout_at(None if deadline == math.inf else deadline):
                await self._send(message)
        except TimeoutError:
            raise PeerUnreachableError(
                f"the link: expected {self._peer} to read what waited, within {self._patience_s:g} s and "
                f"at {SLOWEST_LINE_BYTES_S} bytes a second, found {self.bytes_sent} bytes read since the servers met"
            ) from None
        self.bytes_sent += message.ByteSize()

    async def _take_in(self) -> common_pb2.Goodbye:
        while (message := await self._receive()) is not None:
            _require_short(message.ByteSize())
            match message.WhichOneof("message"):
                case "closed":
                    closed = (message.closed.round, message.closed.phase)
                    self._require_in_flight("closed", closed)
                    self._peers_open = self._after(closed)
                    self.closed_by_peer(*closed).set()
                case "relay":
                    relay = message.relay
                    self._require_in_flight("relay", (relay.round, relay.phase))
                    self._take_relay(relay)
                case "relays" if self._n_phases > 1:
                    self._take_relays(message.relays.relays)
                case "goodbye":
                    return message.goodbye
                case other:
                    raise PeerMismatchError("message on the link", ours="closed, relay or goodbye", peers=other)
        raise PeerUnreachableError("the other aggregator closed the link without a goodbye")

    def _take_relay(self, relay: peer_pb2.Relay) -> None:
        """Hand on what the peer relayed. Raises MalformedMessageError for data where none is relayed."""
        if self._n_phases == 1:
            self.on_relay(relay.round, relay.client, relay.data, relay.last, relay.statement)
        elif relay.data or relay.last:
            raise MalformedMessageError(f"relay of {self._peer}: expected no data, found {len(relay.data)} bytes")
        else:
            self.on_word(relay.phase, proved.relay_of(relay))

    def _take_relays(self, relays: Sequence[peer_pb2.Relay]) -> None:
        """Take one after the other, while all else waits. Raises MalformedMessageError, as for each alone, and for none
        or too many."""
        if not 0 < len(relays) <= WORDS_AT_ONCE:
            raise MalformedMessageError(f"relays of {self._peer}: expected 1 to {WORDS_AT_ONCE}, found {len(relays)}")
        for relay in relays:
            self._require_in_flight("relay", (relay.round, relay.phase))
            self._take_relay(relay)

    def _require_in_flight(self, kind: str, found: Phase) -> None:
        """The peer closes a phase after the other, and comes to none before we have closed the one before. Raises
        MalformedMessageError."""
        if not found == self._peers_open <= self._open:
            due = self._described(self._peers_open)
            expected = due if self._peers_open <= self._open else "none before we close ours"
            raise MalformedMessageError(f"{kind} of {self._peer}: expected {expected}, found {self._described(found)}")

    def _described(self, phase: Phase) -> str:
        return f"round {phase[0]}" + (f", phase {phase[1]}" if phase[1] or self._n_phases > 1 else "")

    async def greet(self, hello: common_pb2.Hello) -> None:
        """Send the first message of the answering side, before `run`."""
        await self._send(peer_pb2.PeerMessage(hello=hello))

    def close_round(self, round: int, phase: int = 0) -> None:
        """Tell the peer that this server waits for no more uploads of the round, or proofs in the phase 1."""
        self._words.send()
        self._hand_over(peer_pb2.PeerMessage(closed=peer_pb2.Closed(round=round, phase=phase)))
        self._open = self._after((round, phase))
        self._closed_by_peer = {key: event for key, event in self._closed_by_peer.items() if key >= (round, phase)}

    def closed_by_peer(self, round: int, phase: int = 0) -> asyncio.Event:
        """Set once the peer has closed this intake of the round, or the link has ended."""
        event = self._closed_by_peer.setdefault((round, phase), asyncio.Event())
        if self._has_ended:
            event.set()
        return event

    def relay(self, round: int, client: str, payload: convert.Bytes, statement: bytes) -> None:
        """Hand a masked upload over for the other server; it arrives before the close of its round.

        It is read, piece by piece, when its turn comes. After our goodbye it is dropped.
        """
        if not self._is_leaving:
            self._outbox.put_nowait(_relay_messages(round, client, payload, statement))

    def tell(self, phase: int, relay: Relay) -> None:
        """Hand over word of what this server holds, mode `proved`; it arrives before the close of its phase."""
        if not (self._is_leaving or self._is_mute):
            self._words.add(proved.relay_message(phase, relay))

    def send_words(self) -> None:
        """Let the words leave that wait for others (`precad.servers.links.words`)."""
        self._words.send()

    def _hand_over(self, message: peer_pb2.PeerMessage) -> None:
        self._outbox.put_nowait(iter([message]))

    async def flush(self) -> None:
        """Return when everything handed over so far has left, and is counted, or cannot leave any more."""
        self._words.send()
        await self._outbox.join()

    async def say_goodbye(self, goodbye: common_pb2.Goodbye, timeout_s: float) -> None:
        """Send the last message; return when it has left, or cannot any more."""
        self._is_leaving = True
        if not self._is_mute:
            self._words.send()
            self._hand_over(peer_pb2.PeerMessage(goodbye=goodbye))
            await asyncio.wait((asyncio.ensure_future(self._outbox.join()),), timeout=timeout_s)
        self._fall_silent()


async def dial_peer(
    stack: AsyncExitStack,
    dial: Callable[[], grpc.aio.Channel],
    hello: common_pb2.Hello,
    address: str,
    timeout_s: float,
    certificate: Path | None = None,
) -> tuple[PeerLink, common_pb2.Hello]:
    """Return server A's end of the link, which lasts as long as the stack, and B's hello.

    Tries again while nobody answers.

    dial: a new channel for each attempt, since certificates may be renewed meanwhile. certificate: the file of ours.

    Raises: PeerUnreachableError, TaskRefusedError when B refuses us or sends what is no message.
    """
    why = "nobody answered"
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                async with AsyncExitStack() as attempt:
                    channel = await attempt.enter_async_context(dial())
                    call = stub_of_bytes(channel, _SERVICE).Link()
                    try:
                        await call.write(peer_pb2.PeerMessage(hello=hello))
                        first = await call.read()
                        if first is not grpc.aio.EOF and _decoded(first).WhichOneof("message") == "hello":
                            stack.push_async_exit(attempt.pop_all())
                            return PeerLink(0, call.write, _reader(call)), _decoded(first).hello
                        code, why = await call.code(), await call.details() or "it hung up"
                    except grpc.aio.AioRpcError as error:
                        code, why = error.code(), explain(error, Role.AGGREGATOR_B, address, certificate)
                why = shown(why, LONGEST_REFUSAL)
                if code not in WORTH_ASKING_AGAIN:
                    raise TaskRefusedError(f"aggregator B refused the link: {why}")
                require_not_cancelled()
                await asyncio.sleep(RETRY_S)
    except TimeoutError:
        raise PeerUnreachableError(f"no link within {round(timeout_s, 1):g} s: {why}") from None


def _reader(call: grpc.aio.StreamStreamCall[Any, Any]) -> Receive:
    """Return the call's messages, and None at its end, however it ends."""

    async def receive() -> peer_pb2.PeerMessage | None:
        try:
            data: Any = await call.read()
        except (grpc.aio.AioRpcError, asyncio.CancelledError):
            require_not_cancelled()  # the call may have been, not we
            return None
        if data is grpc.aio.EOF:
            return None
        _require_short(len(data))
        return _decoded(data)

    return receive


def _require_short(n_bytes: int) -> None:
    """Raise MalformedMessageError for a message that is longer than any of ours."""
    if n_bytes > MAX_MESSAGE_BYTES:
        raise MalformedMessageError(f"message on the link: expected at most {MAX_MESSAGE_BYTES} bytes, found {n_bytes}")


def _decoded(data: bytes | Any) -> peer_pb2.PeerMessage:
    """Raises TaskRefusedError."""
    with raised_as(TaskRefusedError, MalformedMessageError):
        _require_short(len(data))
        return decoded(peer_pb2.PeerMessage, data, Role.AGGREGATOR_B)


def _relay_messages(
    round: int, client: str, payload: convert.Bytes, statement: bytes
) -> Iterator[peer_pb2.PeerMessage]:
    for data, is_last in _with_last(payload):
        said = statement if is_last else b""
        relay = {"round": round, "client": client, "data": data, "last": is_last, "statement": said}
        yield peer_pb2.PeerMessage(relay=relay)  # by its fields, as `convert.chunk`


def _with_last(payload: convert.Bytes) -> Iterator[tuple[bytes, bool]]:
    end = 0
    for piece in convert.pieces(payload):
        end += len(piece)
        yield piece, end == len(payload)


def _refuse_relay(round: int, client: str, data: bytes, last: bool, statement: bytes) -> None:
    raise PeerMismatchError("message on the link", ours="no relay", peers=f"a relay in round {round}")


def _refuse_word(phase: int, relay: Relay) -> None:
    raise PeerMismatchError("message on the link", ours="no relay", peers=f"a relay in round {relay.round}")
