"""Seeds expanded piece by piece, where the words are needed, against one call over everything."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from precad.mpc import prg, ring, sharing
from precad.mpc.prg import Label, Purpose, Seed
from precad.mpc.tuples import dealt
from precad.mpc.tuples.held import BatchShape, mask_seed, squared_mask_share_a
from tests.mpc import twins

SEED, LABEL = Seed(b"sixteen  bytes  "), Label("task", 3, "client")
BLOCK = len(prg._ZEROS) // 8
SIZES = (0, 1, 2, 63, 64, 65, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5)


@pytest.mark.parametrize("n_words", SIZES)
def test_expand_is_one_call_of_the_cipher(n_words):
    """At every length around the block of zeros."""
    assert_array_equal(
        twins.stream(SEED, Purpose.MASK, LABEL, n_words),
        prg.stream(SEED, Purpose.MASK, LABEL, n_words).view(np.uint64),
    )


@pytest.mark.parametrize("pieces", [[1] * 9, [0, 3, 0, 64, 1], [BLOCK, 1, BLOCK + 1], [7, 2 * BLOCK, 63]])
def test_pieces_of_a_stream_follow_one_another(pieces):
    """However it is cut, also within a block of the cipher (two words)."""
    stream = prg.open_stream(SEED, Purpose.MASK, LABEL)
    found = [np.empty(n, dtype=np.int64) for n in pieces]
    for words in found:
        stream.fill(words)

    assert_array_equal(twins.stream(SEED, Purpose.MASK, LABEL, sum(pieces)), np.concatenate(found).view(np.uint64))


def test_fill_keeps_within_its_array_and_refuses_what_is_scattered():
    """Words beside the piece stay; a view that is no single run of memory raises instead of filling a copy."""
    words = np.full((3, 8), 5, dtype=np.int64)
    prg.open_stream(SEED, Purpose.MASK, LABEL).fill(words[1])

    assert_array_equal(words[[0, 2]], 5)
    assert_array_equal(twins.stream(SEED, Purpose.MASK, LABEL, 8), words[1].view(np.uint64))
    with pytest.raises(TypeError):
        prg.open_stream(SEED, Purpose.MASK, LABEL).fill(words[:, ::2])


@pytest.mark.parametrize("dim", [1, 63, 64, 65, ring.TILE - 1, ring.TILE, 2 * ring.TILE + 1])
def test_mask_and_split_leave_what_reconstructs(dim):
    """b + a_A + a_B = X, and share A + share B = X, with every share expanded in one call; X itself is not changed."""
    seeds = (SEED, Seed(b"another sixteen "))
    x = np.random.default_rng(dim).integers(-(2**63), 2**63, dim, dtype=np.int64)
    encoded = x.copy()
    masks = [twins.stream(seed, Purpose.MASK, LABEL, dim) for seed in seeds]

    masked = sharing.mask(encoded, seeds, LABEL)
    seed, share_b = sharing.split(encoded, LABEL, lambda n: bytes(range(n)))

    assert_array_equal(x.view(np.uint64), masked.view(np.uint64) + masks[0] + masks[1])
    share_a = twins.stream(seed, Purpose.UPLOAD_SHARE, LABEL, dim)
    assert_array_equal(x.view(np.uint64), share_a + share_b.view(np.uint64))
    assert_array_equal(x, encoded)


@pytest.mark.parametrize("dim", [1, 64, ring.TILE - 1, ring.TILE, ring.TILE + 1, 2 * ring.TILE + 1])
def test_dealt_squared_masks_are_exact(dim):
    """r_A + r_B = <a, a> modulo 2^64, in Python's integers."""
    shape = BatchShape("task", 3, ("client", "another"), dim, ())
    for_a, for_b = dealt.deal(shape)

    for slot, client in enumerate(shape.clients):
        label = shape.label(client)
        halves = [twins.stream(mask_seed(d.key, label), Purpose.MASK, label, dim) for d in (for_a, for_b)]
        squared = sum(int(a) ** 2 for a in halves[0] + halves[1])
        assert (squared_mask_share_a(for_a.key, label) + int(for_b.squared_masks[slot]) - squared) % 2**64 == 0
