"""`precad account` of a configuration whose clients evaluate the model: the figures of the task itself."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console

from precad.deploy.configuration.check_privacy import promised
from precad.deploy.errors import ConfigError
from precad.deploy.guarantees.accounting import account_of_flags
from precad.deploy.guarantees.accounting_shown import print_account
from precad.dp.accountants.pld import View
from precad.dp.accountants.task_cost import Level
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
HIDDEN: dict[str, Any] = {
    "mode": "proved",
    "round_period_s": 300.0,
    "noise_multiplier": 40.0,
    "evaluation_noise": 60.0,
    "delta": 1e-4,
}
"""Changes that make of it a task whose draws nobody learns."""


@pytest.mark.parametrize("view", View)
def test_the_account_counts_evaluations_as_the_ledger_does(view: View) -> None:
    """It counts the rounds that there are, and the most that there can be if draws may be discarded."""
    report = account_of_flags({}, SECTION)
    assert report["evaluations"] == {"most": 2, "sigma": pytest.approx(3.0, rel=1e-5)}
    cost, found = task_cost(TASK), report[view]
    assert found["bound"] == pytest.approx(cost.of_view(view, 10, 2), rel=1e-9)
    assert found["if_discarded"]["epsilon"] == pytest.approx(cost.view_if_discarded(view), rel=1e-9)
    assert found["accountants"]["pld"]["epsilon"] == pytest.approx(cost.of_view(view, 10), rel=1e-9)
    assert found["bound"] > found["accountants"]["pld"]["epsilon"]


@pytest.mark.parametrize("changes", [{}, {"evaluation_clip": 5.0}, HIDDEN])
def test_a_whole_client_counts_evaluations_as_the_ledger_does(changes: dict[str, Any]) -> None:
    """Where no budget of a view ends the task, and draws are seen or hidden, discarded or not."""
    section = {**SECTION, "client_rate": 0.3, **changes}
    if "mode" in changes:
        section = {name: value for name, value in section.items() if name not in ("gate", "batches_ahead")}
    task, report = Task.model_validate(section), account_of_flags({}, section)
    cost = task_cost(task)
    names = {Level.CLIENT: "client_level", Level.HIDDEN_CLIENT: "client_level_if_draws_hidden"}
    known = {level: name for level, name in names.items() if level in task_privacy(task).every_round}
    assert len(known) == (2 if "mode" in changes else 1)
    for level, name in known.items():
        found = report[name]
        assert found["bound"] == pytest.approx(cost.of_level(level, 10, 2), rel=1e-9)
        assert found["if_discarded"] == pytest.approx(cost.level_if_discarded(level), rel=1e-9)
        assert found["bound"] > found["accountants"]["pld"]["epsilon"]


def test_a_whole_client_of_unknown_records_has_no_bound() -> None:
    report = account_of_flags({}, {**SECTION, "clients": ["alice", "bob"]})
    assert report["client_level"]["bound"] == report["client_level_if_draws_hidden"]["bound"] == "inf"
    assert [line for line in report["warnings"] if line.startswith("evaluation_clip:")]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"clients": {"alice": 100, "bob": "100"}}, "clients.bob: expected an integer of at least 1, found '100'"),
        ({"clients": {"alice": 100, "bob": [1]}}, "clients.bob: expected an integer of at least 1"),
        ({"clients": {"alice": 2**60, "bob": 1}}, "clients.alice: expected at most 9007199254740992"),
        ({"clients": {"alice": 10**400, "bob": 1}}, "clients.alice: expected an integer of at least"),
        ({"frac_bits": 10**20}, "frac_bits: expected at most 40"),
    ],
)
def test_a_draft_with_other_numbers_is_refused_by_field(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(named)):
        account_of_flags({}, {**SECTION, **changes})


@pytest.mark.parametrize("changes", [{}, HIDDEN])
def test_a_whole_client_hides_in_no_draw_that_a_budget_of_a_view_tells(changes: dict[str, Any]) -> None:
    """The figure of the most draws stays, as the ledger has it; a hidden draw counts as one for all to see."""
    section = {**SECTION, "client_rate": 0.3, **changes, "epsilon_budget_one_server": 1000.0}
    if "mode" in changes:
        section = {name: value for name, value in section.items() if name not in ("gate", "batches_ahead")}
    cost, report = task_cost(Task.model_validate(section)), account_of_flags({}, section)
    for level in cost.every_round.keys() - {Level.DRAWN_RECORD}:
        most = cost.level_if_discarded(level)
        assert most == pytest.approx(report["client_level"]["bound"], rel=1e-9)
        assert report["client_level"] == report["client_level_if_draws_hidden"]


def test_a_curve_ends_where_the_bound_is() -> None:
    """Evaluations count from the round on that each is due in."""
    report = account_of_flags({}, SECTION, is_by_round=True)
    for view in View:
        curve = dict(zip(report["by_round"]["rounds"], report["by_round"][view]["bound"], strict=True))
        assert curve[10] == pytest.approx(report[view]["bound"], rel=1e-9)
        for t, epsilon in curve.items():
            assert epsilon >= task_cost(TASK).of_view(view, t, t // 4) * (1 - 1e-9)


def test_a_draft_without_numbers_of_records_is_accounted() -> None:
    """All but the rounding of evaluations is known, and a warning says so: with many records it is no trifle."""
    draft = {**SECTION, "clients": ["alice", "bob"]}
    exact, ours = (account_of_flags({}, section) for section in (SECTION, draft))
    assert ours["one_server"]["bound"] == pytest.approx(exact["one_server"]["bound"], rel=1e-5)
    said = [line for line in ours["warnings"] if "no rounding of evaluations is counted" in line]
    assert said
    assert not set(said) & set(exact["warnings"])


def test_a_target_is_met_where_the_protocol_takes_a_part_of_delta() -> None:
    """Beside evaluations and without them; the noise is the least of four digits that does."""
    for gone in (set(), {"evaluation", "evaluation_every", "evaluation_noise"}):
        section = {**SECTION, **HIDDEN, "target_epsilon": 2.0, "delta": 1e-9}
        section = {name: value for name, value in section.items() if name not in {"gate", "noise_multiplier", *gone}}
        task = Task.model_validate(section)
        privacy, less = task_privacy(task), {**section, "noise_multiplier": 0.999 * task.noise_multiplier}
        del less["target_epsilon"]
        assert privacy.slack > 0.01 * task.delta  # which changes the least noise
        assert privacy.epsilon(View.ONE_SERVER, 10, task.delta) <= 2.0
        assert task_privacy(Task.model_validate(less)).epsilon(View.ONE_SERVER, 10, task.delta) > 2.0


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


def test_a_flag_goes_before_what_the_section_says_in_all_that_follows_from_it() -> None:
    """Evaluations follow from the rounds, and fractional bits from C: flags come to what a file of these values has."""
    flags = account_of_flags({"rounds": 40}, SECTION)
    assert flags == account_of_flags({}, {**SECTION, "rounds": 40})
    assert flags["evaluations"]["most"] == 10
    proved = {name: value for name, value in SECTION.items() if name not in ("gate", "batches_ahead", "frac_bits")}
    proved |= {**HIDDEN, "dim": 10**6, "client_clip": 4.0}
    wide = account_of_flags({"client_clip": 4000.0}, proved)
    assert wide == account_of_flags({}, {**proved, "client_clip": 4000.0})
    assert wide["one_server"]["bound"] > 1.1 * account_of_flags({}, proved)["one_server"]["bound"]
    largest = {**proved, "mode": "masked", "frac_bits": "largest"}
    del largest["round_period_s"]
    assert account_of_flags({"client_clip": 4000.0}, largest) == account_of_flags(
        {}, {**largest, "client_clip": 4000.0}
    )


def test_a_target_is_met_in_the_rounds_that_a_flag_asks_for() -> None:
    section = {name: value for name, value in SECTION.items() if name != "noise_multiplier"}
    found = account_of_flags({"rounds": 60}, {**section, "evaluation_noise": 30.0}, target_epsilon=3.0)
    task = Task.model_validate(
        {**section, "evaluation_noise": 30.0, "rounds": 60, "noise_multiplier": found["sigma"], "lost_rounds": None}
    )
    assert task.most_evaluations == 15
    assert task_cost(task).view_if_discarded(View.ONE_SERVER) <= 3.0 * (1 + 1e-9)


def test_a_flag_out_of_its_range_is_named_as_one() -> None:
    for flags, said in (({"rounds": -1}, "^rounds: expected"), ({"client_clip": 1e30}, "^client_clip")):
        with pytest.raises(ConfigError, match=said):
            account_of_flags(flags, {**SECTION, "frac_bits": "largest"})


@pytest.mark.parametrize("changes", [{}, {"epsilon_budget_one_server": 1000.0}])
def test_accountants_of_a_whole_client_are_of_the_rounds_of_its_bound(changes: dict[str, Any]) -> None:
    """A budget of a view may end the task, whose end tells who was drawn: no figure is of fewer than the most draws."""
    section = {name: value for name, value in SECTION.items() if not name.startswith("evaluation")}
    report = account_of_flags({}, {**section, "client_rate": 0.3, **changes})
    for level in ("client_level", "client_level_if_draws_hidden"):
        assert report[level]["accountants"]["pld"]["epsilon"] == pytest.approx(report[level]["bound"], rel=1e-9)
    is_told = report["client_level"]["bound"] == report["client_level"]["if_discarded"]
    assert is_told is bool(changes)
