"""Slow, obviously right twins of the comparison: carries and top bits of Python's integers, and formulas by the bit."""

from __future__ import annotations

import itertools

import numpy as np


def carry(x: int, y: int, n_bits: int) -> int:
    """Bit n_bits of the sum of two integers of n_bits bits."""
    assert 0 <= x < 2**n_bits
    assert 0 <= y < 2**n_bits
    return (x + y) >> n_bits


def top_bits(word_a: int, word_b: int, n_bits: int) -> int:
    """Bits n_bits..63 of the sum modulo 2^64, as an integer."""
    return (word_a + word_b) % 2**64 >> n_bits


def generate_and_propagate(x: int, y: int, n_bits: int) -> tuple[int, int]:
    """Whether x + y carries by itself, and whether it would with a carry in and does not without."""
    return carry(x, y, n_bits), int(x + y == 2**n_bits - 1)


def joined(blocks: list[tuple[int, int]]) -> int:
    """The carry out of blocks (g, p), the lowest first, passed on one by one."""
    out = 0
    for g, p in blocks:
        out = g ^ (p & out)
    return out


def monomial(bits: int, chosen: int) -> int:
    """The product of the chosen bits of an integer."""
    return int(bits & chosen == chosen)


def subsets(items: list[int]) -> list[tuple[int, ...]]:
    """All of them, in any order."""
    return [s for r in range(len(items) + 1) for s in itertools.combinations(items, r)]


def bits_of(plane, n_words: int) -> list[int]:
    """The bits of a plane, one by one: bit w of byte v belongs to word 8v + w."""
    return [int(plane[w // 8]) >> (w % 8) & 1 for w in range(n_words)]


def plane_of(bits: list[int]):
    """The inverse, with zeros to the end of the last byte."""
    plane = np.zeros((len(bits) + 7) // 8, dtype=np.uint8)
    for w, bit in enumerate(bits):
        plane[w // 8] |= bit << (w % 8)
    return plane


def subset_tables(masks, products):
    """Return what `subset_products` gives, from its inputs (s, 2, lanes) and its products of two masks or more, in
    order.
    """
    with_generate, with_propagate = [], []
    for j in reversed(range(len(masks))):
        n_products = 2 ** (len(masks) - 1 - j) - 1
        with_generate.append(np.concatenate([masks[j, :1], products[:n_products]]))
        products = products[n_products:]
        n_products = n_products if j else 0
        with_propagate.append(np.concatenate([masks[j, 1:], products[:n_products]]))
        products = products[n_products:]
    return with_generate, with_propagate
