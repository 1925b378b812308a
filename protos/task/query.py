"""The question of a task that is a query: whose clients add up encodings of a column instead of gradients.

Everything else is a task of algorithm `precad` with one round, in which every client and every record takes part. That
covers the upload, the check of its norm, the noise, the ledger and the audit log. R is 1, the norm of a record's
vector. C bounds what one client adds, liar or not. The opened model is the noisy sum, since the task starts from zeros
and moves by `learning_rate` over the divisor.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated, Final, Self

from pydantic import BaseModel, Field, model_validator

from precad.dp.queries.kinds import MOST_BINS, RECORD_BOUND, Kind
from precad.protos.task.parameters import TaskParameters

if TYPE_CHECKING:
    from precad.dp.queries.encodings import Encoding

Finite = Annotated[float, Field(allow_inf_nan=False)]


class Query(BaseModel, frozen=True, extra="forbid", defer_build=True, strict=True):
    """A statistic of one column over the records of all clients that answer."""

    kind: Annotated[Kind, Field(strict=False)]
    """`count`, `mean`, `variance`, `histogram` or `quantile`."""
    column: Annotated[str, Field(min_length=1, max_length=256)]
    """As the tables' headers have it; `label` of a data set."""
    low: Finite
    """The least value. Below it, a count leaves a value out; the other kinds take it for `low`."""
    high: Finite
    """The largest, likewise."""
    bins: Annotated[int, Field(ge=1, le=MOST_BINS)] = 1
    """Equal bins of [low, high], of a histogram and a quantile."""
    share: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """The share of records that the quantile is not exceeded by."""

    @model_validator(mode="after")
    def _check_query(self) -> Self:
        if self.kind.has_bins and self.bins < 2:
            raise ValueError(f"bins: expected at least 2 of a {self.kind}, found {self.bins}")
        if not self.kind.has_bins and self.bins != 1:
            raise ValueError(f"bins: expected none of a {self.kind}, found {self.bins}")
        if self.kind is not Kind.QUANTILE and self.share != 0.5:
            raise ValueError(f"share: expected none of a {self.kind}, found {self.share:g}")
        self.encoding(0)  # refuses bounds out of order
        return self

    def encoding(self, frac_bits: int) -> Encoding:
        """Return the vectors of its records on the grid of 2^-f."""
        from precad.dp.queries.encodings import Encoding

        return Encoding(kind=self.kind, low=self.low, high=self.high, bins=self.bins, frac_bits=frac_bits)


class QueryFields(BaseModel, defer_build=True):
    """A part of `precad.protos.task.task.Task`."""

    query: Query | None = None
    """Question to the clients of a task that trains nothing (`precad query`)."""


QUERY_FIELDS: Final = tuple(QueryFields.model_fields)


_AT: Final = {"rounds": 1, "client_rate": 1.0, "record_rate": 1.0, "record_clip": RECORD_BOUND, "learning_rate": 1.0}
_WITHOUT: Final = ("algorithm", "record_rates", "learning_rate_schedule", "server_optimizer", "record_clipping")
"""Fields that would give the sum another meaning."""


def refuse_query(task: TaskParameters, given: Collection[str]) -> None:
    """Refuse a query in a task that would not add up its vectors. Raises ValueError.

    given: fields that are not at their default.
    """
    query: Query | None = task.query
    if query is None:
        return
    for name, expected in _AT.items():
        if (found := getattr(task, name)) != expected:
            raise ValueError(f"{name}: expected {expected:g} in a task with a query, found {found:g}")
    for name in _WITHOUT:
        if name in given:
            raise ValueError(f"{name}: expected none in a task with a query, found a value")
    if task.dim != (expected_dim := query.encoding(task.frac_bits).dim):
        raise ValueError(f"dim: expected {expected_dim}, the numbers of a {query.kind}, found {task.dim}")
