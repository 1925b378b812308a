"""Bind an upload: a digest of numbered fields, a salted digest of its payload, and its client's word.

Modes with and without a dealer share them (docs/reference/protocol.md).
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Final

from precad.mpc import prg
from precad.mpc.errors import ParameterError
from precad.mpc.prg import Label, Purpose, Seed

SALT_BYTES: Final = 32


def fields_digest(fields: Mapping[int, bytes | str | int]) -> bytes:
    """Return the SHA-256 over numbered fields in rising order, each with its number and length; integers in decimal."""
    hasher = hashlib.sha256()
    for number, value in sorted(fields.items()):
        part = value if isinstance(value, bytes) else str(value).encode()
        hasher.update(number.to_bytes(4, "big") + len(part).to_bytes(8, "big") + part)
    return hasher.digest()


def salted_digest(salt: bytes, payload_digest: bytes) -> bytes:
    """Return the HMAC-SHA256 of a payload's SHA-256 under its salt. Raises ParameterError unless the salt is 32 bytes.

    Only the client and the payload's server know the salt. The other server holds the same binding, and the seed of the
    other share. For every guess of the update it knows what the payload would be, and a digest without a salt would say
    which guess is right.
    """
    if len(salt) != SALT_BYTES:
        raise ParameterError(f"salt: expected {SALT_BYTES} bytes, found {len(salt)}")
    return hmac.digest(salt, payload_digest, "sha256")


def statement(seed: Seed, label: Label, binding_digest: bytes, purpose: Purpose = Purpose.STATEMENT) -> bytes:
    """Return a client's word that the binding with this digest is its own, 32 bytes. The other server carries it.

    seed: of the client at the server that reads it. HMAC-SHA256 under a key that nobody derives without: not the
    carrier, and no other client.
    """
    return hmac.digest(prg.derive(seed, purpose, label).reveal(), binding_digest, "sha256")
