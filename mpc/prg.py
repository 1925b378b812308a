"""Seeds and the streams that they expand to: HKDF-SHA256 for labels, AES-128-CTR for words and noise.

Every stream has a label (protocol version, purpose, task, round, client), folded into the key by HKDF. Two streams with
different labels are independent even under one seed. A label is used for one stream only, so a counter that starts at
zero never meets the same key twice. Noise has no label: each draw has a fresh key (`expanded_bytes`).
"""

from __future__ import annotations

import enum
import functools
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from precad.mpc.errors import ParameterError
from precad.mpc.ring import RingArray

VERSION = b"precad/v1"
SEED_BYTES = 16

RandomBytes: TypeAlias = Callable[[int], bytes]
"""A cryptographic generator: `SYSTEM_BYTES` in production, a recorded stream in tests."""
SYSTEM_BYTES: Final[RandomBytes] = os.urandom
"""The operating system's generator: what every source of random bytes is unless a caller names another."""


class Purpose(enum.IntEnum):
    """Purpose of a stream. One number per use; numbers are never given twice (4 to 6 were given)."""

    UPLOAD_SHARE = 1
    MASK = 2
    SQUARED_MASK_SHARE = 3
    EQUALITY_TUPLE = 7
    ROW_BITS = 8
    ROW_SIGNS = 9
    EQUALITY_HASH_KEY = 10
    SELECTION = 11
    MASK_SEED = 12
    CORRELATION_MASKS = 13
    CORRELATION_PRODUCTS = 14
    STATEMENT = 15
    SHARE = 16
    SHARE_REPAIR = 17
    PROOF_SHARE = 18
    PROOF_SHARE_REPAIR = 19
    QUERY = 20
    QUERY_REPAIR = 21
    PROOF_STATEMENT = 22
    SLOT_LABELS = 23
    TRIM_BIT = 24
    TRIM_SHARE = 25
    TURNS = 26
    PAIR_SHARE = 27
    LAYER_SQUARES = 28


@dataclass(frozen=True, slots=True)
class Label:
    """Where a stream belongs. `client` is the client's slot in the round, empty for streams that the round shares."""

    task: str
    round: int
    client: str = ""

    def encode(self, purpose: Purpose) -> bytes:
        """Injective: every part carries its length."""
        parts = (VERSION, bytes([purpose]), self.task.encode(), str(self.round).encode(), self.client.encode())
        return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


class Seed:
    """16 secret bytes that cannot be printed by accident."""

    __slots__ = ("_claims", "_value")

    def __init__(self, value: bytes) -> None:
        if len(value) != SEED_BYTES:
            raise ParameterError(f"seed: expected {SEED_BYTES} bytes, found {len(value)}")
        self._value, self._claims = value, tuple[str, ...]()

    @classmethod
    def random(cls, random_bytes: RandomBytes = SYSTEM_BYTES) -> Seed:
        """Return a fresh seed from the operating system's generator."""
        return cls(random_bytes(SEED_BYTES))

    def reveal(self) -> bytes:
        """Return the bytes, for the authenticated channel to the one party that may hold them."""
        return self._value

    def claim(self, use: str) -> bool:
        """Tell whether this is the first claim to a use that a seed must have once, and take note of it."""
        is_first = use not in self._claims
        self._claims = (*self._claims, use)
        return is_first

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Seed) and self._value == other._value

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "Seed(REDACTED)"

    def __reduce__(self) -> str:
        raise TypeError("a Seed is not pickled; reveal() it where it has to leave the process")


def expanded_bytes(random_bytes: RandomBytes = SYSTEM_BYTES) -> RandomBytes:
    """Return a generator for one draw of many bytes: AES-128-CTR under a fresh key, which `random_bytes` gives.

    It takes a tenth of the operating system's time. Whoever holds it draws on: let go of it after its draw.
    """
    encryptor = _encryptor(Seed.random(random_bytes))
    return lambda n: encryptor.update(bytes(n))


def _encryptor(key: Seed, block: int = 0) -> CipherContext:
    """Return AES-128-CTR under the key, from this block on."""
    return Cipher(algorithms.AES128(key.reveal()), modes.CTR(block.to_bytes(16, "big"))).encryptor()


def _encryptor_behind_two_blocks(key: Seed) -> CipherContext:
    """Return AES-128-CTR under the key from block 2 on, as AES-GCM has it: 64 GiB of it at most.

    GCM encrypts in counter mode, and begins at block 2 where its nonce is zero. Nobody takes the tag. The nonce is the
    same every time, as the counter of a stream is: one key, one stream.
    """
    return Cipher(algorithms.AES128(key.reveal()), modes.GCM(bytes(12))).encryptor()


@functools.cache
def _is_gcm_faster() -> bool:
    """Tell whether this machine computes GCM in less time than CTR, which is less work. Takes milliseconds, once.

    OpenSSL has code for vectors of several blocks in GCM, not in CTR. Where a processor has them, it takes half the
    time. A wrong answer costs time alone.
    """
    key, out = Seed(bytes(SEED_BYTES)), memoryview(bytearray(_LONG_BYTES))
    try:
        in_gcm, in_ctr = _encryptor_behind_two_blocks(key), _encryptor(key)
    except UnsupportedAlgorithm:
        return False

    def seconds(encryptor: CipherContext) -> float:
        start = time.perf_counter()
        encryptor.update_into(_ZEROS[:_LONG_BYTES], out)
        return time.perf_counter() - start

    return min(seconds(in_gcm) for _ in range(8)) < min(seconds(in_ctr) for _ in range(8))


def derive(seed: Seed, purpose: Purpose, label: Label) -> Seed:
    """Return the key of one stream: HKDF-SHA256(seed, info = label), 16 bytes."""
    kdf = HKDF(algorithm=SHA256(), length=SEED_BYTES, salt=None, info=label.encode(purpose))
    return Seed(kdf.derive(seed.reveal()))


_WORDS_PER_BLOCK = 2
_ZEROS = memoryview(bytes(1 << 19))
"""Zeros that AES-CTR encrypts: a block that stays in the cache, large enough that the call costs little beside the
work."""
_LONG_BYTES = 1 << 17
"""A first read from which on a second cipher is worth its start."""
_TWO_BLOCKS = 32


class Stream:
    """The words of one stream, from its start, each read once: AES-128-CTR of zeros, counter from zero, little-endian.

    `key` must come from `derive`: one key, one stream.
    """

    __slots__ = ("_encryptor", "_is_unread", "_key")

    def __init__(self, key: Seed, *, n_skipped: int = 0) -> None:
        """Behind its first `n_skipped` words."""
        self._key = key
        block, within = divmod(n_skipped, _WORDS_PER_BLOCK)
        self._encryptor, self._is_unread = _encryptor(key, block), n_skipped == 0
        if within:
            self.fill(np.empty(within, dtype=np.int64))

    def after(self, n_words: int) -> Stream:
        """Return what follows the first n words of a stream that is still at its start; for no words, the stream
        itself.

        Every word is still read once: by whoever reads on from there, and by nobody before it.
        """
        return self if n_words == 0 else Stream(self._key, n_skipped=n_words)

    def fill(self, words: RingArray) -> None:
        """Overwrite `words` with the next words of the stream, where they lie: no temporary.

        Raises TypeError when they do not lie side by side (a copy would be filled, and the mask stay as it was). May
        raise ValueError behind 64 GiB.
        """
        out = words.data.cast("B") if words.size else memoryview(b"")
        if self._is_unread and len(out) >= _LONG_BYTES and _is_gcm_faster():
            behind = _encryptor_behind_two_blocks(self._key)
            self._encryptor.update_into(_ZEROS[:_TWO_BLOCKS], out[:_TWO_BLOCKS])
            self._encryptor, out = behind, out[_TWO_BLOCKS:]
        self._is_unread = self._is_unread and not words.size
        for start in range(0, len(out), len(_ZEROS)):
            piece = out[start : start + len(_ZEROS)]
            self._encryptor.update_into(_ZEROS[: len(piece)], piece)
        if sys.byteorder == "big":
            words.byteswap(inplace=True)

    def __repr__(self) -> str:
        return "Stream(REDACTED)"


def open_stream(seed: Seed, purpose: Purpose, label: Label) -> Stream:
    """Return the stream with this label, to be read tile by tile."""
    return Stream(derive(seed, purpose, label))


def expand(key: Seed, n_words: int) -> RingArray:
    """Return the first n_words of the stream of `key`."""
    words = np.empty(n_words, dtype=np.int64)
    Stream(key).fill(words)
    return words


def stream(seed: Seed, purpose: Purpose, label: Label, n_words: int) -> RingArray:
    """Return `expand(derive(...))`: n_words of the stream with this label. For none, no key is derived."""
    return expand(derive(seed, purpose, label), n_words) if n_words else np.empty(0, dtype=np.int64)
