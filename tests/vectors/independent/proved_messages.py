"""Sections 5 and 7 of `docs/reference/protocol-v2.md`: messages between a client and both servers, and their checks."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.vectors.independent import digests, streams
from tests.vectors.independent.proved_field import (
    ELEMENT_BYTES,
    PROOF_SHARE,
    PROOF_STATEMENT,
    SHARE,
    SLOT_LABELS,
    field_stream,
    from_bytes,
    to_bytes,
)
from tests.vectors.independent.proved_parameters import Sizes
from tests.vectors.independent.ring import RefusedError

VERSION = "precad/v2"
BINDING = {
    "protocol_version": 1,
    "task": 2,
    "round": 3,
    "client": 4,
    "config_digest": 5,
    "model_digest": 6,
    "dim": 7,
    "mode": 8,
    "digest": 9,
}
"""Fields of a binding, and their numbers."""
PROOF_BINDING = {
    "protocol_version": 1,
    "task": 2,
    "round": 3,
    "client": 4,
    "binding_digest": 11,
    "challenge": 12,
    "proof_digest": 13,
}
"""Fields of a proof binding, and their numbers."""

Binding = Mapping[str, Any]


@dataclass(frozen=True)
class Round:
    """Hold what both servers and the client know of a round before it begins."""

    task: str
    round: int
    config_digest: bytes
    model_digest: bytes
    sizes: Sizes

    def binding(self, client: str, digest: bytes) -> dict[str, Any]:
        """Return the binding of an upload."""
        own = {"config_digest": self.config_digest, "model_digest": self.model_digest, "dim": self.sizes.dim}
        return {**self._head(client), **own, "mode": "proved", "digest": digest}

    def proof_binding(self, client: str, locked: bytes, challenge: bytes, digest: bytes) -> dict[str, Any]:
        """Return the binding of a proof. locked: the upload's binding digest."""
        return {**self._head(client), "binding_digest": locked, "challenge": challenge, "proof_digest": digest}

    def _head(self, client: str) -> dict[str, Any]:
        return {"protocol_version": VERSION, "task": self.task, "round": self.round, "client": client}


@dataclass(frozen=True)
class Sent:
    """An upload or a proof as the holder gets it."""

    binding: Binding
    statement: bytes
    salt: bytes
    payload: bytes


@dataclass(frozen=True)
class Relay:
    """Tell the seeded server of an upload or proof: no data, and no salt."""

    round: int
    client: str
    digest: bytes
    statement: bytes


def config_digest(task: Mapping[str, Any]) -> bytes:
    """Return the digest of a task's canonical text under this version."""
    return digests.sha256(f"{VERSION}\n{digests.canonical_task(task)}".encode())


def binding_digest(binding: Binding) -> bytes:
    """Return the SHA-256 of every field with its number and length. Proof bindings have other numbers."""
    numbers = PROOF_BINDING if "proof_digest" in binding else BINDING
    assert set(binding) == set(numbers)
    hashed = b""
    for name, number in sorted(numbers.items(), key=lambda item: item[1]):
        value = binding[name]
        part = value if isinstance(value, bytes) else str(value).encode()
        hashed += number.to_bytes(4, "big") + len(part).to_bytes(8, "big") + part
    return digests.sha256(hashed)


def salted_digest(payload: bytes, salt: bytes) -> bytes:
    """Return field 9 or 13: HMAC-SHA256 of the payload's SHA-256, under the salt."""
    return digests.salted(digests.sha256(payload), salt)


def statement(seed: bytes, purpose: int, round: Round, slot: int, binding: Binding) -> bytes:
    """Return what shows the seeded server that a binding is the client's. seed: the share seed."""
    key = streams.derive(seed, streams.info(purpose, round.task, round.round, slot))
    return hmac.new(key, binding_digest(binding), hashlib.sha256).digest()


def slot_labels(seed: bytes, task: str, round: int, enrolled: Sequence[str], chosen: Sequence[str]) -> dict[str, int]:
    """Return each chosen client's slot: the first places of a shuffle of 0 .. enrolled - 1, in the order of names.

    seed: the selection's. The shuffle sorts the numbers by their words of SLOT_LABELS, equal words by number.
    """
    words = streams.stream(seed, SLOT_LABELS, task, round, None, len(enrolled))
    shuffled = sorted(range(len(enrolled)), key=lambda i: (words[i], i))
    return dict(zip(sorted(chosen), shuffled, strict=False))


def agree(invitations: Sequence[Mapping[str, Any]], dim: int) -> tuple[int, bytes]:
    """Return slot and share seed of two invitations, A's and B's; refuse (`invitation`) what section 5 excludes."""
    alike = ("task", "round", "slot", "dim", "model_digest", "n_committed")
    if any(invitations[0][name] != invitations[1][name] for name in alike) or invitations[0]["dim"] != dim:
        raise RefusedError("invitation")
    slot = invitations[0]["slot"]
    seed = invitations[1 - slot % 2]["share_seed"]
    if len(seed) != 16 or invitations[slot % 2]["share_seed"]:
        raise RefusedError("invitation")
    return slot, seed


def submission(x: Sequence[int], round: Round, slot: int, client: str, seed: bytes, salt: bytes) -> Sent:
    """Return what the client sends to its slot's holder. x: d centred integers."""
    mask = field_stream(seed, SHARE, round.task, round.round, slot, len(x))
    payload = to_bytes(value - m for value, m in zip(x, mask, strict=True))
    binding = round.binding(client, salted_digest(payload, salt))
    return Sent(binding, statement(seed, streams.STATEMENT, round, slot, binding), salt, payload)


def proof_message(
    proof: Sequence[int], round: Round, slot: int, locked: Binding, challenge: bytes, seed: bytes, salt: bytes
) -> Sent:
    """Return what the client sends to its holder after the challenge. locked: the binding of its upload."""
    mask = field_stream(seed, PROOF_SHARE, round.task, round.round, slot, len(proof))
    payload = to_bytes(value - m for value, m in zip(proof, mask, strict=True))
    digest = salted_digest(payload, salt)
    binding = round.proof_binding(locked["client"], binding_digest(locked), challenge, digest)
    return Sent(binding, statement(seed, PROOF_STATEMENT, round, slot, binding), salt, payload)


def check_binding(round: Round, certificate: str, sent: Sent) -> None:
    """Refuse an upload with another binding than the round's. certificate: the caller's name."""
    binding = sent.binding
    if binding["client"] != certificate:
        raise RefusedError("wrong_client")
    if binding["round"] != round.round:
        raise RefusedError("wrong_round")
    if binding != round.binding(certificate, binding["digest"]):
        raise RefusedError("wrong_binding")
    _check_lengths(sent, binding["digest"])


def check_proof_binding(round: Round, locked: bytes, challenge: bytes, certificate: str, sent: Sent) -> None:
    """Refuse a proof with another binding than this server's. locked: the upload's binding digest."""
    binding = sent.binding
    if binding["client"] != certificate:
        raise RefusedError("wrong_client")
    given = binding["challenge"], binding["proof_digest"]
    if len(given[0]) != 16 or binding != round.proof_binding(certificate, locked, *given):
        raise RefusedError("wrong_binding")
    _check_lengths(sent, given[1])
    if given[0] != challenge:
        raise RefusedError("wrong_challenge")


def _check_lengths(sent: Sent, digest: bytes) -> None:
    """Refuse a digest, statement or salt of another length than 32 bytes."""
    if not len(digest) == len(sent.statement) == len(sent.salt) == 32:
        raise RefusedError("wrong_binding")


def payload_elements(sent: Sent, digest: bytes, n_elements: int) -> list[int]:
    """Return a payload's elements; refuse another length, an element that is none, and another digest."""
    if len(sent.payload) != ELEMENT_BYTES * n_elements:
        raise RefusedError("wrong_length")
    elements = from_bytes(sent.payload)
    if salted_digest(sent.payload, sent.salt) != digest:
        raise RefusedError("wrong_digest")
    return elements


def check_relay(round: Round, slot: int, seed: bytes, relay: Relay, binding: Binding, purpose: int) -> bytes | None:
    """Return the binding digest of a relayed upload or proof, or None where the statement does not fit.

    binding: as this server makes it itself. seed: the share seed that it gave out for the slot.
    """
    expected = statement(seed, purpose, round, slot, binding)
    is_one = len(relay.digest) == 32 and hmac.compare_digest(relay.statement, expected)
    return binding_digest(binding) if is_one else None
