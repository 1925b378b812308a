"""Show how far several trainings are: redrawn in place on a terminal, a line a minute into a file or a pipe."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from precad.deploy.shown.durations import in_words
from precad.lab.simulation import RoundMetrics
from precad.lab.simulation.workers import Workers

EVERY_S: Final = 60.0
"""Seconds between lines off a terminal."""


class Trainings:
    """Progress of all trainings together, and an estimate of the time that is left.

    The estimate takes the trainings that are left to last as long as those that were done here, by rounds. Rounds
    that a folder already holds count as done and take no time.
    """

    def __init__(self, console: Console, total: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._total = total
        self._clock = clock
        self._began = self._said = clock()
        self._done = 0
        self._share = 0.0
        """Share of the current training that is done."""
        self._worked = 0.0
        """Trainings' worth of rounds that were trained here."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
        )
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal, expand=True)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    @contextmanager
    def one(self, title: str, rounds: int) -> Iterator[Callable[[RoundMetrics], None]]:
        """Show one training of so many rounds. What it yields is called after every round."""
        row = self._bar.add_task(f"{self.said()}: {title}", total=rounds, left="")

        def advance(metrics: RoundMetrics) -> None:
            share = (metrics.round + 1) / rounds
            self._worked += 1 / rounds
            self._share = share
            accuracy = "" if metrics.accuracy is None else f"accuracy {metrics.accuracy:.3f}, "
            self._bar.update(row, completed=metrics.round + 1, left=accuracy + self.left())
            self._say()

        try:
            yield advance
        finally:
            self._bar.remove_task(row)
            self._done, self._share = self._done + 1, 0.0

    def side_by_side(self, jobs: Sequence[Callable[[], dict[str, Any]]], workers: Workers) -> list[dict[str, Any]]:
        """Run all trainings in workers, and return their summaries in order."""
        row = self._bar.add_task("trainings", total=len(jobs), left="")
        found = []
        for summary in workers.run(jobs):
            found.append(summary)
            self._done, self._worked = self._done + 1, self._worked + 1
            self._bar.update(row, completed=self._done, left=self.left())
            self._say()
        return found

    def said(self) -> str:
        """Say which training it is, of how many."""
        return f"training {min(self._done + 1, self._total)} of {self._total}"

    def left(self) -> str:
        """Say how long the rest takes; nothing before a round was trained."""
        if not self._worked:
            return ""
        seconds = (self._clock() - self._began) / self._worked * (self._total - self._done - self._share)
        return f"{in_words(seconds)} left"

    def _say(self) -> None:
        """Print a line, off a terminal, where the last one is a minute old."""
        if not self._console.is_terminal and (now := self._clock()) - self._said >= EVERY_S:
            self._said = now
            self._console.print(f"{self.said()}, {self.left()}", highlight=False, markup=False, soft_wrap=True)
