"""`precad run` of a task whose clients evaluate the model, over real processes: its files, summary, report and export.

Its twin without processes is tests/lab/simulation/test_evaluating_clients.py.
"""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from precad.deploy.configuration.sections import load
from precad.deploy.exporting.finished import read_finished
from precad.deploy.exporting.statement import statement_of
from precad.deploy.localhost.deployment import LocalRun
from precad.deploy.localhost.forks import Forks
from precad.deploy.localhost.summary import print_summary
from precad.deploy.oversight.log_audit import check_log
from precad.deploy.oversight.run_status import read_run
from precad.deploy.reporting.charts import charts_of
from precad.deploy.reporting.key_figures import key_figures
from precad.deploy.reporting.run_folder import read_deployed
from precad.deploy.run_files.folder import RunFolder
from precad.deploy.shown.error_bars import estimate_and_bar
from precad.dp.accountants.pld import View
from precad.dp.task_privacy import task_cost
from precad.protos.tls.identity import Role

RAW: dict[str, Any] = {
    "task": {
        "clients": 3,
        "rounds": 4,
        "client_rate": 1.0,
        "record_rate": 0.5,
        "record_clip": 1.0,
        "client_clip": 40.0,
        "noise_multiplier": 2.0,
        "learning_rate": 1.0,
        "frac_bits": "largest",
        "gate": "native",
        "evaluation": "clients",
        "evaluation_every": 2,
        "evaluation_noise": 5.0,
    }
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, dict[str, Any]]:
    """One run, for all of this file, and its summary."""
    folder = tmp_path_factory.mktemp("evaluated") / "run"
    run = LocalRun(RAW, folder, Console(file=io.StringIO()), forks=Forks("native"))
    return RunFolder(folder), asyncio.run(run.run())


def test_the_summary_counts_and_shows_evaluations(finished: tuple[RunFolder, dict[str, Any]]) -> None:
    """The figures are of the ledger that charged them; the last one is near the accuracy on public records."""
    folder, summary = finished
    task = load(folder.config).task
    assert [one["rounds_done"] for one in summary["evaluations"]] == [2, 4]
    assert (summary["rounds"], summary["most_evaluations"], summary["evaluations_of_a_client"]) == (4, 2, 2)
    for view in View:
        assert summary[f"realised_epsilon_{view}"] == pytest.approx(task_cost(task).of_view(view, 4, 2), rel=1e-9)
        assert summary[f"epsilon_{view}"] == pytest.approx(task_cost(task).view_if_discarded(view), rel=1e-9)
    accuracy = summary["evaluations"][-1]["figures"]["accuracy"]
    assert accuracy["low"] - 0.15 < summary["accuracy"] < accuracy["high"] + 0.15
    shown = io.StringIO()
    print_summary(Console(file=shown, width=200), summary, task)
    assert "held-out records  accuracy " in shown.getvalue()
    assert "Beside these, 2 evaluations; 2 there were" in shown.getvalue()


def test_the_report_has_error_bars(finished: tuple[RunFolder, dict[str, Any]]) -> None:
    """In the key figures and in the band of the chart."""
    folder, summary = finished
    run = read_deployed(folder.root)
    names = {figure.name: figure for figure in key_figures(run)}
    accuracy = summary["evaluations"][-1]["figures"]["accuracy"]
    found = names["accuracy on clients' held-out records"]
    assert found.exact == accuracy["value"]
    assert found.shown == " ".join(estimate_and_bar(accuracy["value"], accuracy["low"], accuracy["high"]))
    (chart,) = [chart for chart in charts_of([run], []) if chart.key == "held-out"]
    first, last = (one["figures"]["accuracy"] for one in summary["evaluations"])
    assert chart.series[0].band == ((2.0, first["low"], first["high"]), (4.0, last["low"], last["high"]))
    rows = chart.table()[1]
    assert [row[0] for row in rows] == ["2", "4"]


def test_the_servers_files_agree_and_can_be_exported(finished: tuple[RunFolder, dict[str, Any]]) -> None:
    """The log, the ledger and the model that the last round, and no evaluation, made."""
    folder, _ = finished
    task = load(folder.config).task
    report = check_log(folder.state_dir("a"), against=folder.state_dir("b"), known=None)
    assert (report["releases"], report["agreed_releases"], report["charged_rounds"]) == (6, 6, 6)
    exported = read_finished(folder.state_dir("a"), task, Role.AGGREGATOR_A)
    last = json.loads(folder.metrics.read_text().splitlines()[-1])
    assert (exported.n_committed, exported.n_charged, last["round"]) == (4, 4, 4)
    said = statement_of(exported, (), "none was asked for")
    assert all(
        "evaluations by clients count, at most 2" in row.rests_on for row in said.privacy if row.kind is not None
    )
    status = read_run(folder.root)
    assert (status.rounds_done, status.is_finished) == (4, True)


def test_clients_count_their_answers(finished: tuple[RunFolder, dict[str, Any]]) -> None:
    """Durably, one for each evaluation, apart from uploads for the training."""
    folder, _ = finished
    for path in (folder.root / "clients").glob("*.evaluations"):
        assert [line.split()[1] for line in path.read_text().splitlines()] == ["2", "4"]
    assert len(list((folder.root / "clients").glob("*.evaluations"))) == 3


def test_held_out_records_are_needed(tmp_path: Path) -> None:
    from precad.deploy.errors import ConfigError

    raw = {**RAW, "client": {"holdout": 0.0}}
    with pytest.raises(ConfigError, match=r"client\.holdout: expected a share that keeps a record"):
        LocalRun(raw, tmp_path / "run", Console(file=io.StringIO()))
