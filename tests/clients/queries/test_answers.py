"""Answers of one client: what its operator agreed to, its own limit, and the ball."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precad.clients.errors import QueryRefusedError, StateFileError
from precad.clients.queries.answers import Answers
from precad.clients.query_consent import QueryConsent
from precad.clients.training.conduct import Honest
from precad.dp.accountants.composed import composed_epsilon
from precad.dp.accountants.pld import SampledGaussian, View
from precad.dp.task_privacy import task_privacy
from precad.mpc import fixed_point
from precad.protos.task.task import Task
from tests.protos.task.test_query_task import HISTOGRAM, MEAN, query_task

CONSENT: dict[str, Any] = {"columns": {"age": {"low": 0, "high": 130}}, "limit_epsilon": 0.7}


def answers(folder: Path, values: np.ndarray, *, task: Task | None = None, **changes: Any) -> Answers:
    """Return those of client c0."""
    return Answers(
        task=task or query_task(),
        values={"c0": values},
        conducts={"c0": Honest()},
        consent=QueryConsent.model_validate({**CONSENT, **changes}),
        state_dir=folder,
    )


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({**MEAN, "column": "bmi"}, "client.queries.columns: expected column 'bmi', .* found age"),
        ({**MEAN, "high": 131.0}, r"within \[0, 130\] \(client.queries.columns.age\), found \[0, 131\]"),
        ({**MEAN, "low": -1.0}, r"found \[-1, 120\]"),
    ],
)
def test_what_was_not_agreed_to_is_refused(tmp_path: Path, query: dict[str, Any], message: str) -> None:
    """Before anything is read or charged."""
    with pytest.raises(QueryRefusedError, match=message):
        answers(tmp_path, np.ones(3), task=query_task(query=query))
    assert list(tmp_path.iterdir()) == []


def test_without_a_word_of_the_operator_nothing_is_answered(tmp_path: Path) -> None:
    """A configuration without `[client.queries]` says no to everything."""
    with pytest.raises(QueryRefusedError, match="found none"):
        Answers(task=query_task(), values={}, conducts={}, consent=None, state_dir=tmp_path)


def test_the_clients_own_limit_stops_it_across_queries_and_restarts(tmp_path: Path) -> None:
    """Two answers at sigma = 8 cost less than 0.7, a third more. The limit is asked for before the task begins, too."""
    values = np.full(10, 50.0)
    model = np.zeros(2, dtype=np.float32)
    answers(tmp_path, values).train("c0", model)
    both = answers(tmp_path, values, task=query_task(name="second"))
    both.train("c0", model)
    with pytest.raises(QueryRefusedError, match=r"limit_epsilon: expected room .* of c0, within 0.7, found 0.79"):
        both.train("c0", model)
    with pytest.raises(QueryRefusedError, match="limit_epsilon"):
        answers(tmp_path, values, task=query_task(name="third"))
    answers(tmp_path, values, limit_epsilon=5.0).train("c0", model)


def test_the_clients_own_limit_counts_all_records_of_a_person(tmp_path: Path) -> None:
    """All four answer: one release with a quarter of the noise multiplier costs as much as sixteen of one record."""
    group = query_task(records_per_person=4)
    with pytest.raises(QueryRefusedError, match="limit_epsilon") as alone:
        answers(tmp_path, np.full(10, 50.0), task=group)
    one = task_privacy(query_task()).events[View.ONE_SERVER]
    assert one is not None
    spent = composed_epsilon([(SampledGaussian(1.0, one.noise_multiplier), 16)], 1e-5)
    assert f"found {spent:.4g}" in str(alone.value)


def test_a_damaged_record_of_answers_stops_the_client(tmp_path: Path) -> None:
    """Nothing leaves until it is known again what has left."""
    answers(tmp_path, np.ones(3)).train("c0", np.zeros(2, dtype=np.float32))
    path = tmp_path / "c0.queries"
    path.write_text(path.read_text().replace("age", "bmi"))
    with pytest.raises(StateFileError, match="expected a record of answers to read and write"):
        answers(tmp_path, np.ones(3))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 40), st.floats(0.5, 30.0), st.sampled_from([MEAN, HISTOGRAM]), st.integers(2, 16))
def test_one_record_moves_an_upload_by_no_more_than_is_accounted(
    tmp_path_factory: pytest.TempPathFactory, n: int, clip: float, query: dict[str, Any], frac_bits: int
) -> None:
    """By R and the rounding, also where a client's sum is projected onto the ball; no upload is longer than C."""
    task = query_task(query=query, dim=query.get("bins", 2), client_clip=clip, frac_bits=frac_bits)
    values = np.random.default_rng(n).uniform(-20, 140, n + 1)
    folder = tmp_path_factory.mktemp("clients")
    without, with_it = (
        fixed_point.decode(answers(folder, part, task=task, limit_epsilon=1e6).train("c0", None), task.frac_bits)  # type: ignore[arg-type]
        for part in (values[:-1], values)
    )

    assert np.linalg.norm(with_it - without) <= 1 + np.sqrt(task.dim) * 2.0**-task.frac_bits
    assert np.linalg.norm(with_it) <= clip
