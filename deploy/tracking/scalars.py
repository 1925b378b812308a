"""Write numbers to a tracker, each once: a follower that is started again goes on where the last one ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from precad.deploy.tracking.points import Point, labels_of, points_of
from precad.servers.telemetry.status import RoundSummary, Status

Named = tuple[str, int]
"""A number's name and round."""


class Sink(Protocol):
    """Show rounds somewhere."""

    def show(self, status: Status, rounds: Sequence[RoundSummary], seen_at: float, *, are_new: bool) -> None:
        """Write what was not written yet. Raises RunFailedError.

        - rounds: of the status, oldest first, and perhaps earlier ones
        - seen_at: stands for the time of a round without one
        - are_new: whether those without a time were committed while somebody followed
        """

    @property
    def remark(self) -> str:
        """Return what its operator should know at the end; empty for nothing."""

    def close(self) -> None:
        """End what was opened."""


class Writer(Protocol):
    """One run of one tracker."""

    def written(self) -> set[Named]:
        """Return what the run has already."""

    def write(self, points: Sequence[Point], labels: Mapping[str, str]) -> None:
        """Add points, so that `written` of a later process has them. labels: what names of epsilons stand for."""

    def close(self) -> None:
        """End what was opened."""


class Scalars:
    """The sink of a tracker."""

    def __init__(self, writer: Writer) -> None:
        self._writer, self._written = writer, writer.written()

    def show(self, status: Status, rounds: Sequence[RoundSummary], seen_at: float, *, are_new: bool) -> None:
        """Write the numbers that the run does not have. A figure that is measured later comes later."""
        times = {one.round: seen_at if one.committed_at is None else one.committed_at for one in rounds}
        points = [point for one in rounds for point in points_of(one, status.epsilons, times[one.round])]
        points = [point for point in points if (point.name, point.round) not in self._written]
        if points:
            self._writer.write(points, labels_of(status))
            self._written |= {(point.name, point.round) for point in points}

    @property
    def remark(self) -> str:
        """Return nothing: a round that was over before anybody followed is written, too."""
        return ""

    def close(self) -> None:
        """End what was opened."""
        self._writer.close()
