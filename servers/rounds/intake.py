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
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog

from precad.mpc.local.step import Words, WritableWords
from precad.mpc.prg import Label, Seed
from precad.mpc.ring import WORD_BYTES
from precad.mpc.sharing import ExpandedShare, Mode, Party
from precad.protos.messages import convert
from precad.protos.precad.v1 import common_pb2
from precad.protos.task.task import Task
from precad.servers.errors import RefusalReason, StoreError, SubmissionRefusedError
from precad.servers.rounds.uploads import MemoryPayload, Payload, Spool

log = structlog.get_logger(__name__)

PEER_LOCKED_GRACE_S = 2.0
"""How long uploads under way may still arrive after the other server has locked."""
STATEMENT_BYTES = 32
NO_BYTES_DIGEST = convert.sha256(b"")


@dataclass(frozen=True, slots=True, repr=False)
class _Upload:
    binding: bytes
    payload: Payload


class Intake:
    """Open from the invitation to the lock."""

    def __init__(
        self, *, task: Task, task_id: str, party: Party, round: int, chosen: Sequence[str], model_digest: bytes
    ) -> None:
        self._task, self._task_id, self._party, self.round = task, task_id, party, round
        self._slots = {client: slot for slot, client in enumerate(chosen)}
        self._expected = set(chosen)
        self._model_digest = model_digest
        self._started: set[str] = set()
        self._uploads: dict[str, _Upload] = {}
        self._mask_seeds: dict[str, Seed] = {}
        self._left: set[str] = set()
        self._receiving: set[asyncio.Timeout] = set()
        self._deadline: float | None = None
        self._closed = False
        self._changed = asyncio.Event()

    @property
    def _takes_relays(self) -> bool:
        return self._task.wire_mode is Mode.MASKED and self._party == 1

    @property
    def payload_bytes(self) -> int:
        """Exact length of an upload to this server."""
        return convert.upload_bytes(self._task.wire_mode, self._party, self._task.dim)

    @property
    def room_bytes(self) -> int:
        """Return the bytes that an upload may need here until the round is over. In the `shares` form its b is written
        in its place."""
        return WORD_BYTES * self._task.dim if self._task.wire_mode is Mode.SHARES else self.payload_bytes

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

    def require_open(self, client: str) -> None:
        """An upload of this client may begin: what can be said before a byte of it is read. Raises
        SubmissionRefusedError."""
        if self._takes_relays:
            raise SubmissionRefusedError(RefusalReason.WRONG_SERVER, "masked vectors go to server A alone")
        if self._closed:
            raise SubmissionRefusedError(RefusalReason.LATE, f"round {self.round} is locked")
        if client not in self._slots:
            raise SubmissionRefusedError(RefusalReason.NOT_CHOSEN, f"{client!r} is not in round {self.round}")
        if client in self._started:
            raise SubmissionRefusedError(RefusalReason.DUPLICATE, f"{client!r} has submitted in round {self.round}")

    def begin(self, client: str, binding: common_pb2.Binding, statement: bytes = b"", salt: bytes = b"") -> None:
        """Checks a submission's header before a byte of it is kept. Raises SubmissionRefusedError."""
        if binding.client != client:
            raise SubmissionRefusedError(RefusalReason.WRONG_CLIENT, f"the certificate is of {client!r}")
        if binding.round != self.round:
            raise SubmissionRefusedError(RefusalReason.WRONG_ROUND, f"expected {self.round}, got {binding.round}")
        self.require_open(client)
        self._require_expected(binding)
        is_masked = self._task.wire_mode is Mode.MASKED
        if len(statement) != (STATEMENT_BYTES if is_masked else 0):
            raise SubmissionRefusedError(
                RefusalReason.WRONG_BINDING, f"a statement has {STATEMENT_BYTES} bytes, and goes with a masked vector"
            )
        if len(salt) != (convert.SALT_BYTES if not is_masked and self._party == 1 else 0):
            raise SubmissionRefusedError(
                RefusalReason.WRONG_BINDING, f"a salt has {convert.SALT_BYTES} bytes, and goes with B's share alone"
            )
        self._started.add(client)

    def _require_expected(self, binding: common_pb2.Binding) -> None:
        expected = self._expected_binding(binding.client, (binding.digest_a, binding.digest_b))
        for descriptor in expected.DESCRIPTOR.fields:
            if getattr(binding, descriptor.name) != getattr(expected, descriptor.name):
                raise SubmissionRefusedError(RefusalReason.WRONG_BINDING, f"field {descriptor.name} differs")
        if len(binding.digest_a) != 32 or len(binding.digest_b) != 32:
            raise SubmissionRefusedError(RefusalReason.WRONG_BINDING, "digests have 32 bytes")

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

    @asynccontextmanager
    async def receiving(self, client: str, is_cut_off: Callable[[], bool] = lambda: False) -> AsyncIterator[None]:
        """Receive an upload, after `begin`, while the block runs; cut it off at the lock. Raises
        SubmissionRefusedError.

        A client whose upload is cut off, breaks off or is refused is not waited for any more.

        is_cut_off: whether others needed its place; then the client may begin again.
        """
        try:
            async with asyncio.timeout(None) as limit:
                self._receiving.add(limit)
                try:
                    yield
                finally:
                    self._receiving.discard(limit)
        except TimeoutError:
            raise SubmissionRefusedError(RefusalReason.LATE, f"round {self.round} is locked") from None
        finally:
            if is_cut_off() and client not in self._uploads:
                self._started.discard(client)
            else:
                self._no_longer_expected(client)

    def _no_longer_expected(self, client: str) -> None:
        self._expected.discard(client)
        self._changed.set()

    def finish(self, client: str, binding: common_pb2.Binding, payload: Payload, salt: bytes = b"") -> None:
        """Take and keep a complete upload. Raises SubmissionRefusedError; then the payload is still the caller's."""
        if self._closed:
            raise SubmissionRefusedError(RefusalReason.LATE, f"round {self.round} is locked")
        if len(payload) != self.payload_bytes:
            raise SubmissionRefusedError(
                RefusalReason.WRONG_LENGTH, f"expected {self.payload_bytes} bytes, got {len(payload)}"
            )
        digest, announced = payload.digest(), binding.digest_a
        if self._party == 1:
            digest, announced = convert.salted_digest(digest, salt), binding.digest_b
        if not hmac.compare_digest(digest, announced):
            raise SubmissionRefusedError(RefusalReason.WRONG_DIGEST, "the bytes do not have the announced digest")
        self._uploads[client] = _Upload(convert.binding_digest(binding), payload)
        self._no_longer_expected(client)

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
            self._uploads[client] = _Upload(digest, payload)
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
        for limit in self._receiving:
            limit.reschedule(now)
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
        if self._task.wire_mode is Mode.SHARES and self._party == 0:
            return ExpandedShare(Seed(payload[:]), self._label(client), self._task.dim)
        return payload.words(self._task.dim)

    def room(self, client: str) -> WritableWords:
        """Return a complete upload's room, (d,), for what is opened from it."""
        return self._uploads[client].payload.room(self._task.dim)


class RelayedUploads:
    """Server B: the masked vectors that come from A over the link, put together piece by piece."""

    def __init__(self, spool: Spool, n_bytes: int, deliver: Callable[[int, str, Payload, bytes], None]) -> None:
        """n_bytes: of every vector. deliver: takes (round, client, payload, statement); what was too long, or had no
        room, comes empty."""
        self._spool, self._n_bytes, self._deliver = spool, n_bytes, deliver
        self._payload: Payload | None = None
        self._whose: tuple[int, str] | None = None
        self._is_dropped = False

    def take(self, round: int, client: str, data: bytes, last: bool, statement: bytes) -> None:
        """The next piece. Vectors come one after the other; one without an end is dropped when another begins."""
        if self._whose != (round, client):
            self._drop()
            self._whose, self._is_dropped = (round, client), False
        if not self._is_dropped:
            self._append(client, data)
        if last:
            payload = MemoryPayload() if self._payload is None else self._payload
            self._payload = self._whose = None
            self._deliver(round, client, payload, statement)

    def close(self) -> None:
        """Drops a vector without an end; no more will come."""
        self._drop()

    def _append(self, client: str, data: bytes) -> None:
        try:
            self._payload = self._payload if self._payload is not None else self._spool.new(self._n_bytes)
            if len(self._payload) + len(data) > self._n_bytes:
                raise StoreError(f"expected {self._n_bytes} bytes, got more")
            self._payload.write(data)
        except StoreError as error:
            log.warning("relay.dropped", client=client, reason=str(error))
            self._drop()
            self._is_dropped = True

    def _drop(self) -> None:
        if self._payload is not None:
            self._payload.discard()
        self._payload = None
