"""64 random ternary projections of a shared vector, modulo 2^64: the no-wrap test's linear part.

Row j is v_j = sum_i u_ji s_i x_i with one public sign s_i per coordinate and one public bit u_ji per coordinate and
row. All of them are drawn from the joint coin *after* every share was fixed, and shared by all clients of a round. A
projection of a share is a share of the projection, so no message is needed.

Bit j of word i of one stream is u_ji. The sign s_i is -1 where bit i of another stream is set, counted through its
words from the lowest. This module reads the streams; an engine computes the products (`precad.mpc.local.step`).

Source: ours, docs/reference/protocol-v2-proofs.md, "The rows' theorem". The idea of ternary projections against
wrap-around is PINE's, arXiv 2311.10237.
"""

from __future__ import annotations

from copy import copy

import numpy as np

from precad.mpc import prg
from precad.mpc.prg import Label, Purpose, Seed, Stream
from precad.mpc.ring import WORD_BITS, RingArray

MAX_ROWS = 64
"""Bits of one word per coordinate."""


class RowStreams:
    """The rows of one round, read from coordinate 0 on, tile by tile."""

    def __init__(self, challenge: Seed, label: Label) -> None:
        self._keys = tuple(prg.derive(challenge, purpose, label) for purpose in (Purpose.ROW_BITS, Purpose.ROW_SIGNS))
        self._start_at(0)

    def _start_at(self, n_coordinates: int) -> None:
        self._n_skipped = n_coordinates
        self._streams: tuple[Stream, Stream] | None = None
        self._row_words = np.empty(0, dtype=np.int64)  # two threads that share it would read one another's rows

    def after(self, n_coordinates: int) -> RowStreams:
        """Return the rows from that coordinate on, a multiple of 64, counted from 0, whatever was read of these rows.

        Rows are public, so that reading them twice gives nothing away. A proof for other rows than the servers' does.
        """
        rest = copy(self)
        rest._start_at(n_coordinates)
        return rest

    def read(self, n_coordinates: int) -> tuple[RingArray, RingArray]:
        """Return (row words, sign words) of the next tile, (m,) and (ceil(m / 64),). Valid until the next call.

        m is a multiple of 64 but for the last tile.
        """
        if self._row_words.size < n_coordinates:
            self._row_words = np.empty(n_coordinates, dtype=np.int64)
        row_words = self._row_words[:n_coordinates]
        sign_words = np.empty(-(-n_coordinates // WORD_BITS), dtype=np.int64)
        bits, signs = self._opened()
        bits.fill(row_words)
        signs.fill(sign_words)
        return row_words, sign_words

    def _opened(self) -> tuple[Stream, Stream]:
        """Return the streams of bits and of signs. A cipher is made for the first tile, not for `after`."""
        if self._streams is None:
            bits, signs = self._keys
            self._streams = (
                Stream(bits, n_skipped=self._n_skipped),
                Stream(signs, n_skipped=self._n_skipped // WORD_BITS),
            )
        return self._streams
