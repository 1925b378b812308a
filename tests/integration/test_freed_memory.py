"""Watch what a server's C library does with freed memory: it is overwritten, and kept up to a bound.

Failure means that whoever reads a server's memory later finds a share of a round that is over (rule S4). Or it means a
server that has its pages cleared anew for each message, or one that keeps memory beyond its budget.
"""

from __future__ import annotations

import platform
import secrets
import subprocess
import sys
from collections.abc import Iterator

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no mallopt")

BEGINNING = """
import resource, sys
import numpy as np
from precad.servers.freed_memory import KEPT_BYTES, LARGE_BYTES, MIB, overwrite_and_keep

if sys.argv[1] == "as-served":
    overwrite_and_keep()
"""

CYCLES = """
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

print(pages_cleared(6, MIB))
before = resident()
blocks = [b"x" * LARGE_BYTES for _ in range(8)] + [b"x" * (8 * MIB) for _ in range(40)]
del blocks
print(resident() - before - KEPT_BYTES)
"""

LEFT = """
from precad.servers.rounds.uploads import MemoryPayload

mark, n_bytes = sys.stdin.buffer.read(16), int(sys.argv[2])

def uploads():
    payloads = []
    for _ in range(12):
        payload = MemoryPayload(n_bytes)
        for start in range(0, n_bytes, MIB):
            payload.write((mark * (MIB // 16))[: n_bytes - start])
        payloads.append(payload)
    for payload in payloads:
        payload.discard()

uploads()
print("over", flush=True)
sys.stdin.buffer.read()
"""

ROOM = """
from precad.servers.rounds.uploads import MemoryPayload

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

before = resident()
payload = MemoryPayload(16 * MIB)
print(resident() - before)
"""


def printed(program: str, *arguments: str) -> list[int]:
    """Return the numbers that a process prints."""
    command = [sys.executable, "-c", BEGINNING + program, *arguments]
    return [int(line) for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()]


def test_freed_messages_are_kept_for_the_next_and_no_more_than_the_bound() -> None:
    """Expect 1,536 pages of six messages of 1 MiB, twenty times. At most the bound is left of 576 MiB."""
    by_default, _ = printed(CYCLES, "default")
    kept, beyond = printed(CYCLES, "as-served")
    assert by_default > 20 * 1000
    assert kept < 20 * 10
    assert beyond < 1 << 20


def n_left(how: str, n_bytes: int) -> int:
    """Return how often a mark of twelve uploads, which are let go, is in their process's memory."""
    mark = secrets.token_bytes(16)
    command = [sys.executable, "-c", BEGINNING + LEFT, how, str(n_bytes)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(mark)
        process.stdin.flush()
        assert process.stdout.readline() == b"over\n"
        found = sum(part.count(mark) for part in memory_of(process.pid))
        process.stdin.close()
    return found


def memory_of(pid: int) -> Iterator[bytes]:
    """Yield what a process has in each part of its memory that it may write to."""
    try:
        memory = open(f"/proc/{pid}/mem", "rb", buffering=0)  # noqa: SIM115 - closed below
    except PermissionError:
        pytest.skip("the system lets nobody read another process's memory")
    with memory, open(f"/proc/{pid}/maps") as maps:
        for line in maps:
            span, mode, *_ = line.split()
            start, stop = (int(end, 16) for end in span.split("-"))
            if mode.startswith("rw") and "[v" not in line:
                memory.seek(start)
                part = memory.read(stop - start)
                assert len(part) == stop - start
                yield part


@pytest.mark.parametrize("n_bytes", [182_070, 700_000, 7_000_000])
def test_nothing_of_uploads_that_were_let_go_is_left_in_memory(n_bytes: int) -> None:
    """Each has its mark every 16 bytes. Less than 1 KiB of marks is left: the process holds the mark itself."""
    assert n_left("as-served", n_bytes) < 64


def test_the_search_finds_what_is_left() -> None:
    """Without overwriting, short uploads stay."""
    assert n_left("default", 100_000) > 100


def test_a_room_takes_no_memory_before_it_is_written() -> None:
    """A header alone would commit it otherwise, as new blocks are filled too."""
    (grown,) = printed(ROOM, "as-served")
    assert grown < 2 << 20
