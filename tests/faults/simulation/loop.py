"""Time and threads that a seed decides: an event loop on a clock of its own, and threads that run one at a time.

When nothing is ready the clock jumps to the next timer, so an hour's timeout takes no time. A wait that nothing will
ever end is an error at once. Blocking work runs to its end at a moment that is drawn. The one kind that waits for
another process (the steps of MPC) runs on a `Strand`. A strand gives the loop its turn back wherever it waits.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import random
import selectors
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

SHORTEST_STEP_S = 1e-9
LONGEST_BLOCKING_S = 0.01
"""The longest that a database's transaction or a computation takes on the clock, in seconds."""


class StuckError(Exception):
    """Nothing is ready and no timer runs: the program waits for what cannot come."""


class LateError(Exception):
    """The clock has passed its limit."""


class Clock(selectors.SelectSelector):
    """A selector that selects nothing and makes time pass. No file is ever ready."""

    def __init__(self, limit_s: float) -> None:
        super().__init__()
        self.now_s, self.limit_s = 0.0, limit_s

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """See `selectors.BaseSelector`. Raises StuckError, LateError."""
        if timeout is None:
            raise StuckError(f"at {self.now_s:.3f} s")
        self.now_s += max(SHORTEST_STEP_S, timeout)  # what rounding leaves of a timeout passes, too
        if self.now_s > self.limit_s:
            raise LateError(f"{self.now_s:.0f} s have passed")
        return []


class SimulatedLoop(asyncio.SelectorEventLoop):
    """Whatever is done in a thread in production is done here by the loop itself, some drawn time later."""

    def __init__(self, draw: random.Random, *, limit_s: float) -> None:
        self.clock = Clock(limit_s)
        super().__init__(self.clock)
        self.draw = draw

    def time(self) -> float:
        """Seconds since the start."""
        return self.clock.now_s

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override] # a future is awaitable
        """See `asyncio.loop.run_in_executor`. executor: a Strand, or None."""
        future = self.create_future()
        work = functools.partial(_settle, future, contextvars.copy_context(), functools.partial(func, *args))
        if isinstance(executor, Strand):
            executor.add(work)
        else:
            self.call_later(self.draw.uniform(0.0, LONGEST_BLOCKING_S), work)
        return future


def _settle(future: asyncio.Future[Any], context: contextvars.Context, work: Callable[[], Any]) -> None:
    """Runs it, unless nobody wants it any more, and gives the future its outcome."""
    if future.cancelled():
        return
    try:
        result = context.run(work)
    except Exception as error:  # noqa: BLE001 - it is whoever awaits the future that it concerns
        if not future.cancelled():
            future.set_exception(error)
    else:
        if not future.cancelled():
            future.set_result(result)


class Strand:
    """A thread that runs only while the loop waits for it: in the place of a `ThreadPoolExecutor` of one worker."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._loop = asyncio.get_running_loop()
        self._work: deque[Callable[[], None]] = deque()
        self._may_run, self._has_paused = threading.Semaphore(0), threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self.is_waiting = False
        """Paused inside of its work."""

    def submit(self, function: Callable[..., Any], *args: Any) -> None:
        """See `Executor.submit`; nobody here asks for the result."""
        self.add(functools.partial(function, *args))

    def add(self, work: Callable[[], None]) -> None:
        """To be done after what there is, some drawn time later."""
        self._work.append(work)
        if len(self._work) == 1:
            self._soon()

    def shutdown(self, *, wait: bool, cancel_futures: bool) -> None:
        """See `Executor.shutdown`. What runs does so to its end."""
        if cancel_futures and self._work:
            first = self._work.popleft()
            self._work = deque([first] if self.is_waiting else [])

    def _soon(self) -> None:
        loop = self._loop
        assert isinstance(loop, SimulatedLoop)
        loop.call_later(loop.draw.uniform(0.0, LONGEST_BLOCKING_S), self._start)

    def _start(self) -> None:
        if self._work:
            self._thread = threading.Thread(target=self._run, name="strand", daemon=True)
            self._thread.start()
            self._after_its_turn()

    def _run(self) -> None:
        try:
            self._work[0]()
        finally:
            self._thread = None
            self._has_paused.release()

    def _after_its_turn(self) -> None:
        self._has_paused.acquire()
        if self._thread is None and self._work:
            self._work.popleft()
            if self._work:
                self._soon()

    def pause(self) -> None:
        """Inside of its work: gives the loop its turn, until `resume`."""
        self.is_waiting = True
        self._has_paused.release()
        self._may_run.acquire()

    def resume(self) -> None:
        """On the loop: the work goes on until it pauses again or ends."""
        if self.is_waiting:
            self.is_waiting = False
            self._may_run.release()
            self._after_its_turn()
