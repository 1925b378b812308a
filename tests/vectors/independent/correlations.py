"""Sections 8 and 11: blocks of binary correlations, and how they lie in the dealer's streams."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.vectors.independent import ring
from tests.vectors.independent.ring import MODULUS


@dataclass(frozen=True)
class Block:
    """A run of correlations: kind AND, BIT or CARRY."""

    kind: str
    n_words: int
    block_bits: int = 0
    n_blocks: int = 0

    @property
    def lanes(self) -> int:
        """Bytes of a plane."""
        return -(-self.n_words // 8)

    @property
    def n_masks(self) -> int:
        """Words of each server's mask stream."""
        if self.kind == "AND":
            return 2 * self.n_words
        if self.kind == "BIT":
            return -(-self.lanes // 8)
        return -(-((2**self.block_bits - 1) * self.n_blocks + 2 * self.n_blocks) * self.lanes // 8)

    @property
    def n_products(self) -> int:
        """Words of products."""
        if self.kind in {"AND", "BIT"}:
            return self.n_words
        return -(-products_per_word(self.block_bits, self.n_blocks) * self.lanes // 8)


def plane_of_bits(bits: Iterable[int]) -> int:
    """One integer; bit w belongs to word w."""
    return sum(bit << w for w, bit in enumerate(bits))


def planes(words: Sequence[int], lanes: int) -> list[int]:
    """The planes that lie one after the other in words."""
    data = ring.to_bytes(words)
    return [int.from_bytes(data[i : i + lanes], "little") for i in range(0, len(data) - lanes + 1, lanes)]


def plane_bytes(values: Iterable[int], lanes: int) -> bytes:
    """The inverse of `planes`."""
    return b"".join(value.to_bytes(lanes, "little") for value in values)


@functools.cache
def pairs(block_bits: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """(of the generate bit, of the propagate bit): (A's set, B's set) as bit masks, in the protocol's order."""
    full = 2**block_bits - 1
    generate = []
    for j in range(block_bits):
        above = full & ~((2 << j) - 1)
        for of_a in reversed([subset for subset in range(full + 1) if subset & ~above == 0]):
            generate.append((1 << j | of_a, 1 << j | (above ^ of_a)))
    return generate, [(of_a, full ^ of_a) for of_a in range(1, full)]


@functools.cache
def joining_sets(n_blocks: int) -> list[tuple[str, int, tuple[int, ...]]]:
    """(g or p, j, the set of the other propagates, all above j), for every product that is dealt, in order."""
    order = []
    for j in reversed(range(n_blocks)):
        above = range(n_blocks - 1, j, -1)  # bit 0 of the counter stands for the highest block
        sets = [tuple(i for bit, i in enumerate(above) if number >> bit & 1) for number in range(1, 2 ** len(above))]
        order += [("g", j, others) for others in sets]
        order += [("p", j, others) for others in sets] if j else []
    return order


def products_per_word(block_bits: int, n_blocks: int) -> int:
    """Bits of products for one word."""
    return n_blocks * (2 ** (block_bits + 1) - 3) + len(joining_sets(n_blocks))


def best_split(n_bits: int) -> tuple[int, int]:
    """(block_bits, n_blocks) of the native gate for a sum of n_bits."""
    candidates = [(k, -(-n_bits // k)) for k in range(1, 9) if -(-n_bits // k) <= 12]
    return min(candidates, key=lambda split: (products_per_word(*split), split[0]))


def products(block: Block, masks_a: Sequence[int], masks_b: Sequence[int]) -> list[int]:
    """In the clear, as words. Known to the dealer alone."""
    both = [a ^ b for a, b in zip(masks_a, masks_b, strict=True)]
    if block.kind == "AND":
        return [a & b for a, b in zip(both[: block.n_words], both[block.n_words :], strict=True)]
    if block.kind == "BIT":
        plane = int.from_bytes(ring.to_bytes(both), "little")
        return [plane >> w & 1 for w in range(block.n_words)]
    s, lanes = block.n_blocks, block.lanes
    if not lanes:
        return []
    of_a, of_b, joined = planes(masks_a, lanes), planes(masks_b, lanes), planes(both, lanes)
    generate, propagate = pairs(block.block_bits)
    result = [of_a[(x - 1) * s + i] & of_b[(y - 1) * s + i] for x, y in generate + propagate for i in range(s)]
    first = (2**block.block_bits - 1) * s
    for kind, j, others in joining_sets(s):
        value = joined[first + 2 * j + (kind == "p")]
        for i in others:
            value &= joined[first + 2 * i + 1]
        result.append(value)
    data = plane_bytes(result, lanes)
    return ring.from_bytes(data + bytes(-len(data) % 8))


def correction(block: Block, in_clear: Sequence[int], share_a: Sequence[int]) -> list[int]:
    """Server B's share of the products."""
    if block.kind == "BIT":
        return [(r - a) % MODULUS for r, a in zip(in_clear, share_a, strict=True)]
    return [r ^ a for r, a in zip(in_clear, share_a, strict=True)]


@dataclass
class Dealt:
    """One server's masks and product shares of one block."""

    block: Block
    masks: list[int]
    products: list[int]


def cut(blocks: Sequence[Block], masks: Sequence[int], product_shares: Sequence[int]) -> list[Dealt]:
    """The streams, block by block."""
    result = []
    for block in blocks:
        result.append(Dealt(block, list(masks[: block.n_masks]), list(product_shares[: block.n_products])))
        masks, product_shares = masks[block.n_masks :], product_shares[block.n_products :]
    return result
