"""`precad account` of a configuration whose clients evaluate the model: the figures of the task itself."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from precad.deploy.configuration.check_privacy import promised
from precad.deploy.errors import ConfigError
from precad.deploy.guarantees.accounting import account_of_flags
from precad.deploy.guarantees.accounting_shown import print_account
from precad.dp.accountants.pld import View
from precad.dp.task_privacy import task_cost, task_privacy
from precad.protos.task.task import Task
from tests.harness.harness import small_task

SECTION: dict[str, Any] = {
    **small_task(rounds=10, client_rate=1.0, noise_multiplier=2.0, gate="native").model_dump(exclude_none=True),
    "evaluation": "clients",
    "evaluation_every": 4,
    "evaluation_noise": 3.0,
}
TASK = Task.model_validate(SECTION)


@pytest.mark.parametrize("view", View)
def test_the_account_counts_evaluations_as_the_ledger_does(view: View) -> None:
    """It counts the rounds that there are, and the most that there can be if draws may be discarded."""
    report = account_of_flags({}, SECTION)
    assert report["evaluations"] == {"most": 2, "sigma": pytest.approx(3.0, rel=1e-5)}
    assert report[view]["with_evaluations"] == pytest.approx(task_cost(TASK).of_view(view, 10, 2), rel=1e-9)
    assert report[view]["if_discarded"]["epsilon"] == pytest.approx(task_cost(TASK).view_if_discarded(view), rel=1e-9)
    assert report[view]["bound"] == pytest.approx(task_cost(TASK).of_view(view, 10), rel=1e-9)
    assert report[view]["with_evaluations"] > report[view]["bound"]


def test_a_draft_without_numbers_of_records_is_accounted() -> None:
    """All but the rounding of evaluations is known."""
    draft = {**SECTION, "clients": ["alice", "bob"]}
    exact, ours = (account_of_flags({}, section)["one_server"]["with_evaluations"] for section in (SECTION, draft))
    assert ours == pytest.approx(exact, rel=1e-5)


def test_a_target_of_a_task_comes_to_the_same_noise() -> None:
    section = {**SECTION, "target_epsilon": 4.0}
    del section["noise_multiplier"]
    task = Task.model_validate(section)
    assert account_of_flags({}, section)["sigma"] == task.noise_multiplier
    assert task_privacy(task).epsilon(View.ONE_SERVER, 10, task.delta) <= 4.0


def test_people_read_both_figures() -> None:
    shown = io.StringIO()
    print_account(Console(file=shown, width=200), account_of_flags({}, SECTION))
    assert "the table is of the rounds of the training; with 2 evaluations: one server corrupted <=" in shown.getvalue()
    assert "after 10 rounds and 2 evaluations epsilon <=" in promised(TASK)


@pytest.mark.parametrize("field", ["evaluation_every", "evaluation_noise"])
def test_a_section_without_a_field_of_evaluations_is_refused(field: str) -> None:
    section = {name: value for name, value in SECTION.items() if name != field}
    with pytest.raises((ConfigError, ValueError), match=field):
        account_of_flags({}, section)
