"""One round's uploads at one server: who may submit what, and when the round has all that it will get.

A submission is bound to its task, round, client, model and content. It is taken at most once, at its exact length. A
client has one try per round, unless its upload was cut off to make room for others. A refused or broken upload leaves
it out of this round, and nobody else. In the `masked` form server A receives the masked vector. A hands it to the link
to B before it counts as complete, so it arrives before the lock that covers it. With it comes the client's statement to
B, made with B's half of the mask seed. So a vector that A (or the way) changed, or made, is not active. B sees no call
of the client; A's close of the round tells it that no more will come.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from precad.mpc.local.step import Words, WritableWords
from precad.mpc.parameters import Mode
from precad.mpc.prg import Label, Seed
from precad.mpc.ring import WORD_BYTES
from precad.mpc.sharing import ExpandedShare, Party
from precad.protos.messages import convert
from precad.protos.precad.v1 import common_pb2
from precad.protos.task.task import Task
from precad.servers.errors import NoRoomError, RefusalReason, StoreError, SubmissionRefusedError
from precad.servers.rounds.transfers import Capacity, Place, Transfers
from precad.servers.rounds.uploads import Payload

PEER_LOCKED_GRACE_S = 2.0
"""How long uploads under way may still arrive after the other server has locked."""
STATEMENT_BYTES = 32
NO_BYTES_DIGEST = convert.sha256(b"")


Relay: TypeAlias = Callable[[int, str, Payload, bytes], None]
"""(round, client, payload, statement): pass a masked vector on to server B."""


@dataclass(frozen=True, slots=True, repr=False)
class _Taken:
    binding: bytes
    payload: Payload


@dataclass(slots=True, eq=False, repr=False)
class Upload:
    """One upload while it comes in: `begin` once, then `write`. `Intake.upload` makes it, and takes it at the end."""

    client: str
    place: Place
    """Its `n_bytes` are the exact length."""
    until_lock: asyncio.Timeout
    start: Callable[[Upload], Payload]
    """Check the header and return room for the bytes."""
    binding: common_pb2.Binding = field(default_factory=common_pb2.Binding)
    statement: bytes = b""
    salt: bytes = b""
    payload: Payload | None = None

    def begin(self, binding: common_pb2.Binding, statement: bytes = b"", salt: bytes = b"") -> None:
        """Check the header before a byte is kept. Raises SubmissionRefusedError, StoreError."""
        self.binding, self.statement, self.salt = binding, statement, salt
        self.payload = self.start(self)

    def write(self, data: bytes) -> None:
        """Append bytes. Raises SubmissionRefusedError before there is one too many, StoreError."""
        assert self.payload is not None  # `begin` comes first
        expected = self.place.n_bytes
        fits = len(self.payload) + len(data) <= expected
        _require(fits, RefusalReason.WRONG_LENGTH, f"expected {expected} bytes, got more")
        self.payload.write(data)
        self.place.n_moved = len(self.payload)


class Intake:
    """Open from the invitation to the lock."""

    def __init__(
        self,
        *,
        task: Task,
        task_id: str,
        party: Party,
        round: int,
        chosen: Sequence[str],
        model_digest: bytes,
        capacity: Capacity,
        relay: Relay | None = None,
    ) -> None:
        """capacity: of the server, for all its rounds. relay: server A's, `masked` form; each upload taken goes on."""
        self._task, self._task_id, self.party, self.round = task, task_id, party, round
        self._capacity, self._relay = capacity, relay
        self._slots = {client: slot for slot, client in enumerate(chosen)}
        self._expected = set(chosen)
        self._model_digest = model_digest
        self._started: set[str] = set()
        self._uploads: dict[str, _Taken] = {}
        self._mask_seeds: dict[str, Seed] = {}
        self._left: set[str] = set()
        self._receiving: set[Upload] = set()
        self.bytes_received = 0
        """Sum over the uploads that came to their end, headers included."""
        self._deadline: float | None = None
        self._closed = False
        self._changed = asyncio.Event()

    @property
    def _takes_relays(self) -> bool:
        return self._task.wire_mode is Mode.MASKED and self.party == 1

    @property
    def payload_bytes(self) -> int:
        """Exact length of an upload to this server."""
        return convert.upload_bytes(self._task.wire_mode, self.party, self._task.dim)

    @property
    def complete(self) -> frozenset[str]:
        """Clients whose upload this server holds whole."""
        return frozenset(self._uploads)

    @property
    def n_receiving(self) -> int:
        """Uploads that are coming in."""
        return len(self._receiving)

    @property
    def n_waiting(self) -> int:
        """Clients whose upload may still begin."""
        return len(self._expected) - len(self._receiving)

    @property
    def left_s(self) -> float:
        """Seconds until this round's uploads are over; infinite before they are waited for."""
        if self._deadline is None:
            return float("inf")
        return max(0.0, self._deadline - asyncio.get_running_loop().time())

    def is_chosen(self, client: str) -> bool:
        """Return whether the client was drawn for this round."""
        return client in self._slots

    def download(self, client: str, n_bytes: int) -> AbstractAsyncContextManager[Place, bool | None]:
        """Return a place for the client's download of the model. Raises OverloadedError when entered."""
        return self._place(self._capacity.downloads, client, n_bytes)

    def _place(
        self, transfers: Transfers, client: str, n_bytes: int
    ) -> AbstractAsyncContextManager[Place, bool | None]:
        return transfers.place(client, n_bytes, round=self.round, n_waiting=self.n_waiting, left_s=self.left_s)

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
                raise SubmissionRefusedError(RefusalReason.LATE, f"round {self.round} is locked") from None
            except StoreError as error:
                raise NoRoomError(str(error)) from None
            finally:
                if upload in self._receiving:
                    self._end(upload)

    def _require_open(self, client: str) -> None:
        """Refuse what can be refused before a byte is read. Raises SubmissionRefusedError."""
        _require(not self._takes_relays, RefusalReason.WRONG_SERVER, "masked vectors go to server A alone")
        _require(not self._closed, RefusalReason.LATE, f"round {self.round} is locked")
        _require(client in self._slots, RefusalReason.NOT_CHOSEN, f"{client!r} is not in round {self.round}")
        is_first = client not in self._started
        _require(is_first, RefusalReason.DUPLICATE, f"{client!r} has submitted in round {self.round}")

    def _start(self, upload: Upload) -> Payload:
        """Check the header of an upload, and return room for its bytes. Raises SubmissionRefusedError, StoreError."""
        binding = upload.binding
        is_callers, is_now = binding.client == upload.client, binding.round == self.round
        _require(is_callers, RefusalReason.WRONG_CLIENT, f"the certificate is of {upload.client!r}")
        _require(is_now, RefusalReason.WRONG_ROUND, f"expected {self.round}, got {binding.round}")
        self._require_open(upload.client)
        self._require_expected(binding)
        is_masked = self._task.wire_mode is Mode.MASKED
        fits = len(upload.statement) == (STATEMENT_BYTES if is_masked else 0)
        rule = f"a statement has {STATEMENT_BYTES} bytes, and goes with a masked vector"
        _require(fits, RefusalReason.WRONG_BINDING, rule)
        fits = len(upload.salt) == (convert.SALT_BYTES if not is_masked and self.party == 1 else 0)
        rule = f"a salt has {convert.SALT_BYTES} bytes, and goes with B's share alone"
        _require(fits, RefusalReason.WRONG_BINDING, rule)
        self._started.add(upload.client)
        self._receiving.add(upload)
        # In the `shares` form, the b that is opened from it is written in its place.
        return self._capacity.spool.new(self.payload_bytes if is_masked else WORD_BYTES * self._task.dim)

    def _require_expected(self, binding: common_pb2.Binding) -> None:
        expected = self._expected_binding(binding.client, (binding.digest_a, binding.digest_b))
        for descriptor in expected.DESCRIPTOR.fields:
            is_equal = getattr(binding, descriptor.name) == getattr(expected, descriptor.name)
            _require(is_equal, RefusalReason.WRONG_BINDING, f"field {descriptor.name} differs")
        lengths = (len(binding.digest_a), len(binding.digest_b))
        _require(lengths == (32, 32), RefusalReason.WRONG_BINDING, "digests have 32 bytes")

    def _expected_binding(self, client: str, digests: tuple[bytes, bytes]) -> common_pb2.Binding:
        return convert.binding(
            task=self._task,
            task_id=self._task_id,
            round=self.round,
            client=client,
            model_digest=self._model_digest,
            digests=digests,
        )

    def _label(self, client: str) -> Label:
        return Label(self._task_id, self.round, str(self._slots[client]))

    def _take(self, upload: Upload) -> None:
        """Keep a complete upload, and pass it on. Raises SubmissionRefusedError."""
        payload, binding = upload.payload, upload.binding
        assert payload is not None  # the block began it
        self.bytes_received += len(payload) + binding.ByteSize() + len(upload.statement) + len(upload.salt)
        _require(not self._closed, RefusalReason.LATE, f"round {self.round} is locked")
        lengths = f"expected {self.payload_bytes} bytes, got {len(payload)}"
        _require(len(payload) == self.payload_bytes, RefusalReason.WRONG_LENGTH, lengths)
        digest, announced = payload.digest(), binding.digest_a
        if self.party == 1:
            digest, announced = convert.salted_digest(digest, upload.salt), binding.digest_b
        is_announced = hmac.compare_digest(digest, announced)
        _require(is_announced, RefusalReason.WRONG_DIGEST, "the bytes do not have the announced digest")
        self._uploads[upload.client] = _Taken(convert.binding_digest(binding), payload)
        if self._relay is not None:
            self._relay(self.round, upload.client, payload, upload.statement)

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

    def _no_longer_expected(self, client: str) -> None:
        self._expected.discard(client)
        self._changed.set()

    def await_relays(self, mask_seeds: Mapping[str, Seed]) -> None:
        """Server B, `masked` form: who may upload, and the seeds that only they and we have, which sign for them."""
        self._mask_seeds = dict(mask_seeds)

    def relay(self, round: int, client: str, payload: Payload, statement: bytes) -> None:
        """Take a masked vector from server A. What belongs to another round or client, comes twice, or is not what its
        client states, is dropped."""
        if round != self.round or self._closed or client not in self._mask_seeds:
            payload.discard()
            return
        binding = self._expected_binding(client, (payload.digest(), NO_BYTES_DIGEST))
        digest, label = convert.binding_digest(binding), self._label(client)
        expected = convert.statement(self._mask_seeds.pop(client), label, digest)
        n_bytes = convert.upload_bytes(Mode.MASKED, 0, self._task.dim)
        if len(payload) == n_bytes and hmac.compare_digest(statement, expected):
            self._uploads[client] = _Taken(digest, payload)
        else:
            payload.discard()
        self._no_longer_expected(client)

    async def wait(self, *, invited: Collection[str], peer_locked: asyncio.Event) -> None:
        """Return when no invited client is expected any more (complete, refused, or gone), and at the deadline at the
        latest.

        Return shortly after the other server has locked, at once where all uploads come from it. There, an upload of a
        client that is gone may still come, but is not waited for long.
        """
        self._expected.intersection_update(invited)
        loop = asyncio.get_running_loop()
        deadline = self._deadline = loop.time() + self._task.submit_timeout_s
        while self._expected:
            if peer_locked.is_set() and self._takes_relays:
                return
            if peer_locked.is_set() or self._expected <= self._left:
                deadline = min(deadline, loop.time() + PEER_LOCKED_GRACE_S)
            remaining = deadline - loop.time()
            if remaining <= 0:
                return
            self._changed.clear()
            waits = [asyncio.ensure_future(self._changed.wait())]
            if not peer_locked.is_set():
                waits.append(asyncio.ensure_future(peer_locked.wait()))
            try:
                await asyncio.wait(waits, timeout=remaining, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()

    def left(self, client: str) -> None:
        """The client's session has ended; it is not invited to this round again, even if it comes back. Server A may
        have its upload all the same, and be about to relay it."""
        if self._takes_relays:
            self._left.add(client)
            self._changed.set()
        else:
            self._no_longer_expected(client)

    def close(self) -> dict[str, bytes]:
        """No upload is taken from now on. The binding digests of the complete ones, by client."""
        self._closed = True
        now = asyncio.get_running_loop().time()
        for upload in self._receiving:
            upload.until_lock.reschedule(now)
        return {client: upload.binding for client, upload in self._uploads.items()}

    def forget(self) -> None:
        """Drops the uploads, which have been used. (The error of a refused call may keep the intake itself a while.)"""
        for upload in self._uploads.values():
            upload.payload.discard()
        self._uploads.clear()
        self._mask_seeds.clear()

    def vector(self, client: str) -> Words:
        """Return a complete upload as ring elements, (d,): b in the `masked` form, our share, to be read once, in
        `shares`."""
        payload = self._uploads[client].payload
        if self._task.wire_mode is Mode.SHARES and self.party == 0:
            return ExpandedShare(Seed(payload[:]), self._label(client), self._task.dim)
        return payload.words(self._task.dim)

    def room(self, client: str) -> WritableWords:
        """Return a complete upload's room, (d,), for what is opened from it."""
        return self._uploads[client].payload.room(self._task.dim)


def _require(holds: bool, reason: RefusalReason, detail: str) -> None:
    """Raise SubmissionRefusedError unless it holds."""
    if not holds:
        raise SubmissionRefusedError(reason, detail)
