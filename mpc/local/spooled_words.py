"""A vector on disk, read and written tile by tile, so that 10^8 words never lie in memory.

A memory map works as well. But every page of a map that was touched counts as resident until the kernel wants it back.
A server that has a budget would rather hold one tile. And a map could not be encrypted
(`precad.mpc.local.encrypted_region`).
"""

from __future__ import annotations

import numpy as np

from precad.mpc.errors import MalformedMessageError
from precad.mpc.local.encrypted_region import EncryptedRegion
from precad.mpc.ring import WORD_BYTES, RingArray


class SpooledWords:
    """`n_words` little-endian words, from the start of `region` on."""

    def __init__(self, region: EncryptedRegion, n_words: int) -> None:
        if len(region) < n_words * WORD_BYTES:
            raise MalformedMessageError(f"expected {n_words} words, there is room for {len(region)} bytes")
        self._region, self._n_words = region, n_words

    def __len__(self) -> int:
        return self._n_words

    def __getitem__(self, tile: slice, /) -> RingArray:
        """Return a fresh array of a slice with step 1. Raises MalformedMessageError when the file was cut short."""
        start, stop, _ = tile.indices(self._n_words)
        words = np.empty(max(0, stop - start), dtype="<i8")
        self._region.read_into(start * WORD_BYTES, words.view(np.uint8).data)
        return words.astype(np.int64, copy=False)

    def __setitem__(self, tile: slice, words: RingArray, /) -> None:
        """Overwrite a slice with step 1. Raises OSError as the file system gives it: the disk may be full."""
        start, stop, _ = tile.indices(self._n_words)
        data = np.ascontiguousarray(words, dtype="<i8")
        if data.shape != (max(0, stop - start),):
            raise MalformedMessageError(
                f"tile: expected {max(0, stop - start)} words to write, found shape {data.shape}"
            )
        self._region.overwrite(start * WORD_BYTES, data.view(np.uint8).data)

    def __repr__(self) -> str:
        return f"SpooledWords({self._n_words} words)"
