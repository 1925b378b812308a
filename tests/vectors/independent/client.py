"""Sections 6 and 7: what a client computes from its clipped update."""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from tests.vectors.independent import digests, ring, streams
from tests.vectors.independent.ring import MODULUS, RefusedError


def encode(update: Sequence[float], frac_bits: int) -> list[int]:
    """trunc(x 2^f), exactly."""
    if not all(map(math.isfinite, update)):
        raise RefusedError("not_finite")
    exact = [Fraction(x) * 2**frac_bits for x in update]
    if any(abs(x) >= 2**63 for x in exact):
        raise RefusedError("overflow")
    return [math.trunc(x) % MODULUS for x in exact]


def encode_within(update: Sequence[float], frac_bits: int, threshold: int) -> list[int]:
    """The encoding of a clipped update, brought in by factors of 1 - 2^-40 until its norm fits."""
    for _ in range(64):
        words = encode(update, frac_bits)
        if sum(ring.centred(word) ** 2 for word in words) <= threshold:
            return words
        update = [x * (1.0 - 2.0**-40) for x in update]
    raise RefusedError("parameter")


def mask(words: Sequence[int], seeds: tuple[bytes, bytes], task: str, round: int, slot: int) -> list[int]:
    """b = X - a_A - a_B, the `masked` form's upload."""
    halves = [streams.stream(seed, streams.MASK, task, round, slot, len(words)) for seed in seeds]
    return [(x - a - b) % MODULUS for x, a, b in zip(words, *halves, strict=True)]


def split(words: Sequence[int], seed: bytes, task: str, round: int, slot: int) -> list[int]:
    """Share B of the `shares` form; share A is the seed."""
    share_a = streams.stream(seed, streams.UPLOAD_SHARE, task, round, slot, len(words))
    return [(x - a) % MODULUS for x, a in zip(words, share_a, strict=True)]


def statement(seed_of_b: bytes, task: str, round: int, slot: int, binding: dict[str, Any]) -> bytes:
    """Return what server B gets from the client, by way of A, in the `masked` form."""
    key = streams.derive(seed_of_b, streams.info(streams.STATEMENT, task, round, slot))
    return hmac.new(key, digests.binding_digest(binding), hashlib.sha256).digest()


def agree(from_a: dict[str, Any], from_b: dict[str, Any], task: dict[str, Any]) -> dict[str, Any]:
    """The round that both invitations mean, with both mask seeds, none in the `shares` form."""
    alike = ("task", "round", "slot", "dim", "model_digest", "n_committed")
    if any(from_a[name] != from_b[name] for name in alike) or from_a["dim"] != task["dim"]:
        raise RefusedError("invitation")
    if from_a["n_committed"] >= task["rounds"]:
        raise RefusedError("invitation")
    seeds = (from_a["mask_seed"], from_b["mask_seed"]) if task["mode"] == "masked" else ()
    said_by_the_other = (from_b["peer_mask_seed_digest"], from_a["peer_mask_seed_digest"])
    for seed, digest in zip(seeds, said_by_the_other, strict=False):
        if len(seed) != 16 or digests.sha256(seed) != digest:
            raise RefusedError("invitation")
    return {**{name: from_a[name] for name in alike}, "mask_seeds": seeds}


def submission(words: Sequence[int], invitation: dict[str, Any], task: dict[str, Any], client: str) -> dict[str, Any]:
    """Payloads, the binding that goes with both, and the statement, empty in the `shares` form.

    invitation: task (its id), round, slot, model_digest, and mask_seeds (masked) or seed and salt (shares).
    """
    place = (invitation["task"], invitation["round"], invitation["slot"])
    if task["mode"] == "masked":
        payloads = (ring.to_bytes(mask(words, invitation["mask_seeds"], *place)), b"")
        digest_b = digests.sha256(b"")
    else:
        payloads = (invitation["seed"], ring.to_bytes(split(words, invitation["seed"], *place)))
        digest_b = digests.salted(digests.sha256(payloads[1]), invitation["salt"])
    binding = {
        "protocol_version": digests.VERSION,
        "task": invitation["task"],
        "round": invitation["round"],
        "client": client,
        "config_digest": digests.task_digest(task),
        "model_digest": invitation["model_digest"],
        "dim": task["dim"],
        "mode": task["mode"],
        "digest_a": digests.sha256(payloads[0]),
        "digest_b": digest_b,
    }
    word = statement(invitation["mask_seeds"][1], *place, binding) if task["mode"] == "masked" else b""
    return {"payloads": payloads, "binding": binding, "statement": word}
