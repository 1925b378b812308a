"""Say what a client answers: `[client.queries]`. Without that section it answers no query."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, Field, model_validator

from precad.protos.task.query import Finite, Query


class ColumnConsent(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """The range of a column that may be asked about."""

    low: Finite
    """A query whose `low` is less is refused."""
    high: Finite
    """Likewise of `high`, if it is more."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if not self.low < self.high:
            raise ValueError(f"low, high: expected low < high, found {self.low:g} and {self.high:g}")
        return self


class QueryConsent(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """The client's word on queries, which no server can change."""

    columns: dict[str, ColumnConsent]
    """Columns that this client answers about, each with a range: `age = {low = 0, high = 120}`."""
    limit_epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    """The most that all its answers together may cost a record, or a person's where the task counts several, against
    one server. `state_dir` keeps the count."""
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """delta of that limit."""


def refusal(query: Query, consent: QueryConsent | None) -> str | None:
    """Return why a client does not answer, as field, expected and found; None where it answers."""
    columns = {} if consent is None else consent.columns
    if (agreed := columns.get(query.column)) is None:
        return (
            f"client.queries.columns: expected column {query.column!r}, which the query asks about, found "
            f"{', '.join(sorted(columns)) or 'none'}"
        )
    if not (agreed.low <= query.low and query.high <= agreed.high):
        return (
            f"task.query: low, high: expected within [{agreed.low:g}, {agreed.high:g}] "
            f"(client.queries.columns.{query.column}), found [{query.low:g}, {query.high:g}]"
        )
    return None
