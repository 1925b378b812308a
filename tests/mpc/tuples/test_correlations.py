"""Binary correlations: what a block holds, where it lies, and that every part of it is used once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from precad.mpc.errors import ParameterError, TupleExhaustedError
from precad.mpc.tuples import correlations
from precad.mpc.tuples.correlations import (
    MAX_BLOCK_BITS,
    MAX_BLOCKS,
    AndBlock,
    BitBlock,
    CarryBlock,
    ChoiceBlock,
    Correlations,
    ProductBlock,
    SquareBlock,
    best_split,
    bits_of_plane,
    lane_bytes,
    n_subset_products,
    plane_of_bits,
    split_pairs,
    subset_products,
)
from precad.mpc.tuples.dealt import deal
from precad.mpc.tuples.held import BatchShape, ServerTuples
from tests.mpc.fixed_randomness import are_uniform_bytes, random_bytes_of
from tests.mpc.gate_costs import SPLITS, lanes, products_per_word
from tests.mpc.gate_twin import bits_of, monomial, plane_of, subset_tables, subsets
from tests.mpc.ring_strategies import generator, random_words

MIXED = (CarryBlock(20, 3, 2), AndBlock(9), BitBlock(19), CarryBlock(5, 2, 3), BitBlock(4))


def both(*blocks, **kwargs):
    """The two servers' correlations of one batch."""
    shape = BatchShape("task", 0, (), 1, blocks)
    return [ServerTuples(party, shape, part).correlations() for party, part in enumerate(deal(shape, **kwargs))]


def opened(parts):
    """Return what two servers' XOR shares are shares of."""
    return [a ^ b for a, b in zip(*parts, strict=True)]


# Planes


@given(st.lists(st.integers(0, 1), max_size=40))
def test_a_plane_holds_a_bit_of_each_word(bits):
    """As the twin packs them, and back; a plane may be longer than it must."""
    plane = plane_of_bits(np.array(bits, dtype=np.uint8))
    assert plane.size == lane_bytes(len(bits)) == lanes(len(bits))
    assert plane.tolist() == plane_of(bits).tolist()
    longer = np.append(plane, np.uint8(0xFF))
    assert bits_of_plane(longer, len(bits)).tolist() == bits_of(longer, len(bits)) == bits


# Layouts


@pytest.mark.parametrize("n_words", [0, 1, 7, 8, 9, 64, 65, 520])
@pytest.mark.parametrize("n_bits", SPLITS)
def test_a_carry_block_is_as_long_as_its_planes(n_words, n_bits):
    """A mask for each product of a block's bits and one for each g and p; products as counted by hand; whole words."""
    k, s = SPLITS[n_bits]
    block = CarryBlock(n_words, k, s)
    assert block.n_masks == -(-((2**k - 1) * s + 2 * s) * lanes(n_words) // 8)
    assert block.products_per_word == products_per_word(k, s)
    assert block.n_products == -(-products_per_word(k, s) * lanes(n_words) // 8)


def test_a_row_takes_449_products():
    """The figure that the text gives, for 30 bits in 6 blocks of 5."""
    assert products_per_word(5, 6) == CarryBlock(1, 5, 6).products_per_word == 449


@pytest.mark.parametrize("n_words", [0, 1, 7, 8, 9, 64, 65])
def test_the_other_blocks_are_as_long_as_their_words(n_words):
    """Two masks and a product for a triple, a bit and a word for a bit. A choice has a bit, a word and two more."""
    assert (AndBlock(n_words).n_masks, AndBlock(n_words).n_products) == (2 * n_words, n_words)
    n_of_bits = (n_words + 63) // 64
    assert (BitBlock(n_words).n_masks, BitBlock(n_words).n_products) == (n_of_bits, n_words)
    assert (ChoiceBlock(n_words).n_masks, ChoiceBlock(n_words).n_products) == (n_of_bits + n_words, 2 * n_words)


def test_every_mask_and_product_of_a_carry_block_has_a_place_of_its_own():
    """The planes of `masks_of` and `products_of` are the words in order: no byte twice, none left but the last few."""
    block = CarryBlock(20, 3, 4)
    words = random_words("places", block.n_masks), random_words("more places", block.n_products)
    split, join = block.masks_of(words[0])
    pairs, subsets_ = block.products_of(words[1])
    assert split.shape == (7, 4, 3)
    assert join.shape == (4, 2, 3)
    assert pairs.shape == (13, 4, 3)
    assert subsets_.shape == (n_subset_products(4), 3)
    for parts, whole in (((split, join), words[0]), ((pairs, subsets_), words[1])):
        flat = b"".join(part.tobytes() for part in parts)
        assert whole.tobytes().startswith(flat)
        assert 0 <= 8 * whole.size - len(flat) < 8


@pytest.mark.parametrize("n_bits", range(1, 64))
def test_the_best_split_is_the_cheapest_that_fits(n_bits):
    """Over all splits within the limits, by the count of the twin; it covers the bits, and a word holds it."""
    k, s = best_split(n_bits)
    assert n_bits <= k * s <= 64
    assert 1 <= k <= MAX_BLOCK_BITS
    assert 1 <= s <= MAX_BLOCKS
    assert products_per_word(k, s) == min(
        products_per_word(k, s)
        for k in range(1, MAX_BLOCK_BITS + 1)
        for s in range(1, MAX_BLOCKS + 1)
        if k * s >= n_bits
    )
    assert SPLITS.get(n_bits, (k, s)) == (k, s)


@pytest.mark.parametrize("block_bits", range(1, 6))
@pytest.mark.parametrize("n_blocks", range(1, 6))
def test_counts_are_those_of_what_is_made(block_bits, n_blocks):
    """The formulas for pairs and sets are the lengths of the lists."""
    planes = np.zeros((2, n_blocks, 1), dtype=np.uint8)
    made = [part for parts in subset_products(*planes) for part in parts]
    assert sum(len(part) - 1 for part in made) == n_subset_products(n_blocks)
    assert len(split_pairs(block_bits).a) == len(split_pairs(block_bits).b) == 2 ** (block_bits + 1) - 3
    assert split_pairs(block_bits).n_generate == 2**block_bits - 1


# Relations


def test_binary_triples_multiply_bit_by_bit():
    """c = a & b in every word of the block, and in any order of runs."""
    sides = both(AndBlock(1000))
    for n_words in (1, 0, 499, 500):
        a, b, c = opened([side.triples(n_words) for side in sides])
        assert a.shape == (n_words,)
        assert_array_equal(a & b, c)


@pytest.mark.parametrize("n_words", [1, 8, 9, 200])
def test_random_bits_are_the_same_bits_in_both_forms(n_words):
    """The XOR of two planes is the sum of two words modulo 2^64, which is zero or one."""
    sides = [side.bits(n_words) for side in both(BitBlock(n_words))]
    plane = sides[0][0] ^ sides[1][0]
    values = [(int(a) + int(b)) % 2**64 for a, b in zip(sides[0][1], sides[1][1], strict=True)]
    assert bits_of(plane, n_words) == values
    assert set(values) <= {0, 1}


def test_random_bits_are_random():
    """10 000 of them, within 5 sigma of a half (6e-7), and so are the shares of the words."""
    sides = [side.bits(10_000) for side in both(BitBlock(10_000), random_bytes=random_bytes_of("random bits"))]
    ones = int((sides[0][1] + sides[1][1]).sum())
    assert abs(ones - 5000) < 250
    assert all(are_uniform_bytes(values.tobytes()) for _, values in sides)


@pytest.mark.parametrize(("k", "s"), [(1, 1), (1, 3), (2, 2), (3, 1), (3, 4), (5, 6)])
@pytest.mark.parametrize("n_words", [1, 9, 40])
def test_a_carry_block_holds_the_products_of_its_masks(k, s, n_words):
    """Every pair's product of A's mask and B's, and every set's product of the joining masks, word by word."""
    (_, a), (_, b) = (side.carries(n_words) for side in both(CarryBlock(n_words, k, s)))
    pairs, (of_pairs, of_sets) = split_pairs(k), (a.pairs ^ b.pairs, a.subsets ^ b.subsets)
    for i, (in_a, in_b) in enumerate(zip(pairs.a, pairs.b, strict=True)):
        assert_array_equal(of_pairs[i], a.bit_masks[in_a] & b.bit_masks[in_b])
    masks = a.join_masks ^ b.join_masks
    generated, propagated = subset_tables(masks, of_sets)
    for j, (with_g, with_p) in zip(reversed(range(s)), zip(generated, propagated, strict=True), strict=True):
        for i, chosen in enumerate(sets_above(j, s)):
            factor = np.bitwise_and.reduce(masks[list(chosen), 1], axis=0, initial=0xFF)
            assert_array_equal(with_g[i], masks[j, 0] & factor)
            if j:
                assert_array_equal(with_p[i], masks[j, 1] & factor)
        assert len(with_g) == 2 ** (s - 1 - j)
        assert len(with_p) == (len(with_g) if j else 1)


def sets_above(j, s):
    """Return the sets of blocks above j in the order of a table that doubles from the top down.

    Set i has s - 1 - b for bit b.
    """
    above = s - 1 - j
    return [tuple(s - 1 - b for b in range(above) if i >> b & 1) for i in range(2**above)]


def test_the_order_of_sets_leaves_none_out():
    """The helper above names every set once."""
    for s in range(1, 6):
        for j in range(s):
            chosen = {frozenset(c) for c in sets_above(j, s)}
            assert chosen == {frozenset(c) for c in subsets(list(range(j + 1, s)))}
            assert len(sets_above(j, s)) == len(chosen)


def test_masks_of_a_carry_block_are_each_servers_own():
    """Neither server's masks are a function of the other's: all four arrays and both shares of the products differ."""
    (_, a), (_, b) = (side.carries(400) for side in both(CarryBlock(400, 4, 4)))
    rows = [plane.tobytes() for side in (a, b) for part in side for plane in part.reshape(-1, 50)]
    assert len(set(rows)) == len(rows) == 2 * (15 * 4 + 2 * 4 + 29 * 4 + n_subset_products(4))


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_pairs_expand_a_block_in_full(k):
    """Compare the pairs with the sum of the two integers, for all 4^k inputs.

    The XOR of the first pairs' products of A's bits and B's is the block's generate bit. The XOR of the others', with
    the products of all bits of one server, is its propagate bit.
    """
    pairs = split_pairs(k)
    named = [(int(a) + 1, int(b) + 1) for a, b in zip(pairs.a, pairs.b, strict=True)]
    full = 2**k - 1
    for x in range(2**k):
        for y in range(2**k):
            terms = [monomial(x, of_a) & monomial(y, of_b) for of_a, of_b in named]
            assert sum(terms[: pairs.n_generate]) % 2 == int(x + y > full)
            own = monomial(x, full) + monomial(y, full)
            assert (sum(terms[pairs.n_generate :]) + own) % 2 == int(x + y == full)
    assert len(set(named[: pairs.n_generate])) == pairs.n_generate
    assert all(1 <= of_a <= full and 1 <= of_b <= full for of_a, of_b in named)


@pytest.mark.parametrize("s", range(1, 6))
def test_subset_products_are_the_products_of_sets(s):
    """Against a product over each set, for random inputs; p_0 is in none."""
    g, p = generator(f"sets {s}").integers(0, 256, (2, s, 7), dtype=np.uint8)
    generated, propagated = subset_products(g, p)
    assert len(generated) == len(propagated) == s
    for j, (with_g, with_p) in zip(reversed(range(s)), zip(generated, propagated, strict=True), strict=True):
        factors = [np.bitwise_and.reduce(p[list(chosen)], axis=0, initial=0xFF) for chosen in sets_above(j, s)]
        assert_array_equal(with_g, [g[j] & factor for factor in factors])
        assert_array_equal(with_p, [p[j] & factor for factor in (factors if j else factors[:1])])


# Corrections


@pytest.mark.parametrize("block", [AndBlock(2000), BitBlock(2000), ChoiceBlock(1000), CarryBlock(400, 4, 4)])
def test_corrections_look_uniform(block):
    """Give B uniform bytes, chi-square at 1e-6, for every kind of block."""
    shape = BatchShape("task", 0, (), 1, (block,))
    _, dealt_b = deal(shape, random_bytes_of(f"corrections {block}"))
    assert are_uniform_bytes(dealt_b.products.tobytes())


def test_corrections_take_a_servers_share_away_in_the_blocks_own_group():
    """By XOR for what is shared by XOR, by subtraction for bits that are shared by addition."""
    products, share_a = random_words("corrections", 2, 100)
    for block in (AndBlock(100), CarryBlock(100, 2, 2)):
        assert_array_equal(block.correction(products, share_a) ^ share_a, products)
    for additive in (BitBlock(100), ChoiceBlock(50)):
        assert_array_equal(additive.correction(products, share_a) + share_a, products)


# Taking


@pytest.mark.parametrize("n_words", [0, 1, 5, 8, 16, 20])
def test_fewer_words_than_were_dealt_are_the_first_ones(n_words):
    """The relations hold on them, and they are the first of the block."""
    whole, part = (both(CarryBlock(20, 3, 2), BitBlock(20), random_bytes=random_bytes_of("fewer")) for _ in range(2))
    for of_20, of_n in zip(whole, part, strict=True):
        n_bytes = lanes(n_words)
        (_, all_carries), (block, carries) = of_20.carries(20), of_n.carries(n_words)
        assert block == CarryBlock(20, 3, 2)
        for all_parts, parts in zip(all_carries, carries, strict=True):
            assert_array_equal(parts, all_parts[..., :n_bytes])
        (all_planes, all_values), (planes, values) = of_20.bits(20), of_n.bits(n_words)
        assert_array_equal(planes, all_planes[:n_bytes])
        assert_array_equal(values, all_values[:n_words])


def test_blocks_follow_one_another():
    """Masks and products of each are the next words of both streams, whatever was left of the one before."""
    masks, products = (random_words(name, 400) for name in ("masks", "products"))
    taken = Correlations(MIXED, masks, products)
    at_mask = at_product = 0
    for block in MIXED:
        of_masks, of_products = masks[at_mask:], products[at_product:]
        if isinstance(block, CarryBlock):
            found, shares = taken.carries(block.n_words - 1)
            assert found == block
            split, join = block.masks_of(of_masks)
            pairs, sets = block.products_of(of_products)
            n_bytes = lanes(block.n_words - 1)
            for ours, expected in zip(shares, (split, join, pairs, sets), strict=True):
                assert_array_equal(ours, expected[..., :n_bytes])
        elif isinstance(block, BitBlock):
            plane, values = taken.bits(block.n_words - 1)
            assert_array_equal(values, of_products[: block.n_words - 1])
            assert plane.tobytes() == of_masks.tobytes()[: lanes(block.n_words - 1)]
        else:
            a, b, c = taken.triples(4)
            assert_array_equal([a, b, c], [of_masks[:4], of_masks[9:13], of_products[:4]])
        at_mask, at_product = at_mask + block.n_masks, at_product + block.n_products


def test_no_triple_is_taken_twice():
    """Runs of one block are disjoint and in order; what fits no block that is left raises, and so does all after."""
    taken = Correlations((AndBlock(10),), np.arange(20), 100 + np.arange(10))
    runs = [taken.triples(n_words) for n_words in (4, 0, 5)]
    columns = [np.concatenate(column).tolist() for column in zip(*runs, strict=True)]
    assert columns == [[*range(9)], [*range(10, 19)], [*range(100, 109)]]
    for n_words in (2, 3):
        with pytest.raises(TupleExhaustedError, match=f"^the round has no AndBlock for {n_words} words left$"):
            taken.triples(n_words)
    taken.triples(1)
    with pytest.raises(TupleExhaustedError):
        taken.triples(1)


def test_what_was_taken_is_a_copy():
    """A caller that writes into its triples does not write into the pool: CrypTen works in place."""
    words = np.arange(8), np.arange(4)
    for part in Correlations((AndBlock(4),), *words).triples(4):
        part[...] = 7
    assert [column.tolist() for column in words] == [[*range(8)], [*range(4)]]


@pytest.mark.parametrize("kind", ["bits", "carries"])
def test_a_block_is_taken_once(kind):
    """Whole, also by fewer words than it is for: the words that are left are nobody's."""
    (taken, _) = both(BitBlock(10) if kind == "bits" else CarryBlock(10, 2, 2))
    getattr(taken, kind)(3)
    with pytest.raises(TupleExhaustedError, match="for 3 words left"):
        getattr(taken, kind)(3)


@pytest.mark.parametrize(("block", "wrong"), [(BitBlock(9), "carries"), (CarryBlock(9, 2, 2), "bits")])
def test_a_block_is_not_read_as_another_kind(block, wrong):
    """Nor may more words be taken than it is for; a refusal spends nothing."""
    (taken, _) = both(block)
    for method, n_words in ((wrong, 1), ("triples", 1), ("bits" if wrong == "carries" else "carries", 10)):
        with pytest.raises(TupleExhaustedError):
            getattr(taken, method)(n_words)
    getattr(taken, "bits" if wrong == "carries" else "carries")(9)


def test_triples_that_nobody_took_are_passed_over():
    """A block of another kind comes next, and the triples are then gone."""
    (taken, _) = both(AndBlock(9), BitBlock(4), AndBlock(2))
    taken.triples(3)
    taken.bits(4)
    with pytest.raises(TupleExhaustedError):
        taken.triples(3)
    taken.triples(2)


@pytest.mark.parametrize(
    "make",
    [AndBlock, BitBlock, ChoiceBlock, ProductBlock, SquareBlock, lambda n_words: CarryBlock(n_words, 2, 2)],
)
def test_a_negative_number_of_words_is_refused(make):
    """ParameterError says what was expected and what came."""
    with pytest.raises(ParameterError, match=r"^n_words: expected at least 0, found -1$"):
        make(-1)


@pytest.mark.parametrize(("k", "s"), [(0, 1), (1, 0), (-1, 1), (1, -1), (9, 1), (1, 13), (8, 9), (6, 11)])
def test_splits_outside_the_limits_are_refused(k, s):
    """A dealer that took any would make 2^k products."""
    with pytest.raises(
        ParameterError, match=rf"^block_bits, n_blocks: expected 1 to 8 and 1 to 12, .* found {k} and {s}$"
    ):
        CarryBlock(1, k, s)
    assert (MAX_BLOCK_BITS, MAX_BLOCKS) == (8, 12)


def test_printing_correlations_shows_counts_only():
    """No mask and no product in a representation, of the whole or of one block's shares."""
    (taken, _) = both(*MIXED)
    _, shares = taken.carries(1)
    assert repr(shares) == str(shares) == f"CarryShares(bit_masks of shape {shares.bit_masks.shape})"
    assert repr(taken) == str(taken) == "Correlations(5 blocks, in block 1)"


@pytest.mark.parametrize("n_words", [0, 1, 8, 9, 200])
def test_choices_multiply_random_words_by_random_bits(n_words):
    """u by XOR is u by addition, and the product is u y; of a longer block the first words."""
    a, b = (side.choices(n_words) for side in both(ChoiceBlock(n_words + 3)))
    u = bits_of(a.bit_mask ^ b.bit_mask, n_words)
    assert (a.bits + b.bits).tolist() == u
    assert_array_equal(a.products + b.products, np.array(u, dtype=np.int64) * (a.word_mask + b.word_mask))
    assert repr(a) == f"ChoiceShares({n_words} words)"


def test_choices_are_random():
    """10 000 bits within 5 sigma of a half (6e-7), and uniform words and shares; taken once, and as no other kind."""
    sides = both(ChoiceBlock(10_000), random_bytes=random_bytes_of("choices"))
    with pytest.raises(TupleExhaustedError):
        sides[0].bits(1)
    shares = [side.choices(10_000) for side in sides]
    assert abs(int((shares[0].bits + shares[1].bits).sum()) - 5000) < 250
    for one in shares:
        assert all(are_uniform_bytes(part.tobytes()) for part in (one.word_mask, one.bits, one.products))
    assert are_uniform_bytes((shares[0].word_mask + shares[1].word_mask).tobytes())
    with pytest.raises(TupleExhaustedError, match=r"^the round has no ChoiceBlock for 1 words left$"):
        sides[0].choices(1)


def test_there_are_six_kinds_of_blocks():
    """Those that the tests above look at, and two of functions (tests/mpc/crypten/test_bridge.py)."""
    kinds = {AndBlock, BitBlock, CarryBlock, ChoiceBlock, ProductBlock, SquareBlock}
    assert set(correlations.BlockT.__constraints__) == kinds
