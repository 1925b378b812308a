"""The client's side of an upload, without the wire: what it accepts, what it sends, and what it never sends twice.

The rules are those of docs/reference/protocol-v2.md, section 12. C0: the share seed comes from the seeded server's own
connection alone. C1: a seed serves one vector and one proof, and what is sent again is byte for byte the same. C2: a
client answers one challenge for an upload, and only where both servers have sent it. C3: masks and salts are fresh.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from precad.mpc.errors import OutsideWindowError, ProofRefusedError, ShareSeedReusedError
from precad.mpc.local.rows import RowStreams
from precad.mpc.local.step import Rows
from precad.mpc.prg import SEED_BYTES, SYSTEM_BYTES, Label, RandomBytes, Seed
from precad.mpc.proved.field import FieldArray
from precad.mpc.proved.prover import ProofMasks, prove
from precad.mpc.proved.shares import payload_pieces, proof_payload
from precad.mpc.proved.sizes import ProofSizes
from precad.mpc.proved.submission import Binding, ProofBinding, StatedBinding, draw_salt, proof_statement, seeded_of
from precad.mpc.ring import RingArray
from precad.mpc.sharing import Party
from precad.mpc.upload_binding import salted_digest, statement

Prove: TypeAlias = Callable[[RingArray, Rows, ProofSizes, ProofMasks], FieldArray]
"""As `prove`."""


@dataclass(frozen=True, slots=True)
class Invitation:
    """One server's invitation to one round."""

    task: str
    round: int
    slot: int
    dim: int
    model_digest: bytes
    n_committed: int
    share_seed: bytes = field(repr=False)
    """16 bytes from the seeded server, none from the holder."""


def agree(invitations: tuple[Invitation, Invitation], dim: int) -> Seed:
    """Return the share seed of the invitations of A and B, each taken from that server's own connection.

    Both must say the same of the round, and the seeded server alone gives a seed. With a seed of its own choice the
    holder would read the update. Raises ProofRefusedError (`invitation`); the client is then silent for the round.
    """
    of_a, of_b = (replace(invitation, share_seed=b"") for invitation in invitations)
    if of_a != of_b or of_a.dim != dim:
        raise ProofRefusedError("invitation", f"invitation: expected both servers' for one round and {dim} coordinates")
    seeded = seeded_of(of_a.slot)
    seed, others = invitations[seeded].share_seed, invitations[1 - seeded].share_seed
    if len(seed) != SEED_BYTES or others:
        raise ProofRefusedError("invitation", f"share_seed: expected {SEED_BYTES} bytes from the seeded server alone")
    return Seed(seed)


def make_upload(
    x: RingArray,
    blank: Binding,
    share_seed: Seed,
    label: Label,
    random_bytes: RandomBytes = SYSTEM_BYTES,
    pieces: Iterable[bytes] | None = None,
) -> StatedBinding:
    """Return what goes to the holder beside the payload, `precad.mpc.proved.shares.payload_pieces`.

    blank: the binding, whose payload digest is filled in. pieces: the payload, where the caller keeps it. Else it is
    expanded tile by tile, for its digest. x is made read-only. A payload or a proof of another vector under this seed
    would open to their difference.
    Raises ShareSeedReusedError for a seed that an upload was made under before (C1).
    """
    _claim(share_seed, "upload")
    x.setflags(write=False)
    hasher = hashlib.sha256()
    for piece in payload_pieces(x, share_seed, label) if pieces is None else pieces:
        hasher.update(piece)
    salt = draw_salt(random_bytes)
    binding = replace(blank, payload_digest=salted_digest(salt, hasher.digest()))
    return StatedBinding(binding, statement(share_seed, label, binding.digest()), salt)


def make_proof(
    words: FieldArray,
    binding: Binding,
    challenge: Seed,
    share_seed: Seed,
    label: Label,
    random_bytes: RandomBytes = SYSTEM_BYTES,
) -> tuple[StatedBinding, bytes]:
    """Return what goes to the holder with a proof, and the proof's payload. binding: of the upload."""
    payload, salt = proof_payload(words, share_seed, label), draw_salt(random_bytes)
    digest = salted_digest(salt, hashlib.sha256(payload).digest())
    bound = ProofBinding(binding.task, binding.round, binding.client, binding.digest(), challenge.reveal(), digest)
    return StatedBinding(bound, proof_statement(share_seed, label, bound.digest()), salt), payload


def _claim(share_seed: Seed, use: str) -> None:
    if not share_seed.claim(use):
        raise ShareSeedReusedError(f"share_seed: expected one {use} under it, found a second")


class OpenUpload:
    """One upload at its client, until the end of its round. Nothing of it is kept for another round."""

    def __init__(
        self,
        x: RingArray,
        sizes: ProofSizes,
        binding: Binding,
        share_seed: Seed,
        slot: int,
        draw_masks: Callable[[ProofSizes], ProofMasks] = ProofMasks.draw,
        random_bytes: RandomBytes = SYSTEM_BYTES,
        prove_with: Prove = prove,
    ) -> None:
        """x and binding: those of `make_upload`, as they were sent. Tests alone fix draw_masks and random_bytes.
        prove_with: makes the proof; `prove`, but at a client that deviates. Raises ShareSeedReusedError where another
        object answers for this seed (C1): what each answers once, two would answer twice."""
        _claim(share_seed, "proof")
        self._prove = prove_with
        self._x, self._sizes, self._binding, self._seed = x, sizes, binding, share_seed
        self._round = Label(binding.task, binding.round)
        self._label = replace(self._round, client=str(slot))
        self._draw_masks, self._random_bytes = draw_masks, random_bytes
        self._heard: dict[Party, bytes] = {}
        self._is_answered = False
        self._agreed: Seed | None = None
        self._masks: ProofMasks | None = None
        self.proof: tuple[StatedBinding, bytes] | None = None
        """The answer, which may be sent again as it is."""

    def hear(self, party: Party, challenge: bytes) -> tuple[StatedBinding, bytes] | None:
        """Take a server's challenge, and return the proof once both have sent the same; else None, for silence."""
        return self.answer() if self.agrees(party, challenge) else None

    def agrees(self, party: Party, challenge: bytes) -> bool:
        """Take a server's challenge. Return True once in an upload's life: when both have sent the same.

        A second, different challenge of a server, or two that differ, end the answering. It takes no time; `answer`
        does.
        """
        if self._is_answered:
            return False
        first = self._heard.setdefault(party, challenge)
        is_sound = len(challenge) == SEED_BYTES and hmac.compare_digest(first, challenge)
        if is_sound and len(self._heard) < 2:
            return False
        self._is_answered = True
        if is_sound and hmac.compare_digest(self._heard[0], self._heard[1]):
            self._agreed = Seed(challenge)
        return self._agreed is not None

    def prepare(self) -> None:
        """Draw the proof's masks, and compute what needs no challenge, while the others' uploads are awaited. Twice
        does nothing. `answer` must not run meanwhile."""
        if self._masks is None and self.proof is None:
            self._masks = self._draw_masks(self._sizes).ahead(self._x, self._sizes)

    def answer(self) -> tuple[StatedBinding, bytes] | None:
        """Return the proof for the challenge that both agreed on, once; None where a row is outside its window."""
        challenge, self._agreed = self._agreed, None
        masks, self._masks = self._masks, None
        if challenge is None:
            return None
        masks = self._draw_masks(self._sizes) if masks is None else masks
        try:
            words = self._prove(self._x, RowStreams(challenge, self._round), self._sizes, masks)
        except OutsideWindowError:
            return None
        self.proof = make_proof(words, self._binding, challenge, self._seed, self._label, self._random_bytes)
        return self.proof
