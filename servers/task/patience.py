"""How long a server waits for another one that is away."""

from __future__ import annotations

import time
from collections.abc import Callable

LINGER_S = 10.0
"""How long the end of a task waits for the others to take note of it."""
GOODBYE_S = 2.0
"""Likewise when the task has failed, and at the start of a process whose task was over already."""


class Patience:
    """How long another server may still be away: connect_timeout_s at first, reconnect_timeout_s from each loss on.

    Losses without a draw between them are one. Who comes back only to hang up again, or to draw nobody, is waited for
    no longer in all.
    """

    def __init__(
        self, connect_timeout_s: float, reconnect_timeout_s: float, now: Callable[[], float] | None = None
    ) -> None:
        """now: the clock; that of the process unless given."""
        self._reconnect_timeout_s, self._now = reconnect_timeout_s, now or time.monotonic
        self._deadline: float | None = self._now() + connect_timeout_s
        self._has_met = False
        self._lost_at: int | None = None
        """The coming round's number at the last loss."""
        self._unspent_s = 0.0
        self._draws_since: float | None = None
        self.n_clients: int | None = None
        """Connected at the start of this process's last round; None before the first."""

    @property
    def left_s(self) -> float:
        """Return the seconds that are left."""
        assert self._deadline is not None  # set at the start and at every loss
        return max(0.0, self._deadline - self._now())

    def ends(self) -> None:
        """Note that the servers are together, and rounds begin once clients are there."""
        self._unspent_s = self.left_s
        self._deadline, self._has_met, self._draws_since = None, True, None

    def awaits_a_draw(self) -> None:
        """Note that clients are there, and the other server is needed: from now on it counts where it draws nobody."""
        self._draws_since = self._now()

    def nears_its_end(self) -> None:
        """Shorten the patience once the task is over, and all that is left is that the other server hears it.

        A server that we have met hears it within LINGER_S. At the start of a process, after a death, the other one may
        long have gone, and has GOODBYE_S.
        """
        end = self._now() + (LINGER_S if self._has_met else GOODBYE_S)
        self._deadline = end if self._deadline is None else min(self._deadline, end)

    def starts_or_goes_on(self, next_round: int) -> bool:
        """Note that one is lost, or was not found. Return whether to try again. next_round: the first unused number."""
        if self._deadline is None:
            if next_round != self._lost_at:
                self._lost_at, self._unspent_s = next_round, self._reconnect_timeout_s
            elif self._draws_since is not None:
                self._unspent_s -= self._now() - self._draws_since
            self._deadline = self._now() + self._unspent_s
        return self.left_s > 0 and (self._has_met or self._reconnect_timeout_s > 0)
