"""Correlated randomness: the relations of what is dealt, by Python's integers, and that nothing is used twice."""

import dataclasses
import itertools
from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from precad.mpc.errors import MalformedMessageError, ParameterError, TupleReusedError
from precad.mpc.prg import Seed
from precad.mpc.tuples.correlations import AndBlock, BitBlock, CarryBlock
from precad.mpc.tuples.dealt import deal
from precad.mpc.tuples.held import FIELD_PRIME, BatchShape, Dealt, ServerTuples, correlation_streams, equality_share_a
from tests.mpc.field_twin import integers, words_of
from tests.mpc.fixed_randomness import random_bytes_of
from tests.mpc.streams import expand_mask
from tests.mpc.streams import words_of as mask_words

CLIENTS = ("ada", "bob", "eve")
ONE_BLOCK = (AndBlock(40),)
MIXED_BLOCKS = (CarryBlock(20, 2, 3), AndBlock(19), BitBlock(13))
"""20 bits of products for each of 20 words, in 8 words, and 32 more: 40 words of products."""


def shape_of(*, round=3, clients=CLIENTS, dim=17, blocks=ONE_BLOCK, task="digits"):
    return BatchShape(task, round, clients, dim, blocks)


def both_sides(shape, *args):
    dealt = deal(shape, *args)
    return ServerTuples(0, shape, dealt[0]), ServerTuples(1, shape, dealt[1])


def script(seeds, values):
    """random_bytes that serves 16-byte requests: the two keys, then the numbers, little-endian."""
    replies = itertools.chain(seeds, (value.to_bytes(16, "little") for value in values))

    def random_bytes(n):
        reply = next(replies)
        assert len(reply) == n
        return reply

    return random_bytes


def squared_mask_share(side, client):
    """r_P of one client."""
    return int(side.squared_mask_shares([client])[0])


def equality_tuple(side, client):
    """One client's three elements."""
    return integers(side.equality_tuples([client])[0])


TAKES = {
    "hand_out_mask_seed": ServerTuples.hand_out_mask_seed,
    "mask_share": ServerTuples.mask_share,
    "squared_mask_share": squared_mask_share,
    "equality_tuple": equality_tuple,
}


def correlated_words(side):
    """All words of 40 triples, in one array."""
    return np.concatenate(side.correlations().triples(40))


@given(dim=st.integers(1, 40), t=st.integers(0, 2**40), name=st.text(max_size=4))
def test_squared_mask_shares_add_up_to_the_squared_mask(dim, t, name):
    """r_A + r_B = sum (a_A + a_B)^2 modulo 2^64 for every client, by Python's integers."""
    a, b = both_sides(shape_of(dim=dim, round=t, clients=(name, name + "'"), blocks=()))
    for client in (name, name + "'"):
        mask = [
            int(x) + int(y)
            for x, y in zip(mask_words(a.mask_share(client), dim), mask_words(b.mask_share(client), dim), strict=True)
        ]
        assert (squared_mask_share(a, client) + squared_mask_share(b, client) - sum(m * m for m in mask)) % 2**64 == 0


def test_equality_tuples_multiply_modulo_p_and_rho_is_not_zero():
    """(rho_A + rho_B)(omega_A + omega_B) = the third element modulo p = 2^127 - 1, for 300 clients."""
    names = tuple(f"c{i}" for i in range(300))
    a, b = both_sides(shape_of(clients=names, blocks=()))
    for name in names:
        of_a, of_b = (equality_tuple(side, name) for side in (a, b))
        rho, omega, product = ((x + y) % (2**127 - 1) for x, y in zip(of_a, of_b, strict=True))
        assert rho != 0
        assert product == rho * omega % (2**127 - 1)
        assert all(0 <= x < FIELD_PRIME for x in (*of_a, *of_b))


@pytest.mark.parametrize(
    ("values", "rho", "omega"),
    [
        ((0, 0), 1, 0),
        ((FIELD_PRIME - 2, FIELD_PRIME - 1), FIELD_PRIME - 1, FIELD_PRIME - 1),
        ((FIELD_PRIME - 1, FIELD_PRIME, 5, FIELD_PRIME, 6), 6, 6),
        (((1 << 127) + 5, (1 << 127) + 6), 6, 6),
    ],
)
def test_rho_and_omega_are_drawn_by_rejection(values, rho, omega):
    """127 bits each; rho - 1 is below p - 1 and omega below p; what is not is drawn again and never reduced."""
    a, b = both_sides(shape_of(clients=("ada",), blocks=()), script([bytes(16), bytes(range(16))], values))
    shares = list(zip(equality_tuple(a, "ada"), equality_tuple(b, "ada"), strict=True))
    assert [(x + y) % FIELD_PRIME for x, y in shares] == [rho, omega, rho * omega % FIELD_PRIME]


def test_server_a_gets_a_key_and_nothing_else():
    """A's message has no vector at all: every share of A expands from 16 bytes."""
    dealt_a, _ = deal(shape_of())
    assert [v.size for v in (dealt_a.squared_masks, dealt_a.equality, dealt_a.products)] == [0, 0, 0]


def test_corrections_do_not_grow_with_the_dimension():
    """B's message is 8 + 48 bytes per client and 8 per word of products, whatever d and of whatever kind."""
    for dim, blocks in itertools.product((1, 17, 50_000), (ONE_BLOCK, MIXED_BLOCKS)):
        _, dealt_b = deal(shape_of(dim=dim, blocks=blocks))
        sizes = [v.nbytes for v in (dealt_b.squared_masks, dealt_b.equality, dealt_b.products)]
        assert sizes == [8 * 3, 48 * 3, 8 * 40]


@pytest.mark.parametrize("blocks", [(CarryBlock(20, 2, 3),) * 3, MIXED_BLOCKS, (*MIXED_BLOCKS, *MIXED_BLOCKS[::-1])])
def test_every_block_is_corrected_by_its_own_streams(blocks):
    """B's corrections and A's share of each block give the products of that block's masks, where it lies in them."""
    shape = shape_of(blocks=blocks)
    dealt_a, dealt_b = deal(shape)
    (masks_a, share_a), (masks_b, _) = (correlation_streams(dealt.key, shape) for dealt in (dealt_a, dealt_b))
    assert dealt_b.products.size == share_a.size == sum(block.n_products for block in blocks)
    at_mask = at_product = 0
    for block in blocks:
        run = slice(at_product, at_product + block.n_products)
        masks = (masks[at_mask : at_mask + block.n_masks] for masks in (masks_a, masks_b))
        if isinstance(block, BitBlock):
            products = share_a[run] + dealt_b.products[run]
        else:
            products = share_a[run] ^ dealt_b.products[run]
        assert_array_equal(products, block.products(*masks))
        at_mask, at_product = at_mask + block.n_masks, at_product + block.n_products
    assert at_mask == masks_a.size


def test_masks_and_products_are_streams_of_their_own():
    """No word of one is a word of another, at either server: what a server opens says nothing of its shares."""
    shape = shape_of(blocks=MIXED_BLOCKS * 5)
    streams = [part for side in deal(shape) for part in correlation_streams(side.key, shape)]
    words = np.concatenate(streams).tolist()
    assert len(set(words)) == len(words) == 2 * 5 * (40 + sum(block.n_masks for block in MIXED_BLOCKS))


def test_batches_are_fresh():
    """Two batches of one shape share no mask, no correlation and no correction."""
    sides = [side for _ in range(2) for side in both_sides(shape_of())]
    masks = [mask_words(side.mask_share(client), 17) for side in sides for client in CLIENTS]
    assert len(set(np.concatenate(masks).tolist())) == 4 * 3 * 17
    pools = [correlated_words(side) for side in sides]
    assert len(set(np.concatenate(pools).tolist())) == 4 * 120


def test_streams_of_different_rounds_tasks_and_clients_never_meet():
    """One key, other labels: all masks and pools differ in every word."""
    key = Seed(bytes(16))
    seen = [
        column
        for task, t in itertools.product(("digits", "letters"), (3, 4))
        for side in [ServerTuples(0, shape_of(task=task, round=t), Dealt(key, bytes(96)))]
        for column in (*(mask_words(side.mask_share(c), 17) for c in CLIENTS), correlated_words(side))
    ]
    assert len(set(np.concatenate(seen).tolist())) == 4 * (3 * 17 + 3 * 40)


def test_the_seed_for_a_client_expands_to_the_servers_mask_half():
    """The client computes from its seed what the server computes from its key."""
    shape = shape_of()
    for side in both_sides(shape):
        seed = side.hand_out_mask_seed("bob")
        assert_array_equal(expand_mask(seed, shape.label("bob"), 17), mask_words(side.mask_share("bob"), 17))


def test_every_request_for_a_mask_has_a_stream_of_its_own():
    """The opening, the pass over the uploads and the removal of a rejected one each read it from its start."""
    for side in both_sides(shape_of()):
        first, second = side.mask_share("bob"), side.mask_share("bob")
        words = mask_words(first, 17)
        assert_array_equal(mask_words(second, 17), words)
        assert_array_equal(mask_words(side.mask_share("bob"), 17), words)


def test_a_mask_seed_is_handed_out_once():
    """A second request for one client raises TupleReusedError; other clients are not affected."""
    side, _ = both_sides(shape_of())
    side.hand_out_mask_seed("ada")
    with pytest.raises(TupleReusedError, match=r"slot 0 in round 3 was used before \(mask\)"):
        side.hand_out_mask_seed("ada")
    side.hand_out_mask_seed("bob")


@pytest.mark.parametrize("party", [0, 1])
def test_equality_tuples_and_correlations_are_taken_once(party):
    """A second request raises TupleReusedError; the tuples of other clients are not affected."""
    side = both_sides(shape_of())[party]
    side.equality_tuples(["ada"])
    for again in (["ada"], ["eve", "ada"], ["ada", "bob"]):
        with pytest.raises(TupleReusedError, match="the equality tuple of 'ada' in round 3 is spent"):
            side.equality_tuples(again)
    with pytest.raises(TupleReusedError, match="the equality tuple of 'bob' in round 3 is spent"):
        side.equality_tuples(["bob", "bob"])
    side.equality_tuples(["eve", "bob"])
    side.correlations()
    with pytest.raises(TupleReusedError, match="the binary correlations of round 3 are spent"):
        side.correlations()


@pytest.mark.parametrize("party", [0, 1])
@pytest.mark.parametrize("take", TAKES)
def test_a_client_outside_the_batch_gets_no_tuple(party, take):
    """ParameterError at both servers, and those of the batch get theirs as before."""
    side = both_sides(shape_of())[party]
    with pytest.raises(ParameterError, match="'nobody' is not among the 3 clients of round 3"):
        TAKES[take](side, "nobody")
    TAKES[take](side, "ada")


@pytest.mark.parametrize("party", [0, 1])
def test_a_client_outside_the_batch_is_refused_each_time(party):
    """A refusal spends nothing: the second request for a mask seed is refused with the same words."""
    side = both_sides(shape_of())[party]
    for _ in range(2):
        with pytest.raises(ParameterError, match="'nobody' is not among"):
            side.hand_out_mask_seed("nobody")


def test_the_dealer_need_not_know_who_was_chosen():
    """Slots without names are dealt the same tuples, bit for bit, so that nothing depends on a client's name."""
    named = shape_of(blocks=MIXED_BLOCKS)
    anonymous = BatchShape.anonymous("digits", 3, 3, 17, MIXED_BLOCKS)
    for a, b in zip(*(deal(shape, random_bytes_of("names")) for shape in (named, anonymous)), strict=True):
        assert a.key == b.key
        for part in ("squared_masks", "equality", "products"):
            assert_array_equal(getattr(a, part), getattr(b, part))
    assert [named.label(c) for c in CLIENTS] == [anonymous.label(slot) for slot in "012"]
    assert len({label.client for label in (named.label(), *map(named.label, CLIENTS))}) == 4


def reshaped(**changes):
    fields = {
        "squared_masks": np.zeros(3, dtype=np.int64),
        "equality": np.zeros((3, 3, 2), dtype=np.int64),
        "products": np.zeros(40, dtype=np.int64),
    }
    return Dealt(Seed(bytes(16)), bytes(96), **fields | changes)


@pytest.mark.parametrize(
    "dealt",
    [
        reshaped(squared_masks=np.zeros(2, dtype=np.int64)),
        reshaped(squared_masks=np.zeros((3, 1), dtype=np.int64)),
        reshaped(equality=np.zeros((3, 2, 2), dtype=np.int64)),
        reshaped(equality=np.zeros((3, 3), dtype=np.int64)),
        reshaped(equality=np.zeros(18, dtype=np.int64)),
        reshaped(products=np.zeros(39, dtype=np.int64)),
        reshaped(products=np.zeros(41, dtype=np.int64)),
        Dealt(Seed(bytes(16)), bytes(96)),
    ],
)
def test_corrections_that_do_not_fit_the_batch_are_refused(dealt):
    """Server B takes exactly (n,), (n, 3, 2) and (n_products,)."""
    for blocks in (ONE_BLOCK, MIXED_BLOCKS):
        with pytest.raises(
            MalformedMessageError,
            match=r"^corrections of a batch: expected shapes \(\(3,\), \(3, 3, 2\), \(40,\)\), found",
        ):
            ServerTuples(1, shape_of(blocks=blocks), dealt)
        ServerTuples(1, shape_of(blocks=blocks), reshaped())


@pytest.mark.parametrize("value", [FIELD_PRIME, FIELD_PRIME + 1, 2**127, 2**128 - 1])
@pytest.mark.parametrize("place", [(0, 0), (1, 2), (2, 1)])
def test_corrections_outside_the_field_are_refused(value, place):
    """An element from p upward, which no dealer sends; the largest below p is taken."""
    for element in (value, FIELD_PRIME - 1):
        equality = np.zeros((3, 3, 2), dtype=np.uint64)
        equality[place] = words_of(element)
        dealt = reshaped(equality=equality.view(np.int64))
        if element == value:
            with pytest.raises(
                MalformedMessageError, match=r"^equality corrections of a batch: expected all below 2\^127 - 1, "
            ):
                ServerTuples(1, shape_of(), dealt)
        else:
            ServerTuples(1, shape_of(), dealt)


def test_each_server_gets_the_digests_of_the_others_mask_seeds():
    """Client by client: SHA-256 of what the other server hands out."""
    a, b = both_sides(shape_of())
    for client in CLIENTS:
        assert a.peer_mask_seed_digest(client) == sha256(b.hand_out_mask_seed(client).reveal()).digest()
        assert b.peer_mask_seed_digest(client) == sha256(a.hand_out_mask_seed(client).reveal()).digest()


@pytest.mark.parametrize("party", [0, 1])
@pytest.mark.parametrize("n_bytes", [0, 32, 95, 97, 128])
def test_digests_that_do_not_fit_the_batch_are_refused(party, n_bytes):
    """At both servers: exactly 32 bytes for each of three clients."""
    dealt = dataclasses.replace(deal(shape_of())[party], peer_seed_digests=bytes(n_bytes))
    with pytest.raises(
        MalformedMessageError, match=f"peer_seed_digests of a batch: expected 96 bytes, found {n_bytes}"
    ):
        ServerTuples(party, shape_of(), dealt)


def test_server_a_refuses_corrections():
    """A batch that was meant for B does not start at A."""
    with pytest.raises(
        MalformedMessageError, match=r"^corrections of a batch: expected shapes \(\(0,\), \(0, 3, 2\), \(0,\)\)"
    ):
        ServerTuples(0, shape_of(), reshaped())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clients": ("ada", "bob", "ada")}, "expected each of them once"),
        ({"dim": 0}, "dim, round: expected at least 1 and at least 0, found 0 and 3"),
        ({"round": -1}, "dim, round: expected at least 1 and at least 0, found 17 and -1"),
    ],
)
def test_batches_that_make_no_sense_are_refused(change, message):
    """A client twice in one batch would be a mask used twice."""
    with pytest.raises(ParameterError, match=message):
        shape_of(**change)


def test_a_batch_without_clients_holds_triples_only():
    """The empty round is dealt like any other."""
    a, b = both_sides(shape_of(clients=(), blocks=(AndBlock(2),)))
    assert len(a.correlations().triples(2)) == len(b.correlations().triples(2)) == 3


def test_printing_tuples_shows_counts_only():
    """No key, share or correction in any representation."""
    a, _ = both_sides(shape_of())
    assert repr(a) == "ServerTuples(party=0, round=3, clients=3)"
    assert repr(a.correlations()) == "Correlations(1 blocks, in block 0)"
    share = equality_share_a(Seed(bytes(16)), shape_of().label("ada"))
    assert repr(share) == str(share) == object.__repr__(share)
    assert repr(share).startswith("<precad.mpc.tuples.held.EqualityTuple object at ")
    assert repr(deal(shape_of())[1]).startswith("<precad.mpc.tuples.held.Dealt object at ")
