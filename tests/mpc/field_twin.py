"""Slow, obviously right twins of `precad.mpc.gate.equality`'s arithmetic: Python's integers modulo p."""

from __future__ import annotations

P = 2**127 - 1


def polynomial_hash(words, key: int) -> int:
    """sum_j w_j key^(m+1-j) mod p by Horner's rule, over words that are read as unsigned."""
    value = 0
    for word in words.tolist():
        value = (value + word % 2**64) * key % P
    return value


def integers(elements) -> list[int]:
    """Return the integers of (n, 2) words, the low one first."""
    return [(int(high) % 2**64 << 64) + int(low) % 2**64 for low, high in elements.tolist()]


def words_of(value: int) -> tuple[int, int]:
    """The inverse, for one element."""
    return value % 2**64, value >> 64
