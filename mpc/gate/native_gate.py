"""The native comparison gate: the carry of an addition in two rounds.

Server A holds x and server B holds y, n bits each. They want shares of the bit that x + y carries out of its top. The n
bits are cut into s blocks of k. A block generates a carry (g) or passes one on (p). Both are polynomials in bits of
which each server knows its half. So one round of opening masked products of one's own bits gives shares of all g and p
(`_blocks`). The carry is g_(s-1) ^ p_(s-1) (g_(s-2) ^ p_(s-2) (..)). One more round opens the masked g and p and
evaluates all of it at once, from shares of the products of the masks (`_join`).

For the 30 bits of a row, s = 6 and k = 5. That is 24.75 bytes per word and direction, and 56 bytes of corrections from
the dealer. A tree of ANDs (Kogge-Stone) takes 7 rounds and 144 bytes for a sum of 64 bits.

Source: ours; for an AND of several inputs in one round, Ohata and Nuida, FC 2020 (arXiv 1907.03415), section 4.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np

from precad.mpc.channel import Channel, exchange_alike
from precad.mpc.gate.top_bits import LowWords
from precad.mpc.kernels import loading
from precad.mpc.sharing import Party
from precad.mpc.tuples.correlations import (
    Block,
    CarryBlock,
    CarryShares,
    Correlations,
    Planes,
    best_split,
    lane_bytes,
    split_pairs,
)


class CarryGate:
    """Stateless; needs neither CrypTen nor torch. Its loops are compiled (`precad.mpc.kernels.gate`)."""

    name = "native"

    def blocks(self, groups: Sequence[tuple[int, int]]) -> tuple[Block, ...]:
        """See `Gate.blocks`."""
        return tuple(CarryBlock(n_words, *best_split(n_bits)) for n_words, n_bits in groups)

    def carries(self, groups: Sequence[LowWords], correlations: Correlations, channel: Channel) -> list[Planes]:
        """See `Gate.carries`. Two rounds."""
        runs = [_carry(group, *correlations.carries(group.words.size), channel.party) for group in groups]
        return _run_together(runs, channel, ("gate/blocks", "gate/join"))


Run = Generator[Planes, Planes, Planes]
"""Yields what it sends in each round, takes what the peer sends there, and returns its share of the carries."""


def _run_together(runs: Sequence[Run], channel: Channel, labels: Sequence[str]) -> list[Planes]:
    """Run all of them with one message per round."""
    outgoing, results = [next(run) for run in runs], []
    for label in labels:
        received = exchange_alike(channel, label, b"".join(planes.tobytes() for planes in outgoing))
        theirs, incoming = np.frombuffer(received, dtype=np.uint8), []
        for planes in outgoing:
            incoming.append(theirs[: planes.size].reshape(planes.shape))
            theirs = theirs[planes.size :]
        outgoing = []
        for run, planes in zip(runs, incoming, strict=True):
            try:
                outgoing.append(run.send(planes))
            except StopIteration as done:
                results.append(done.value)
    return results


def _carry(group: LowWords, block: CarryBlock, shares: CarryShares, party: Party) -> Run:
    """Shares of the carry out of the lowest n_bits of each word."""
    own = _monomials(group, block)
    theirs = yield own ^ shares.bit_masks
    hidden = _blocks(block, shares, party, own, theirs) ^ shares.join_masks
    theirs = yield hidden
    return _join(hidden ^ theirs, shares, party)


def _monomials(group: LowWords, block: CarryBlock) -> Planes:
    """(2^k - 1, s, lanes): the product over each non-empty set of a block's bits, at the set's number less one.

    Bit i of block b is bit k b + i of a word. Words of fewer bits are shifted up: zeros carry nothing.
    """
    products = np.empty((block.n_monomials, block.n_blocks, lane_bytes(group.words.size)), dtype=np.uint8)
    pad = np.uint64(block.block_bits * block.n_blocks - group.n_bits)
    loading.gate().monomials(np.ascontiguousarray(group.words).view(np.uint64), pad, products)
    return products


def _blocks(block: CarryBlock, shares: CarryShares, party: Party, own: Planes, theirs: Planes) -> Planes:
    """Return the XOR shares of g and p of every block, (s, 2, lanes).

    With e = x ^ a and d = y ^ b opened, x & y = (x & d) ^ (e & b) ^ (a & b): A knows the first term, B the second.
    """
    pairs = split_pairs(block.block_bits)
    of_a, of_b = (own, theirs) if party == 0 else (theirs, shares.bit_masks)
    totals = np.zeros(shares.join_masks.shape, dtype=np.uint8)
    totals[:, 1] = own[-1]
    loading.gate().add_pairs(of_a, of_b, pairs.a, pairs.b, pairs.n_generate, shares.pairs, totals)
    return totals


def _join(opened: Planes, shares: CarryShares, party: Party) -> Planes:
    """Return the XOR share of g_(s-1) ^ p_(s-1) (g_(s-2) ^ ..), (lanes,), where each g and p is opened ^ mask. (s, 2,
    lanes).

    Multiplied out, a product of masks g_j and of those p_i, i in A, above j has a factor. That is the product of the
    opened p_i above j that are not in A. With p_j instead of g_j, it is that product times the carry into block j that
    the opened values would have. `subsets` holds the products in the order of
    `precad.mpc.tuples.correlations.subset_products`.
    """
    s, _, lanes = opened.shape
    carry_in, factors = np.zeros((s + 1, lanes), dtype=np.uint8), np.empty((1 << s, lanes), dtype=np.uint8)
    total = np.empty(lanes, dtype=np.uint8)
    loading.gate().join(opened, shares.join_masks, shares.subsets, party == 0, carry_in, factors, total)
    return total
