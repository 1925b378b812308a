"""The comparison gates against Python's addition, bit by bit, and what they leave behind and show."""

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from fixed_randomness import are_uniform_bytes, random_bytes_of
from gate_costs import BYTES_PER_WORD, N_ROUNDS, PRODUCTS_PER_WORD, STEPS
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from recording import RecordingChannel
from ring_strategies import EDGES, as_ring, random_words, ring_words

from mpc import comparison
from mpc.channel import run_pair
from mpc.dealer import deal
from mpc.errors import MalformedMessageError, PeerMismatchError, TupleExhaustedError
from mpc.gates import GATES, make_gate
from mpc.tuples import AndBlock, BatchShape, ServerTuples

# Parties that lose each other wait for ever, and so does the pool that runs them: only the process can be ended.
pytestmark = pytest.mark.timeout(120, method="thread")

EDGE_PAIRS = np.array([(a, b) for a in EDGES for b in EDGES])


@pytest.fixture(scope="module")
def crypten_gate():
    return make_gate("crypten")


@pytest.fixture
def crypten(crypten_gate):
    """CrypTen as the gate has loaded it; by itself it does not import beside current PyTorch."""
    return sys.modules["crypten"]


def pools(blocks, **kwargs):
    """Both servers' triples: a fresh batch without clients."""
    shape = BatchShape("gate", 0, (), 1, blocks)
    dealt = deal(shape, **kwargs)
    return [ServerTuples(party, shape, dealt[party]).binary_triples() for party in (0, 1)]


def converted(gate, word_shares, triples=None, wrap=lambda channel: channel):
    """Both parties' XOR shares for additive shares (2, m)."""
    triples = triples or pools(gate.and_blocks(word_shares.shape[1]))
    return run_pair(lambda ch: gate.to_binary(word_shares[ch.party], triples[ch.party], wrap(ch)))


def one_word_fewer(blocks, short):
    """The blocks, with one word fewer in the one of this number."""
    return tuple(AndBlock(block.n_words - (i == short), block.fanout, block.is_split) for i, block in enumerate(blocks))


def sums(word_shares):
    return as_ring(int(a) + int(b) for a, b in zip(*word_shares, strict=True))


def test_every_pair_of_edges_is_added(gate):
    """All 64 bits of (x_A + x_B) mod 2^64 for all 324 pairs of edges as the two shares."""
    a, b = converted(gate, EDGE_PAIRS.T)
    assert_array_equal(a ^ b, sums(EDGE_PAIRS.T))


def test_random_words_are_added(gate):
    """5000 uniform words with uniform shares, all 64 bits against Python's integers."""
    shares = random_words("gate", 2, 5000)
    a, b = converted(gate, shares)
    assert_array_equal(a ^ b, sums(shares))


@given(st.lists(st.tuples(ring_words, ring_words), min_size=1, max_size=20))
@settings(max_examples=30, deadline=None)
def test_words_near_the_edges_are_added(gate, pairs):
    """Batches of any length, shares drawn from the edges and from everywhere."""
    shares = np.array(pairs, dtype=np.int64).T
    a, b = converted(gate, shares)
    assert_array_equal(a ^ b, sums(shares))


def test_carries_run_through_every_length(gate):
    """2^i + (2^j - 2^i) carries from bit i to bit j for all i <= j: 2080 words."""
    shares = np.array([as_ring([2**j - 2**i, 2**i]) for j in range(64) for i in range(j + 1)]).T
    a, b = converted(gate, shares)
    assert_array_equal(a ^ b, as_ring(2**j for j in range(64) for _ in range(j + 1)))


def test_the_inputs_are_left_as_they_were(gate):
    """CrypTen works in place; our words are copied before it starts. The native gate writes to none."""
    shares = random_words("unchanged", 2, 10)
    kept = shares.copy()
    converted(gate, shares)
    assert_array_equal(shares, kept)


@pytest.mark.parametrize("m", [1, 65, 650])
def test_rounds_bytes_and_triples_are_exact(gate, m):
    """7 rounds, 208 or 144 bytes and 13 or 12 products a word: every block to its last word, and one fewer is refused.

    One word fewer in any block is too few: a gate that left some of its triples would pass without them.
    """
    blocks = gate.and_blocks(m)
    shares, triples = random_words("costs", 2, m), pools(blocks)

    def party(channel):
        gate.to_binary(shares[channel.party], triples[channel.party], channel)
        return channel.rounds, channel.bytes_sent

    assert BatchShape("gate", 0, (), 1, blocks).n_products == PRODUCTS_PER_WORD[gate.name] * m
    assert run_pair(party) == ((N_ROUNDS, BYTES_PER_WORD[gate.name] * m),) * 2
    with pytest.raises(TupleExhaustedError):
        triples[0].take(1)
    for short in range(len(blocks)):
        with pytest.raises(TupleExhaustedError, match="words of binary triples left"):
            converted(gate, shares, pools(one_word_fewer(blocks, short)))


@pytest.mark.parametrize("party", [0, 1])
def test_every_message_about_constant_words_is_uniform(gate, party):
    """Words and shares that are all zero: each of the 7 messages is uniform bytes, chi-square at 1e-6 each."""
    shares = np.zeros((2, 650), dtype=np.int64)
    logs = [None, None]

    def recorded(channel):
        logs[channel.party] = RecordingChannel(channel)
        return logs[channel.party]

    converted(gate, shares, pools(gate.and_blocks(650), random_bytes=random_bytes_of("constant words")), recorded)
    assert [(label, len(payload)) for label, payload in logs[party].sent] == [
        (label, 650 * size) for label, size in STEPS[gate.name]
    ]
    assert all(are_uniform_bytes(payload) for _, payload in logs[party].sent)


@pytest.mark.parametrize("n_triples", [13 * 4, 13 * 4 - 1])
def test_nothing_of_a_run_stays_in_its_thread(crypten_gate, crypten, n_triples):
    """After the gate, and after a gate that failed at its last level, CrypTen has no channel and no triples here."""
    shares, triples = random_words("state", 2, 4), pools((AndBlock(n_triples),))

    def party(channel):
        try:
            crypten_gate.to_binary(shares[channel.party], triples[channel.party], channel)
        except TupleExhaustedError:
            assert n_triples < 13 * 4
        return crypten.communicator.is_initialized(), vars(comparison._party).get("triples")

    assert run_pair(party) == ((False, None), (False, None))


def test_crypten_refuses_to_run_outside_the_gate(crypten):
    """A CrypTen operation in a thread that runs no gate finds no communicator and no triples."""
    with pytest.raises(RuntimeError, match="not initialized"):
        crypten.communicator.get()
    provider = crypten.mpc.get_default_provider()
    with pytest.raises(NotImplementedError, match="inside the gate"):
        provider.generate_binary_triple((1,), (1,))


def test_two_gates_at_once_do_not_mix(gate):
    """Two pairs of parties in four threads, 20 runs each with words of their own: what is global is per thread."""

    def pair(name):
        for run in range(20):
            shares = random_words(f"{name} {run}", 2, 50)
            a, b = converted(gate, shares)
            assert_array_equal(a ^ b, sums(shares))

    with ThreadPoolExecutor(max_workers=2) as pool:
        list(pool.map(pair, ["left", "right"]))


def test_loading_the_gate_again_changes_nothing(crypten_gate, crypten):
    """A second gate in one process works beside the first, on the same communicator class."""
    communicator = crypten.communicator.DistributedCommunicator
    again = make_gate("crypten")
    assert crypten.communicator.DistributedCommunicator is communicator
    for one in (crypten_gate, again):
        a, b = converted(one, EDGE_PAIRS.T)
        assert_array_equal(a ^ b, sums(EDGE_PAIRS.T))


def test_parties_with_different_numbers_of_words_are_refused(gate):
    """A peer's message of another length is MalformedMessageError, not a wrong bit."""
    triples = pools(gate.and_blocks(3))
    with pytest.raises(MalformedMessageError, match="bytes of ring elements"):
        run_pair(lambda ch: gate.to_binary(np.zeros(2 + ch.party, dtype=np.int64), triples[ch.party], ch))


@pytest.mark.parametrize("crypten_at", [0, 1])
def test_parties_with_different_gates_are_refused(crypten_at):
    """CrypTen's circuit at one server and ours at the other: an error at the first step and no bits."""
    names = ("crypten", "native") if crypten_at == 0 else ("native", "crypten")
    gates, shares = [make_gate(name) for name in names], random_words("mixed gates", 2, 3)
    triples = [pools(gate.and_blocks(3))[party] for party, gate in enumerate(gates)]
    with pytest.raises(PeerMismatchError, match="protocol step"):
        run_pair(lambda ch: gates[ch.party].to_binary(shares[ch.party], triples[ch.party], ch))


def test_no_words_are_no_bits(gate):
    """A batch of zero words takes its rounds, empty, and gives zero words."""
    a, b = converted(gate, np.zeros((2, 0), dtype=np.int64))
    assert a.shape == b.shape == (0,)


def test_there_are_two_gates():
    """Those that the `gate` fixture runs; a third would go untested."""
    assert set(GATES) == set(STEPS) == {"crypten", "native"}
    assert {name: sum(size for _, size in steps) for name, steps in STEPS.items()} == BYTES_PER_WORD
