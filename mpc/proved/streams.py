"""Field streams: uniform elements of F_p under a seed, readable from any element on.

An element is a word of the stream modulo 2^56, if p is larger. Otherwise, once in 2^24 elements, it is a 128-bit number
of the next purpose's stream, modulo p. Every element depends on its index alone.

Source: docs/reference/protocol-v2.md, section 3.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from precad.mpc import prg
from precad.mpc.kernels import loading
from precad.mpc.prg import Label, Purpose, Seed, Stream
from precad.mpc.proved.field import FieldArray, P

_REPAIRS: Final = {
    Purpose.SHARE: Purpose.SHARE_REPAIR,
    Purpose.PROOF_SHARE: Purpose.PROOF_SHARE_REPAIR,
    Purpose.QUERY: Purpose.QUERY_REPAIR,
}
"""Purposes of field streams, and of the streams that repair them."""


class FieldStream:
    """The elements of one stream, from some element on, each read once."""

    __slots__ = ("_key", "_position", "_repair_key", "_words")

    def __init__(self, key: Seed, repair_key: Callable[[], Seed], position: int = 0) -> None:
        """Begin at element `position`. Both keys come from `prg.derive`, the second one where it is needed."""
        self._key, self._repair_key, self._position = key, repair_key, position
        self._words: Stream | None = None

    def after(self, n_elements: int) -> FieldStream:
        """Return what follows the next n elements. This stream stays where it is."""
        return FieldStream(self._key, self._repair_key, self._position + n_elements)

    def fill(self, out: FieldArray) -> None:
        """Overwrite `out` with the next elements."""
        if self._words is None:  # not before it is read: most readers begin behind their start
            self._words = Stream(self._key, n_skipped=self._position)
        self._words.fill(out.view(np.int64))
        if loading.prime_field().mask(out):
            for i in np.flatnonzero(out >= P).tolist():
                out[i] = self._repaired(self._position + i)
        self._position += out.size

    def take(self, n_elements: int) -> FieldArray:
        """Return the next elements as a new array."""
        out = np.empty(n_elements, dtype=np.uint64)
        self.fill(out)
        return out

    def _repaired(self, index: int) -> int:
        pair = np.empty(2, dtype=np.int64)
        Stream(self._repair_key(), n_skipped=2 * index).fill(pair)
        low, high = pair.view(np.uint64).tolist()
        return int((low + (high << 64)) % P)

    def __repr__(self) -> str:
        return "FieldStream(REDACTED)"


def open_field_stream(seed: Seed, purpose: Purpose, label: Label) -> FieldStream:
    """Return the stream of SHARE, PROOF_SHARE or QUERY with this label."""
    return FieldStream(prg.derive(seed, purpose, label), partial(prg.derive, seed, _REPAIRS[purpose], label))
