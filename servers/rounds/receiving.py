"""Receiving clients' bytes of one phase of a round: who has a place, what is awaited, and when the phase is over.

Subclasses say what a mode takes from whom, and what it checks. `precad.servers.rounds.intake` is for the modes with a
dealer, `precad.servers.rounds.proved_intake` for uploads and proofs of mode `proved`.

A client has one try, unless its bytes were cut off to make room for others. An upload that is refused or broken after
its header leaves it out of this round, and nobody else. One whose header is refused may come again.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Set
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeAlias

from precad.protos.precad.v1 import common_pb2
from precad.servers.errors import NoRoomError, RefusalReason, StoreError, SubmissionRefusedError, WrongStateError
from precad.servers.rounds.transfers import Capacity, Place, Transfers
from precad.servers.rounds.uploads import Payload

PEER_LOCKED_GRACE_S = 2.0
"""How long uploads under way may still arrive after the other server has locked."""

Header: TypeAlias = common_pb2.Binding | common_pb2.ProofBinding


@dataclass(frozen=True, slots=True, repr=False)
class Taken:
    """Something that was taken whole."""

    binding: bytes
    """The digest of its binding."""
    payload: Payload


@dataclass(slots=True, eq=False, repr=False)
class Upload:
    """One upload while it comes in: `begin` once, then `write`. `Receiving.upload` makes and takes it."""

    client: str
    place: Place
    """Its `n_bytes` are the exact length."""
    until_lock: asyncio.Timeout
    start: Callable[[Upload], Payload]
    """Check the header and return room for the bytes."""
    binding: Header = field(default_factory=common_pb2.Binding)
    statement: bytes = b""
    salt: bytes = b""
    payload: Payload | None = None
    check: Callable[[bytes], None] = lambda data: None
    """Look at bytes before they are kept. Raises SubmissionRefusedError."""

    def begin(self, binding: Header, statement: bytes = b"", salt: bytes = b"") -> None:
        """Check the header before a byte is kept. Raises SubmissionRefusedError, StoreError."""
        self.binding, self.statement, self.salt = binding, statement, salt
        self.payload = self.start(self)

    def write(self, data: bytes) -> None:
        """Append bytes. Raises SubmissionRefusedError before there is one too many, StoreError."""
        assert self.payload is not None  # `begin` comes first
        expected = self.place.n_bytes
        fits = len(self.payload) + len(data) <= expected
        require(fits, RefusalReason.WRONG_LENGTH, f"payload: expected {expected} bytes, found more")
        self.check(data)
        self.payload.write(data)
        self.place.n_moved = len(self.payload)


class Receiving(ABC):
    """Open until `close`. For the event loop."""

    phase = 0
    """A round has one or two. A turn of an earlier phase says nothing of who has had one in this."""

    def __init__(self, *, round: int, clients: Collection[str], timeout_s: float, capacity: Capacity) -> None:
        """clients: who may send something. timeout_s: how long they are waited for. capacity: of the server, for all
        its rounds."""
        self.round = round
        self._capacity, self._timeout_s = capacity, timeout_s
        self._expected = set(clients)
        self._started: set[str] = set()
        self._uploads: dict[str, Taken] = {}
        self._gone: set[str] = set()
        self._receiving: set[Upload] = set()
        self._downloads: set[asyncio.Timeout] = set()
        self.bytes_received = 0
        """Sum over the uploads that came to their end, headers included."""
        self._deadline: float | None = None
        self._closed = False
        self._changed = asyncio.Event()

    @property
    @abstractmethod
    def payload_bytes(self) -> int:
        """Return the exact length of an upload to this server."""

    @property
    @abstractmethod
    def complete(self) -> frozenset[str]:
        """Return the clients of whom this server has all that it will need."""

    @abstractmethod
    def is_chosen(self, client: str) -> bool:
        """Return whether the client may take part."""

    @abstractmethod
    def _is_relayed(self, client: str) -> bool:
        """Return whether the other server takes what this client sends, and tells us of it."""

    @abstractmethod
    def _require_open(self, client: str) -> None:
        """Refuse what can be refused before a byte is read. Raises SubmissionRefusedError."""

    @abstractmethod
    def _require_header(self, upload: Upload) -> None:
        """Check everything that comes before the bytes. Raises SubmissionRefusedError."""

    @abstractmethod
    def _room(self) -> Payload:
        """Return room for the bytes of one. Raises StoreError."""

    @abstractmethod
    def _take(self, upload: Upload) -> None:
        """Keep a complete upload, and tell the other server. Raises SubmissionRefusedError."""

    @property
    def late(self) -> str:
        """Say why nothing of this phase is taken any more."""
        return f"round {self.round} is locked"

    @property
    def n_receiving(self) -> int:
        """Count the uploads that are coming in."""
        return len(self._receiving)

    @property
    def _awaited(self) -> Set[str]:
        """Return the clients who may still end what they send here."""
        return self._expected

    @property
    def n_waiting(self) -> int:
        """Count the clients whose upload may still begin here."""
        awaited = self._awaited
        return len(awaited) - sum(upload.client in awaited for upload in self._receiving)

    @property
    def left_s(self) -> float:
        """Return the seconds until this phase is over; infinite before it is waited for."""
        if self._deadline is None:
            return float("inf")
        return max(0.0, self._deadline - asyncio.get_running_loop().time())

    @asynccontextmanager
    async def download(self, client: str, n_bytes: int) -> AsyncIterator[Place]:
        """Give a place to the client's download of the model, and cut it off at the lock: it is of no use any more.

        A client that does not read would otherwise keep this round's model, and its tuples.
        Raises OverloadedError, WrongStateError.
        """
        if self._closed:
            raise WrongStateError(self.late)
        async with self._place(self._capacity.downloads, client, n_bytes) as place:
            try:
                async with asyncio.timeout(None) as until_lock:
                    self._downloads.add(until_lock)
                    yield place
            except TimeoutError:
                raise WrongStateError(self.late) from None
            finally:
                self._downloads.discard(until_lock)

    def _place(
        self, transfers: Transfers, client: str, n_bytes: int
    ) -> AbstractAsyncContextManager[Place, bool | None]:
        turns = self.round, self.phase
        return transfers.place(client, n_bytes, round=turns, n_waiting=self.n_waiting, left_s=self.left_s)

    @asynccontextmanager
    async def upload(self, client: str) -> AsyncIterator[Upload]:
        """Admit one upload, and take it when the block has written all of it. Cut it off at the lock.

        However the block ends, the place is given back, and so is the room of an upload that does not count. After
        `begin`, a client whose upload is cut off, breaks off or is refused is not waited for any more. Only one that
        made room for others may begin again.

        Raises: SubmissionRefusedError, OverloadedError.
        """
        self._require_open(client)
        async with self._place(self._capacity.uploads, client, self.payload_bytes) as place:
            upload = Upload(client, place, asyncio.timeout(None), self._start)
            try:
                async with upload.until_lock:
                    yield upload
                    self._take(upload)
            except TimeoutError:
                raise SubmissionRefusedError(RefusalReason.LATE, self.late) from None
            except StoreError as error:
                raise NoRoomError(str(error)) from None
            finally:
                if upload in self._receiving:
                    self._end(upload)

    def _start(self, upload: Upload) -> Payload:
        """Check the header of an upload, and return room for its bytes. Raises SubmissionRefusedError, StoreError."""
        self._require_header(upload)
        self._started.add(upload.client)
        self._receiving.add(upload)
        return self._room()

    def _require_whole(self, upload: Upload) -> Payload:
        """Count the bytes that came. Return the payload, in time and of its exact length. Raises
        SubmissionRefusedError."""
        payload = upload.payload
        assert payload is not None  # the block began it
        self.bytes_received += len(payload) + upload.binding.ByteSize() + len(upload.statement) + len(upload.salt)
        require(not self._closed, RefusalReason.LATE, self.late)
        lengths = f"payload: expected {self.payload_bytes} bytes, found {len(payload)}"
        require(len(payload) == self.payload_bytes, RefusalReason.WRONG_LENGTH, lengths)
        return payload

    def _end(self, upload: Upload) -> None:
        """Let go of an upload that began, whether it counts or not."""
        self._receiving.discard(upload)
        taken = self._uploads.get(upload.client)
        if upload.payload is not None and (taken is None or taken.payload is not upload.payload):
            upload.payload.discard()
        if upload.place.is_cut_off and taken is None:
            self._started.discard(upload.client)
        else:
            self._no_longer_expected(upload.client)
        upload.statement = upload.salt = b""

    def _will_not_begin(self, client: str) -> None:
        """Hear that a client was not invited here."""
        return  # in the modes with a dealer, the other server waits for nobody alone

    def _no_longer_expected(self, client: str) -> None:
        self._expected.discard(client)
        self._wake()

    def _wake(self) -> None:
        """Have `wait` look again, where it may find that the phase is over: once for many clients."""
        if self._expected <= self._gone:
            self._changed.set()

    async def wait(self, *, invited: Collection[str], peer_locked: asyncio.Event, holds: bool = False) -> None:
        """Return when no invited client is expected any more (complete, refused, or gone), and at the deadline at the
        latest.

        Return shortly after the other server has locked, at once where all that is awaited comes from it. There, an
        upload of a client that is gone may still come, but is not waited for long.
        holds: return at the deadline alone. Whoever asks meanwhile would tell an earlier end, and so who was slow.
        """
        for client in sorted(self._expected.difference(invited)):
            self._will_not_begin(client)
        self._expected.intersection_update(invited)
        loop = asyncio.get_running_loop()
        self._deadline = loop.time() + self._timeout_s
        if holds:
            await asyncio.sleep(self._timeout_s)
            return
        peer = asyncio.ensure_future(peer_locked.wait())
        peer.add_done_callback(lambda _: self._changed.set())
        try:
            while self._expected:
                if peer_locked.is_set():
                    self._expected = {client for client in self._expected if not self._is_relayed(client)}
                    if not self._expected:
                        return
                if peer_locked.is_set() or self._expected <= self._gone:
                    self._deadline = min(self._deadline, loop.time() + PEER_LOCKED_GRACE_S)
                if self._deadline <= loop.time():
                    return
                self._changed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(self._deadline):
                        await self._changed.wait()
        finally:
            peer.cancel()

    def hung_up(self, client: str) -> None:
        """Note that the client's session has ended: it is not invited to this round again, even if it comes back.

        The other server may have its upload all the same, and be about to relay it.
        """
        if self._is_relayed(client):
            self._gone.add(client)
            self._wake()
        else:
            self._no_longer_expected(client)

    def close(self) -> dict[str, bytes]:
        """Take no upload from now on, and end all downloads. Return binding digests of complete uploads, by client."""
        self._closed = True
        now = asyncio.get_running_loop().time()
        for limit in (*(upload.until_lock for upload in self._receiving), *self._downloads):
            if limit.when() is None:  # else it was closed before, and this one is still on its way out
                limit.reschedule(now)
        return {client: upload.binding for client, upload in self._uploads.items()}

    def forget(self) -> None:
        """Drop the uploads, which have been used."""
        for upload in self._uploads.values():
            upload.payload.discard()
        self._uploads.clear()


def require(holds: bool, reason: RefusalReason, detail: str) -> None:
    """Raise SubmissionRefusedError unless it holds."""
    if not holds:
        raise SubmissionRefusedError(reason, detail)
