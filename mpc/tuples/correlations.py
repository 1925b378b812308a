"""The correlations that a gate, or a function of the sum, uses up, and how they lie in the dealer's streams.

A block is a run of correlations of one kind. `masks` are bits (or words) that hide what a gate opens; `products` are
functions of the masks of both servers, shared between them. Each server's masks are a stream of its own key. Server A's
share of the products is another stream, and server B's is what the dealer sends. So a block is three things: how many
words of masks and of products it has, and what the products are.

Bits of many words lie in planes: one byte holds one bit of eight words, so that one operation works on all of them.

Source: Beaver, CRYPTO '91, for one AND. For an AND of several inputs in one round, from masks and the products of all
their subsets: Ohata and Nuida, FC 2020 (arXiv 1907.03415).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from precad.mpc.errors import ParameterError, TupleExhaustedError
from precad.mpc.ring import WORD_BITS, WORD_BYTES, RingArray

Planes: TypeAlias = NDArray[np.uint8]
"""Bits of m words, (..., ceil(m / 8)): bit w of the last axis belongs to word w, lowest first."""

MAX_BLOCK_BITS, MAX_BLOCKS = 8, 12
"""Limits of a CarryBlock: products grow as 2^block_bits and as 2^n_blocks."""


def lane_bytes(n_words: int) -> int:
    """Return the bytes of a plane of n_words bits."""
    return -(-n_words // 8)


def plane_of_bits(bits: NDArray[np.uint8]) -> Planes:
    """Pack (.., m) of zeros and ones to (.., lane_bytes(m))."""
    return np.packbits(bits, axis=-1, bitorder="little")


def bits_of_plane(plane: Planes, n_words: int) -> RingArray:
    """Return one bit per word, (n_words,), from a plane of at least as many."""
    return np.unpackbits(plane, count=n_words, bitorder="little").astype(np.int64)


class Block(Protocol):
    """A run of correlations of one kind for `n_words` words. Public, and equal at both servers and the dealer."""

    @property
    def n_words(self) -> int:
        """Count the words that the run is for."""

    @property
    def n_masks(self) -> int:
        """Count the words of masks at each server."""

    @property
    def n_products(self) -> int:
        """Count the words of products: the dealer's corrections to server B."""

    def products(self, masks_a: RingArray, masks_b: RingArray) -> RingArray:
        """Return the products in the clear, from both servers' masks; (n_products,). Run by the dealer."""

    def correction(self, products: RingArray, share_a: RingArray) -> RingArray:
        """Return server B's share of the products, (n_products,). Run by the dealer."""


@dataclass(frozen=True, slots=True)
class _Words:
    """A run for `n_words` words, with one word of products for each unless its kind says otherwise."""

    n_words: int

    def __post_init__(self) -> None:
        if self.n_words < 0:
            raise ParameterError(f"n_words: expected at least 0, found {self.n_words}")

    @property
    def n_products(self) -> int:
        """Count one word of products per word."""
        return self.n_words


class _XorShared(_Words):
    """Products that the servers share by XOR."""

    def correction(self, products: RingArray, share_a: RingArray) -> RingArray:
        """See `Block.correction`."""
        return products ^ share_a


class _Additive(_Words):
    """Products that the servers share modulo 2^64."""

    def correction(self, products: RingArray, share_a: RingArray) -> RingArray:
        """See `Block.correction`."""
        return products - share_a


class _Triples(_Words):
    """Masks are a, then b; products are c."""

    @property
    def n_masks(self) -> int:
        """Count the words of a, then of b."""
        return 2 * self.n_words


class AndBlock(_XorShared, _Triples):
    """Binary triples, c = a & b bit by bit, in any order of use: what CrypTen's circuits ask for."""

    def products(self, masks_a: RingArray, masks_b: RingArray) -> RingArray:
        """See `Block.products`."""
        a, b = (masks_a ^ masks_b).reshape(2, self.n_words)
        return a & b


class BitBlock(_Additive):
    """Random bits in both forms: r shared by XOR in a plane (masks), and r as an integer modulo 2^64 (products)."""

    @property
    def n_masks(self) -> int:
        """Return the plane."""
        return _words_in(lane_bytes(self.n_words))

    def products(self, masks_a: RingArray, masks_b: RingArray) -> RingArray:
        """See `Block.products`."""
        return bits_of_plane((masks_a ^ masks_b).view(np.uint8), self.n_words)


class ProductBlock(_Additive, _Triples):
    """Triples modulo 2^64, c = a * b word by word: what a function of the sum multiplies with."""

    def products(self, masks_a: RingArray, masks_b: RingArray) -> RingArray:
        """See `Block.products`."""
        a, b = (masks_a + masks_b).reshape(2, self.n_words)
        return a * b


class SquareBlock(_Additive):
    """Pairs modulo 2^64, c = a * a word by word."""

    @property
    def n_masks(self) -> int:
        """Return the a."""
        return self.n_words

    def products(self, masks_a: RingArray, masks_b: RingArray) -> RingArray:
        """See `Block.products`."""
        a = masks_a + masks_b
        return a * a


class ChoiceBlock(_Additive):
    """For a shared bit times a shared word: random bits u in both forms, random words y, and u y.

    Masks: u shared by XOR in a plane, then shares of y modulo 2^64. Products: u, then u y, modulo 2^64.
    """

    @property
    def n_masks(self) -> int:
        """Return the plane and a word per bit."""
        return _words_in(lane_bytes(self.n_words)) + self.n_words

    @property
    def n_products(self) -> int:
        """Count two words per bit."""
        return 2 * self.n_words

    def products(self, masks_a: RingArray, masks_b: RingArray) -> RingArray:
        """See `Block.products`."""
        n_of_plane = self.n_masks - self.n_words
        u = bits_of_plane((masks_a ^ masks_b)[:n_of_plane].view(np.uint8), self.n_words)
        return np.concatenate([u, u * (masks_a + masks_b)[n_of_plane:]])


class ChoiceShares(NamedTuple):
    """One server's side of the first words of a ChoiceBlock, (m,) each but for the plane."""

    bit_mask: Planes
    """u by XOR."""
    word_mask: RingArray
    """y."""
    bits: RingArray
    """u modulo 2^64."""
    products: RingArray
    """u y."""

    def __repr__(self) -> str:
        return f"ChoiceShares({self.bits.size} words)"


@dataclass(frozen=True, slots=True)
class CarryBlock(_XorShared):
    """Correlations of one addition x + y, to its carry. Server A holds x and B holds y, of n_blocks * block_bits bits.

    Masks of each server, for each of the n_blocks: one for every product of some of its block_bits bits, 2^k - 1. Then
    shared by both: one for each of the joining step's inputs g_0, p_0, g_1, p_1, .. (p_0 is not used).
    Products: of an A mask and a B mask, for every pair that `split_pairs` names; then the joining step's, as
    `subset_products` gives them.
    """

    block_bits: int
    n_blocks: int

    def __post_init__(self) -> None:
        super(CarryBlock, self).__post_init__()  # a class with slots is made anew: a bare super() misses it
        is_small = 1 <= self.block_bits <= MAX_BLOCK_BITS and 1 <= self.n_blocks <= MAX_BLOCKS
        if not is_small or self.block_bits * self.n_blocks > WORD_BITS:
            raise ParameterError(
                f"block_bits, n_blocks: expected 1 to {MAX_BLOCK_BITS} and 1 to {MAX_BLOCKS}, with a product of at "
                f"most {WORD_BITS}, found {self.block_bits} and {self.n_blocks}"
            )

    @property
    def n_masks(self) -> int:
        """See the class."""
        return _words_in((self.n_monomials * self.n_blocks + 2 * self.n_blocks) * lane_bytes(self.n_words))

    @property
    def n_products(self) -> int:
        """See the class."""
        return _words_in(self.products_per_word * lane_bytes(self.n_words))

    @property
    def n_monomials(self) -> int:
        """Count the products of some of block_bits bits."""
        return (1 << self.block_bits) - 1

    @property
    def products_per_word(self) -> int:
        """Count the bits of products for one word: 449 for 30 bits in 6 blocks of 5."""
        return self.n_blocks * len(split_pairs(self.block_bits).a) + n_subset_products(self.n_blocks)

    def masks_of(self, words: RingArray) -> tuple[Planes, Planes]:
        """Return (masks of the bits, masks of the joining step) from n_masks words.

        Shapes: (2^k - 1, s, lanes), (s, 2, lanes).
        """
        lanes, n_split = lane_bytes(self.n_words), self.n_monomials * self.n_blocks
        planes = _planes(words, n_split + 2 * self.n_blocks, lanes)
        return (
            planes[:n_split].reshape(self.n_monomials, self.n_blocks, lanes),
            planes[n_split:].reshape(self.n_blocks, 2, lanes),
        )

    def products_of(self, words: RingArray) -> tuple[Planes, Planes]:
        """Return (products of pairs, products of the joining step) from n_products words.

        Shapes: (pairs, s, lanes), (subsets, lanes).
        """
        n_pairs = len(split_pairs(self.block_bits).a)
        lanes, n_split = lane_bytes(self.n_words), n_pairs * self.n_blocks
        planes = _planes(words, self.products_per_word, lanes)
        return planes[:n_split].reshape(n_pairs, self.n_blocks, lanes), planes[n_split:]

    def shares(self, masks: RingArray, products: RingArray) -> CarryShares:
        """Return one server's words as planes."""
        return CarryShares(*self.masks_of(masks), *self.products_of(products))

    def products(self, masks_a: RingArray, masks_b: RingArray) -> RingArray:
        """See `Block.products`."""
        pairs = split_pairs(self.block_bits)
        (bits_a, join_a), (bits_b, join_b) = self.masks_of(masks_a), self.masks_of(masks_b)
        joined = join_a ^ join_b
        generated, propagated = subset_products(joined[:, 0], joined[:, 1])
        planes = [bits_a[pairs.a] & bits_b[pairs.b]]
        for with_generate, with_propagate in zip(generated, propagated, strict=True):
            planes += [with_generate[1:], with_propagate[1:]]
        flat = np.concatenate([part.reshape(-1) for part in planes])
        return np.concatenate([flat, np.zeros(-flat.size % WORD_BYTES, dtype=np.uint8)]).view(np.int64)


class CarryShares(NamedTuple):
    """One server's side of a CarryBlock."""

    bit_masks: Planes
    """(2^k - 1, s, lanes): its own masks, for the products of its own bits."""
    join_masks: Planes
    """(s, 2, lanes): its shares of the masks of g_j and p_j."""
    pairs: Planes
    """(pairs, s, lanes): its shares of the pairs' products."""
    subsets: Planes
    """(subsets, lanes): its shares of the joining step's products."""

    def __repr__(self) -> str:
        return f"CarryShares(bit_masks of shape {self.bit_masks.shape})"


class SplitPairs(NamedTuple):
    """Which products of A's bits meet which of B's in one block; index S - 1 stands for the product over the set S."""

    a: NDArray[np.intp]
    b: NDArray[np.intp]
    n_generate: int
    """The first n_generate pairs add up to the block's generate bit, the others to its propagate bit."""


@functools.cache
def split_pairs(block_bits: int) -> SplitPairs:
    """Return the pairs of a block of `block_bits` bits, lowest bit first, sets as bit masks.

    With p_i = x_i ^ y_i the block generates a carry as the XOR over j of x_j y_j prod_{i > j} p_i. It propagates one as
    the product of all p_i. Multiplied out, each term is a product of A's bits times a product of B's. The bits above j
    are split between the two in every way. Products over all bits of one server (x.. x or y.. y) need no pair.
    """
    full = (1 << block_bits) - 1
    generate = [
        ((1 << j) | of_a, (1 << j) | (above ^ of_a))
        for j in range(block_bits)
        for above in [full & ~((2 << j) - 1)]
        for of_a in _subsets(above)
    ]
    propagate = [(of_a, full ^ of_a) for of_a in range(1, full)]
    a, b = np.ascontiguousarray(np.array(generate + propagate, dtype=np.intp).T - 1)
    return SplitPairs(a, b, len(generate))


def _subsets(mask: int) -> Iterator[int]:
    subset = mask
    while subset:
        yield subset
        subset = (subset - 1) & mask
    yield 0


def subset_products(generate: Planes, propagate: Planes) -> tuple[list[Planes], list[Planes]]:
    """Return, for j = s-1 .. 0, (g_j prod A over all A) and (p_j prod A over all A), A a set of propagates above j.

    Shapes: (s, lanes) each; lists of (2^(s-1-j), lanes), the empty set first. p_0 takes part in nothing: (1, lanes).
    """
    table = np.full((1, generate.shape[-1]), 0xFF, dtype=np.uint8)
    with_generate, with_propagate = [], []
    for j in reversed(range(len(generate))):
        with_generate.append(generate[j] & table)
        with_propagate.append(propagate[j] & (table if j else table[:1]))
        table = np.concatenate([table, with_propagate[-1]])
    return with_generate, with_propagate


def n_subset_products(n_blocks: int) -> int:
    """Count the planes of `subset_products` that are products of two masks or more."""
    return (1 << n_blocks) - 1 - n_blocks + (1 << (n_blocks - 1)) - n_blocks


@functools.cache
def best_split(n_bits: int) -> tuple[int, int]:
    """Return (block_bits, n_blocks) with block_bits * n_blocks >= n_bits and the fewest products."""

    def cost(block_bits: int) -> int:
        n_blocks = -(-n_bits // block_bits)
        return n_blocks * len(split_pairs(block_bits).a) + n_subset_products(n_blocks)

    fitting = [k for k in range(1, MAX_BLOCK_BITS + 1) if -(-n_bits // k) <= MAX_BLOCKS]
    block_bits = min(fitting, key=cost)
    return block_bits, -(-n_bits // block_bits)


BlockT = TypeVar("BlockT", AndBlock, BitBlock, CarryBlock, ChoiceBlock, ProductBlock, SquareBlock)


class Correlations:
    """One server's side of a round's blocks, in the order of their use. Each is taken once, triples word by word.

    Fewer words than were dealt may be needed, when a chosen client did not deliver: the first ones are taken.
    """

    def __init__(self, blocks: Sequence[Block], masks: RingArray, products: RingArray) -> None:
        """masks, products: both streams, or at B the corrections; as many words as the blocks have, or more."""
        self._blocks = tuple(blocks)
        self._words: list[tuple[RingArray, RingArray]] = []
        self._carry_shares: dict[int, CarryShares] = {}
        for i, block in enumerate(blocks):
            of_block = masks[: block.n_masks], products[: block.n_products]
            self._words.append(of_block)
            if isinstance(block, CarryBlock):
                self._carry_shares[i] = block.shares(*of_block)
            masks, products = masks[block.n_masks :], products[block.n_products :]
        self._block = self._taken = 0

    def triples(self, n_words: int) -> tuple[RingArray, RingArray, RingArray]:
        """Return the next run of binary triples: a, b, c with c = a & b, (n_words,). Raises TupleExhaustedError."""
        block, masks, products = self._find(AndBlock, n_words, taken=self._taken)
        run = slice(self._taken, self._taken + n_words)
        self._taken += n_words
        a, b = masks.reshape(2, block.n_words)[:, run]
        return a.copy(), b.copy(), products[run].copy()

    def bits(self, n_words: int) -> tuple[Planes, RingArray]:
        """Return (XOR shares in a plane, additive shares modulo 2^64) of n_words random bits.

        Raises TupleExhaustedError.
        """
        _, masks, products = self._take(BitBlock, n_words)
        return masks.view(np.uint8)[: lane_bytes(n_words)], products[:n_words]

    def choices(self, n_words: int) -> ChoiceShares:
        """Return the next ChoiceBlock's first n_words words. Raises TupleExhaustedError."""
        block, masks, products = self._take(ChoiceBlock, n_words)
        word_mask, (bits, of_words) = masks[block.n_masks - block.n_words :], products.reshape(2, block.n_words)
        plane = masks.view(np.uint8)[: lane_bytes(n_words)]
        return ChoiceShares(plane, word_mask[:n_words], bits[:n_words], of_words[:n_words])

    def ring_triples(self, n_words: int) -> tuple[RingArray, RingArray, RingArray]:
        """Return additive shares a, b, c with c = a * b, (n_words,). Raises TupleExhaustedError."""
        block, masks, products = self._take(ProductBlock, n_words)
        a, b = masks.reshape(2, block.n_words)[:, :n_words]
        return a.copy(), b.copy(), products[:n_words].copy()

    def squares(self, n_words: int) -> tuple[RingArray, RingArray]:
        """Return additive shares a, c with c = a * a, (n_words,). Raises TupleExhaustedError."""
        _, masks, products = self._take(SquareBlock, n_words)
        return masks[:n_words].copy(), products[:n_words].copy()

    def skip_to(self, block: int) -> None:
        """Pass over what earlier steps of the round left, up to the block of this number; none of it is used.

        Raises TupleExhaustedError where they took of that block, too.
        """
        if (self._block, self._taken) > (block, 0):
            raise TupleExhaustedError(f"block {block} of the round is taken already")
        self._block, self._taken = block, 0

    def carries(self, n_words: int) -> tuple[CarryBlock, CarryShares]:
        """Return the next CarryBlock, for its first n_words words. Raises TupleExhaustedError."""
        block, _, _ = self._take(CarryBlock, n_words)
        shares = self._carry_shares.pop(self._block - 1)
        if n_words == block.n_words:
            return block, shares
        lanes = lane_bytes(n_words)
        return block, CarryShares(*(np.ascontiguousarray(part[..., :lanes]) for part in shares))

    def _take(self, kind: type[BlockT], n_words: int) -> tuple[BlockT, RingArray, RingArray]:
        found = self._find(kind, n_words)
        self._next()
        return found

    def _find(self, kind: type[BlockT], n_words: int, taken: int = 0) -> tuple[BlockT, RingArray, RingArray]:
        """Return the block in turn, with its masks and products; triples that nobody took are passed over."""
        if self._block < len(self._blocks) and isinstance(self._blocks[self._block], AndBlock) and kind is not AndBlock:
            self._next()
        if self._block < len(self._blocks):
            block = self._blocks[self._block]
            if isinstance(block, kind) and taken + n_words <= block.n_words:
                return block, *self._words[self._block]
        raise TupleExhaustedError(f"the round has no {kind.__name__} for {n_words} words left")

    def _next(self) -> None:
        self._block, self._taken = self._block + 1, 0

    def __repr__(self) -> str:
        return f"Correlations({len(self._blocks)} blocks, in block {self._block})"


def _planes(words: RingArray, n_planes: int, lanes: int) -> Planes:
    return words.view(np.uint8)[: n_planes * lanes].reshape(n_planes, lanes)


def _words_in(n_bytes: int) -> int:
    return -(-n_bytes // WORD_BYTES)
