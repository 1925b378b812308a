"""A vector on disk, read and written tile by tile, so that 10^8 words never lie in memory.

A memory map works as well; but every page of a map that was touched counts as resident until the kernel wants it back,
and a server that has a budget would rather hold one tile.
"""

from __future__ import annotations

import os
from typing import BinaryIO

import numpy as np

from mpc.errors import MalformedMessageError
from mpc.ring import WORD_BYTES, RingArray


class SpooledWords:
    """`n_words` little-endian words of `file` from byte `offset` on. Many may share one open file.

    The file is used by position, never moved; it stays open for as long as this is used.
    """

    def __init__(self, file: BinaryIO, n_words: int, *, offset: int = 0) -> None:
        size = os.fstat(file.fileno()).st_size
        if size < offset + n_words * WORD_BYTES:
            raise MalformedMessageError(f"expected {n_words} words from byte {offset} on, the file has {size} bytes")
        self._file, self._n_words, self._offset = file, n_words, offset

    def __len__(self) -> int:
        return self._n_words

    def __getitem__(self, tile: slice, /) -> RingArray:
        """A fresh array of a slice with step 1. Raises MalformedMessageError when the file was cut short."""
        start, stop, _ = tile.indices(self._n_words)
        words = np.empty(max(0, stop - start), dtype="<i8")
        unread, position = words.view(np.uint8).data, self._offset + start * WORD_BYTES
        while unread:
            n_read = os.preadv(self._file.fileno(), [unread], position)
            if n_read == 0:
                raise MalformedMessageError(f"the spool file ends at byte {position}, {len(unread)} bytes too early")
            unread, position = unread[n_read:], position + n_read
        return words.astype(np.int64, copy=False)

    def __setitem__(self, tile: slice, words: RingArray, /) -> None:
        """Overwrites a slice with step 1. Raises OSError as the file system gives it: the disk may be full."""
        start, stop, _ = tile.indices(self._n_words)
        data = np.ascontiguousarray(words, dtype="<i8")
        if data.shape != (max(0, stop - start),):
            raise MalformedMessageError(f"expected {max(0, stop - start)} words to write, got shape {data.shape}")
        write_at(self._file, data.view(np.uint8).data, self._offset + start * WORD_BYTES)

    def __repr__(self) -> str:
        return f"SpooledWords({self._n_words} words)"


def write_at(file: BinaryIO, data: bytes | memoryview, position: int) -> None:
    """Writes all of `data` from byte `position` on. Raises OSError."""
    unwritten = memoryview(data)
    while unwritten:
        n_written = os.pwrite(file.fileno(), unwritten, position)
        unwritten, position = unwritten[n_written:], position + n_written
