"""Pages of the system's own for long uploads, overwritten and kept for the next ones.

A room of the C library's is filled at once (`precad.servers.freed_memory`), so a header alone would take all of it. New
pages are in use once they are written, and the system clears them first. That takes longer than receiving into pages
that are there. So a room goes back to a few that are kept, when nobody has a view of it any more.
"""

from __future__ import annotations

import mmap
import threading
import weakref
from contextlib import suppress
from typing import Final

import numpy as np

KEPT_BYTES: Final = 64 << 20
"""Pages that are kept, at most. They count in `BASE_MB` of `precad.servers.rounds.memory`."""

_kept: list[mmap.mmap] = []
"""The one that was let go first comes first."""
_lock = threading.Lock()


def room(n_bytes: int) -> memoryview:
    """Return n_bytes bytes that are not set. They are overwritten when the last view of them is gone, or unmapped."""
    pages = _kept_of(n_bytes) or _new(n_bytes)
    whole = np.frombuffer(pages, dtype=np.uint8)
    weakref.finalize(whole, _take_back, pages).atexit = False
    return whole.data


def _new(n_bytes: int) -> mmap.mmap:
    pages = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(AttributeError, OSError):  # only faster: pages of 2 MiB, on systems that have them
        pages.madvise(mmap.MADV_HUGEPAGE)
    return pages


def _kept_of(n_bytes: int) -> mmap.mmap | None:
    with _lock:
        fitting = next((i for i, pages in enumerate(_kept) if len(pages) == n_bytes), None)
        return None if fitting is None else _kept.pop(fitting)


def _take_back(pages: mmap.mmap) -> None:
    """Keep pages of which no view is left, in the place of the oldest. What is unmapped, the system clears."""
    if len(pages) > KEPT_BYTES:
        return
    np.frombuffer(pages, dtype=np.uint8).fill(0)
    if _lock.acquire(blocking=False):  # it may be this thread that has it: garbage is collected anywhere
        try:
            _kept.append(pages)
            while sum(map(len, _kept)) > KEPT_BYTES:
                _kept.pop(0)
        finally:
            _lock.release()
