"""The seam between a two-party protocol and its transport.

A protocol step calls `exchange(label, payload)`: it sends our bytes and returns the peer's bytes of the same step. The
order of labels depends on public values alone, so the parties cannot fall out of step unless one of them is wrong. A
label that differs is a PeerMismatchError, never a wrong value. A step that is too long for memory is exchanged in
pieces, `exchange_pieces`; it is one step all the same.

What a step can need is known before it: the peer's payload is at most as long as ours, or as the step says
(`at_most`). A peer that announces more is refused before memory is taken for it.

`precad.servers.links.lane` implements it over TLS; `memory_pair` is its in-process twin for tests and simulation.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from precad.mpc.errors import ChannelClosedError, MalformedMessageError, PeerMismatchError
from precad.mpc.sharing import Party

T = TypeVar("T")

PIECE_BYTES = 1 << 20
"""At most, of a step in pieces."""


class Channel(Protocol):
    """One party's end."""

    @property
    def party(self) -> Party:
        """Return which end this is: 0 for server A, 1 for server B."""

    def exchange(self, label: str, payload: bytes, at_most: int | None = None) -> bytes:
        """Send `payload` and return the peer's payload of the step with the same label.

        at_most: bytes of the peer's payload; as many as ours where it is None. A transport refuses a longer one before
        it takes memory for it. A caller that needs an exact length checks it.
        Raises: PeerMismatchError, ChannelClosedError, MalformedMessageError.
        """

    def exchange_pieces(self, label: str, pieces: Iterable[bytes], at_most: int | None = None) -> Iterator[bytes]:
        """Send our payload in pieces, in their order, and yield the peer's, as many, in theirs.

        Both parties cut alike, at most PIECE_BYTES each. Our i-th piece is taken before the peer's i-th is yielded, and
        only a few pieces earlier than that. So neither side ever holds the whole. Read it to its end.
        at_most: bytes of a piece of the peer's; as many as ours in the same place where it is None.
        Raises: PeerMismatchError, ChannelClosedError, MalformedMessageError.
        """


def require_at_most(label: str, n_bytes: int, limit: int) -> None:
    """Refuse a payload of the peer's, announced or received, that is longer than its step can need.

    Raises MalformedMessageError.
    """
    if n_bytes > limit:
        raise MalformedMessageError(f"step {label!r}: expected at most {limit} bytes, found {n_bytes}")


def exchange_alike(channel: Channel, label: str, payload: bytes) -> bytes:
    """Do `Channel.exchange` in a step in which both parties send the same number of bytes.

    Raises: MalformedMessageError when the peer's payload has another length; PeerMismatchError, ChannelClosedError.
    """
    received = channel.exchange(label, payload)
    if len(received) != len(payload):
        raise MalformedMessageError(f"step {label!r}: expected {len(payload)} bytes, found {len(received)}")
    return received


class Prefixed:
    """A channel under a name, such as a task's round: the peer's step must be of the same."""

    def __init__(self, inner: Channel, prefix: str) -> None:
        self._inner, self._prefix, self.party = inner, prefix, inner.party

    def exchange(self, label: str, payload: bytes, at_most: int | None = None) -> bytes:
        """See `Channel.exchange`."""
        return self._inner.exchange(f"{self._prefix}/{label}", payload, at_most)

    def exchange_pieces(self, label: str, pieces: Iterable[bytes], at_most: int | None = None) -> Iterator[bytes]:
        """See `Channel.exchange_pieces`."""
        return self._inner.exchange_pieces(f"{self._prefix}/{label}", pieces, at_most)


class MemoryChannel:
    """One end of an in-process pair. Counts what a transport would count. No payload is announced before it is there,
    so none is refused but by an explicit `at_most`."""

    def __init__(self, party: Party, inbox: queue.Queue[tuple[str, bytes] | None]) -> None:
        self.party: Party = party
        self._inbox = inbox
        self._peer: MemoryChannel | None = None
        self._closed = threading.Event()
        self.bytes_sent = 0
        self.rounds = 0

    def exchange(self, label: str, payload: bytes, at_most: int | None = None) -> bytes:
        """See `Channel.exchange`."""
        return self._swap(label, payload, at_most, n_rounds=1)

    def exchange_pieces(self, label: str, pieces: Iterable[bytes], at_most: int | None = None) -> Iterator[bytes]:
        """See `Channel.exchange_pieces`."""
        for i, piece in enumerate(pieces):
            yield self._swap(label, piece, at_most, n_rounds=0 if i else 1)

    def _swap(self, label: str, payload: bytes, at_most: int | None, *, n_rounds: int) -> bytes:
        assert self._peer is not None  # memory_pair joined both ends before handing them out
        if self._closed.is_set():
            raise ChannelClosedError(f"the channel is closed, at step {label!r}")
        self._peer._inbox.put((label, payload))
        self.bytes_sent += len(payload)
        self.rounds += n_rounds
        message = self._inbox.get()
        if message is None:
            self._inbox.put(None)  # it stays closed
            raise ChannelClosedError(f"the peer closed the channel, at step {label!r}")
        peers_label, received = message
        if peers_label != label:
            raise PeerMismatchError("protocol step", ours=label, peers=peers_label)
        if at_most is not None:
            require_at_most(label, len(received), at_most)
        return received

    def close(self) -> None:
        """Wake the peer, which then raises ChannelClosedError."""
        self._closed.set()
        if self._peer is not None:
            self._peer._inbox.put(None)


def memory_pair() -> tuple[MemoryChannel, MemoryChannel]:
    """Return two joined ends, parties 0 and 1."""
    a: MemoryChannel = MemoryChannel(0, queue.Queue())
    b: MemoryChannel = MemoryChannel(1, queue.Queue())
    a._peer, b._peer = b, a
    return a, b


def run_pair(program: Callable[[MemoryChannel], T]) -> tuple[T, T]:
    """Run `program` as party 0 and as party 1, each in its own thread; their results in that order.

    When one party raises, the other is woken, and the error that came first is raised.
    """
    first_error: list[BaseException] = []

    def run(channel: MemoryChannel) -> T:
        try:
            return program(channel)
        except BaseException as error:
            first_error.append(error)
            raise
        finally:
            channel.close()

    with ThreadPoolExecutor(max_workers=2, thread_name_prefix="party") as pool:
        futures = [pool.submit(run, channel) for channel in memory_pair()]
        try:
            return futures[0].result(), futures[1].result()
        except BaseException as error:  # noqa: BLE001 - re-raised as the error that came first
            raise (first_error or [error])[0] from None
