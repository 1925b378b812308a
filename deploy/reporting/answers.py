"""Hold the answer of a `precad query`: an estimate with its error bar, and the records of each bin."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import Field

from precad.deploy.reporting.files import Written
from precad.protos.task.query import Query

MOST_BINS: Final = 60
"""More bins are not drawn."""


Finite = Annotated[float, Field(allow_inf_nan=False)]


class Estimated(Written):
    """Hold a number and its error bar."""

    value: Finite
    low: Finite
    high: Finite

    @property
    def bar(self) -> str:
        """Return the error bar, for people."""
        return f"[{self.low:.4g}, {self.high:.4g}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryAnswer:
    """Hold what a query asked, and the answer."""

    query: Query
    estimate: Estimated | None
    """None of a histogram, and of a number that the noise hides."""
    bins: tuple[Estimated, ...]
    level: float
    """Share of answers whose error bar covers the truth."""

    @property
    def name(self) -> str:
        """Return what was asked for."""
        share = f" ({self.query.share:g})" if self.query.kind == "quantile" else ""
        return f"{self.query.kind}{share} of {self.query.column}"

    @property
    def note(self) -> str:
        """Say what the error bars are."""
        return f"error bar at {100 * self.level:g}\u00a0%: of the noise, for the records of accepted clients"

    def to_json(self) -> dict[str, Any]:
        """Return it for programs."""
        return {
            "query": self.query.model_dump(mode="json"),
            "estimate": None if self.estimate is None else self.estimate.model_dump(),
            "bins": [one.model_dump() for one in self.bins],
            "level": self.level,
        }

    @property
    def drawn(self) -> dict[str, float]:
        """Return the records of each bin by its range, none below zero; nothing of bins too many to draw."""
        if len(self.bins) > MOST_BINS:
            return {}
        low, high = self.query.low, self.query.high
        edges = [low + (high - low) * i / len(self.bins) for i in range(len(self.bins))] + [high]
        ranges = [f"{a:.4g} to {b:.4g}" for a, b in itertools.pairwise(edges)]
        return dict(zip(ranges, (max(0.0, one.value) for one in self.bins), strict=True))
