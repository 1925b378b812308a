"""Name the kinds of queries, and what bounds them, without NumPy: configurations are read before it is imported."""

from __future__ import annotations

import enum
from typing import Final

RECORD_BOUND: Final = 1.0
"""R: norm of a record's vector, at most."""
MOST_BINS: Final = 4096
EVALUATION_DIM: Final = 3
"""Length of the vector of a held-out record: the count, what is right, and the loss."""


class Kind(enum.StrEnum):
    """Statistic that a query asks for."""

    COUNT = "count"
    MEAN = "mean"
    VARIANCE = "variance"
    HISTOGRAM = "histogram"
    QUANTILE = "quantile"

    @property
    def has_bins(self) -> bool:
        """Tell whether records are sorted into bins."""
        return self in (Kind.HISTOGRAM, Kind.QUANTILE)
