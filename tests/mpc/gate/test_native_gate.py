"""The native gate's two rounds in the clear: a block's g and p, and the carry that joins them, by every input."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from precad.mpc.channel import run_pair
from precad.mpc.errors import MalformedMessageError
from precad.mpc.gate import native_gate
from precad.mpc.gate.top_bits import LowWords
from precad.mpc.tuples.correlations import CarryBlock
from precad.mpc.tuples.dealt import deal
from precad.mpc.tuples.held import BatchShape, ServerTuples
from tests.mpc.gate_twin import bits_of, carry, generate_and_propagate, joined, monomial, plane_of
from tests.mpc.ring_strategies import generator

SPLITS_OF_4 = ((1, 4), (2, 2), (3, 2), (4, 1), (5, 1), (2, 3), (1, 5), (1, 12), (8, 1), (8, 8), (7, 9))
"""Splits that hold 4 bits, exactly or with places to spare."""


def dealt_carries(n_words, k, s):
    """(block, shares) of both servers."""
    shape = BatchShape("carry", 0, (), 1, (CarryBlock(n_words, k, s),))
    return [ServerTuples(party, shape, part).correlations().carries(n_words) for party, part in enumerate(deal(shape))]


@pytest.mark.parametrize(("k", "s"), [(1, 1), (2, 3), (5, 6), (6, 9), (8, 8)])
@pytest.mark.parametrize("n_words", [0, 1, 8, 13])
def test_bits_lie_block_by_block(k, s, n_words):
    """Bit i of block b of word w is bit k b + i of the word.

    It is shifted up where the blocks hold more than the word.
    """
    for n_bits in range(max(1, k * s - 5), min(k * s, 63) + 1):
        words = generator(f"{k} {s} {n_bits}").integers(0, 2**n_bits, n_words, dtype=np.int64)
        products = native_gate._monomials(LowWords(words, n_bits), CarryBlock(n_words, k, s))
        assert products.shape == (2**k - 1, s, (n_words + 7) // 8)
        planes = products[[2**i - 1 for i in range(k)]]
        for i, b in itertools.product(range(k), range(s)):
            place = k * b + i - (k * s - n_bits)
            expected = plane_of([int(w) >> place & 1 if place >= 0 else 0 for w in words])
            assert planes[i, b].tolist() == expected.tolist()


def test_monomials_are_the_products_of_the_chosen_bits():
    """All 2^4 - 1 sets of 4 bits, for all 16 inputs, in each of three blocks of a word."""
    orders = [list(range(16)), list(range(15, -1, -1)), [*range(5, 16), *range(5)]]
    found = native_gate._monomials(words_of_blocks(orders, 4), CarryBlock(16, 4, 3))
    assert found.shape == (15, 3, 2)
    for chosen, (block, inputs) in itertools.product(range(1, 16), enumerate(orders)):
        assert bits_of(found[chosen - 1, block], 16) == [monomial(x, chosen) for x in inputs]


def words_of_blocks(blocks, k):
    """Words whose b-th k bits are the inputs of the b-th block, lowest first."""
    words = [sum(value << k * b for b, value in enumerate(of_word)) for of_word in zip(*blocks, strict=True)]
    return LowWords(np.array(words, dtype=np.int64), k * len(blocks))


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_a_blocks_shares_are_those_of_its_g_and_p(k):
    """All 4^k inputs of a block at once, in each of three blocks with inputs in another order."""
    pairs = list(itertools.product(range(2**k), repeat=2))
    inputs = [pairs, pairs[::-1], pairs[5:] + pairs[:5]]
    (block, at_a), (_, at_b) = dealt_carries(len(pairs), k, 3)
    own = []
    for party in (0, 1):
        words = words_of_blocks([[pair[party] for pair in of_block] for of_block in inputs], k)
        own.append(native_gate._monomials(words, block))
    sent = own[0] ^ at_a.bit_masks, own[1] ^ at_b.bit_masks
    of_a = native_gate._blocks(block, at_a, 0, own[0], sent[1])
    of_b = native_gate._blocks(block, at_b, 1, own[1], sent[0])
    for b, of_block in enumerate(inputs):
        expected = [generate_and_propagate(x, y, k) for x, y in of_block]
        for i in (0, 1):
            assert bits_of(of_a[b, i] ^ of_b[b, i], len(pairs)) == [values[i] for values in expected]


@pytest.mark.parametrize("s", range(1, 7))
def test_the_joining_step_is_exact_for_all_inputs_and_masks(s):
    """All 2^(2s) values of g and p, under random masks; for s <= 3 each under every mask. Also where a block's g and p
    are both one, which an addition never gives."""
    values = list(itertools.product((0, 1), repeat=2 * s))
    masks = values if s <= 3 else [None]
    words = [value for value in values for _ in masks]
    (_, at_a), (_, at_b) = dealt_carries(len(words), 1, s)
    if s <= 3:  # A's shares stay; B's are moved so that the masks are these
        wanted = np.array([plane_of(list(bits)) for bits in zip(*(masks * len(values)), strict=True)])
        at_b = moved(at_a, wanted.reshape(s, 2, -1))
    planes = np.array([plane_of(list(bits)) for bits in zip(*words, strict=True)]).reshape(s, 2, -1)
    opened = planes ^ at_a.join_masks ^ at_b.join_masks
    kept = opened.copy()
    total = native_gate._join(opened, at_a, 0) ^ native_gate._join(opened, at_b, 1)
    assert_array_equal(opened, kept)
    pairs_of = [list(zip(value[::2], value[1::2], strict=True)) for value in words]
    assert bits_of(total, len(words)) == [joined(blocks) for blocks in pairs_of]


def moved(at_a, masks):
    """B's shares with which A's make these masks and their products, by a product over each set."""
    s = len(masks)
    products = []
    for j in reversed(range(s)):
        above = list(reversed(range(j + 1, s)))
        sets = [[b for i, b in enumerate(above) if chosen >> i & 1] for chosen in range(1, 2 ** len(above))]
        for first in (masks[j, 0], masks[j, 1]) if j else (masks[j, 0],):
            products += [np.bitwise_and.reduce([first, *masks[chosen, 1]], axis=0) for chosen in sets]
    subsets = at_a.subsets ^ np.array(products, dtype=np.uint8).reshape(at_a.subsets.shape)
    return at_a._replace(join_masks=at_a.join_masks ^ masks, subsets=subsets)


@pytest.mark.parametrize(("k", "s"), SPLITS_OF_4)
def test_every_sum_of_small_integers_gives_its_carry(k, s):
    """All x, y of 1 to 4 bits through real messages, for splits of every shape, the widest as a group beside others."""
    widths = [n_bits for n_bits in (1, 2, 3, 4) if k * s - n_bits <= 60]
    pairs = {n_bits: list(itertools.product(range(2**n_bits), repeat=2)) for n_bits in widths}
    shape = BatchShape("carry", 0, (), 1, tuple(CarryBlock(len(pairs[n_bits]), k, s) for n_bits in widths))
    sides = [ServerTuples(party, shape, part).correlations() for party, part in enumerate(deal(shape))]

    def party(channel):
        groups = [
            LowWords(np.array([pair[channel.party] for pair in pairs[n_bits]], dtype=np.int64), n_bits)
            for n_bits in widths
        ]
        return native_gate.CarryGate().carries(groups, sides[channel.party], channel)

    for n_bits, a, b in zip(widths, *run_pair(party), strict=True):
        assert bits_of(a ^ b, len(pairs[n_bits])) == [carry(x, y, n_bits) for x, y in pairs[n_bits]]


@pytest.mark.parametrize("length", [0, 185, 187])
@pytest.mark.parametrize("step", ["gate/blocks", "gate/join"])
def test_a_message_of_another_length_is_malformed(step, length):
    """Both steps have a length that both know: 186 and 12 bytes for up to eight rows."""
    sides = dealt_carries(8, 5, 6)
    expected = {"gate/blocks": 186, "gate/join": 12}[step]

    class Dealt:
        def carries(self, n_words):
            return sides[0]

    def party(channel):
        if channel.party == 0:
            return native_gate.CarryGate().carries([LowWords(np.zeros(8, dtype=np.int64), 30)], Dealt(), channel)
        if step == "gate/join":
            channel.exchange("gate/blocks", bytes(186))
        return channel.exchange(step, bytes(length))

    with pytest.raises(MalformedMessageError, match=f"^step '{step}': expected {expected} bytes, found {length}$"):
        run_pair(party)
