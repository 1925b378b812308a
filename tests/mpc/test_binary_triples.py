"""Binary correlations hold for every run of words that a gate takes, also for fewer words than were dealt."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from mpc.channel import run_pair
from mpc.dealer import deal
from mpc.errors import TupleReusedError
from mpc.gates import make_gate
from mpc.tuples import AndBlock, BatchShape, ServerTuples


def both(blocks):
    """The two servers' binary triples of one batch."""
    shape = BatchShape("task", 0, (), 1, tuple(blocks))
    return [ServerTuples(party, shape, part).binary_triples() for party, part in enumerate(deal(shape))]


@pytest.mark.parametrize("n_words", [0, 1, 5, 64])
def test_a_shorter_run_is_a_correlation_too(n_words):
    """c_j = a & b_j in every block of which only the first words are taken; A alone knows a in a split block."""
    triples = both([AndBlock(64, is_split=True), AndBlock(64, fanout=2), AndBlock(64, fanout=2), AndBlock(64)])

    for fanout, is_split in [(1, True), (2, False), (2, False), (1, False)]:
        (a_a, b_a, c_a), (a_b, b_b, c_b) = (t.take(n_words, fanout, is_split=is_split) for t in triples)

        assert_array_equal((a_a ^ a_b) & (b_a ^ b_b), c_a ^ c_b)
        assert not is_split or not (a_b.any() or b_a.any())


def test_no_word_is_taken_twice():
    """Runs of one block are disjoint; a run that fits no block that is left raises."""
    (triples, _) = both([AndBlock(10)])
    first, second = triples.take(4)[0], triples.take(6)[0]

    assert np.intersect1d(first, second).size == 0  # equal words would be a coincidence of 2^-58
    with pytest.raises(TupleReusedError):
        triples.take(1)


@pytest.mark.parametrize("gate_name", ["native", "crypten"])
@pytest.mark.parametrize("used", [0, 1, 65, 129, 130])
def test_a_gate_adds_correctly_when_clients_are_missing(gate_name, used):
    """XOR shares of x + y on `used` words, with correlations dealt for 130."""
    gate, rng = make_gate(gate_name), np.random.default_rng(7)
    words = rng.integers(-(2**63), 2**63, (2, used), dtype=np.int64)
    triples = both(gate.and_blocks(130))

    a, b = run_pair(lambda channel: gate.to_binary(words[channel.party], triples[channel.party], channel))

    assert_array_equal(words[0] + words[1], a ^ b)
