"""How long the other aggregator may take over its part of a step, and the dealer over a round's tuples.

A server that keeps its connections open and answers nothing would stall a round for ever, and so would a dealer. One
that computes, or waits for its disk, its dealer or its clients, is honest. So a limit is what the slowest of these may
need, and never less than `step_timeout_s`. It is one for the whole step, however few bytes come at a time. Then the
round is given up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

from precad.mpc.ring import WORD_BYTES
from precad.protos.task.task import Task
from precad.servers.config import AggregatorConfig

SLOWEST_CHECK_BYTES_S = 8 << 20
"""Slowest pace at which a server may read or compute on all clients' vectors between two steps. The check of one vector
takes 0.3 s at d = 10^7 on one core, which is 270 MB/s (docs/results/performance.md)."""
SLOWEST_LINE_BYTES_S = 1 << 17
"""Between the aggregators: 1 Mbit/s."""
DRAW, LOCK, PROOFS = "/coin/commit", "/validation/lock", "/validation/proofs"


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Seconds."""

    every: float = math.inf
    """Limit of every step, the bytes on their way apart."""
    draw: float = 0.0
    """More, where a server may come from waiting for the dealer and its clients."""
    lock: float = 0.0
    """More, where it may come from waiting for uploads."""
    proofs: float = 0.0
    """More, where it may come from waiting for proofs: mode `proved`."""

    @classmethod
    def of(cls, task: Task, config: AggregatorConfig) -> Self:
        """Return the limits of one task at one server; there are none where `step_timeout_s` is 0."""
        if config.step_timeout_s == 0:
            return cls()
        n_bytes = WORD_BYTES * task.dim * len(task.clients)
        dealer_s = max(config.connect_timeout_s, config.reconnect_timeout_s)
        clients_s = max(task.registration_timeout_s, config.reconnect_timeout_s) + config.rejoin_timeout_s
        return cls(
            every=config.step_timeout_s + n_bytes / SLOWEST_CHECK_BYTES_S,
            draw=dealer_s + clients_s,
            lock=task.submit_timeout_s,
            proofs=task.proof_timeout_s if task.is_proved else 0.0,
        )

    def seconds(self, label: str, n_bytes: int) -> float:
        """Return the limit from our coming to the step to its end. n_bytes: of both parts, at most."""
        of_steps = ((DRAW, self.draw), (LOCK, self.lock), (PROOFS, self.proofs))
        more = next((seconds for step, seconds in of_steps if label.endswith(step)), 0.0)
        return self.every + more + n_bytes / SLOWEST_LINE_BYTES_S

    def dealing(self, n_bytes: int) -> float:
        """Return the limit for tuples that are next in turn. n_bytes: of them, at most."""
        return self.every + n_bytes / SLOWEST_LINE_BYTES_S


NO_LIMITS = StepLimits()
