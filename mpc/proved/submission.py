"""Uploads and proofs as values: bindings, digests, salts and statements, and who may hold which of them.

The holder of a slot gets a payload and a salt. The seeded server must never get the salt. It knows the other share, so
for each guess of X it knows the payload. A digest without a salt would say which guess is right. It gets a `Relay`,
which has no place for a salt. It makes the binding itself, and counts an upload or a proof if and only if the client's
statement fits, which the holder cannot make.

Source: docs/reference/protocol-v2.md, sections 5 and 7.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from precad.mpc import prg
from precad.mpc.errors import MalformedMessageError, ParameterError, ProofRefusedError
from precad.mpc.parameters import PROVED_VERSION, Mode
from precad.mpc.prg import SYSTEM_BYTES, Label, Purpose, RandomBytes, Seed
from precad.mpc.proved import field as elements
from precad.mpc.proved.field import ELEMENT_BYTES
from precad.mpc.sharing import Party
from precad.mpc.upload_binding import SALT_BYTES, fields_digest, salted_digest, statement

DIGEST_BYTES = 32


def holder_of(slot: int) -> Party:
    """Return the server that gets the payload of a slot."""
    return 1 if slot % 2 else 0


def seeded_of(slot: int) -> Party:
    """Return the server that gives the share seed of a slot, and gets no data: the holder's peer."""
    return 0 if holder_of(slot) else 1


def slot_labels(selection: Seed, label: Label, enrolled: int, chosen: Sequence[str]) -> dict[str, int]:
    """Return the slots of the drawn clients: distinct numbers below the number of enrolled clients, at random.

    The numbers are sorted by their words of SLOT_LABELS, and the clients take the first of them in the order of their
    names. So a slot says nothing of who else was drawn. Raises ParameterError for more clients than are enrolled.
    """
    if len(chosen) > enrolled:
        raise ParameterError(f"clients: expected at most {enrolled} drawn, found {len(chosen)}")
    words = prg.stream(selection, Purpose.SLOT_LABELS, label, enrolled).view(np.uint64)
    order = np.argsort(words, kind="stable").tolist()
    return dict(zip(sorted(chosen), order, strict=False))


class ShareSeeds:
    """The share seeds of one round at the server that gives them: fresh, one per slot, each given once."""

    def __init__(self, party: Party, random_bytes: RandomBytes = SYSTEM_BYTES) -> None:
        self._party, self._random_bytes = party, random_bytes
        self._given: dict[int, Seed | None] = {}

    def give(self, slot: int) -> Seed:
        """Draw the seed for the slot's invitation. Raises ParameterError the second time, and for a slot held here.

        A client that lost the seed is out of the round: a second vector under one seed would show the difference.
        """
        if slot in self._given or seeded_of(slot) != self._party:
            raise ParameterError(
                f"slot {slot}: expected one share seed, from its seeded server, found a second request"
            )
        seed = self._given[slot] = Seed.random(self._random_bytes)
        return seed

    def given(self, slot: int) -> Seed | None:
        """Return the seed that was given for a slot, for this server's own share; None once it is erased."""
        return self._given.get(slot)

    def forget(self) -> None:
        """Erase the seeds, at the round's end. None is given again for a slot that had one."""
        self._given = dict.fromkeys(self._given)

    def __repr__(self) -> str:
        return f"ShareSeeds({len(self._given)} given)"


@dataclass(frozen=True, slots=True)
class Binding:
    """Everything that one upload is bound to."""

    task: str
    round: int
    client: str
    config_digest: bytes
    model_digest: bytes
    dim: int
    payload_digest: bytes
    """`salted_digest` of the payload."""
    protocol_version: str = PROVED_VERSION
    mode: str = Mode.PROVED.value

    def digest(self) -> bytes:
        """Return 32 bytes that the servers lock."""
        return fields_digest(
            {
                1: self.protocol_version,
                2: self.task,
                3: self.round,
                4: self.client,
                5: self.config_digest,
                6: self.model_digest,
                7: self.dim,
                8: self.mode,
                9: self.payload_digest,
            }
        )


@dataclass(frozen=True, slots=True)
class ProofBinding:
    """Everything that one proof is bound to. Its digest is never that of a `Binding`: it has other fields."""

    task: str
    round: int
    client: str
    binding_digest: bytes
    challenge: bytes
    proof_digest: bytes
    """`salted_digest` of the payload."""
    protocol_version: str = PROVED_VERSION

    def digest(self) -> bytes:
        """Return 32 bytes that the servers compare in `validation/proofs`."""
        return fields_digest(
            {
                1: self.protocol_version,
                2: self.task,
                3: self.round,
                4: self.client,
                11: self.binding_digest,
                12: self.challenge,
                13: self.proof_digest,
            }
        )


def draw_salt(random_bytes: RandomBytes = SYSTEM_BYTES) -> bytes:
    """Return a fresh salt, for the client and the holder alone."""
    return random_bytes(SALT_BYTES)


def proof_statement(share_seed: Seed, label: Label, proof_binding_digest: bytes) -> bytes:
    """Return `statement` for a proof, under a key of its own: no statement of an upload is one of a proof."""
    return statement(share_seed, label, proof_binding_digest, Purpose.PROOF_STATEMENT)


@dataclass(frozen=True, slots=True)
class StatedBinding:
    """Accompany the bytes of an upload or a proof from the client to the holder, and to nobody else."""

    binding: Binding | ProofBinding
    statement: bytes
    salt: bytes = field(repr=False)
    """Never for the seeded server."""


@dataclass(frozen=True, slots=True)
class Relay:
    """Word of an upload or a proof, from the holder to the seeded server: no data, and no salt."""

    round: int
    client: str
    payload_digest: bytes
    statement: bytes


def relay_of(stated: StatedBinding) -> Relay:
    """Return the relay of what the holder has taken."""
    binding = stated.binding
    return Relay(binding.round, binding.client, payload_digest_of(binding), stated.statement)


def stated_digest(relay: Relay, expected: Binding | ProofBinding, share_seed: Seed, label: Label) -> bytes | None:
    """Return the digest of a binding whose relay counts, else None. Run by the seeded server.

    expected: the binding that it has made of what it knows itself.
    """
    make = statement if isinstance(expected, Binding) else proof_statement
    if len(relay.payload_digest) != DIGEST_BYTES:
        return None
    digest = expected.digest()
    return digest if hmac.compare_digest(make(share_seed, label, digest), relay.statement) else None


def require_stated(found: StatedBinding, expected: Binding | ProofBinding) -> None:
    """Compare a client's message, all but the payload's digest, with the binding that the holder has made itself.

    expected: with the certificate's name as client. Raises ProofRefusedError: `wrong_client`, `wrong_round` (of an
    upload), `wrong_binding`, or `wrong_challenge` where only a proof's challenge differs.
    """
    binding = found.binding
    if binding.client != expected.client:
        raise ProofRefusedError("wrong_client", "client: expected the certificate's name, found another")
    if isinstance(binding, Binding) and binding.round != expected.round:
        raise ProofRefusedError("wrong_round", f"round: expected {expected.round}, found {binding.round}")
    lengths = len(payload_digest_of(binding)), len(found.statement), len(found.salt)
    is_whole = lengths == (DIGEST_BYTES, DIGEST_BYTES, SALT_BYTES)
    if not is_whole or _without_content(binding) != _without_content(expected):
        raise ProofRefusedError("wrong_binding", "binding: expected that of this upload, round and task, found another")
    ours, theirs = (one.challenge if isinstance(one, ProofBinding) else b"" for one in (expected, binding))
    if len(theirs) != len(ours):
        raise ProofRefusedError("wrong_binding", f"challenge: expected {len(ours)} bytes, found {len(theirs)}")
    if not hmac.compare_digest(ours, theirs):
        raise ProofRefusedError("wrong_challenge", "challenge: expected this server's own, found another")


def payload_digest_of(binding: Binding | ProofBinding) -> bytes:
    """Return the salted digest of the payload that a binding is of."""
    return binding.payload_digest if isinstance(binding, Binding) else binding.proof_digest


def _without_content(binding: Binding | ProofBinding) -> Binding | ProofBinding:
    """Return it without what the client alone knows, and without the challenge."""
    if isinstance(binding, Binding):
        return replace(binding, payload_digest=b"")
    return replace(binding, challenge=b"", proof_digest=b"")


class PayloadIntake:
    """The holder's check of a payload while it comes: its length, and every element below p.

    A refusal must be known before the lock, so nothing is left for the pass to find.
    """

    def __init__(self, n_elements: int) -> None:
        self._n_bytes = ELEMENT_BYTES * n_elements
        self._taken, self._rest, self._hasher = 0, b"", hashlib.sha256()
        self._is_malformed = False

    def require_length(self, n_bytes: int) -> None:
        """Refuse a payload whose length is known before it is taken. Raises ProofRefusedError: `wrong_length`."""
        if n_bytes != self._n_bytes:
            raise ProofRefusedError("wrong_length", f"payload: expected {self._n_bytes} bytes, found {n_bytes}")

    def take(self, data: bytes) -> None:
        """Take the next bytes. Raises ProofRefusedError: `wrong_length` at the first byte too many, or `malformed`."""
        self._taken += len(data)
        if self._taken > self._n_bytes:
            raise ProofRefusedError("wrong_length", f"payload: expected {self._n_bytes} bytes, found more")
        self._hasher.update(data)
        waiting = memoryview(data)
        if self._rest:  # completed by itself: long pieces are not copied for a few bytes
            n_missing = ELEMENT_BYTES - len(self._rest)
            self._rest, waiting = self._rest + waiting[:n_missing], waiting[n_missing:]
            self._rest = self._beyond(memoryview(self._rest))
        if waiting:
            self._rest = self._beyond(waiting)
        self._require_elements()

    def _beyond(self, waiting: memoryview) -> bytes:
        """Look at every whole element. Return what follows them."""
        n_elements = len(waiting) // ELEMENT_BYTES
        try:
            elements.require_elements(waiting[: ELEMENT_BYTES * n_elements], n_elements=n_elements)
        except MalformedMessageError:
            self._is_malformed = True
        return bytes(waiting[ELEMENT_BYTES * n_elements :])

    def finish(self, salt: bytes, announced: bytes) -> None:
        """Compare the digest, after the last byte.

        Raises ProofRefusedError: `wrong_length`, `malformed` where a piece was refused, or `wrong_digest`.
        """
        self.require_length(self._taken)
        self._require_elements()
        if not hmac.compare_digest(salted_digest(salt, self._hasher.digest()), announced):
            raise ProofRefusedError("wrong_digest", "payload: expected another digest than that of what came")

    def _require_elements(self) -> None:
        """Refuse what follows an element that is none, too."""
        if self._is_malformed:
            raise ProofRefusedError("malformed", "payload: expected elements below p, found another")
