"""Where a server's uploads lie until their round is over: in memory while there is room, else in one file.

An upload has an extent of the file, as long as itself: the first gap that it fits into. The file is made when the first
upload needs it, ends behind the last extent in use, and goes with the process. A file that a crash left is deleted at
the next start. In it lie this server's halves of uploads, encrypted under keys that only this process has
(`precad.mpc.local.encrypted_region`). So a disk, a backup or what a crash left helps nobody who has the other halves.
An extent is read by position: one open file serves any number of uploads. Proofs of mode `proved` lie here alike.
"""

from __future__ import annotations

import hashlib
import os
import threading
from bisect import insort
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final, Protocol, Self

import numpy as np

from precad.mpc import ring
from precad.mpc.errors import raised_as
from precad.mpc.local.encrypted_region import EncryptedRegion
from precad.mpc.local.spooled_words import SpooledWords
from precad.mpc.local.step import WritableWords
from precad.mpc.ring import WORD_BYTES
from precad.protos.messages import convert
from precad.servers.errors import SetupError, StoreError
from precad.servers.private_files import private
from precad.servers.rounds import pages

_PAGED_BYTES: Final = 1 << 20
"""Rooms of so many bytes are pages of the system's own."""


class Payload(Protocol):
    """Bytes of one upload: written once, from the start; then read."""

    def __len__(self) -> int:
        """Count the bytes written so far."""

    def write(self, data: bytes) -> None:
        """Append. Raises StoreError when there is no room for it."""

    def digest(self) -> bytes:
        """Return the SHA-256 of what was written."""

    def __getitem__(self, part: slice, /) -> bytes:
        """Return a part of what was written."""

    @property
    def held(self) -> memoryview | None:
        """Return what was written where it lies in memory; None where it is on disk."""

    def read_into(self, position: int, buffer: memoryview) -> None:
        """Fill `buffer` with what was written, from the byte `position` on."""

    def words(self, n_words: int) -> WritableWords:
        """Return what was written, as ring elements, to be read tile by tile."""

    def room(self, n_words: int) -> WritableWords:
        """Return the upload's own room, to be written over tile by tile: where `words` lie, if it has as many."""

    def discard(self) -> None:
        """Discard it: nobody reads it any more. Twice does nothing."""


class MemoryPayload:
    """In memory: room for the whole upload at once. A long one takes the pages that are written, and no more."""

    def __init__(self, n_bytes: int = 0, release: Callable[[], None] = lambda: None) -> None:
        """n_bytes: the most that is written. release: called once, when it is discarded."""
        self._room, self._n_written = _memory(n_bytes), 0
        self._release, self._is_held = release, True

    def __len__(self) -> int:
        return self._n_written

    @property
    def held(self) -> memoryview:
        """See `Payload.held`."""
        return self._room[: self._n_written]

    def write(self, data: bytes) -> None:
        """See `Payload.write`."""
        stop = self._n_written + len(data)
        if stop > len(self._room):
            raise StoreError(f"upload in memory: expected at most {len(self._room)} bytes, found more")
        self._room[self._n_written : stop] = data
        self._n_written = stop

    def digest(self) -> bytes:
        """See `Payload.digest`."""
        return convert.sha256(self.held)

    def __getitem__(self, part: slice, /) -> bytes:
        return bytes(self.held[part])

    def read_into(self, position: int, buffer: memoryview) -> None:
        """See `Payload.read_into`."""
        buffer[:] = self.held[position : position + len(buffer)]

    def words(self, n_words: int) -> WritableWords:
        """See `Payload.words`. Raises MalformedMessageError on another length."""
        return ring.from_bytes(self.held, n_words=n_words)

    def room(self, n_words: int) -> WritableWords:
        """See `Payload.room`."""
        if len(self._room) < WORD_BYTES * n_words:
            self._room = _memory(WORD_BYTES * n_words)
        self._n_written = WORD_BYTES * n_words
        return self.words(n_words)

    def discard(self) -> None:
        """See `Payload.discard`."""
        if self._is_held:
            self._is_held, self._room, self._n_written = False, _memory(0), 0
            self._release()

    def __repr__(self) -> str:
        return f"MemoryPayload({len(self)} bytes)"


def _memory(n_bytes: int) -> memoryview:
    """Return bytes that are not set. A bytearray that grows would be copied, and its pages cleared, again and again."""
    return np.empty(n_bytes, dtype=np.uint8).data if n_bytes < _PAGED_BYTES else pages.room(n_bytes)


class FilePayload:
    """In an extent of the spool's file. Hashed as it is written."""

    def __init__(self, region: EncryptedRegion, release: Callable[[], None]) -> None:
        self._region, self._release = region, release
        self._n_written, self._hasher, self._is_held = 0, hashlib.sha256(), True

    def __len__(self) -> int:
        return self._n_written

    def write(self, data: bytes) -> None:
        """See `Payload.write`."""
        if self._n_written + len(data) > len(self._region):
            raise StoreError(f"upload to the spool: expected at most {len(self._region)} bytes, found more")
        try:
            self._region.append(data)
        except OSError as error:
            raise StoreError(f"no room for an upload: {error.strerror}") from error
        self._hasher.update(data)
        self._n_written += len(data)

    def digest(self) -> bytes:
        """See `Payload.digest`."""
        return self._hasher.digest()

    def __getitem__(self, part: slice, /) -> bytes:
        start, stop, _ = part.indices(self._n_written)
        return bytes(self._region.read(start, max(0, stop - start)))

    @property
    def held(self) -> None:
        """See `Payload.held`."""

    def read_into(self, position: int, buffer: memoryview) -> None:
        """See `Payload.read_into`. Raises MalformedMessageError when the file was cut short."""
        self._region.read_into(position, buffer)

    def words(self, n_words: int) -> WritableWords:
        """See `Payload.words`. Raises MalformedMessageError where its extent is shorter."""
        return SpooledWords(self._region, n_words)

    def room(self, n_words: int) -> WritableWords:
        """See `Payload.room`."""
        return self.words(n_words)

    def discard(self) -> None:
        """See `Payload.discard`."""
        if self._is_held:
            self._is_held, self._n_written = False, 0
            self._release()

    def __repr__(self) -> str:
        return f"FilePayload({len(self)} bytes)"


class Spool:
    """Room for the uploads of one server. For the event loop and the MPC thread."""

    def __init__(self, path: Path, *, most_bytes: int, memory_bytes: int, max_memory_upload: int) -> None:
        """most_bytes: of the longest upload. memory_bytes: for all uploads in memory together; one that is longer than
        max_memory_upload never lies there."""
        self._path, self._most_bytes = path, most_bytes
        self._memory_bytes, self._max_memory_upload = memory_bytes, max_memory_upload
        self._turn = threading.Lock()
        self._file: BinaryIO | None = None
        self._in_memory = 0
        self._used: list[tuple[int, int]] = []
        """Extents, (start, stop), by their start."""

    @property
    def n_in_file(self) -> int:
        """Count the uploads that lie in the file now."""
        return len(self._used)

    def new(self, n_bytes: int) -> Payload:
        """Return empty room for an upload of at most n_bytes; on disk it is reserved. Raises StoreError."""
        with self._turn:
            if n_bytes <= self._max_memory_upload and self._in_memory + n_bytes <= self._memory_bytes:
                self._in_memory += n_bytes
                return MemoryPayload(n_bytes, lambda: self._release_memory(n_bytes))
            return self._extent(n_bytes)

    def _extent(self, n_bytes: int) -> FilePayload:
        if n_bytes > self._most_bytes:
            raise StoreError(f"upload to the spool: expected at most {self._most_bytes} bytes, found {n_bytes}")
        offset = self._first_gap(n_bytes)
        try:
            if self._file is None:
                self._file = open(self._path, "x+b", buffering=0, opener=private)  # noqa: SIM115 - ours until `close`
            os.posix_fallocate(self._file.fileno(), offset, max(1, n_bytes))
        except OSError as error:
            raise StoreError(f"no room for an upload: {error.strerror}") from error
        extent = offset, offset + max(1, n_bytes)
        insort(self._used, extent)
        region = EncryptedRegion(self._file, n_bytes, offset=offset)
        return FilePayload(region, lambda: self._release_extent(extent))

    def _first_gap(self, n_bytes: int) -> int:
        """Return where an upload of this length fits, before the end of the file if it can."""
        offset = 0
        for start, stop in self._used:
            if start - offset >= max(1, n_bytes):
                return offset
            offset = stop
        return offset

    def _release_memory(self, n_bytes: int) -> None:
        with self._turn:
            self._in_memory -= n_bytes

    def _release_extent(self, extent: tuple[int, int]) -> None:
        with self._turn:
            self._used.remove(extent)
            end = self._used[-1][1] if self._used else 0
            if end < extent[1] and self._file is not None and not self._file.closed:
                with suppress(OSError):  # then it is only longer than it need be
                    os.ftruncate(self._file.fileno(), end)

    def close(self) -> None:
        """Delete the file. Whoever still reads gets an error."""
        with self._turn:
            if self._file is not None:
                self._file.close()
                with suppress(OSError):  # the next start deletes it
                    self._path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        """Delete what a crash left. Raises SetupError."""
        with raised_as(SetupError, OSError, f"{self._path}: expected a spool file that can be deleted"):
            self._path.unlink(missing_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
