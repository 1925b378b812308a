"""Section 5: labels, keys and the words that they expand to."""

from __future__ import annotations

import hashlib
import hmac

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from tests.vectors.independent import ring

UPLOAD_SHARE, MASK, SQUARED_MASK_SHARE, EQUALITY_TUPLE = 1, 2, 3, 7
ROW_BITS, ROW_SIGNS, EQUALITY_HASH_KEY, SELECTION = 8, 9, 10, 11
MASK_SEED, CORRELATION_MASKS, CORRELATION_PRODUCTS, STATEMENT = 12, 13, 14, 15


def info(purpose: int, task: str, round: int, slot: int | None = None) -> bytes:
    """The label of a stream, as HKDF's info. slot: of a client, or none for what the round shares."""
    client = "" if slot is None else str(slot)
    parts = (b"precad/v1", bytes([purpose]), task.encode(), str(round).encode(), client.encode())
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def derive(seed: bytes, label: bytes) -> bytes:
    """HKDF-SHA256 (RFC 5869) without salt, 16 bytes: one block of output."""
    if len(seed) != 16:
        raise ring.RefusedError("parameter")
    pseudorandom_key = hmac.new(bytes(32), seed, hashlib.sha256).digest()
    return hmac.new(pseudorandom_key, label + b"\x01", hashlib.sha256).digest()[:16]


def expand(key: bytes, n_words: int) -> list[int]:
    """AES-128 of the counters 0, 1, .. as 16 big-endian bytes; two words from each block."""
    encryptor = Cipher(algorithms.AES128(key), modes.ECB()).encryptor()
    n_blocks = -(-n_words // 2)
    blocks = encryptor.update(b"".join(i.to_bytes(16, "big") for i in range(n_blocks)))
    return ring.from_bytes(blocks[: 8 * n_words])


def stream(seed: bytes, purpose: int, task: str, round: int, slot: int | None, n_words: int) -> list[int]:
    """The first n_words under a label."""
    return expand(derive(seed, info(purpose, task, round, slot)), n_words)
