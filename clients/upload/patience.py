"""When to ask a server again: one that does not answer, was lost, or has no room now and says so.

Intervals grow and are drawn at random, so that a thousand clients do not come back at the same moment. No client comes
back before the time that the server named.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import grpc

from precad.protos.tls.address import is_loopback
from precad.protos.tls.transport import RETRY_HINT, require_not_cancelled

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 2.0
LOOPBACK_PAUSE_S_EACH = 0.02
"""Likewise with a server on this machine, for each of the task's clients, who may all be here. A small run waits for
nobody; in a large one, LONGEST_PAUSE_S holds."""
LONGEST_HINT_S = 60.0
"""A server that names a longer time is asked again after this one."""
OPENED_AT_ONCE = 16
"""Streams that one process opens at a time to each server. With thousands of clients in a process, every handshake
would otherwise wait behind all the others for longer than a handshake may take."""
CUT_SHORT = "Internal error from Core"
"""Text of gRPC's INTERNAL error for a call that ended while we were writing: the server's own word is lost. A second
attempt gets that word."""
_MILLISECONDS = re.compile(r"[0-9]{1,9}")

T = TypeVar("T")


class Patience:
    """With one server, until its time is up."""

    def __init__(
        self, connect_timeout_s: float, reconnect_timeout_s: float, longest_pause_s: float = LONGEST_PAUSE_S
    ) -> None:
        self._connect_timeout_s, self._reconnect_timeout_s = connect_timeout_s, reconnect_timeout_s
        self._longest_pause_s = longest_pause_s
        self._deadline: float | None = time.monotonic() + connect_timeout_s
        self._has_asked = False
        self._longest_s = FIRST_PAUSE_S
        self.was_just_lost = self.was_here = False

    def asks(self) -> None:
        """Note that it is asked now.

        The time of the first attempt begins here, after a wait for other clients' attempts.
        """
        if not self._has_asked:
            self._has_asked, self._deadline = True, time.monotonic() + self._connect_timeout_s

    def is_here(self) -> None:
        """Note that it has answered."""
        self.was_here = True
        self._deadline, self._longest_s = None, FIRST_PAUSE_S

    def next_pause_s(self, retry_after_s: float = 0.0) -> float | None:
        """Return the seconds to wait before the next attempt, at least retry_after_s; None when its time is up."""
        self.was_just_lost = self._deadline is None
        if self._deadline is None:
            self._deadline = time.monotonic() + self._reconnect_timeout_s
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            return None
        longest_s, self._longest_s = self._longest_s, min(2 * self._longest_s, self._longest_pause_s)
        pause_s = min(left_s, random.uniform(longest_s / 2, longest_s))  # noqa: S311 - hides nothing
        return max(pause_s, retry_after_s * random.uniform(1.0, 1.5))  # noqa: S311


class Turns:
    """Turns of one process's clients to open a stream, to A and to B independently."""

    def __init__(self, at_once: int = OPENED_AT_ONCE) -> None:
        self._to = (asyncio.Semaphore(at_once), asyncio.Semaphore(at_once))

    def __getitem__(self, server: int) -> asyncio.Semaphore:
        """Return what is held from a stream's opening until the server's first word."""
        return self._to[server]


def longest_pause_s(address: str, n_clients: int) -> float:
    """Return how long a client of so many may pause before it asks the server at `address` again."""
    if not is_loopback(address):
        return LONGEST_PAUSE_S
    return min(max(FIRST_PAUSE_S, LOOPBACK_PAUSE_S_EACH * n_clients), LONGEST_PAUSE_S)


def retry_after_s(error: grpc.aio.AioRpcError) -> float | None:
    """Return the seconds after which a call that was refused may be made again; None when the server does not ask for
    that."""
    if error.code() is grpc.StatusCode.INTERNAL and error.details() == CUT_SHORT:
        return 0.0
    if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
        return None
    hints = [value for key, value in error.trailing_metadata() or () if key == RETRY_HINT]
    if len(hints) != 1 or not isinstance(hints[0], str) or _MILLISECONDS.fullmatch(hints[0]) is None:
        return None
    return min(int(hints[0]) / 1000, LONGEST_HINT_S)


async def until_admitted(call: Callable[[], Awaitable[T]], limit_s: float) -> T:
    """Return the call's result. One that the server has no room for is made again when it says so, within limit_s.

    Raises AioRpcError: the last refusal, or any other end of a call.
    """
    patience, ends_at = Patience(limit_s, 0.0), time.monotonic() + limit_s
    while True:
        try:
            return await call()
        except grpc.aio.AioRpcError as error:
            require_not_cancelled()
            hint_s, left_s = retry_after_s(error), ends_at - time.monotonic()
            if hint_s is None or hint_s > left_s or (pause_s := patience.next_pause_s(hint_s)) is None:
                raise
        await asyncio.sleep(min(pause_s, left_s))
