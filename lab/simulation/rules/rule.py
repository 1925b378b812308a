"""Define an aggregation rule in the clear: many updates to one, at a server that sees all of them."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from precad.clients.errors import ArgumentError, NonFiniteUpdateError
from precad.mpc.prg import SYSTEM_BYTES, RandomBytes

Updates = NDArray[np.float64]
"""(m, d), one row per client of the round."""
Vector = NDArray[np.float64]


class AggregationRule:
    """One rule; a subclass says how. It may keep state from round to round: each training has one of its own."""

    name: ClassVar[str] = ""
    """The key in `RULES`."""

    def aggregate(self, updates: Updates, random_bytes: RandomBytes = SYSTEM_BYTES) -> Vector:
        """Return an estimate of the mean honest update, (m, d) -> (d,), whatever the order of the rows; m >= 1.

        random_bytes: for a rule that adds noise; a simulation's are seeded.
        Raises: ArgumentError where the rule is not defined for so few updates; NonFiniteUpdateError. A rule that proves
        an epsilon takes an update that is not finite as zero instead, since an error would tell that it is there.
        """
        raise NotImplementedError

    def epsilon(self, rounds: int, delta: float) -> float | None:
        """Return the epsilon that is proved for one update, add or remove, of so many rounds of what the rule releases;
        None: nothing is.

        A rule that proves something is asked for an aggregate of rounds without updates, too (m = 0). An empty round
        that released nothing would tell so.
        """
        return None

    def state(self) -> tuple[int, ...]:
        """Return what the next round depends on, for a training that is interrupted; nothing unless the rule has
        memory."""
        return ()

    def restore(self, state: tuple[int, ...]) -> None:
        """Continue from a `state`. Raises ArgumentError for one that is not this rule's."""
        if state != ():
            raise ArgumentError(f"state: expected none of the rule {self.name!r}, found {len(state)} numbers")

    def require_training(self, client_rate: float, n_clients: int) -> None:
        """Raises ArgumentError where the training (q, N) is not the one that `epsilon` speaks of."""


def require_updates(updates: Updates, least: int, why: str) -> int:
    """Return m. Raises NonFiniteUpdateError; ArgumentError for another shape, or fewer than `least` rows."""
    if updates.ndim != 2:
        raise ArgumentError(f"updates: expected shape (m, d), found {updates.shape}")
    if n_bad := len(updates) - int(np.isfinite(updates).all(axis=1).sum()):
        raise NonFiniteUpdateError(n_bad=n_bad, n_updates=len(updates))
    if len(updates) < least:
        raise ArgumentError(f"updates: expected at least {least} for {why}, found {len(updates)}")
    return len(updates)
