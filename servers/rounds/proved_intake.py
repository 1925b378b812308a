"""One round of mode `proved` at one server: it takes uploads until the lock, then proofs until the query.

Each slot has a holder, which takes its bytes, and a seeded server, which hears of them by a relay without data. The
seeded server makes the binding itself, and counts what was sent if and only if the client's statement fits. A relay of
a slot that is held here changes nothing, and the first one of a slot decides (rule S6).

`ProofCheck.take_relay` has rule S6 for proofs once more, and both are needed. The rule here guards uploads, before
there is a check, and for whom a server waits in each phase. The check's guards what it opens, also for an audit's
relays, which come through no intake.

A holder refuses an element that is not below p while it takes it. One server alone would know of a refusal after the
lock.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from contextlib import contextmanager
from typing import Final, TypeAlias

from precad.mpc.errors import ProofRefusedError
from precad.mpc.prg import Label
from precad.mpc.proved.check import LockedUpload, ProofCheck
from precad.mpc.proved.field import ELEMENT_BYTES
from precad.mpc.proved.shares import PackedShare
from precad.mpc.proved.sizes import ProofSizes
from precad.mpc.proved.submission import (
    Binding,
    PayloadIntake,
    Relay,
    ShareSeeds,
    StatedBinding,
    holder_of,
    relay_of,
    require_stated,
    stated_digest,
)
from precad.mpc.sharing import Party
from precad.protos.messages import proved
from precad.protos.precad.v1 import common_pb2
from precad.servers.errors import RefusalReason, SubmissionRefusedError
from precad.servers.rounds.receiving import Header, Receiving, Taken, Upload, require
from precad.servers.rounds.transfers import Capacity
from precad.servers.rounds.uploads import Payload

UPLOADS: Final = 0
PROOFS: Final = 1
"""The phases of a round, as the link names them."""

Tell: TypeAlias = Callable[[int, Relay], None]
"""(phase, relay): tell the seeded server of what the holder has taken."""
ToldAll: TypeAlias = Callable[[], None]
"""Say that a holder awaits nothing more of this phase: the seeded server waits for what it was told last."""
Bind: TypeAlias = Callable[[str, bytes], Binding]
"""(client, payload digest) to the binding of this server's own task, round and model."""


class SlotIntake(Receiving):
    """One phase at one server."""

    without_slot: RefusalReason
    """The reason that a client without a slot in this phase is told."""

    def __init__(
        self,
        *,
        label: Label,
        party: Party,
        slots: Mapping[str, int],
        n_elements: int,
        timeout_s: float,
        capacity: Capacity,
        tell: Tell,
        told_all: ToldAll,
    ) -> None:
        """label: of the round. slots: by client. n_elements: of what a client sends to a holder."""
        super().__init__(round=label.round, clients=slots.keys(), timeout_s=timeout_s, capacity=capacity)
        self._label, self.party, self._slots = label, party, dict(slots)
        self._n_elements, self._tell, self._told_all = n_elements, tell, told_all
        self._awaited_here = {client for client in slots if self.is_held(client)}
        self._stated: dict[Upload, StatedBinding] = {}

    @property
    def _awaited(self) -> Set[str]:
        return self._awaited_here

    @property
    def payload_bytes(self) -> int:
        """Count 7 bytes for each element."""
        return ELEMENT_BYTES * self._n_elements

    def is_chosen(self, client: str) -> bool:
        """Return whether the client has a slot."""
        return client in self._slots

    def is_held(self, client: str) -> bool:
        """Return whether this server takes what the client sends."""
        return holder_of(self._slots[client]) == self.party

    def _is_relayed(self, client: str) -> bool:
        return client in self._slots and not self.is_held(client)

    def _require_open(self, client: str) -> None:
        require(not self._closed, RefusalReason.LATE, self.late)
        require(client in self._slots, self.without_slot, f"{client!r} has no slot in round {self.round}")
        require(self.is_held(client), RefusalReason.WRONG_SERVER, "the other server holds this slot")
        is_first = client not in self._started
        require(is_first, RefusalReason.DUPLICATE, f"{client!r} has sent one in round {self.round}")

    def _require_header(self, upload: Upload) -> None:
        stated = self._read(upload.binding, upload.statement, upload.salt)
        with _refusing():
            is_callers = stated.binding.client == upload.client
            require(is_callers, RefusalReason.WRONG_CLIENT, f"the certificate is of {upload.client!r}")
            self._require_open(upload.client)
            self._check_header(upload, stated)
        self._stated[upload] = stated

    def _room(self) -> Payload:
        return self._capacity.spool.new(self.payload_bytes)

    def _take(self, upload: Upload) -> None:
        payload, stated = self._require_whole(upload), self._stated[upload]
        with _refusing():
            self._keep(upload, stated, payload)
        self._uploads[upload.client] = Taken(stated.binding.digest(), payload)
        self._tell(self.phase, relay_of(stated))

    def _end(self, upload: Upload) -> None:
        self._stated.pop(upload, None)
        may_begin_again = upload.place.is_cut_off
        if not (upload.client in self._uploads or may_begin_again or self._closed):
            self._tell_of_none(upload.client)  # before `super` finds that all was told
        super()._end(upload)

    def _will_not_begin(self, client: str) -> None:
        if self.is_held(client):
            self._tell_of_none(client)
            self._is_not_awaited_here(client)

    def _no_longer_expected(self, client: str) -> None:
        super()._no_longer_expected(client)
        self._is_not_awaited_here(client)

    def _is_not_awaited_here(self, client: str) -> None:
        if client in self._awaited_here:
            self._awaited_here.discard(client)
            if not self._awaited_here:
                self._told_all()

    def _tell_of_none(self, client: str) -> None:
        """Say that nothing of a slot will come: a relay that fits no binding decides it. Without it, two servers that
        each refuse a client would wait for each other's word until the deadline."""
        self._tell(self.phase, Relay(self.round, client, b"", b""))

    def relay(self, relay: Relay) -> None:
        """Take the holder's word of a slot that is seeded here. One that is not of this phase changes nothing."""
        client = relay.client
        if self._closed or relay.round != self.round or client not in self._slots or self.is_held(client):
            return
        if self._counts(relay):
            self._no_longer_expected(client)

    @abstractmethod
    def _read(self, header: Header, statement: bytes, salt: bytes) -> StatedBinding:
        """Return a client's message as a value. Raises SubmissionRefusedError."""

    @abstractmethod
    def _check_header(self, upload: Upload, stated: StatedBinding) -> None:
        """Compare it with what is expected. Raises ProofRefusedError."""

    @abstractmethod
    def _keep(self, upload: Upload, stated: StatedBinding, payload: Payload) -> None:
        """Check the bytes, and take what is needed of them. Raises ProofRefusedError."""

    @abstractmethod
    def _counts(self, relay: Relay) -> bool:
        """Take the first relay of a slot, whether its statement fits or not. Return False for one to be dropped."""


class ProvedUploads(SlotIntake):
    """Uploads: open from the invitations to the lock."""

    phase = UPLOADS
    without_slot = RefusalReason.NOT_CHOSEN

    def __init__(
        self,
        *,
        label: Label,
        party: Party,
        slots: Mapping[str, int],
        sizes: ProofSizes,
        seeds: ShareSeeds,
        bind: Bind,
        timeout_s: float,
        capacity: Capacity,
        tell: Tell,
        told_all: ToldAll,
    ) -> None:
        """seeds: those that this server gave. bind: makes the binding that is expected."""
        super().__init__(
            label=label,
            party=party,
            slots=slots,
            n_elements=sizes.dim,
            timeout_s=timeout_s,
            capacity=capacity,
            tell=tell,
            told_all=told_all,
        )
        self._seeds, self._bind = seeds, bind
        self._checks: dict[Upload, PayloadIntake] = {}
        self._relayed: dict[str, bytes | None] = {}
        """The locked digest of each slot whose relay came; None where the statement did not fit."""

    @property
    def complete(self) -> frozenset[str]:
        """Return the clients whose upload is held here, or was relayed with a statement that fits."""
        return frozenset(self._bindings)

    @property
    def _bindings(self) -> dict[str, bytes]:
        held = {client: taken.binding for client, taken in self._uploads.items()}
        return held | {client: digest for client, digest in self._relayed.items() if digest is not None}

    def _read(self, header: Header, statement: bytes, salt: bytes) -> StatedBinding:
        assert isinstance(header, common_pb2.Binding)  # `Submit` has no other
        return StatedBinding(proved.binding_of(header), statement, salt)

    def _check_header(self, upload: Upload, stated: StatedBinding) -> None:
        assert isinstance(stated.binding, Binding)  # `_read` made it
        require_stated(stated, self._bind(upload.client, stated.binding.payload_digest))
        has_one_digest = isinstance(upload.binding, common_pb2.Binding) and not upload.binding.digest_b
        require(has_one_digest, RefusalReason.WRONG_BINDING, "field digest_b: expected none in mode 'proved'")
        check = self._checks[upload] = PayloadIntake(self._n_elements)

        def look_at(data: bytes) -> None:
            with _refusing():
                check.take(data)

        upload.check = look_at

    def _keep(self, upload: Upload, stated: StatedBinding, payload: Payload) -> None:
        assert isinstance(stated.binding, Binding)  # `_read` made it
        self._checks[upload].finish(stated.salt, stated.binding.payload_digest)

    def _end(self, upload: Upload) -> None:
        self._checks.pop(upload, None)
        super()._end(upload)

    def _counts(self, relay: Relay) -> bool:
        slot = self._slots[relay.client]
        if relay.client in self._relayed or (seed := self._seeds.given(slot)) is None:
            return False
        expected = self._bind(relay.client, relay.payload_digest)
        label = Label(self._label.task, self._label.round, str(slot))
        self._relayed[relay.client] = stated_digest(relay, expected, seed, label)
        return True

    def close(self) -> dict[str, bytes]:
        """See `Receiving.close`: held and relayed ones."""
        super().close()
        return self._bindings

    def locked(self, active: Collection[str]) -> dict[int, LockedUpload]:
        """Return the uploads that both servers have locked, by slot."""
        bindings, found = self._bindings, dict[int, LockedUpload]()
        for client in active:
            slot = self._slots[client]
            if self.is_held(client):
                share = PackedShare(self._uploads[client].payload, self._n_elements)
                found[slot] = LockedUpload(client, bindings[client], share)
            else:
                seed = self._seeds.given(slot)
                assert seed is not None  # its relay counted
                found[slot] = LockedUpload(client, bindings[client], seed)
        return found

    def forget(self) -> None:
        """See `Receiving.forget`."""
        super().forget()
        self._relayed.clear()
        self._seeds.forget()


class Proofs(SlotIntake):
    """Proofs: open from the challenge to the query. What counts is for `ProofCheck` to say (rules S2, S3)."""

    phase = PROOFS
    without_slot = RefusalReason.NOT_ACTIVE

    def __init__(
        self,
        *,
        label: Label,
        party: Party,
        slots: Mapping[str, int],
        sizes: ProofSizes,
        check: ProofCheck,
        timeout_s: float,
        capacity: Capacity,
        tell: Tell,
        told_all: ToldAll,
    ) -> None:
        """slots: of the active clients."""
        super().__init__(
            label=label,
            party=party,
            slots=slots,
            n_elements=sizes.proof_elements,
            timeout_s=timeout_s,
            capacity=capacity,
            tell=tell,
            told_all=told_all,
        )
        self._check = check
        self._relayed: dict[str, bool] = {}
        """Whether the relay of each slot counts, of those that came."""

    @property
    def complete(self) -> frozenset[str]:
        """Return the clients whose proof came here, or was relayed with a statement that fits."""
        return frozenset(self._uploads) | {client for client, counts in self._relayed.items() if counts}

    def _read(self, header: Header, statement: bytes, salt: bytes) -> StatedBinding:
        assert isinstance(header, common_pb2.ProofBinding)  # `Prove` has no other
        return StatedBinding(proved.proof_binding_of(header), statement, salt)

    def _check_header(self, upload: Upload, stated: StatedBinding) -> None:
        self._check.require_header(self._slots[upload.client], stated)

    def _keep(self, upload: Upload, stated: StatedBinding, payload: Payload) -> None:
        self._check.take_proof(self._slots[upload.client], stated, payload)  # it reads its share there

    def _counts(self, relay: Relay) -> bool:
        if relay.client in self._relayed:
            return False
        self._relayed[relay.client] = self._check.take_relay(self._slots[relay.client], relay)
        return True

    def stop(self) -> None:
        """End what is computed of these uploads ahead of the query."""
        self._check.stop()

    def forget(self) -> None:
        """See `Receiving.forget`."""
        super().forget()
        self._check.forget()


@contextmanager
def _refusing() -> Iterator[None]:
    """Turn a refusal of the protocol into that of a call. Raises SubmissionRefusedError."""
    try:
        yield
    except ProofRefusedError as error:
        detail = str(error).removeprefix(f"{error.reason}: ")
        raise SubmissionRefusedError(RefusalReason(error.reason), detail) from None
