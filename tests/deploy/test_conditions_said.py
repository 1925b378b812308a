"""A figure of a task with a function of the sum stands nowhere without its condition: one test for each printer.

PRECAD's own figures need none; the same task with a function does, as its factor is the operators' word. Against one
server it holds only while both follow the protocol in the function's steps.
"""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import tomli_w
from rich.console import Console

from precad.deploy.cli.main import app
from precad.deploy.configuration.check_privacy import privacy_facts
from precad.deploy.configuration.sections import load
from precad.deploy.configuration.trainers import promised_to_clients
from precad.deploy.errors import ConfigError
from precad.deploy.exporting.finished import read_finished
from precad.deploy.exporting.statement import statement_of
from precad.deploy.guarantees import accounting, plots
from precad.deploy.guarantees.planning import task_of_run
from precad.deploy.guarantees.run_evidence import training_of
from precad.deploy.localhost import several
from precad.deploy.localhost.summary import conditions_of
from precad.deploy.oversight.run_status import read_run
from precad.deploy.oversight.status_shown import show_rounds, status_table
from precad.deploy.reporting.certificates import uncertified
from precad.deploy.reporting.guarantees import sentence
from precad.deploy.reporting.run_folder import Figures, deployed_statements, read_deployed
from precad.deploy.reporting.runs import Run
from precad.deploy.tracking.points import labels_of
from precad.dp.accountants.pld import View
from precad.dp.conditions import OF_SERVERS
from precad.dp.ledgers.earlier import earlier_tasks
from precad.dp.task_privacy import task_privacy
from precad.protos.task.task import Task
from precad.protos.tls.identity import Role
from precad.servers.operations.metrics import StatusCollector
from precad.servers.store.folder import ledger_path, open_ledger
from precad.servers.telemetry.status import Status, epsilons_of
from tests.deploy.exporting.test_export import TRAINED, write_state
from tests.harness.command_line import CliRunner
from tests.harness.harness import asynchronous, small_task
from tests.harness.run_folders import deployed

FUNCTION = {
    "sum_function": "precad.mpc.crypten.examples:clip",
    "sum_function_sha256": "ab" * 32,
    "sum_function_factor": 2.0,
}
OPERATORS_WORD = "if precad.mpc.crypten.examples:clip moves at most 2 times as far as the sum does, as operators say"
FOLLOWS = "if both servers and the dealer follow the protocol in its steps"
PLAIN, WITH = small_task(noise_multiplier=4.0), small_task(noise_multiplier=4.0, **FUNCTION)


def require_said(with_function: str, plain: str) -> None:
    """Both views' conditions are in one text, and none in the other."""
    words, other = (" ".join(text.split()) for text in (with_function, plain))
    assert words.count(OPERATORS_WORD) >= 2
    assert f"{OPERATORS_WORD}; {FOLLOWS}" in words
    assert "as operators say" not in other


def account(task: Task, folder: Path, *flags: str) -> str:
    path = folder / "task.toml"
    fields = task.model_dump(mode="json", exclude_none=True, exclude_defaults=True) | {"delta": task.delta}
    path.write_text(tomli_w.dumps({"task": fields}))
    done = CliRunner().invoke(app, ["account", str(path), *flags], terminal_width=200)
    assert done.exit_code == 0, done.output
    return done.stdout if "--json" in flags else done.output


@pytest.mark.parametrize("flags", [(), ("--calibrate", "4"), ("--balls-in-bins", "4"), ("--json",)])
def test_precad_account(flags: tuple[str, ...], tmp_path: Path) -> None:
    if "--balls-in-bins" in flags:
        with_function, plain = (
            account(Task.model_validate(task.model_dump() | {"record_rate": 0.25}), tmp_path, *flags)
            for task in (WITH, PLAIN)
        )
    else:
        with_function, plain = account(WITH, tmp_path, *flags), account(PLAIN, tmp_path, *flags)
    require_said(with_function, plain)
    if "--json" in flags:
        found = json.loads(with_function)
        assert set(found.pop("rests_on")) == set(View)
        assert found == json.loads(plain)


def test_a_draft_without_a_factor_has_no_account() -> None:
    section = PLAIN.model_dump() | FUNCTION | {"sum_function_factor": None}
    with pytest.raises(ConfigError, match="sum_function_factor: expected a number with algorithm 'precad'"):
        accounting.account_of_flags({}, section)


def test_the_plot_of_an_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    titles = []
    monkeypatch.setattr(plots, "_save", lambda pyplot, figure, path: titles.append(figure.get_suptitle()))
    monkeypatch.setattr(accounting, "_POINTS", 4)
    for task in (WITH, PLAIN):
        plots.plot_account(accounting.account_of_flags({}, task.model_dump(), is_by_round=True), tmp_path / "a.png")
    require_said(*titles)


def test_the_guarantee_of_an_exported_statement(tmp_path: Path) -> None:
    said = []
    for name, fields in (("with", FUNCTION), ("plain", {})):
        task = small_task(noise_multiplier=4.0, model="mlp", dim=TRAINED.size, **fields)
        write_state(tmp_path / name, task)
        said.append(statement_of(read_finished(tmp_path / name, task, Role.AGGREGATOR_A), ["weight"], "why").guarantee)
    require_said(*said)


def test_the_sentence_of_a_report() -> None:
    said = []
    for task in (WITH, PLAIN):
        statements = deployed_statements(task, task_privacy(task), dict.fromkeys(View, Figures(1.0, 0.5)), 3)
        run = SimpleNamespace(statements=statements, is_simulation=False, says_conditions=task is WITH, task=task)
        said.append(sentence(cast(Run, run), "none was asked for"))
    require_said(*said)


def test_what_an_earlier_task_rests_on_is_said_of_all_that_counts_it(tmp_path: Path) -> None:
    """By a server, its folder, a run and its end, an export and a report."""
    said: dict[str, list[str]] = {}
    for name, fields in (("with", FUNCTION), ("plain", {})):
        before = tmp_path / name / "before"
        write_state(before, small_task(noise_multiplier=4.0, model="mlp", dim=TRAINED.size, **fields))
        earlier = earlier_tasks([(ledger_path(before), 12)])
        root = deployed(tmp_path / name / "run")
        task = load(root / "config.toml").task
        for letter in ("a", "b"):
            ledger_path(root / letter).unlink(missing_ok=True)
            with open_ledger(root / letter, task, earlier) as ledger:
                cost = ledger.cost
        exported = small_task(noise_multiplier=4.0, model="mlp", dim=TRAINED.size)
        with open_ledger(tmp_path / name / "after", exported, earlier):
            pass
        write_state(tmp_path / name / "after", exported)
        stated = statement_of(read_finished(tmp_path / name / "after", exported, Role.AGGREGATOR_A), ["w"], "why")
        texts = {
            "server": [one.rests_on for one in epsilons_of(task, dict.fromkeys(View, 0.5), cost=cost)],
            "folder": [one.rests_on for one in read_run(tmp_path / name / "after").epsilons],
            "run": [one.rests_on for one in read_run(root).epsilons],
            "end": conditions_of(task, earlier),
            "export": [one.rests_on for one in stated.privacy if one.kind is not None],
            "sentence": [stated.guarantee],
            "report": [sentence(read_deployed(root), "none was asked for")],
        }
        for printer, found in texts.items():
            said.setdefault(printer, []).append(" / ".join(found))
    for printer, (with_function, plain) in said.items():
        assert with_function.count(f"of an earlier task: {OF_SERVERS[View.ONE_SERVER]}; {OPERATORS_WORD}") >= 1, printer
        assert with_function.count(OPERATORS_WORD) >= 2, printer
        assert "earlier task" not in plain, printer


def test_the_promise_to_clients_of_a_foreign_trainer() -> None:
    shared: dict[str, Any] = {"algorithm": "user-dp-fedavg", "noise_multiplier": 4.0}
    said = ["\n".join(promised_to_clients(small_task(**shared, **fields))) for fields in (FUNCTION, {})]
    require_said(*said)
    assert said[1].count("rests on: what its updates say") == 2  # another algorithm says its own


def test_precad_check() -> None:
    found, plain = privacy_facts(WITH), privacy_facts(PLAIN)
    assert f"{OPERATORS_WORD}; {FOLLOWS}" in found.pop("privacy_rests_on")
    assert found == plain


@asynchronous
async def test_labels_of_trackers_metrics_and_tables_of_a_status() -> None:
    labels, tables, helps, watched = [], [], [], []

    async def statuses(status: Status) -> AsyncIterator[Status]:
        for _ in range(2):
            yield status

    for task in (WITH, PLAIN):
        status = Status(
            role="aggregator-a", version="0", state="x", since=0.0, started_at=0.0, is_ready=True,
            epsilons=epsilons_of(task, dict.fromkeys(View, 0.5)),
        )  # fmt: skip
        labels.append(labels_of(status))
        screen = io.StringIO()
        Console(file=screen, width=400).print(status_table({"a": status}))
        tables.append(screen.getvalue())
        gauges = StatusCollector(lambda one=status: one).collect()
        helps.append("\n".join(one.documentation for one in gauges if "epsilon" in one.name))
        screen = io.StringIO()
        await show_rounds(statuses(status), Console(file=screen, width=400), title="")
        watched.append(screen.getvalue())
    assert all(OPERATORS_WORD in text for text in labels[0].values())
    assert all(FOLLOWS in text for name, text in labels[0].items() if "one_server" in name)
    require_said("\n".join(labels[0].values()), "\n".join(labels[1].values()))
    for printed in (tables, helps, watched):
        require_said(*printed)
    assert watched[0].count(FOLLOWS) == 1


def test_the_summary_of_several_trainings() -> None:
    shown = []
    for task in (WITH, PLAIN):
        each = {"output": "/runs/seed-0", "accuracy": 0.5, "accepted": 3, "rejected": 1, "missing": 0}
        found = several.together([{**each, "model_is_finite": True}] * 2, task)
        assert found.get("rests_on", []) == conditions_of(task)
        screen = io.StringIO()
        several.print_together(Console(file=screen, width=400), {**found, "output": "/runs"})
        shown.append(screen.getvalue())
    require_said(*shown)


def test_plans_and_certificates_of_runs_are_refused() -> None:
    """Theirs would rest on the factor as well, and nothing of them says so."""
    for refuses in (task_of_run, training_of):
        refuses(PLAIN)
        with pytest.raises(ConfigError, match=r"without .*sum_function.*, found precad\.mpc\.crypten\.examples:clip"):
            refuses(WITH)


def test_the_report_of_a_run_says_why_nothing_is_certified(tmp_path: Path) -> None:
    """It is written, as for any other run without a certificate."""
    run = read_deployed(deployed(tmp_path / "run"))
    for task, why in ((WITH, "without sum_function"), (PLAIN.model_copy(update={"min_separation": 2}), "without min_")):
        found = uncertified(replace(run, task=task))
        assert found is not None
        assert found.startswith(f"expected a task {why}")


def test_a_records_figures_rest_on_the_dealer_too() -> None:
    """It can let one record decide whether a whole update is in the sum (`tests/mpc/test_secure_validation.py`)."""
    rests_on = task_privacy(PLAIN).rests_on
    assert rests_on[View.CLIENTS_ONLY] == "if all servers follow the protocol"
    assert rests_on[View.ONE_SERVER].endswith("if all other servers follow the protocol")
