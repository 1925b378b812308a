"""One round's proofs at one server, from the lock to the accepted sum, without the wire.

A server opens its shares only of a proof that was made for its own challenge, the binding that it locked and its own
sizes. It does so once, at one pair of points. Both are rules whose absence would give a linear function of an update:
S2 and S3 of docs/reference/protocol-v2.md, section 12. The steps are those of its sections 7 to 9.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from precad.mpc.errors import MalformedMessageError, ParameterError, ProofQueriedTwiceError, ProofRefusedError
from precad.mpc.local.engines import CPU
from precad.mpc.local.rows import RowStreams
from precad.mpc.local.step import Engine
from precad.mpc.prg import Label, Seed
from precad.mpc.proved import verifier
from precad.mpc.proved.field import FieldArray
from precad.mpc.proved.query import Query
from precad.mpc.proved.shares import Bytes, HeldBytes, PackedShare, Share, seeded_proof_share, seeded_share
from precad.mpc.proved.sizes import ProofSizes
from precad.mpc.proved.submission import (
    DIGEST_BYTES,
    PayloadIntake,
    ProofBinding,
    Relay,
    StatedBinding,
    holder_of,
    relay_of,
    require_stated,
    stated_digest,
)
from precad.mpc.proved.sums import add_shares, row_sums, wire_sums
from precad.mpc.sharing import Party


@dataclass(frozen=True, slots=True)
class LockedUpload:
    """An upload that both servers have locked, as one of them has it."""

    client: str
    binding_digest: bytes
    share: PackedShare | Seed = field(repr=False)
    """The holder's share, or the seed of the seeded server's."""


@dataclass(frozen=True, slots=True, repr=False)
class _Taken:
    """A proof that fits, and this server's share of it."""

    digest: bytes
    share: Share
    """At its start: bytes in memory or on disk at the holder, a key at the seeded server, until it is opened."""


class ProofCheck:
    """The proofs of one round. Slots are handled in rising order.

    One check serves a challenge at a server, so no second object opens what this one has opened (S3). Raises
    ProofQueriedTwiceError for a challenge that has its check. Raises ParameterError for an upload of which this server
    has the other server's kind of share.
    """

    def __init__(
        self, party: Party, label: Label, sizes: ProofSizes, challenge: Seed, locked: Mapping[int, LockedUpload]
    ) -> None:
        self._party, self._challenge = party, challenge
        self.label, self.sizes = label, sizes
        """The round's; both are public."""
        self._locked = dict(sorted(locked.items()))
        for slot, upload in self._locked.items():
            if isinstance(upload.share, Seed) is self._is_held(slot):
                kind = "holder" if self._is_held(slot) else "seeded server"
                raise ParameterError(f"slot {slot}: expected the share of its {kind}")
        if not challenge.claim(f"check {party}"):
            raise ProofQueriedTwiceError("challenge: expected one check of a round's proofs, found a second")
        self._taken: dict[int, _Taken] = {}
        self._bound: set[int] = set()
        self._relayed: set[int] = set()
        self._is_open = True
        self._is_stopped = False
        self._room: FieldArray | None = None
        self._shares: dict[int, Share] = {}
        self._rows: dict[int, FieldArray] = {}
        self._query: Query | None = None
        self._opened: dict[int, FieldArray] | None = None
        self._verdicts: dict[int, bool] | None = None
        self._sum: FieldArray | None = None

    def take_proof(self, slot: int, proof: StatedBinding, payload: Bytes | bytes) -> Relay:
        """Take a proof as the holder, and return what the seeded server is to be told.

        slot: that of the caller's certificate, whatever the message says. payload: stays where it is, to be read again
        by `open`.

        Raises ProofRefusedError, in the protocol's order: `late`, `not_active`, `wrong_server`, `duplicate`,
        `wrong_client`, `wrong_binding`, `wrong_challenge`, `wrong_length`, `malformed`, `wrong_digest`.
        """
        binding = self.require_header(slot, proof)
        self._bound.add(slot)
        intake = PayloadIntake(self.sizes.proof_elements)
        intake.require_length(len(payload))
        held = HeldBytes(payload) if isinstance(payload, bytes) else payload
        whole = bytearray(len(held))
        held.read_into(0, memoryview(whole))
        intake.take(bytes(whole))
        intake.finish(proof.salt, binding.proof_digest)
        self._taken[slot] = _Taken(binding.digest(), PackedShare(held, self.sizes.proof_elements))
        return relay_of(proof)

    def require_header(self, slot: int, proof: StatedBinding) -> ProofBinding:
        """Return the binding of a proof that this server would take, before its payload is read.

        Raises ProofRefusedError, as `take_proof`.
        """
        binding = proof.binding
        self._require_open(slot)
        if not isinstance(binding, ProofBinding):
            raise ProofRefusedError("wrong_binding", "binding: expected that of a proof, found that of an upload")
        require_stated(proof, self._expected(slot, binding.proof_digest))
        return binding

    def take_relay(self, slot: int, relay: Relay) -> bool:
        """Take a relay as the seeded server, and tell whether the proof counts.

        The first relay of a slot decides. One that is not of this round, slot and client changes nothing, nor does one
        of a slot that is held here (rule S6). What is opened rests on this alone, whoever passes relays on.
        """
        upload = self._locked.get(slot)
        if not self._is_open or slot in self._relayed or upload is None or not isinstance(upload.share, Seed):
            return False
        if (relay.round, relay.client) != (self.label.round, upload.client):
            return False
        self._relayed.add(slot)
        digest = stated_digest(relay, self._expected(slot, relay.payload_digest), upload.share, self._slot_label(slot))
        if digest is None:
            return False
        self._taken[slot] = _Taken(digest, seeded_proof_share(upload.share, self._slot_label(slot)))
        return True

    def close(self) -> list[bytes]:
        """Take no proof from now on. Return the digests of the proofs per active slot, zeros where there is none."""
        self._is_open = False
        missing = bytes(DIGEST_BYTES)
        return [self._taken[slot].digest if slot in self._taken else missing for slot in self._locked]

    def proved(self, peers_digests: Sequence[bytes]) -> dict[int, bytes]:
        """Return the proof binding digests of the slots on which both servers agree. Closes.

        Raises MalformedMessageError for a list of another length.
        """
        ours = self.close()
        if [len(digest) for digest in peers_digests] != [DIGEST_BYTES] * len(ours):
            raise MalformedMessageError(f"proofs: expected {len(ours)} digests of {DIGEST_BYTES} bytes")
        pairs = zip(self._locked, ours, peers_digests, strict=True)
        return {slot: a for slot, a, b in pairs if hmac.compare_digest(a, b) and any(a)}

    def project(self, engine: Engine = CPU) -> None:
        """Compute the row values of every locked upload ahead of `open`, which computes what is missing.

        They depend on the challenge alone, stay at this server, and are most of the check: time that clients need for
        their proofs anyway. Takes the room of the sum too. Raises as `row_sums`.
        """
        self._project([slot for slot in self._locked if slot not in self._rows], engine, lambda: not self._is_stopped)
        if self._locked and not self._is_stopped:
            self._room = self._room_for_sum()

    def stop(self) -> None:
        """End `project` at its next tile, from any thread: a round that is given up is erased at once (S4)."""
        self._is_stopped = True

    def _project(self, slots: Sequence[int], engine: Engine, is_wanted: Callable[[], bool] = lambda: True) -> None:
        if slots and is_wanted():
            rows = RowStreams(self._challenge, self.label)
            values = row_sums([self._share(slot) for slot in slots], rows, self.sizes, engine, is_wanted)
            if is_wanted():
                self._rows.update(zip(slots, values, strict=True))

    def _room_for_sum(self) -> FieldArray:
        """Return d zeros, once: pages that are written to here are not waited for later."""
        room, self._room = self._room, None
        if room is None:
            room = np.empty(self.sizes.dim, dtype=np.uint64)
            room.fill(0)
        return room

    def open(self, proved: Mapping[int, bytes], query: Query, engine: Engine = CPU) -> dict[int, FieldArray]:
        """Run the second pass over the proved slots, and return this server's part of the verifier message for each.

        Raises ProofQueriedTwiceError the second time, whatever happened after the first. Raises ParameterError for a
        slot without a proof of its own here, and before the intake is closed.
        """
        if self._query is not None:
            raise ProofQueriedTwiceError("query: expected one pair of points for a round's proofs, found a second")
        if self._is_open or any(slot not in self._taken or self._taken[slot].digest != proved[slot] for slot in proved):
            raise ParameterError("proved: expected slots whose proof was taken, after the intake was closed")
        self._query = query
        slots = sorted(proved)
        self._project([slot for slot in slots if slot not in self._rows], engine)
        share_sum = self._room_for_sum()
        wires = wire_sums([self._share(slot) for slot in slots], query, self.sizes, share_sum, engine)
        opened, proof = {}, np.empty(self.sizes.proof_elements, dtype=np.uint64)
        for slot, of_wires in zip(slots, wires, strict=True):
            self._taken[slot].share.after(0).fill(proof)
            opened[slot] = verifier.opened_share(self._party, self._rows[slot], of_wires, proof, query, self.sizes)
        self._opened, self._sum = opened, share_sum
        return dict(opened)

    def verdicts(self, theirs: Mapping[int, FieldArray]) -> dict[int, bool]:
        """Return which proved slots are valid. theirs: the peer's parts, for the same slots.

        Raises ParameterError before `open`, also where that failed, and for other slots or shapes.
        """
        if self._query is None or self._opened is None or theirs.keys() != self._opened.keys():
            raise ParameterError("verdicts: expected the peer's part for each opened slot")
        found = {slot: verifier.is_valid(ours, theirs[slot], self._query) for slot, ours in self._opened.items()}
        self._verdicts = found
        return dict(found)

    def accepted_sum(self, verdicts: Mapping[int, bool], engine: Engine = CPU) -> FieldArray:
        """Return this server's share of the sum of the valid slots, (d,), and give it up.

        The rejected are taken out by a second reading, or, where they are the majority, the valid are added up anew.
        Raises ParameterError for other verdicts than those that this server gave, and the second time.
        """
        if self._sum is None or self._verdicts is None or dict(verdicts) != self._verdicts:
            raise ParameterError("accepted: expected this server's verdict for each opened slot, once")
        total, self._sum = self._sum, None
        rejected = [self._share(slot) for slot, is_valid in verdicts.items() if not is_valid]
        if 2 * len(rejected) <= len(verdicts):
            add_shares(total, rejected, engine, negate=True)
        else:
            total.fill(0)
            add_shares(total, [self._share(slot) for slot, is_valid in verdicts.items() if is_valid], engine)
        return total

    def forget(self) -> None:
        """Erase seeds, shares of proofs and what was opened, at the round's end (S4). Nothing is taken or opened then.

        Whoever still holds the check, such as an error's frames, holds no secret of a client with it.
        """
        self._is_open = False
        self._locked.clear()
        self._taken.clear()
        self._shares.clear()
        self._rows.clear()
        self._opened = self._sum = self._room = None

    def _require_open(self, slot: int) -> None:
        """Refuse a proof that this server does not take now, whatever it says."""
        if not self._is_open:
            raise ProofRefusedError("late", "proof: expected it before the end of the phase")
        if slot not in self._locked:
            raise ProofRefusedError("not_active", "proof: expected a slot whose upload is locked")
        if not self._is_held(slot):
            raise ProofRefusedError("wrong_server", "proof: expected a slot that is held here")
        if slot in self._bound:
            raise ProofRefusedError("duplicate", "proof: expected one for each upload, whatever came of the first")

    def _expected(self, slot: int, proof_digest: bytes) -> ProofBinding:
        """Return the binding of a proof for this server's own task, round, locked binding and challenge."""
        upload = self._locked[slot]
        return ProofBinding(
            task=self.label.task,
            round=self.label.round,
            client=upload.client,
            binding_digest=upload.binding_digest,
            challenge=self._challenge.reveal(),
            proof_digest=proof_digest,
        )

    def _share(self, slot: int) -> Share:
        """Return a share at its start, to be read by `Share.after`. A stream's key is derived once."""
        if slot not in self._shares:
            share = self._locked[slot].share
            self._shares[slot] = seeded_share(share, self._slot_label(slot)) if isinstance(share, Seed) else share
        return self._shares[slot]

    def _slot_label(self, slot: int) -> Label:
        return Label(self.label.task, self.label.round, str(slot))

    def _is_held(self, slot: int) -> bool:
        return holder_of(slot) == self._party
