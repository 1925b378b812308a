"""`precad report` refuses folders that are none, contradict themselves, or cannot be compared."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from precad.deploy.configuration import sections as configuration
from precad.deploy.reporting.charts import charts_of
from precad.deploy.reporting.folders import read_folders
from precad.deploy.run_files.folder import RunFolder
from precad.dp.accountants.pld import View
from precad.protos.tls.identity import Role
from precad.servers.store.folder import open_task_store
from tests.harness.command_line import precad
from tests.harness.run_folders import (
    changed,
    costing_more,
    deployed,
    lines_of,
)


def less_everywhere(run: Path) -> None:
    """Have both files that nobody signed say that nearly nothing was lost."""
    (run / "metrics.jsonl").write_text(
        "".join(json.dumps(line | {f"epsilon_{view}": 0.01 for view in View}) + "\n" for line in lines_of(run))
    )
    figures = {f"{kind}epsilon_{view}": 0.01 for kind in ("", "realised_") for view in View}
    changed(run / "summary.json", **figures, epsilon_client=0.01, realised_epsilon_client=0.01)


def ran_otherwise(run: Path) -> None:
    """Have server B's log name the task, and the configuration lose fewer rounds than that."""
    folder = RunFolder(run)
    task = configuration.load(folder.config).task
    folder.state_dir("b").mkdir(exist_ok=True)
    with open_task_store(folder.state_dir("b"), task, bytes(4 * task.dim)) as store:
        store.begin("digits-0123456789abcdef", Role.AGGREGATOR_B)
    folder.config.write_text(folder.config.read_text().replace("[task]", "[task]\nlost_rounds = 1", 1))


def no_head(run: Path) -> None:
    """Put a member into the model whose head NumPy does not read as Python."""
    with zipfile.ZipFile(run / "seed-0.npz", "w") as archive:
        archive.writestr("parameters.npy", b"\x93NUMPY\x01\x00\x08\x00  {}\n 1\n")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda run: (run / "config.toml").unlink(), "found no config.toml in"),
        (
            lambda run: (run / "config.toml").rename(run / "task.sqlite"),
            "a server's state_dir, which precad status, audit log and export read",
        ),
        (lambda run: (run / "config.toml").write_text("[task"), "expected TOML"),
        (lambda run: (run / "config.toml").write_bytes(b"\xff"), "expected TOML"),
        (lambda run: (run / "metrics.jsonl").unlink(), "found neither metrics.jsonl nor seed-N.jsonl"),
        (lambda run: (run / "metrics.jsonl").write_text(""), "expected a line for every round, found none"),
        (lambda run: (run / "metrics.jsonl").write_bytes(b"\xff\xfe"), "expected text"),
        (lambda run: (run / "metrics.jsonl").open("a").write('{"round": 3, "acc'), "line 4: expected JSON"),
        (lambda run: (run / "metrics.jsonl").write_text("{}\n"), "line 1.round: expected a value, found none"),
        (lambda run: (run / "metrics.jsonl").write_text("[" * 99_999), "line 1: expected JSON"),
        (lambda run: (run / "summary.json").unlink(), "summary.json: expected a file of a finished run"),
        (lambda run: (run / "summary.json").write_text("null"), "summary.json"),
        (lambda run: changed(run / "summary.json", accuracy=math.nan), "summary.json.accuracy: expected"),
        (lambda run: changed(run / "summary.json", rounds=2), "rounds: expected 2 of summary.json, found 3"),
        (lambda run: changed(run / "summary.json", accepted=5), "accepted: expected 5 of summary.json, found 4"),
        (lambda run: changed(run / "summary.json", realised_epsilon_one_server=0.1), "one_server: expected 0.1"),
        (lambda run: changed(run / "summary.json", epsilon_one_server=0.1), "one_server: expected at least 1.28"),
        (lambda run: changed(run / "summary.json", epsilon_client=1.0), "epsilon_client: expected at least 16.9"),
        (less_everywhere, "realised_epsilon_one_server: expected at least 0.9"),
        (lambda run: changed(run / "summary.json", realised_epsilon_client=0.01), "realised_epsilon_client: expected "),
        (lambda run: changed(run / "summary.json", epsilon_client=-1.0), "epsilon_client"),
        (lambda run: changed(run / "summary.json", bytes_client_up=10**400), "summary.json.bytes_client_up: expected"),
        (lambda run: changed(run / "summary.json", ended="\ud800"), "json: expected text in Unicode, found half of a"),
        (lambda run: changed(run / "summary.json", **{"\udfff": 1}), "json: expected text in Unicode, found half of a"),
        (lambda run: (run / "model.pt").write_bytes(b"no model"), "expected parameters of the model 'mlp'"),
        (ran_otherwise, ": expected the task "),
    ],
)
def test_a_folder_that_is_no_finished_run_is_refused(run: Path, spoil: Any, message: str) -> None:
    """Exit code 2, what was expected, and nothing written."""
    spoil(run)
    before = sorted(path.name for path in run.iterdir())
    done = precad("report", run)
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert sorted(path.name for path in run.iterdir()) == before


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda run: (run / "summary.json").unlink(), "summary.json: expected a file of a finished run"),
        (lambda run: (run / "seed-1.jsonl").write_text(""), "expected a line for every round"),
        (lambda run: (run / "seed-1.jsonl").unlink(), "seed-1.jsonl: expected a file"),
        (
            lambda run: (run / "seed-0.jsonl").write_text((run / "seed-1.jsonl").read_text().rpartition('{"round"')[0]),
            "expected the 4 rounds of summary.json, found 3 lines",
        ),
        (lambda run: (run / "seed-0.npz").write_bytes(b"PK"), "expected the model of a finished training"),
        (no_head, "expected the model of a finished training"),
        (lambda run: (run / "seed-0.npz").unlink(), "expected the model of a finished training"),
        (
            lambda run: (run / "config.toml").write_text(
                (run / "config.toml").read_text().replace("noise_multiplier = 1.0", "noise_multiplier = 2.0")
            ),
            "as its configuration and seeds say, found",
        ),
        (lambda run: changed(run / "summary.json", algorithm="local-dp"), "algorithm: expected 'precad'"),
        (lambda run: changed(run / "summary.json", seeds=[]), "seeds"),
        (
            lambda run: changed(
                run / "summary.json", seeds=json.loads((run / "summary.json").read_text())["seeds"][:1] * 2
            ),
            "seeds: expected different ones, found 0 2 times",
        ),
    ],
)
def test_a_simulation_that_contradicts_itself_is_refused(
    simulations: tuple[Path, Path], tmp_path: Path, spoil: Any, message: str
) -> None:
    """An epsilon that configuration and seeds do not give is a contradiction, too."""
    folder = shutil.copytree(simulations[0], tmp_path / "spoilt")
    spoil(folder)
    done = precad("report", folder)
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert not (folder / "report.html").exists()


def test_a_budget_that_earlier_tasks_share_leaves_fewer_rounds(tmp_path: Path) -> None:
    """So the most that a client can lose is less than the task by itself may cost. Without them it was edited."""
    run = deployed(tmp_path / "run", epsilon_budget_one_server=3.0)
    changed(run / "summary.json", epsilon_one_server=1.2, epsilon_clients_only=0.7)
    assert "one_server: expected at least 1.28" in precad("report", run).stderr
    config = tomllib.loads((run / "config.toml").read_text())
    for own in config["aggregator"].values():
        own["earlier_ledgers"] = [{"path": str(tmp_path / "ledger.jsonl"), "most_rounds": 5}]
    RunFolder(run).write_config(config)
    assert precad("report", run).exit_code == 0
    changed(run / "summary.json", realised_epsilon_one_server=0.1)
    assert "one_server: expected 0.1 of summary.json" in precad("report", run).stderr


def test_only_what_can_be_compared_is(run: Path, tmp_path: Path) -> None:
    """One data set, one delta, different folders, few enough, a place for the page."""
    page = tmp_path / "page.html"
    for arguments, message in (
        ((run, deployed(tmp_path / "delta", delta=1e-6), "--output", page), "found 1e-06 in"),
        ((run, run, "--output", page), "expected different folders"),
        ((*(tmp_path / str(i) for i in range(7)), "--output", page), "expected at most 6 runs"),
        ((run, tmp_path / "other"), "--output: expected a file for a report of several runs"),
        ((tmp_path / "nowhere",), "RUN: expected the folder of precad demo, run or simulate, found no config.toml"),
        ((run, "--output", tmp_path / "nowhere" / "page.html"), "--output: expected a file in an existing folder"),
        ((run, "--output", tmp_path), "--output: expected a file"),
        ((run, "--output", run / "config.toml"), "found another file"),
        ((run, "--figures", run / "config.toml"), "--figures: expected a folder"),
    ):
        changed(tmp_path / "delta" / "summary.json", delta=1e-6)
        costing_more(tmp_path / "delta")
        done = precad("report", *arguments)
        assert done.exit_code == 2, done.output
        assert message in done.stderr
    assert not page.exists()
    assert not (run / "report.html").exists()


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        deployed(tmp_path / name / "run")
    runs = read_folders([tmp_path / "one" / "run", tmp_path / "two" / "run"])
    assert [found.label for found in runs] == ["run (1)", "run (2)"]
    assert [series.name for series in charts_of(runs, ["none", "none"])[0].series] == ["run (1)", "run (2)"]


def test_a_page_of_ours_is_replaced_in_one_step(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the last step fails, the earlier page stays, and nothing half-written beside it."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert precad("report", run).exit_code == 0
    first = (run / "report.html").read_text()
    changed(run / "summary.json", ended="ended early")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        done = precad("report", run)
    assert done.exit_code == 2
    assert "No space left on device" in done.stderr
    assert (run / "report.html").read_text() == first
    assert not [path for path in run.iterdir() if path.name.startswith(".")]
    assert precad("report", run).exit_code == 0
    assert "ended early" in (run / "report.html").read_text()
