"""Records in bins: in place of a draw in every round, each record of a client is in exactly one round of an epoch.

Rounds e T .. e T + T - 1 by number are epoch e, lost ones among them. A client puts each of its records into one of
them: by a secret draw of its own, uniform, and by itself for each record. `precad.dp.accountants.balls_in_bins` proves
what an epoch costs, and `precad.clients.training.record_draws` draws.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field

from precad.dp.checks import MOST_BINS
from precad.protos.task.parameters import TaskParameters

BINS: Final = "record_bins"
_RATE: Final = "record_rate"


class BinFields(BaseModel, defer_build=True):
    """A part of `precad.protos.task.task.Task`."""

    record_bins: Annotated[int, Field(ge=2, le=MOST_BINS)] | None = None
    """T of balls in bins: each record of a client is in exactly one of T successive rounds, an epoch, by a secret draw.
    In place of record_rate, which is then 1 / T. Needs client_rate = 1. Every epsilon of a record is of whole epochs,
    add or remove one record. None: Poisson."""


BIN_FIELDS: Final = tuple(BinFields.model_fields)

_WITHOUT: Final = {
    "record_rates": "all records are in bins alike",
    "records_per_person": "a group's bins may be the same, and no figure of a group is proved",
    "query": "a query has one round",
    "evaluation_every": "evaluations by clients take numbers of rounds that records are in",
    "audit_clients": "an audit judges draws of single rounds",
    "round_period_s": "every client is in every round, and no draw is there to hide",
}
"""Fields that do not go with bins, and why."""


def with_rate_of_bins(fields: Any) -> Any:
    """Return a section of a task with the rate that its bins come to, where it names bins alone."""
    if not isinstance(fields, Mapping) or _RATE in fields:
        return fields
    bins = fields.get(BINS)
    if not isinstance(bins, int) or isinstance(bins, bool) or bins < 1:
        return fields
    return {**fields, _RATE: 1 / bins}


def refuse_bins(task: TaskParameters, given: Collection[str]) -> None:
    """Refuse bins in a task whose figures or rounds do not go with them. Raises ValueError.

    given: fields that are not at their default.
    """
    if (bins := task.record_bins) is None:
        return
    if not task.rules.is_default:
        raise ValueError(f"{BINS} is of precad only, found algorithm {task.rules.name!r}")
    if task.client_rate != 1:
        raise ValueError(
            f"client_rate: expected 1 with {BINS}, as a record has no other round than that of its bin, found "
            f"{task.client_rate:g}"
        )
    if task.record_rate != 1 / bins:
        raise ValueError(
            f"{_RATE}: expected none with {BINS} = {bins}, which makes it {1 / bins:g}, found {task.record_rate:g}"
        )
    for name, why in _WITHOUT.items():
        if name in given:
            raise ValueError(f"{name}: expected none with {BINS}, as {why}, found a value")
