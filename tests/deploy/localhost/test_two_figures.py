"""Figures of epsilon that people read: each says whether it holds if draws are discarded; a budget limits one of them.

Failure means that a figure is shown which the budget does not limit, or that one is read as more than it is.
"""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from precad.deploy.localhost.summary import print_summary
from precad.deploy.localhost.watch import LiveTable
from precad.deploy.oversight.status_shown import metrics_of, status_table
from precad.deploy.reporting.run_folder import read_deployed
from precad.deploy.run_files.folder import RunFolder
from precad.deploy.run_files.spent import epsilon_of_a_client, spent_epsilons, spent_in_run
from precad.deploy.shown.figures import three_digits
from precad.dp.accountants.pld import PldAccountant, TwoStageSampledGaussian, View
from precad.dp.accountants.task_cost import Charged, Level
from precad.dp.task_privacy import task_cost
from precad.protos.task.task import Task
from precad.servers.store.folder import open_ledger
from precad.servers.telemetry.status import RoundSummary, Status, client_epsilon, epsilons_of
from tests.harness.harness import small_task
from tests.harness.run_folders import changed, deployed

BUDGET = 2.0


def whole_clients(**changes: Any) -> Task:
    """UserDP-FedAvg with a budget for a client that is drawn or not."""
    return small_task(
        **{
            "algorithm": "user-dp-fedavg",
            "local_steps": 2,
            "client_clip": 2.0,
            "client_rate": 0.3,
            "noise_multiplier": 4.0,
            "rounds": 40,
            "epsilon_budget_client": BUDGET,
            **changes,
        }
    )


def spent(task: Task, folder: Path) -> tuple[dict[str, Any], int]:
    """The summary's figures of a task that ran until its budget was spent, alice in every other round."""
    with open_ledger(folder, task) as ledger:
        n = 0
        while n < task.rounds and not ledger.would_exceed(tuple(task.clients), n):
            ledger.charge(n, ["alice"] if n % 2 else [])
            n += 1
        last = {f"epsilon_{view}": ledger.statement(view).epsilon for view in View}
    return dict(spent_epsilons(folder, task, last)), n


def test_the_figure_that_a_budget_limits_is_shown_first_and_kept(tmp_path: Path) -> None:
    """In the summary, on the terminal, in a status and in the table of rounds; by another call of the accountant."""
    task = whole_clients()
    found, n = spent(task, tmp_path)
    event = TwoStageSampledGaussian(0.3, 1.0, math.sqrt(2) * 4.0)
    expected = PldAccountant().epsilon(event, n, task.delta)
    assert n < task.rounds
    assert found["epsilon_client"] == found["realised_epsilon_client"] == expected <= BUDGET
    assert found["epsilon_one_server"] > BUDGET  # another figure, which the budget does not limit

    first, *others = epsilons_of(task, dict.fromkeys(View, 1.0), Charged(n))
    assert (first.name, first.spent, first.if_discarded, first.budget) == ("client", expected, expected, BUDGET)
    assert [epsilon.budget for epsilon in others] == [None, None]
    assert epsilon_of_a_client(task_cost(task), n - 1) == {"epsilon_client": expected}
    shown = told(found, task)
    assert shown.index("client, drawn or not (budget 2)") < shown.index("one server, any clients")


def test_rounds_are_shown_with_what_their_budget_limits() -> None:
    """A column more, and none of tasks without such a budget."""
    task = whole_clients()
    round = RoundSummary(
        round=4,
        n_chosen=1,
        n_accepted=1,
        n_rejected=0,
        n_missing=0,
        bytes={},
        model_digest="",
        seconds=dict.fromkeys(("collect", "lock", "validate"), 0.1),
        epsilon=dict.fromkeys(View, 1.5),
        epsilon_client=client_epsilon(task_cost(task), 5),
    )
    lines = io.StringIO()
    with LiveTable(Console(file=lines), title="") as table:
        table.add(metrics_of(round))
        table.add(metrics_of(round.model_copy(update={"epsilon_client": None})))
    caption, with_budget, without = lines.getvalue().splitlines()
    assert "if no draw is discarded" in caption
    figure = math.ceil(100 * task_cost(task).level_after_draws("client", 5)) / 100  # type: ignore[arg-type]
    assert f"ε client {figure:.2f}  ε server 1.50" in with_budget
    assert "ε client " not in without


def test_a_given_up_draw_counts_for_the_budget_of_a_level(tmp_path: Path) -> None:
    """Its clients were seen: a task in which every other draw was discarded has half as many rounds."""
    task = whole_clients()
    _, n = spent(task, tmp_path / "all")
    with open_ledger(tmp_path / "half", task) as ledger:
        number = 0
        while not ledger.would_exceed(tuple(task.clients), number):
            ledger.charge(number, [])
            number += 2
        assert len(ledger.rounds) == math.ceil(n / 2)
        assert ledger.discarded_draws == len(ledger.rounds) - 1


def test_a_summary_says_how_many_draws_were_given_up(tmp_path: Path) -> None:
    """And both adversaries, with the rounds that each figure counts; and what no epsilon counts."""
    task = small_task(rounds=20)
    with open_ledger(tmp_path, task) as ledger:
        for number in (0, 1, 4):
            ledger.charge(number, ["alice"])
        last = {f"epsilon_{view}": ledger.statement(view).epsilon for view in View}
    found = spent_epsilons(tmp_path, task, last)
    assert (found["discarded_draws"], found["rounds_of_a_client"], found["most_rounds_of_a_client"]) == (2, 3, 25)
    for view in View:
        event = task_cost(task).events[view]
        assert event is not None
        assert found[f"epsilon_{view}"] == PldAccountant().epsilon(event, 25, task.delta)
        assert found[f"realised_epsilon_{view}"] == PldAccountant().epsilon(event, 3, task.delta)
    shown = told(found, task)
    for text in ("may discard draws", "only watches", "at most 25 rounds", "at most 3 rounds", "2 draws given up"):
        assert text in shown
    assert "no epsilon counts when uploads come, which clients were missing, and records that only test" in shown


@pytest.mark.parametrize("letter", ["a", "b"])
def test_a_summary_has_the_larger_figures_of_both_servers(letter: str, tmp_path: Path) -> None:
    """One of them charged a round more before it stopped."""
    task, folder = small_task(rounds=20, epsilon_budget_client=500.0), RunFolder(tmp_path)
    for server in ("a", "b"):
        with open_ledger(folder.state_dir(server), task) as ledger:
            for number in range(2 + (server == letter)):
                ledger.charge(number, ["alice"])
    found = spent_in_run(folder, task, None)
    with open_ledger(folder.state_dir(letter), task) as ledger:
        expected = {f"realised_epsilon_{view}": ledger.statement(view).epsilon for view in View}
        expected["realised_epsilon_client"] = ledger.task_statement(Level.CLIENT).epsilon
    assert {name: found[name] for name in expected} == expected
    assert found["rounds_of_a_client"] == 3


def test_a_summary_says_that_epochs_of_bins_count_whole(tmp_path: Path) -> None:
    """Eight rounds of a client in a task of six would be read as a mistake."""
    task = small_task(rounds=6, record_rate=0.25, record_bins=4)
    with open_ledger(tmp_path, task) as ledger:
        for number in (0, 4):
            ledger.charge(number, ["alice"])
        last = {f"epsilon_{view}": ledger.statement(view).epsilon for view in View}
    shown = told(spent_epsilons(tmp_path, task, last), task)
    assert "at most 8 rounds" in shown
    assert "Of a record, all 4 rounds of an epoch count that has begun" in shown


def test_a_round_that_servers_finished_after_the_interruption_is_counted(tmp_path: Path) -> None:
    """Its model was released, and the run has no line of it: one that only watches has seen it."""
    task = small_task(rounds=20)
    with open_ledger(tmp_path, task) as ledger:
        ledger.charge(0, ["alice"])
        last = {f"epsilon_{view}": ledger.statement(view).epsilon for view in View}
        ledger.charge(1, ["alice"])
    found = spent_epsilons(tmp_path, task, last)
    assert found["rounds_of_a_client"] == 2
    for view in View:
        event = task_cost(task).events[view]
        assert event is not None
        assert (
            found[f"realised_epsilon_{view}"] == PldAccountant().epsilon(event, 2, task.delta) > last[f"epsilon_{view}"]
        )


def told(figures: dict[str, Any], task: Task) -> str:
    """The end of a run, as people read it."""
    counts = dict.fromkeys(("accepted", "rejected", "missing", "bytes_client_up", "bytes_server_link"), 0)
    seconds = {"seconds_per_round": 0.0, "seconds_total": 0.0, "accuracy": 0.5, "rounds": 3, "delta": task.delta}
    rest = {"ended": "3 rounds done", "rejected_clients": [], "output": "runs/this"}
    lines = io.StringIO()
    print_summary(Console(file=lines, width=160), {**figures, **counts, **seconds, **rest}, task)
    return " ".join(lines.getvalue().split())


def test_a_status_has_both_figures_in_words() -> None:
    task = small_task(rounds=20, epsilon_budget_one_server=50.0)
    status = Status(
        role="run", version="", state="", since=0, started_at=0, is_ready=True,
        epsilons=epsilons_of(task, dict.fromkeys(View, 1 / 64), Charged(3)),
    )  # fmt: skip
    lines = io.StringIO()
    Console(file=lines, width=160).print(status_table({"a": status}))
    shown = " ".join(lines.getvalue().split())
    most = three_digits(task_cost(task).view_if_discarded(View.ONE_SERVER))
    assert f"epsilon, one server, draws discarded or not {most} in the end" in shown
    assert "epsilon, one server, no draw discarded <= 0.0157 (budget 50, 49.98 left)" in shown


def test_a_run_of_before_has_its_second_figure_from_its_task(tmp_path: Path) -> None:
    """Its summary has the realised figures under the names of today's others."""
    run = deployed(tmp_path / "run")
    before = {
        "epsilon_one_server": 1.0001, "epsilon_clients_only": 0.6, "epsilon_client": 45.671,
        "realised_epsilon_one_server": None, "realised_epsilon_clients_only": None, "realised_epsilon_client": None,
        "most_rounds_of_a_client": None,
    }  # fmt: skip
    changed(run / "summary.json", **before)
    found = read_deployed(run)
    cost = task_cost(found.task)
    assert [statement.realised for statement in found.statements] == [1.0001, 0.6, 45.671]
    for statement, view in zip(found.statements, View, strict=False):
        assert statement.epsilon == max(cost.view_if_discarded(view), statement.realised or 0.0)
