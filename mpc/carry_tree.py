"""The native comparison gate: a Kogge-Stone carry tree on XOR-shared bits, 64 positions to a word.

For x (server A's word) and y (B's), sum bits are x ^ y ^ (carries << 1). A carry leaves position i when it is generated
there (g = x & y) or propagated through it (p = x ^ y). Spans of length 1, 2, .., 32 are joined level by level:

    g <- g ^ (p & (g << s)),   p <- p & (p << s)          s = 1, 2, 4, 8, 16, 32

Both products of a level have the left operand p, which is opened once for both. In the first AND each party knows one
operand, so it opens one word instead of two. Per word and direction: 8 + 5 * 24 + 16 = 144 bytes in 7 rounds, and 12
corrections from the dealer.

Source: `secure_validation.md` section 5, step 4; Beaver, CRYPTO '91, for one AND.
"""

from __future__ import annotations

import numpy as np

from mpc import ring
from mpc.channel import Channel
from mpc.ring import RingArray
from mpc.tuples import AndBlock, BinaryTriples

SHIFTS = (1, 2, 4, 8, 16, 32)


class CarryTreeGate:
    """Stateless; needs neither CrypTen nor torch."""

    name = "native"

    def and_blocks(self, n_words: int) -> tuple[AndBlock, ...]:
        """See `Gate.and_blocks`: x & y, then two products a level, and one at the last, which needs no p."""
        levels = (AndBlock(n_words, fanout=2) for _ in SHIFTS[:-1])
        return (AndBlock(n_words, is_split=True), *levels, AndBlock(n_words))

    def to_binary(self, words: RingArray, triples: BinaryTriples, channel: Channel) -> RingArray:
        """See `Gate.to_binary`."""
        generate, propagate = _and_of_inputs(words, triples, channel), words
        for shift in SHIFTS:
            lower = [generate << shift] if shift == SHIFTS[-1] else [generate << shift, propagate << shift]
            products = _and_shared_left(propagate, np.stack(lower), triples, channel, f"gate/{shift}")
            generate, propagate = generate ^ products[0], products[-1]
        return words ^ (generate << 1)


def _and_of_inputs(words: RingArray, triples: BinaryTriples, channel: Channel) -> RingArray:
    """XOR share of x & y, where A holds x and B holds y. One round, 8 bytes per word.

    With e = x ^ a and d = y ^ b opened, x & y = (x & d) ^ (e & b) ^ (a & b): A knows the first term, B the second.
    """
    a, b, c = triples.take(words.size, is_split=True)
    mask = a if channel.party == 0 else b[0]
    theirs = _exchange(words ^ mask, channel, "gate/inputs")
    known = words if channel.party == 0 else b[0]
    product: RingArray = (known & theirs) ^ c[0]
    return product


def _and_shared_left(
    left: RingArray, right: RingArray, triples: BinaryTriples, channel: Channel, label: str
) -> RingArray:
    """XOR shares of left & right_j for every j. One round, 8 (1 + k) bytes per word. Shapes: (m,), (k, m); (k, m)."""
    a, b, c = triples.take(left.size, fanout=len(right))
    share = np.concatenate([(left ^ a)[np.newaxis], right ^ b])
    opened = share ^ _exchange(share.reshape(-1), channel, label).reshape(share.shape)
    e, d = opened[0], opened[1:]
    products: RingArray = (e & b) ^ (a & d) ^ c
    return products ^ (e & d) if channel.party == 0 else products


def _exchange(share: RingArray, channel: Channel, label: str) -> RingArray:
    return ring.from_bytes(channel.exchange(label, ring.to_bytes(share)), n_words=share.size)
