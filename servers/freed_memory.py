"""Overwrite what a server's process frees, and keep it for the round's next messages and vectors.

Shares, proofs and copies of them in messages lie in memory of the C library's. Dropping them leaves what they held to
whoever reads this process's memory later, until something else is written there (rule S4 of mode `proved`).
"""

from __future__ import annotations

import ctypes
from typing import Final

MIB: Final = 1 << 20
KEPT_BYTES: Final = 64 * MIB
"""Freed memory that the process keeps at the top of each of the C library's arenas. It counts in `BASE_MB` of
`precad.servers.rounds.memory`, as few arenas are busy."""
LARGE_BYTES: Final = 32 * MIB
"""Blocks of so many bytes go back to the system when they are freed."""
_OVERWRITES: Final = 0xFF
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _PERTURB = -1, -3, -6
"""Parameters of `mallopt`, by glibc's malloc.h."""


def overwrite_and_keep() -> bool:
    """Have this process overwrite each block that it frees, of about 1 KiB or more, and keep it for what follows.

    Shorter blocks, such as seeds, stay as they are until something else is written there. New blocks are filled too, so
    that all their pages are in use at once. Return whether freed blocks are overwritten: without glibc nothing changes.
    An allocator that was loaded in the place of glibc's (LD_PRELOAD) goes unnoticed.

    By default freed memory goes back to the system, which clears its pages anew for the next round. In rounds of 10^6
    parameters that takes more time than both together.
    """
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    set_option(_TRIM_THRESHOLD, KEPT_BYTES)
    set_option(_MMAP_THRESHOLD, LARGE_BYTES)
    return bool(set_option(_PERTURB, _OVERWRITES))
