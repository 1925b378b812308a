"""Hold the answer of a `precad query`: an estimate with its error bar, and the records of each bin."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from precad.deploy.reporting.files import Written
from precad.deploy.shown.error_bars import estimate_and_bar, percent
from precad.protos.task.query import Finite, Query

MOST_DRAWN: Final = 60
"""Most columns of a plot. Neighbours among more bins are drawn as one."""


class Estimated(Written):
    """Hold a number and its error bar."""

    value: Finite
    low: Finite
    high: Finite

    @property
    def text(self) -> str:
        """Return the number and its error bar, for people."""
        return " ".join(estimate_and_bar(self.value, self.low, self.high))


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """Hold a range of the column, and the records in it."""

    start: float
    end: float
    records: Estimated

    @property
    def middle(self) -> float:
        """Return the middle of the range."""
        return (self.start + self.end) / 2

    @property
    def name(self) -> str:
        """Return the range, for people."""
        return f"{self.start:.4g} to {self.end:.4g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryAnswer:
    """Hold what a query asked, and the answer."""

    query: Query
    estimate: Estimated | None
    """None of a histogram, and of a number that the noise hides."""
    bins: tuple[Estimated, ...]
    level: float
    """Least share of answers whose error bar covers the truth."""

    @property
    def name(self) -> str:
        """Return what was asked for."""
        share = f" ({self.query.share:g})" if self.query.kind == "quantile" else ""
        return f"{self.query.kind}{share} of {self.query.column}"

    @property
    def note(self) -> str:
        """Say what the error bars are."""
        return f"error bar at {percent(self.level)}\u00a0%: of the noise, for the records of accepted clients"

    def to_json(self) -> dict[str, Any]:
        """Return it for programs."""
        return {
            "query": self.query.model_dump(mode="json"),
            "estimate": None if self.estimate is None else self.estimate.model_dump(),
            "bins": [one.model_dump() for one in self.bins],
            "level": self.level,
        }

    @property
    def bins_together(self) -> int:
        """Return how many neighbouring bins are drawn as one column; the last one may have fewer."""
        return math.ceil(len(self.bins) / MOST_DRAWN) or 1

    @property
    def columns(self) -> tuple[Column, ...]:
        """Return what is drawn. Noise of bins is independent: squares of error bars' lengths add up."""
        n, width, low = len(self.bins), self.bins_together, self.query.low
        found = []
        for start in range(0, n, width):
            some = self.bins[start : start + width]
            value, reach = math.fsum(one.value for one in some), math.hypot(*((one.high - one.low) / 2 for one in some))
            ends = (low + (self.query.high - low) * at / n for at in (start, start + len(some)))
            records = some[0] if len(some) == 1 else Estimated(value=value, low=value - reach, high=value + reach)
            found.append(Column(start=next(ends), end=next(ends), records=records))
        return tuple(found)
