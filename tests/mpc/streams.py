"""Whole vectors of what the product reads tile by tile, for tests that look at all of it at once."""

from __future__ import annotations

import numpy as np

from precad.mpc import prg, ring
from precad.mpc.local.engines import make_engine
from precad.mpc.local.rows import RowStreams
from precad.mpc.local.step import Masked, local_sums
from precad.mpc.prg import Purpose, Stream
from precad.mpc.sharing import mask_stream
from tests.mpc.twins import bits

ENGINE = make_engine("cpu")


class ZeroStream:
    """A mask of zeros: server A's share of x is then b = x itself."""

    def fill(self, words):
        words[:] = 0

    def after(self, n_words):
        """From any word on the same."""
        return self


def words_of(stream: Stream, n_words: int):
    """The next words of a stream."""
    words = np.empty(n_words, dtype=np.int64)
    stream.fill(words)
    return words


def expand_mask(seed, label, dim):
    """One half of a mask, (dim,)."""
    return words_of(mask_stream(seed, label), dim)


def project(x, seed, label, n_rows):
    """The product's row values of vectors (n, d), by its engine: (n, n_rows)."""
    clients = [Masked(vector, ZeroStream()) for vector in x]
    return local_sums(0, clients, RowStreams(seed, label), x.shape[1], ENGINE).rows[:, :n_rows]


def row_bits(seed, label, dim, n_rows):
    """u, (dim, n_rows)."""
    return bits(prg.stream(seed, Purpose.ROW_BITS, label, dim).view(np.uint64))[:, :n_rows].astype(np.uint8)


def row_signs(seed, label, dim):
    """s, (dim,): -1 where the bit of the sign stream is set."""
    words = prg.stream(seed, Purpose.ROW_SIGNS, label, -(-dim // 64)).view(np.uint64)
    return 1 - 2 * bits(words).reshape(-1)[:dim].astype(np.int64)


TILE = ring.TILE
