"""Work that goes on only as long as its guards do: the one place where tasks are raced and errors chosen.

Work that is given up is cancelled, which ends no thread. So what a thread writes down is waited for (`to_the_end`).
Nobody reads a disk on which something of given up work may still come to be.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from precad.servers.errors import PeerLateError, ServerError, TaskRefusedError

T = TypeVar("T")


async def first_error_or_result(work: Awaitable[T], guards: Sequence[asyncio.Task[Any]]) -> T:
    """Return the result of `work`, unless a guard raises first: then raise that error.

    A guard that ends in peace is no end. When several have failed at once, the error that the others follow from wins.
    An error that refuses to continue comes first, then what we found of the other aggregator, then who is gone.
    """
    main = asyncio.ensure_future(work)
    waiting: set[asyncio.Future[Any]] = {main, *guards}
    try:
        while not main.done():
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            errors = _errors(done)
            if errors:
                await asyncio.sleep(0.05)
                raise min(errors + _errors(waiting), key=_rank)
        return main.result()
    finally:
        main.cancel()
        await _ended(main)


async def guarded(work: Awaitable[T], guard: Coroutine[Any, Any, None]) -> T:
    """Return the result of `work`, unless the guard raises first, as `first_error_or_result`. It ends with the work."""
    watching = asyncio.create_task(guard)
    try:
        return await first_error_or_result(work, guards=(watching,))
    finally:
        watching.cancel()
        await _ended(watching)


async def to_the_end(function: Callable[..., T], *args: object) -> T:
    """Return the result of `function`, which writes something down, in a thread. Who is cancelled meanwhile waits until
    it has returned, and is cancelled then."""
    writing = asyncio.ensure_future(asyncio.to_thread(function, *args))
    try:
        return await asyncio.shield(writing)
    except asyncio.CancelledError:
        await _ended(writing)
        raise


async def beside(work: Awaitable[T], function: Callable[..., object], *args: object) -> T:
    """Return the result of `work`, once `function` has written something down in a thread beside it.

    An error of either ends both, and the first one is raised. The thread has returned in any case.
    """
    writing = asyncio.create_task(to_the_end(function, *args))
    try:
        result = await first_error_or_result(work, guards=(writing,))
        await writing
        return result
    finally:
        await _ended(writing)


def let_go(error: BaseException | None) -> None:
    """Take from an error, and from those behind it, the frames that it came through, with all that they hold (S4).

    Whoever keeps the error would keep them, and gRPC's own error of an aborted call would in a cycle. Frames of
    coroutines that still wait end with this: no error may come here that one of ours handed over and waits behind.
    """
    while error is not None and error.__traceback__ is not None:  # an error may stand behind itself
        traceback.clear_frames(error.__traceback__)
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


async def _ended(task: asyncio.Future[Any]) -> None:
    """Wait for the end of a task, through any cancellation, and be cancelled then. Takes up no error of the task."""
    cancelled = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancelled = error
    if not task.cancelled():
        task.exception()  # else asyncio would complain of it
    if cancelled is not None:
        raise cancelled


def _rank(error: BaseException) -> int:
    if isinstance(error, TaskRefusedError):
        return 0
    if isinstance(error, PeerLateError):
        return 1  # a server that stalls may say what it likes, once we hang up
    return 2 if isinstance(error, ServerError) else 3


def _errors(tasks: set[asyncio.Future[Any]]) -> list[BaseException]:
    """Return the errors of those tasks that have failed. A cancelled one has not failed by itself."""
    finished = (task for task in tasks if task.done() and not task.cancelled())
    return [error for task in finished if (error := task.exception()) is not None]
