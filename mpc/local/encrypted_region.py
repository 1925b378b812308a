"""Bytes in a file that only this process can read: AES-128-CTR under a key that it never writes down.

A region has a key of its own, from the operating system, and a block of it has a version. The counter of a byte is made
of its block's version and its position. What is appended goes on in the stream that its block has begun; what is
written over gets the block's next version. So no byte of a key stream covers two bytes, not even for somebody who has
kept an earlier content of the disk.

A disk that lies is not found out: flipping a bit of the file flips that bit of the upload, and nothing here notices.
Whoever can do that to a running server can do what its operator can.
"""

from __future__ import annotations

import os
from itertools import pairwise
from typing import BinaryIO, Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from precad.mpc.errors import MalformedMessageError
from precad.mpc.prg import SEED_BYTES, SYSTEM_BYTES, RandomBytes
from precad.mpc.ring import TILE, WORD_BYTES

BLOCK: Final = TILE * WORD_BYTES
"""Bytes that share a version: a tile, which is how a region is read."""
_AES_BYTES: Final = 16


class EncryptedRegion:
    """`n_bytes` of `file` from byte `offset` on. Many may share one open file, which is used by position.

    For one writer at a time; reads of other bytes may go on beside it.
    """

    def __init__(
        self, file: BinaryIO, n_bytes: int, *, offset: int = 0, random_bytes: RandomBytes = SYSTEM_BYTES
    ) -> None:
        """The file stays open for as long as this is used. Raises MalformedMessageError when it is too short."""
        size = os.fstat(file.fileno()).st_size
        if size < offset + n_bytes:
            raise MalformedMessageError(f"expected {n_bytes} bytes from byte {offset} on, the file has {size}")
        self._file, self._n_bytes, self._offset = file, n_bytes, offset
        self._cipher = algorithms.AES128(random_bytes(SEED_BYTES))
        self._versions = np.zeros(-(-n_bytes // BLOCK), dtype=np.uint64)
        self._n_appended = 0

    def __len__(self) -> int:
        return self._n_bytes

    @property
    def held(self) -> None:
        """Say that nothing of it lies in memory: see `precad.mpc.proved.shares.Bytes`."""

    def append(self, data: bytes | memoryview) -> None:
        """Write behind what was appended before, where nothing was written yet. Raises OSError: then nobody may append
        again."""
        position, end = self._n_appended, self._n_appended + len(data)
        assert end <= self._n_bytes  # whoever owns the region counts,
        assert not self._versions.any()  # and overwrites later
        self._n_appended = end
        self._write(position, data)

    def overwrite(self, position: int, data: memoryview) -> None:
        """Replace bytes of the region, appended before or not. Raises OSError as the file system gives it, and
        MalformedMessageError when the file was cut short."""
        assert 0 <= position <= position + len(data) <= self._n_bytes
        for start, stop in _blocks(position, len(data)):
            first = start - start % BLOCK
            last = min(first + BLOCK, self._n_bytes)
            block: bytearray | memoryview = data[start - position : stop - position]
            if stop - start < last - first:
                part, block = block, self.read(first, last - first)
                block[start - first : stop - first] = part
            self._versions[first // BLOCK] += np.uint64(1)
            self._write(first, block)

    def read(self, position: int, n_bytes: int) -> bytearray:
        """Return a copy. Raises MalformedMessageError when the file was cut short."""
        data = bytearray(n_bytes)
        self.read_into(position, memoryview(data))
        return data

    def read_into(self, position: int, buffer: memoryview) -> None:
        """Fill `buffer`. Raises MalformedMessageError when the file was cut short."""
        assert 0 <= position <= position + len(buffer) <= self._n_bytes
        unread, at = buffer, self._offset + position
        while unread:
            n_read = os.preadv(self._file.fileno(), [unread], at)
            if n_read == 0:
                raise MalformedMessageError(f"the spool file ends at byte {at}, {len(unread)} bytes too early")
            unread, at = unread[n_read:], at + n_read
        self._apply(position, buffer, buffer)

    def _write(self, position: int, data: bytes | bytearray | memoryview) -> None:
        encrypted = memoryview(bytearray(len(data)))
        self._apply(position, memoryview(data), encrypted)
        at = self._offset + position
        while encrypted:
            n_written = os.pwrite(self._file.fileno(), encrypted, at)
            encrypted, at = encrypted[n_written:], at + n_written

    def _apply(self, position: int, source: memoryview, out: memoryview) -> None:
        """out = source xor the key stream of these bytes; they may be one buffer."""
        for start, stop in _blocks(position, len(source)):
            here = slice(start - position, stop - position)
            nonce = int(self._versions[start // BLOCK]).to_bytes(8, "big") + (start // _AES_BYTES).to_bytes(8, "big")
            encryptor = Cipher(self._cipher, modes.CTR(nonce)).encryptor()
            encryptor.update(bytes(start % _AES_BYTES))  # the stream is entered within a block of AES
            encryptor.update_into(source[here], out[here])

    def __repr__(self) -> str:
        return f"EncryptedRegion({self._n_bytes} bytes)"


def _blocks(position: int, n_bytes: int) -> list[tuple[int, int]]:
    """(start, stop) of the parts of these bytes that lie in one block each."""
    end = position + n_bytes
    cuts = [position, *range(position - position % BLOCK + BLOCK, end, BLOCK), end]
    return [(start, stop) for start, stop in pairwise(cuts) if start < stop]
