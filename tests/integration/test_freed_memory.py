"""Watch what the C library does with memory that a server frees: it is kept for the next round, up to a bound."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

CYCLES = """
import resource, sys
from precad.servers.rounds.memory import KEPT_BYTES, LARGE_BYTES, MIB, keep_freed_memory

def pages_cleared(n_blocks, n_bytes):
    def cycle():
        for _ in range(20):
            blocks = [b"x" * n_bytes for _ in range(n_blocks)]
            del blocks
    cycle()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    cycle()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

if sys.argv[1] == "keep":
    keep_freed_memory()
print(pages_cleared(6, MIB))
before = resident()
blocks = [b"x" * LARGE_BYTES for _ in range(8)] + [b"x" * (8 * MIB) for _ in range(40)]
del blocks
print(resident() - before - KEPT_BYTES)
"""


def measured(how: str) -> tuple[int, int]:
    """Return the pages that were cleared anew for freed messages, and what is resident beyond the bound in the end."""
    done = subprocess.run([sys.executable, "-c", CYCLES, how], capture_output=True, text=True, check=True)
    pages, beyond = map(int, done.stdout.split())
    return pages, beyond


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no mallopt")
def test_freed_messages_are_kept_for_the_next_and_no_more_than_the_bound() -> None:
    """Expect 1,536 pages of six messages of 1 MiB, twenty times. At most the bound is left of 576 MiB."""
    by_default, _ = measured("default")
    kept, beyond = measured("keep")
    assert by_default > 20 * 1000
    assert kept < 20 * 10
    assert beyond < 1 << 20
