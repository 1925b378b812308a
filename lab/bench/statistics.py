"""Medians with their spread, and how a quantity grows."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

T = TypeVar("T")
Times = list[tuple[float, float]]
"""(wall, processor) seconds of every repetition."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and quartiles of repeated measurements. One measurement is its own quartiles."""

    median: float
    first_quartile: float
    third_quartile: float
    repetitions: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarise at least one value."""
        low, middle, high = (values[0],) * 3 if len(values) == 1 else statistics.quantiles(values, method="inclusive")
        return cls(middle, low, high, len(values))

    def scaled(self, factor: float) -> Spread:
        """Return the spread in another unit."""
        return Spread(
            factor * self.median, factor * self.first_quartile, factor * self.third_quartile, self.repetitions
        )

    def fields(self, unit: str) -> dict[str, float | int]:
        """Return the fields of a JSON row: `<unit>` is the median."""
        return {
            unit: self.median,
            f"{unit}_q1": self.first_quartile,
            f"{unit}_q3": self.third_quartile,
            "repetitions": self.repetitions,
        }


def timed(work: Callable[[], object], repetitions: int, *, warm_up: int = 1) -> Spread:
    """Return seconds of `work`, after `warm_up` runs that do not count."""
    seconds = []
    for i in range(warm_up + repetitions):
        start = time.perf_counter()
        work()
        if i >= warm_up:
            seconds.append(time.perf_counter() - start)
    return Spread.of(seconds)


def in_turns(ways: Mapping[str, Callable[[], T]], repetitions: int) -> tuple[dict[str, Times], dict[str, T]]:
    """Measure ways to do the same, and return their times and what each gave last.

    They take turns, so that a busy moment of the machine hits them all. The first two turns do not count.
    """
    seconds: dict[str, Times] = {name: [] for name in ways}
    found: dict[str, T] = {}
    for i in range(2 + repetitions):
        for name, work in ways.items():
            start, cpu_start = time.perf_counter(), time.process_time()
            found[name] = work()
            if i >= 2:
                seconds[name].append((time.perf_counter() - start, time.process_time() - cpu_start))
    return seconds, found


def log_log_slope(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Return exponent a of the least-squares fit y = c x^a; None for fewer than two different x."""
    return None if len(set(x)) < 2 else float(np.polyfit(np.log(x), np.log(y), 1)[0])
