"""Follow a task from outside, and show its rounds in every sink until it ends."""

from __future__ import annotations

import asyncio
import re
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from precad.deploy.errors import UNREACHABLE, ConfigError, InterruptedRunError, RunFailedError
from precad.deploy.oversight.status_sources import as_it_goes, sources_of
from precad.deploy.tracking.destinations import Destination, using
from precad.deploy.tracking.earlier import earlier_rounds
from precad.deploy.tracking.scalars import Sink
from precad.protos.tls.identity import Role
from precad.servers.telemetry.status import RoundSummary, Status


async def track(
    place: str | Path,
    token: Path | None,
    destinations: Sequence[Destination],
    *,
    tells_draws: bool,
    say: Callable[[str], None],
) -> None:
    """Write rounds as they are committed. place: as `place_of` gives it.

    Raises ConfigError; RunFailedError where a server or a sink does not answer, or the task ended early.
    """
    source = None if isinstance(place, Path) else sources_of(place, token)[0]
    shown = _Shown(destinations, say)
    last: Status | None = None
    try:
        async for status in as_it_goes(place, token):
            _require(status, tells_draws=tells_draws)
            if status.rounds:
                earlier = [] if shown.has_begun or source is None else await earlier_rounds(source, status)
                await shown.show(status, [*earlier, *status.rounds], are_new=last is not None)
            last = status
    finally:
        await shown.close()
    if last is not None and last.ended and not last.is_finished:
        raise RunFailedError("the task ended early: `precad status` says why", exit_code=UNREACHABLE)


def _require(status: Status, *, tells_draws: bool) -> None:
    if status.role == Role.DEALER:
        raise ConfigError("expected an aggregator or a run, found the dealer, which has no rounds")
    if status.hides_draws and not tells_draws:
        raise ConfigError(
            "expected a task that hides no draws, found one with task.round_period_s, or that counts one: counts, "
            "times and epsilons of rounds tell them, and its figure of hidden draws would not hold against clients who "
            "see them; --tell-draws: they never will"
        )


class _Shown:
    """The sinks, opened at the first round, on one thread of their own: they wait for disks and networks."""

    def __init__(self, destinations: Sequence[Destination], say: Callable[[str], None]) -> None:
        self._destinations, self._say = destinations, say
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._sinks: list[tuple[str, Sink]] = []
        self.has_begun = False

    async def show(self, status: Status, rounds: Sequence[RoundSummary], *, are_new: bool) -> None:
        """Show rounds, oldest first, in every sink. Raises RunFailedError, ConfigError."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._show, status, rounds, are_new)

    def _show(self, status: Status, rounds: Sequence[RoundSummary], are_new: bool) -> None:
        seen_at = time.time()
        if not self.has_begun:
            self._open(training_of(status, rounds[0]))
            self.has_begun = True
        for kind, sink in self._sinks:
            with using(kind):
                sink.show(status, rounds, seen_at, are_new=are_new)

    def _open(self, training: str) -> None:
        for destination in self._destinations:
            with using(destination.kind):
                self._sinks.append((destination.kind, destination.opened(training)))
        self._say(f"tracking {training}")

    async def close(self) -> None:
        """Close every sink, even where one cannot be."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown()

    def _close(self) -> None:
        for kind, sink in self._sinks:
            if sink.remark:
                self._say(f"{kind}: {sink.remark}")
            with using(kind):
                sink.close()


def training_of(status: Status, first: RoundSummary) -> str:
    """Return the training's name in every tracker: task, server, and the first model, which no other training has."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", f"{status.task or 'task'}-{status.role}-{first.model_digest[:8]}")


async def until_told(tracking: asyncio.Task[None]) -> None:
    """Wait for its end. SIGTERM ends it, with everything written that was taken. Raises InterruptedRunError."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, tracking.cancel)
    try:
        await tracking
    except asyncio.CancelledError:
        raise InterruptedRunError("stopped; the task goes on, and another start from here") from None
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
