"""How long a server waits for another one that is away."""

from __future__ import annotations

import time

LINGER_S = 10.0
"""How long the end of a task waits for the others to take note of it."""
GOODBYE_S = 2.0
"""Likewise when the task has failed, and at the start of a process whose task was over already."""


class Patience:
    """How long another server may still be away: connect_timeout_s at first, reconnect_timeout_s from each loss on."""

    def __init__(self, connect_timeout_s: float, reconnect_timeout_s: float) -> None:
        self._reconnect_timeout_s = reconnect_timeout_s
        self._deadline: float | None = time.monotonic() + connect_timeout_s
        self._has_met = False
        self.n_clients: int | None = None
        """Connected at the start of this process's last round; None before the first."""

    @property
    def left_s(self) -> float:
        """Return the seconds that are left."""
        assert self._deadline is not None  # set at the start and at every loss
        return max(0.0, self._deadline - time.monotonic())

    def ends(self) -> None:
        """Note that all are there, and rounds begin."""
        self._deadline, self._has_met = None, True

    def nears_its_end(self) -> None:
        """Shorten the patience once the task is over, and all that is left is that the other server hears it.

        A server that we have met hears it within LINGER_S. At the start of a process, after a death, the other one may
        long have gone, and has GOODBYE_S.
        """
        end = time.monotonic() + (LINGER_S if self._has_met else GOODBYE_S)
        self._deadline = end if self._deadline is None else min(self._deadline, end)

    def starts_or_goes_on(self) -> bool:
        """Note that one is lost, or was not found. Returns whether to try again."""
        if self._deadline is None:
            self._deadline = time.monotonic() + self._reconnect_timeout_s
        return self.left_s > 0 and (self._has_met or self._reconnect_timeout_s > 0)
