"""Section 4: words of Z_2^64 as integers in [0, 2^64), and refusals."""

from __future__ import annotations

from collections.abc import Iterable

MODULUS = 1 << 64


class RefusedError(Exception):
    """Signal what an implementation must not continue with. `kind` is the word that the vectors use."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


def centred(word: int) -> int:
    """The integer in [-2^63, 2^63) that a word stands for."""
    word %= MODULUS
    return word - MODULUS if word >> 63 else word


def to_bytes(words: Iterable[int]) -> bytes:
    """Eight bytes each, little-endian."""
    return b"".join((word % MODULUS).to_bytes(8, "little") for word in words)


def from_bytes(data: bytes, n_words: int | None = None) -> list[int]:
    """The inverse; of exactly n_words where that is said."""
    if len(data) % 8 or (n_words is not None and len(data) != 8 * n_words):
        raise RefusedError("malformed")
    return [int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8)]


def dot(x: Iterable[int], y: Iterable[int]) -> int:
    """<x, y> modulo 2^64."""
    return sum(a * b for a, b in zip(x, y, strict=True)) % MODULUS
