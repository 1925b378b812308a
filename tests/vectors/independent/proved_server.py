"""One server's round of mode `proved`: sections 5, 7, 8 and rules S0 to S5 of `docs/reference/protocol-v2.md`.

Every method is one message that is taken or one that leaves. A step that is not due is refused (`state`).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.vectors.independent import digests, server, streams
from tests.vectors.independent.proved_field import (
    PROOF_SHARE,
    PROOF_STATEMENT,
    SHARE,
    field_stream,
    from_bytes,
    to_bytes,
)
from tests.vectors.independent.proved_messages import (
    Relay,
    Round,
    Sent,
    binding_digest,
    check_binding,
    check_proof_binding,
    check_relay,
    payload_elements,
)
from tests.vectors.independent.proved_verifier import is_valid, message, opened, query_points
from tests.vectors.independent.ring import RefusedError

STEPS = ("lock", "reveal", "challenge", "proofs", "query", "verifier", "verdicts", "accepted", "noisy_share", "over")
"""Steps in the order in which they are due. Uploads come before `lock`, proofs before `proofs`."""


class Server:
    """One server P in one round, from the invitations to its noisy share.

    slots: of the chosen clients, by name. draw: of n random bytes, which only vectors fix.
    """

    def __init__(
        self, party: int, round: Round, slots: Mapping[str, int], draw: Callable[[int], bytes] = secrets.token_bytes
    ) -> None:
        self.party, self.round, self.slots = party, round, slots
        self._due, self._draw = 0, draw
        self._seeds: dict[int, bytes] = {}
        self._invited: set[str] = set()
        self._uploads: dict[int, bytes] = {}
        self._proofs: dict[int, bytes] = {}
        self._shares: dict[int, list[int]] = {}
        self._proof_shares: dict[int, list[int]] = {}
        self._decided: set[tuple[str, int]] = set()
        self._coin, self._query_coin = draw(32), b""
        self.active: dict[int, bytes] = {}
        self.proved: list[int] = []
        self.valid: list[int] = []
        self.challenge_seed = b""
        self.points = (0, 0)
        self._commitment = self._accepted = b""
        self._messages: list[list[int]] = []

    def _step(self, name: str) -> None:
        """Refuse what is not due; what is due is due once."""
        if STEPS[self._due] != name:
            raise RefusedError("state")
        self._due += 1

    def _place(self, step: str, kind: str, certificate: str) -> int:
        """Return the slot of a caller whose upload or proof may come now; refuse it before its message is read."""
        if STEPS[self._due] != step:
            raise RefusedError("late")
        slot, allowed = self.slots.get(certificate), self.slots.values() if kind == "upload" else self.active
        if slot is None or slot not in allowed:
            raise RefusedError("not_chosen" if kind == "upload" else "not_active")
        if slot % 2 != self.party:
            raise RefusedError("wrong_server")
        if (kind, slot) in self._decided:
            raise RefusedError("duplicate")
        return slot

    # Invitation and upload

    def invite(self, client: str, n_committed: int = 0) -> dict[str, Any]:
        """Return a client's invitation, once, with a share seed if this server does not hold its slot."""
        if client in self._invited:
            raise RefusedError("reused")
        self._invited.add(client)
        slot = self.slots[client]
        if slot % 2 != self.party:
            self._seeds[slot] = self._draw(16)
        at = self.round
        told = {"task": at.task, "round": at.round, "slot": slot, "dim": at.sizes.dim, "model_digest": at.model_digest}
        return {**told, "n_committed": n_committed, "share_seed": self._seeds.get(slot, b"")}

    def submit(self, certificate: str, sent: Sent) -> Relay:
        """Take an upload as its slot's holder, and return what goes to the peer."""
        slot, digest = self._place("lock", "upload", certificate), sent.binding["digest"]
        check_binding(self.round, certificate, sent)
        self._decided.add(("upload", slot))
        self._shares[slot] = payload_elements(sent, digest, self.round.sizes.dim)
        self._uploads[slot] = binding_digest(sent.binding)
        return Relay(self.round.round, certificate, digest, sent.statement)

    def submit_relay(self, relay: Relay) -> None:
        """Take the peer's word of an upload as the seeded server; drop what does not fit."""
        slot = self._relayed("lock", "upload", relay)
        if slot is None:
            return
        binding = self.round.binding(relay.client, relay.digest)
        word = check_relay(self.round, slot, self._seeds[slot], relay, binding, streams.STATEMENT)
        if word is not None:
            self._uploads[slot], self._shares[slot] = word, self._stream(slot, SHARE, self.round.sizes.dim)

    @property
    def due(self) -> str:
        """Return the name of the step that is due."""
        return STEPS[self._due]

    def _relayed(self, step: str, kind: str, relay: Relay) -> int | None:
        """Return the slot that a relay decides: the first one, of a slot whose seed this server gave out.

        Any other relay is dropped before it changes anything, so the peer cannot use up a slot that it does not hold.
        """
        slot = self.slots.get(relay.client)
        if slot is None or slot not in self._seeds or (kind, slot) in self._decided or relay.round != self.round.round:
            return None
        if STEPS[self._due] != step:
            return None
        self._decided.add((kind, slot))
        return slot

    def _stream(self, slot: int, purpose: int, n: int) -> list[int]:
        return field_stream(self._seeds[slot], purpose, self.round.task, self.round.round, slot, n)

    # Lock and challenge

    @property
    def _labels(self) -> list[int]:
        return sorted(self.slots.values())

    def lock(self) -> bytes:
        """Return the payload of `validation/lock`; nothing more is taken after it."""
        self._step("lock")
        listed = b"".join(self._uploads.get(slot, bytes(32)) for slot in self._labels)
        return digests.coin_commitment(self.party, self._context("challenge"), self._coin) + listed

    def reveal(self, peers_lock: bytes) -> bytes:
        """Return this server's coin, after the peer's lock."""
        self._step("reveal")
        self._commitment, theirs = peers_lock[:32], _listed(peers_lock, self._labels)
        self.active = {slot: word for slot, word in sorted(self._uploads.items()) if theirs[slot] == word}
        return self._coin

    def challenge(self, peers_coin: bytes) -> bytes:
        """Return the challenge seed, for the clients of the active slots; refuse (`commitment`) a false coin.

        Without an active slot, `proofs` and `verifier` fall away.
        """
        self._step("challenge")
        transcript = digests.tagged(b"lock", *self.active.values())
        known = (self._coin, peers_coin, self._commitment, transcript)
        self.challenge_seed = server.joint_seed(self.party, self._context("challenge"), *known)
        if not self.active:
            self._due = STEPS.index("verdicts")
        return self.challenge_seed

    def _context(self, step: str) -> str:
        return f"{self.round.task}/{self.round.round}/{step}"

    # Proofs

    def prove(self, certificate: str, sent: Sent) -> Relay:
        """Take a proof as its slot's holder, and return what goes to the peer."""
        slot, digest = self._place("proofs", "proof", certificate), sent.binding["proof_digest"]
        check_proof_binding(self.round, self.active[slot], self.challenge_seed, certificate, sent)
        self._decided.add(("proof", slot))
        self._proof_shares[slot] = payload_elements(sent, digest, self.round.sizes.n_elements)
        self._proofs[slot] = binding_digest(sent.binding)
        return Relay(self.round.round, certificate, digest, sent.statement)

    def prove_relay(self, relay: Relay) -> None:
        """Take the peer's word of a proof; this server makes the binding of its own challenge and lock."""
        slot = self._relayed("proofs", "proof", relay)
        if slot is None or slot not in self.active:
            return
        binding = self.round.proof_binding(relay.client, self.active[slot], self.challenge_seed, relay.digest)
        word = check_relay(self.round, slot, self._seeds[slot], relay, binding, PROOF_STATEMENT)
        if word is not None:
            self._proofs[slot] = word
            self._proof_shares[slot] = self._stream(slot, PROOF_SHARE, self.round.sizes.n_elements)

    def proofs(self) -> bytes:
        """Return the payload of `validation/proofs`, with a coin that is drawn here: no proof is taken after it."""
        self._step("proofs")
        self._query_coin = self._draw(32)
        return self._query_coin + b"".join(self._proofs.get(slot, bytes(32)) for slot in self.active)

    # Query and verdict

    def query(self, peers_proofs: bytes) -> None:
        """Fix the proved slots and the round's two points. Without a proved slot `verifier` falls away."""
        self._step("query")
        theirs = _listed(peers_proofs, list(self.active))
        self.proved = [slot for slot in self.active if slot in self._proofs and theirs[slot] == self._proofs[slot]]
        coins = (self._query_coin, peers_proofs[:32])
        transcript = digests.tagged(b"proofs", *(self._proofs[slot] for slot in self.proved))
        if not self.proved:
            self._due = STEPS.index("verdicts")
            return
        seed = digests.joint_coin(self._context("query"), *(coins if self.party == 0 else coins[::-1]), transcript)
        self.points = query_points(seed, self.round.task, self.round.round, self.round.sizes)

    def verifier(self) -> bytes:
        """Return the payload of `validation/verifier`, computed before the peer's is looked at."""
        self._step("verifier")
        at, sizes = self.round, self.round.sizes
        rows = server.row_streams(self.challenge_seed, at.task, at.round, sizes.dim)
        self._messages = [
            message(self.party, self._shares[slot], self._proof_shares[slot], rows, self.points, sizes)
            for slot in self.proved
        ]
        return to_bytes(element for one in self._messages for element in one)

    def verdicts(self, peers_message: bytes) -> bytes:
        """Return the payload of `validation/accepted`; an element that is none ends the task (`malformed`)."""
        self._step("verdicts")
        sizes = self.round.sizes
        length = sizes.message_elements
        theirs = from_bytes(peers_message, length * len(self.proved))
        for i, (slot, ours) in enumerate(zip(self.proved, self._messages, strict=True)):
            values = opened(ours, theirs[i * length : (i + 1) * length], sizes)
            if is_valid(values, self.points, sizes):
                self.valid.append(slot)
        self._accepted = digests.tagged(b"accepted", bytes(slot in self.valid for slot in self._labels))
        return self._accepted

    def accepted(self, peers_digest: bytes) -> None:
        """End the task (`verdicts`) unless both servers accepted the same slots."""
        self._step("accepted")
        if peers_digest != self._accepted:
            raise RefusedError("verdicts")

    def noisy_share(self, noise: Sequence[int]) -> bytes:
        """Return this server's part of `noisy sum`: the valid shares and its own noise. noise: d integers."""
        self._step("noisy_share")
        total = list(noise)
        for slot in self.valid:
            total = [a + b for a, b in zip(total, self._shares[slot], strict=True)]
        return to_bytes(total)


def _listed(payload: bytes, slots: Sequence[int]) -> dict[int, bytes]:
    """Return the 32 bytes per slot behind the first 32 bytes; refuse another length."""
    if len(payload) != 32 + 32 * len(slots):
        raise RefusedError("malformed")
    return {slot: payload[32 * i + 32 : 32 * i + 64] for i, slot in enumerate(slots)}
