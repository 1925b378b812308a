"""A task that is a query: what it must fulfil, its digest, and its error beside a trusted curator's."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from pydantic import ValidationError

from precad.dp.accountants.gaussian_dp import delta_from_mu
from precad.dp.accountants.pld import View
from precad.dp.ledgers.ledger import Level
from precad.dp.queries.encodings import Encoding
from precad.dp.task_privacy import task_privacy
from precad.protos.task.query import Query
from precad.protos.task.task import Task

MEAN: dict[str, Any] = {"kind": "mean", "column": "age", "low": 0.0, "high": 120.0}
HISTOGRAM: dict[str, Any] = {**MEAN, "kind": "histogram", "bins": 64}


def query_task(**fields: Any) -> Task:
    """Return a query of 100 clients that declare up to 1,000 records each."""
    asked = {
        "clients": {f"c{i}": 1_000 for i in range(100)},
        "rounds": 1,
        "client_rate": 1.0,
        "record_rate": 1.0,
        "record_clip": 1.0,
        "client_clip": 1_000.0,
        "noise_multiplier": 8.0,
        "learning_rate": 1.0,
        "dim": 2,
        "frac_bits": 16,
        "query": MEAN,
    }
    return Task.model_validate({**asked, **fields})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rounds": 2}, "rounds: expected 1 in a task with a query, found 2"),
        ({"client_rate": 0.5}, "client_rate: expected 1 "),
        ({"record_rate": 0.5}, "record_rate: expected 1 "),
        ({"record_clip": 2.0}, "record_clip: expected 1 "),
        ({"learning_rate": 0.5}, "learning_rate: expected 1 "),
        ({"dim": 3}, "dim: expected 2, the numbers of a mean, found 3"),
        ({"algorithm": "local-dp"}, "algorithm: expected none in a task with a query"),
        ({"server_optimizer": "adam"}, "server_optimizer: expected none"),
        ({"query": {**MEAN, "low": 120.0}}, "low, high: expected low < high"),
        ({"query": {**MEAN, "high": math.inf}}, "finite number"),
        ({"query": {**MEAN, "high": 5e-324}}, "low, high: expected more than 5e-324 apart"),
        ({"query": {**MEAN, "bins": 4}}, "bins: expected none of a mean, found 4"),
        ({"query": {**MEAN, "share": 0.9}}, "share: expected none of a mean, found 0.9"),
        ({"query": {**HISTOGRAM, "bins": 1}}, "bins: expected at least 2 of a histogram, found 1"),
        ({"query": {**HISTOGRAM, "bins": 5_000}}, "less than or equal to 4096"),
        ({"query": {**MEAN, "column": ""}}, "at least 1 character"),
        ({"query": {**MEAN, "where": "age > 3"}}, "Extra inputs"),
    ],
)
def test_what_would_give_the_sum_another_meaning_is_refused(fields: dict[str, Any], message: str) -> None:
    """By field, with what was expected and found."""
    with pytest.raises(ValidationError, match=message):
        query_task(**fields)


def test_the_digest_covers_every_part_of_a_query() -> None:
    """And a task without a query has no word of one."""
    others = [{**MEAN, "kind": "variance"}, {**MEAN, "column": "bmi"}, {**MEAN, "low": 1.0}, {**MEAN, "high": 99.0}]
    tasks = [query_task(), *(query_task(query=other, dim=3 if other["kind"] == "variance" else 2) for other in others)]
    tasks += [query_task(query={**HISTOGRAM, "bins": n, "kind": kind, **more}, dim=n) for n, kind, more in (
        (4, "histogram", {}), (5, "histogram", {}), (4, "quantile", {}), (4, "quantile", {"share": 0.9})
    )]  # fmt: skip

    assert len({task.digest() for task in tasks}) == len(tasks)
    assert json.loads(tasks[0].canonical())["query"] == {**MEAN, "bins": 1, "share": 0.5}
    assert query_task(**json.loads(tasks[0].canonical())) == tasks[0]


def central_std(epsilon: float, delta: float) -> float:
    """Return the least noise of a curator who sees all records and adds a Gaussian, by bisection (sensitivity 1)."""
    low, high = 1e-3, 1e4
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if delta_from_mu(epsilon, 1 / middle) > delta else (low, middle)
    return high


@pytest.mark.parametrize("query", [MEAN, HISTOGRAM])
@pytest.mark.parametrize("target", [0.1, 1.0, 4.0])
def test_the_error_is_close_to_that_of_a_trusted_curator(query: dict[str, Any], target: float) -> None:
    """At most 1.05 times at the same epsilon against clients, and 1.05 sqrt(2) times at that against one server."""
    dim = query.get("bins", 2)
    wished = query_task().model_dump(exclude={"noise_multiplier"}) | {
        "target_epsilon": target,
        "query": query,
        "dim": dim,
    }
    task = Task.model_validate(wished)
    ours = math.sqrt(2) * task.noise_multiplier  # both servers' noise in the sum, whose sensitivity is 1
    privacy = task_privacy(task)
    against = {view: privacy.epsilon(view, 1, task.delta) for view in View}

    assert against[View.ONE_SERVER] <= target
    assert ours <= 1.05 * central_std(against[View.CLIENTS_ONLY], task.delta)
    assert ours <= 1.05 * math.sqrt(2) * central_std(target, task.delta)


def test_a_client_is_accounted_at_its_ball() -> None:
    """A whole client moves the sum by C at most, so its multiplier is that of a record over C."""
    privacy = task_privacy(query_task())
    level = privacy.every_round[Level.CLIENT]

    assert level.noise_multiplier == pytest.approx(math.sqrt(2) * 8.0 / 1_000.0)


def test_a_query_has_the_encoding_of_its_task() -> None:
    """On the task's grid."""
    task = query_task(query=HISTOGRAM, dim=64, frac_bits=12)
    assert isinstance(task.query, Query)
    assert task.query.encoding(task.frac_bits) == Encoding(
        kind=task.query.kind, low=0.0, high=120.0, bins=64, frac_bits=12
    )
