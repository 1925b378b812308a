"""Pages of long uploads: kept for the next one, and never while anybody can still read or write them.

Failure means that one client's upload lies in another's, that a past one stays readable, or that memory is not given
back.
"""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from precad.servers.rounds import pages

N_BYTES = 3 << 20


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    pages._kept.clear()
    yield
    pages._kept.clear()


def address(room: memoryview) -> int:
    return int(np.frombuffer(room, dtype=np.uint8).ctypes.data)


def kept_bytes() -> int:
    return sum(map(len, pages._kept))


def test_a_room_that_was_let_go_is_the_next_one_and_holds_nothing() -> None:
    room = pages.room(N_BYTES)
    room[:] = b"\xab" * N_BYTES
    before = address(room)
    del room
    again = pages.room(N_BYTES)
    assert address(again) == before
    assert bytes(again) == bytes(N_BYTES)


@pytest.mark.parametrize(
    "part",
    [
        lambda room: room[1000:2000],
        lambda room: np.frombuffer(room, dtype=np.uint8)[1000:2000],
        lambda room: np.frombuffer(room[8:], dtype=np.uint64)[124:249].view(np.uint8).data,
        lambda room: memoryview(room).cast("B")[1000:2000],
    ],
)
def test_what_somebody_still_reads_is_not_another_ones(part) -> None:
    """A step in a thread outlives the round that was given up: it must neither see nor change the next upload."""
    room = pages.room(N_BYTES)
    room[:] = b"\xab" * N_BYTES
    left = part(room)
    del room
    gc.collect()
    other = pages.room(N_BYTES)
    other[:] = b"\xcd" * N_BYTES
    assert set(bytes(left)) == {0xAB}
    del left
    assert kept_bytes() == N_BYTES
    assert set(bytes(other)) == {0xCD}


def test_no_more_is_kept_than_the_bound_and_nothing_that_is_longer() -> None:
    rooms = [pages.room(n) for n in [N_BYTES] * 30 + [5 << 20] * 3]
    assert kept_bytes() == 0
    while rooms:
        rooms.pop(0)[:8] = bytes(8)
        assert kept_bytes() <= pages.KEPT_BYTES
    assert kept_bytes() > pages.KEPT_BYTES - (5 << 20)
    assert [len(one) for one in pages._kept[-3:]] == [5 << 20] * 3
    longer = pages.room(pages.KEPT_BYTES + 1)
    del longer
    assert all(len(one) <= 5 << 20 for one in pages._kept)


def test_rooms_have_the_length_that_was_asked_for() -> None:
    for n_bytes in (N_BYTES, N_BYTES + 7, N_BYTES - 7, N_BYTES):
        assert len(pages.room(n_bytes)) == n_bytes


def test_a_room_that_is_collected_while_another_is_taken_is_let_go() -> None:
    """Garbage is collected anywhere, in the same thread too: it would wait for itself for ever."""
    room = pages.room(N_BYTES)
    with pages._lock:
        del room
    assert kept_bytes() == 0


def test_rooms_of_many_threads_never_mix() -> None:
    wrong, numbers = list[int](), itertools.count(1)

    def work() -> None:
        for _ in range(40):
            mark = next(numbers) % 255 + 1
            room = pages.room(1 << 20)
            room[:] = bytes([mark]) * (1 << 20)
            view = np.frombuffer(room, dtype=np.uint8)
            del room
            if int(view.min()) != mark or int(view.max()) != mark:
                wrong.append(mark)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert 0 < kept_bytes() <= 16 << 20  # a thread has two for a moment
