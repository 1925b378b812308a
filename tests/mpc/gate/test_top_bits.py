"""XOR shares of words that vanish where top bits do: against Python's addition, through both gates."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from precad.mpc.channel import run_pair
from precad.mpc.errors import MalformedMessageError, TupleExhaustedError
from precad.mpc.gate import top_bits
from precad.mpc.gate.native_gate import CarryGate
from precad.mpc.gate.top_bits import blocks, shares_of_zero
from precad.mpc.gate_names import GATES
from precad.mpc.tuples.correlations import BitBlock, CarryBlock
from precad.mpc.tuples.dealt import deal
from precad.mpc.tuples.held import BatchShape, ServerTuples
from tests.harness.examples import examples
from tests.mpc.fixed_randomness import are_uniform, random_bytes_of
from tests.mpc.gate_twin import bits_of
from tests.mpc.gate_twin import top_bits as twin
from tests.mpc.ring_strategies import EDGES, as_ring, random_words, wrapped

# Parties that lose each other wait for ever, and so does the pool that runs them: only the process can be ended.
pytestmark = pytest.mark.timeout(120, method="thread")


class OneSplit(CarryGate):
    """The native gate with blocks of the caller's choice."""

    def __init__(self, block_bits, n_blocks):
        self.split = block_bits, n_blocks

    def blocks(self, groups):
        return tuple(CarryBlock(n_words, *self.split) for n_words, _ in groups)


def sides_of(gate, n_clients, low_bits, **kwargs):
    """Both servers' correlations for so many clients."""
    shape = BatchShape("top bits", 0, (), 1, blocks(gate, n_clients, low_bits))
    return [ServerTuples(party, shape, part).correlations() for party, part in enumerate(deal(shape, **kwargs))]


def converted(gate, words, low_bits, sides=None):
    """Both servers' results for additive shares (2, n, w)."""
    sides = sides or sides_of(gate, words.shape[1], low_bits)
    return run_pair(lambda ch: shares_of_zero(words[ch.party], low_bits, gate, sides[ch.party], ch))


def assert_top_bits(gate, words, low_bits, sides=None):
    """A's share less B's is the top bits of each word, modulo their number; so the two are equal where they vanish."""
    a, b = converted(gate, words, low_bits, sides)
    assert a.shape == b.shape == words.shape[1:]
    for column, n_bits in enumerate(low_bits):
        size = 2 ** (64 - n_bits)
        of_a, of_b = a[:, column].tolist(), b[:, column].tolist()
        assert all(0 <= share < size for share in of_a + of_b)
        expected = [twin(int(x), int(y), n_bits) for x, y in words[:, :, column].T]
        assert [(x - y) % size for x, y in zip(of_a, of_b, strict=True)] == expected
        assert [x ^ y == 0 for x, y in zip(of_a, of_b, strict=True)] == [top == 0 for top in expected]


def shares_with_low_bits(n_bits, name):
    """(2, m, 1): all pairs of low bits, under random top bits that add up to zero, one, -1, a half, or anything."""
    size = 2 ** (64 - n_bits)
    tops = itertools.cycle(random_words(name, 512).tolist())
    pairs = []
    for x, y in itertools.product(range(2**n_bits), repeat=2):
        for total in (0, 1, -1, size // 2, next(tops)):
            top = next(tops)
            rest = total - top - (x + y >> n_bits)
            pairs.append((wrapped((top << n_bits) + x), wrapped((rest << n_bits) + y)))
    return np.array(pairs, dtype=np.int64).T[:, :, np.newaxis]


@pytest.mark.parametrize("n_bits", [1, 2, 3, 4])
def test_all_low_bits_of_small_widths(n_bits, gate):
    """Every x and y of up to 4 low bits.

    They lie under top bits that add up, with the carry, to zero, to one and to others.
    """
    assert_top_bits(gate, shares_with_low_bits(n_bits, f"small {n_bits}"), (n_bits,))


@pytest.mark.parametrize(
    ("n_bits", "split"),
    [
        *((1, split) for split in ((1, 1), (2, 1), (1, 2), (3, 2))),
        *((2, split) for split in ((1, 2), (2, 1), (1, 3), (3, 2))),
        *((3, split) for split in ((1, 3), (2, 2), (3, 1), (4, 1), (1, 5))),
        *((4, split) for split in ((1, 4), (2, 2), (4, 1), (3, 2), (2, 3), (5, 2), (1, 12), (8, 8))),
    ],
)
def test_all_low_bits_of_small_widths_however_they_are_split(n_bits, split):
    """Split the small widths into blocks of other sizes than the cheapest, with places to spare and without."""
    assert_top_bits(OneSplit(*split), shares_with_low_bits(n_bits, f"split {n_bits}"), (n_bits,))


def edges(n_bits):
    """Words at which the lowest n_bits bits, or the top ones, change."""
    near = (0, 1, 2**n_bits - 1, 2**n_bits, 2**n_bits + 1, -(2**n_bits), 2**63, 2**63 - 2**n_bits, -1)
    return st.sampled_from([wrapped(value) for value in (*near, *EDGES)]) | st.integers(-(2**63), 2**63 - 1)


@given(st.data())
@examples(40, 150)
def test_any_words_of_any_widths(gate, data):
    """Up to 4 columns of widths 1 to 63, some equal, with shares or sums at the edges 0, 2^L - 1, 2^L, 2^63 and -1."""
    low_bits = tuple(data.draw(st.lists(st.integers(1, 63), min_size=1, max_size=4)))
    n = data.draw(st.integers(1, 4))
    words = np.empty((2, n, len(low_bits)), dtype=np.int64)
    for column, n_bits in enumerate(low_bits):
        for i in range(n):
            share, other = data.draw(edges(n_bits)), data.draw(edges(n_bits))
            is_sum = data.draw(st.booleans())
            words[:, i, column] = share, wrapped(other - share) if is_sum else other
    assert_top_bits(gate, words, low_bits)


@pytest.mark.parametrize("n_bits", range(1, 64))
def test_every_width_at_its_edges(n_bits, gate):
    """All pairs of words near 0, 2^L, 2^63 and 2^64, and carries that run from any bit to any."""
    near = [0, 1, 2**n_bits - 1, 2**n_bits, 2**63 - 1, 2**63, 2**63 + 2**n_bits - 1, 2**64 - 2**n_bits, 2**64 - 1]
    pairs = [(wrapped(a), wrapped(b)) for a in near for b in near]
    pairs += [(wrapped(2**n_bits - 2**i), wrapped(2**i)) for i in range(n_bits)]
    assert_top_bits(gate, np.array(pairs, dtype=np.int64).T[:, :, np.newaxis], (n_bits,))


@pytest.mark.parametrize("low_bits", [(30,) * 64 + (33,), (30,) * 65, (30,) * 8 + (53,), (53, 30, 53, 31, 30)])
def test_columns_keep_their_places(low_bits, gate):
    """Rows and the norm of 33 clients; a norm as wide as the rows shares their group; widths in any order."""
    words = random_words(f"columns {low_bits}", 2, 33, len(low_bits))
    small = random_words("small", 33, len(low_bits)) % 2 ** np.array(low_bits)
    words[1] = np.where(np.arange(len(low_bits)) % 3 == 0, small - words[0], words[1])
    assert_top_bits(gate, words, low_bits)


def test_both_gates_have_the_same_top_bits():
    """The shares differ, and what they are shares of does not: 2000 random words of each of three widths."""
    gates = [GATES[name]() for name in ("crypten", "native")]
    low_bits, words = (5, 30, 53), random_words("both gates", 2, 2000, 3)
    words[1, ::2] -= words[1, ::2] + words[0, ::2] & ~np.int64(31)  # every other word's top bits vanish, or nearly
    sizes = (np.int64(1) << (64 - np.array(low_bits))) - 1
    results = [converted(gate, words, low_bits) for gate in gates]
    assert_array_equal(*((a - b) & sizes for a, b in results))
    assert not np.array_equal(results[0][0], results[1][0])


@pytest.mark.parametrize("used", [0, 1, 2, 9])
def test_fewer_clients_than_were_dealt_for(used, gate):
    """A chosen client that delivered nothing leaves its correlations over."""
    low_bits = (30,) * 7 + (42,)
    words = random_words(f"fewer {used}", 2, used, 8)
    assert_top_bits(gate, words, low_bits, sides_of(gate, 9, low_bits))


def test_more_clients_than_were_dealt_for_are_refused(gate):
    """TupleExhaustedError at both servers, before a message about them is sent."""
    sides = sides_of(gate, 8, (30, 42))
    with pytest.raises(TupleExhaustedError):
        converted(gate, np.zeros((2, 17, 2), dtype=np.int64), (30, 42), sides)


def test_words_are_left_as_they_were(gate):
    """A server's shares of the words are its caller's."""
    words = random_words("unchanged", 2, 10, 3)
    kept = words.copy()
    converted(gate, words, (30, 30, 53))
    assert_array_equal(words, kept)


def test_blocks_are_the_gates_and_a_bit_for_each_word(gate):
    """One group per width, in the order in which widths appear."""
    assert blocks(gate, 7, (30, 53, 30)) == (*gate.blocks([(14, 30), (7, 53)]), BitBlock(14), BitBlock(7))


@pytest.mark.parametrize("bit", [0, 1])
def test_the_additive_shares_of_a_bit_are_uniform(bit):
    """Check both servers' shares of 4000 carries that are all zero, or all one.

    The top six bits of each share of 63 bits are uniform, chi-square at 1e-6. So nothing of the carry stays in one
    share.
    """
    words = np.full((2, 4000, 1), bit, dtype=np.int64)
    sides = sides_of(CarryGate(), 4000, (1,), random_bytes=random_bytes_of(f"additive {bit}"))
    for shares in converted(CarryGate(), words, (1,), sides):
        assert are_uniform(np.bincount((shares[:, 0] >> 57), minlength=64))


@pytest.mark.parametrize("opened_bit", [0, 1])
@pytest.mark.parametrize("bit", [0, 1])
def test_an_opened_bit_is_turned_additive_either_way(bit, opened_bit):
    """c = o + (1 - 2 o) r for all four cases, by shares written by hand."""
    r = bit ^ opened_bit
    share = as_ring([2**64 - 3])

    class Dealt:
        def __init__(self, party):
            self.party = party

        def carries(self, groups, correlations, channel):
            return [np.array([bit if self.party else 0], dtype=np.uint8)]

        def bits(self, n_words):
            plane = np.array([1 if self.party else 1 ^ r], dtype=np.uint8)
            return plane, share if self.party else r - share

    def party(channel):
        dealt = Dealt(channel.party)
        return shares_of_zero(np.zeros((1, 1), dtype=np.int64), (9,), dealt, dealt, channel)

    a, b = run_pair(party)
    assert ((a - b) % 2**55).tolist() == [[bit]]


@pytest.mark.parametrize("length", [0, 1, 3])
def test_carries_of_another_length_are_malformed(length, gate):
    """Two bytes for nine words; the step's name and both lengths are said."""
    sides = sides_of(gate, 9, (30,))

    def party(channel):
        words = np.zeros((9, 1), dtype=np.int64)
        if channel.party == 0:
            return shares_of_zero(words, (30,), gate, sides[0], channel)
        gate.carries([top_bits.LowWords(words[:, 0], 30)], sides[1], channel)
        return channel.exchange("gate/carries", bytes(length))

    with pytest.raises(MalformedMessageError, match=f"^step 'gate/carries': expected 2 bytes, found {length}$"):
        run_pair(party)


def test_planes_of_carries_are_the_carries(gate):
    """A gate's result has a bit for each word of each group, and padding that no one reads."""
    words = [random_words(f"planes {n_bits}", 2, 13) % 2**n_bits for n_bits in (5, 30)]
    shape = BatchShape("planes", 0, (), 1, gate.blocks([(13, 5), (13, 30)]))
    sides = [ServerTuples(party, shape, part).correlations() for party, part in enumerate(deal(shape))]

    def party(channel):
        groups = [top_bits.LowWords(w[channel.party], n_bits) for w, n_bits in zip(words, (5, 30), strict=True)]
        return gate.carries(groups, sides[channel.party], channel)

    for n_bits, w, a, b in zip((5, 30), words, *run_pair(party), strict=True):
        assert a.dtype == b.dtype == np.uint8
        assert a.shape == b.shape == (2,)
        assert bits_of(a ^ b, 13) == [(int(x) + int(y)) >> n_bits for x, y in w.T]
