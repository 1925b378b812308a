"""One direction of a connection between two processes of a simulated world."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from tests.faults.simulation.loop import SimulatedLoop, Strand

LONGEST_TRIP_S = 0.02
SHORTEST_GAP_S = 1e-6


class Host(Protocol):
    """A process, as the network sees it."""

    name: str
    is_dead: bool
    strand: Strand | None


class Pipe:
    """One direction of a connection: in order, late, and cut at any moment. `arrive` is called on the loop."""

    def __init__(self, loop: SimulatedLoop, arrive: Callable[[Any], None]) -> None:
        self._loop, self._arrive, self._last_s = loop, arrive, 0.0
        self.is_cut = False

    def send(self, item: Any) -> None:
        """It arrives, unless the pipe is cut before."""
        arrival_s = self._loop.time() + self._loop.draw.uniform(0.0, LONGEST_TRIP_S)
        self._last_s = max(self._last_s + SHORTEST_GAP_S, arrival_s)  # timers of one moment run in any order
        self._loop.call_at(self._last_s, self._deliver, item)

    def _deliver(self, item: Any) -> None:
        if not self.is_cut:
            self._arrive(item)
