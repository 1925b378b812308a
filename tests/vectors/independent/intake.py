"""Section 7: what a server checks of an upload."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.vectors.independent import client, digests
from tests.vectors.independent.ring import RefusedError


def upload_bytes(mode: str, party: int, dim: int) -> int:
    """Length of a client's payload to one server."""
    if mode == "masked":
        return 8 * dim if party == 0 else 0
    return 16 if party == 0 else 8 * dim


def check(
    party: int,
    expected: Mapping[str, Any],
    chosen: list[str],
    certificate: str,
    binding: Mapping[str, Any],
    payload: bytes,
    statement: bytes,
    salt: bytes,
) -> bytes:
    """The binding's digest of an upload that is taken. expected: the round's binding without client and digests."""
    if party == 1 and expected["mode"] == "masked":
        raise RefusedError("wrong_server")
    if binding["client"] != certificate:
        raise RefusedError("wrong_client")
    if binding["round"] != expected["round"]:
        raise RefusedError("wrong_round")
    if certificate not in chosen:
        raise RefusedError("not_chosen")
    if any(binding[name] != value for name, value in expected.items()):
        raise RefusedError("wrong_binding")
    if len(binding["digest_a"]) != 32 or len(binding["digest_b"]) != 32:
        raise RefusedError("wrong_binding")
    if len(statement) != (32 if expected["mode"] == "masked" else 0):
        raise RefusedError("wrong_binding")
    if len(salt) != (32 if expected["mode"] == "shares" and party == 1 else 0):
        raise RefusedError("wrong_binding")
    if len(payload) != upload_bytes(expected["mode"], party, expected["dim"]):
        raise RefusedError("wrong_length")
    digest = digests.sha256(payload)
    if (digests.salted(digest, salt) if party else digest) != binding["digest_b" if party else "digest_a"]:
        raise RefusedError("wrong_digest")
    return digests.binding_digest(binding)


def check_relay(
    expected: Mapping[str, Any], slot: int, name: str, mask_seed: bytes, payload: bytes, statement: bytes
) -> bytes | None:
    """Server B: the binding's digest of a relayed upload, None where it is dropped. mask_seed: ours of this client."""
    binding = {
        **expected,
        "client": name,
        "digest_a": digests.sha256(payload),
        "digest_b": digests.sha256(b""),
    }
    word = client.statement(mask_seed, expected["task"], expected["round"], slot, binding)
    if len(payload) != 8 * expected["dim"] or word != statement:
        return None
    return digests.binding_digest(binding)
