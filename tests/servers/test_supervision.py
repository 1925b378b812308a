"""Work that is given up: what a thread writes down has come to its end before anybody goes on.

Failure means that a store is closed, or read again, while something of a round that was given up is still written.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from precad.servers.errors import PeerLateError, PeerUnreachableError, StoreError, TaskRefusedError
from precad.servers.supervision import beside, first_error_or_result, guarded, to_the_end
from tests.harness.harness import asynchronous


class Slow:
    """Something that is written down in a thread, until it may end."""

    def __init__(self, error: Exception | None = None) -> None:
        self.begun, self.may_end, self.has_ended = threading.Event(), threading.Event(), False
        self._error = error

    def write(self) -> str:
        self.begun.set()
        assert self.may_end.wait(20)
        self.has_ended = True
        if self._error is not None:
            raise self._error
        return "written"

    async def begins(self) -> None:
        await asyncio.to_thread(self.begun.wait, 20)


async def cancelled(task: asyncio.Task[object], slow: Slow, *, times: int) -> BaseException:
    """Cancel again and again while the thread writes, then let it end. Return how the task ended."""
    await slow.begins()
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0.01)
        assert not task.done()
    slow.may_end.set()
    (ended,) = await asyncio.gather(task, return_exceptions=True)
    assert slow.has_ended
    assert isinstance(ended, BaseException)
    return ended


@pytest.mark.parametrize("times", [1, 2, 5])
@pytest.mark.parametrize("error", [None, StoreError("disk full")])
@asynchronous
async def test_a_write_comes_to_its_end_however_often_it_is_cancelled(times: int, error: Exception | None) -> None:
    """A link that breaks and a signal cancel the same round, one after the other."""
    slow = Slow(error)
    task = asyncio.ensure_future(to_the_end(slow.write))
    assert isinstance(await cancelled(task, slow, times=times), asyncio.CancelledError)


@asynchronous
async def test_a_stop_waits_for_the_write_of_a_round_that_is_given_up() -> None:
    """The peer is lost while a round is written down, then the operator stops the server: both are nested."""
    slow, ends = Slow(), asyncio.Event()

    async def lost() -> None:
        await slow.begins()
        raise TaskRefusedError("the peer deviated")

    async def stopped() -> None:
        await ends.wait()
        raise InterruptedError

    guard = asyncio.create_task(lost())
    running = asyncio.create_task(guarded(first_error_or_result(to_the_end(slow.write), (guard,)), stopped()))
    await slow.begins()
    await asyncio.sleep(0.1)  # the inner one has cancelled it
    ends.set()
    await asyncio.sleep(0.1)
    assert not running.done()
    slow.may_end.set()
    with pytest.raises(InterruptedError):  # the stop counts, or the server would meet the lost peer again
        await running
    assert slow.has_ended


async def refused() -> None:
    await asyncio.sleep(0.01)
    raise TaskRefusedError("the peer deviated")


async def endless() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("work", "error", "raised"),
    [
        (refused, None, "the peer deviated"),
        (refused, StoreError("disk full"), "the peer deviated"),
        (endless, StoreError("disk full"), "disk full"),
    ],
)
@asynchronous
async def test_what_failed_first_is_raised_once_the_write_beside_it_has_ended(
    work: Callable[[], object], error: Exception | None, raised: str
) -> None:
    """No error of the write takes the place of one that was there before."""
    slow = Slow(error)
    task = asyncio.ensure_future(beside(work(), slow.write))  # type: ignore[arg-type]
    await slow.begins()
    await asyncio.sleep(0.1)
    assert not task.done()
    slow.may_end.set()
    with pytest.raises((TaskRefusedError, StoreError), match=raised):
        await task
    assert slow.has_ended


@pytest.mark.parametrize("times", [1, 3])
@asynchronous
async def test_whoever_is_cancelled_beside_a_write_ends_behind_it(times: int) -> None:
    slow = Slow(StoreError("disk full"))
    task = asyncio.ensure_future(beside(endless(), slow.write))
    assert isinstance(await cancelled(task, slow, times=times), asyncio.CancelledError)


@pytest.mark.parametrize("error", [None, StoreError("disk full")])
@asynchronous
async def test_a_cancellation_counts_more_than_what_was_there_before_it(error: Exception | None) -> None:
    """It comes while the write is waited for, which work that has failed or ended has left."""
    slow, others = Slow(error), Slow()
    beside_failed = asyncio.ensure_future(beside(refused(), slow.write))
    await slow.begins()
    await asyncio.sleep(0.1)
    assert isinstance(await cancelled(beside_failed, slow, times=1), asyncio.CancelledError)

    async def watching() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await to_the_end(others.write)

    async def work() -> int:
        await asyncio.sleep(0.01)
        return 3

    done = asyncio.ensure_future(guarded(work(), watching()))
    assert isinstance(await cancelled(done, others, times=1), asyncio.CancelledError)


@asynchronous
async def test_work_and_write_both_end_in_peace() -> None:
    """The result is the work's, and is there no sooner than what was written."""
    slow = Slow()

    async def work() -> int:
        return 3

    task = asyncio.ensure_future(beside(work(), slow.write))
    await slow.begins()
    await asyncio.sleep(0.05)
    assert not task.done()
    slow.may_end.set()
    assert await task == 3


@asynchronous
async def test_what_we_found_of_a_server_counts_before_what_it_says() -> None:
    """A server that stalled says goodbye as soon as we hang up, and is heard first."""

    async def raises(error: Exception, after_s: float) -> None:
        await asyncio.sleep(after_s)
        raise error

    goodbye = asyncio.create_task(raises(PeerUnreachableError("the other aggregator ended the task: tired"), 0))
    with pytest.raises(PeerLateError, match="0 bytes of it"):
        await first_error_or_result(raises(PeerLateError("found 0 bytes of it"), 0.01), (goodbye,))
