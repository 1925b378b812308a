"""Try what is measured before anything starts: a fault is one line, by its field, and leaves no folder."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from precad.clients import own_code
from precad.deploy.cli import main as cli
from precad.deploy.configuration.sections import read_local
from precad.deploy.errors import INVALID_INPUT
from precad.deploy.localhost.deployment import LocalRun
from tests.harness.command_line import CliRunner

LOCAL = """
[task]
clients = ["alice", "bob"]
rounds = 1
client_rate = 1.0
record_rate = 0.5
record_clip = 1.0
client_clip = 16.0
noise_multiplier = 4.0
learning_rate = 1.0
gate = "native"
evaluation = "public"
[client]
dataset = "digits"
metrics = {of_clients}
[aggregator.b]
evaluation_records = "npz:public.npz"
evaluation_metrics = {of_public}
"""
CODE = """
def raising(outputs, labels):
    raise ValueError("sekret")

def text(outputs, labels):
    return "4711"

def worst(outputs, labels):
    return outputs.min()
"""
FAULTS = [
    ("mse2", "unknown metric 'mse2', expected one of accuracy, mse, mae, module:function"),
    ("tried_metrics:gone", "metric 'tried_metrics:gone': .* has no attribute 'gone'"),
    ("tried_metrics:raising", "metric 'raising': expected a number, found ValueError raised"),
    ("tried_metrics:text", "metric 'text': expected a number, found a str"),
    ("mse", "metric 'mse': expected a number, found ValueError raised"),
]
"""A metric, and why it is none: the last one needs one output for a class."""


@pytest.fixture(autouse=True)
def _own_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(own_code, "_BESIDE", [])
    monkeypatch.delitem(sys.modules, "tried_metrics", raising=False)
    (tmp_path / "tried_metrics.py").write_text(CODE)
    np.savez(tmp_path / "public.npz", x=np.zeros((5, 1, 8, 8), np.float32), labels=np.arange(5))


def refused(arguments: list[str], of_clients: str, of_public: str) -> str:
    """Return the one line that is said beside what is being started."""
    Path("local.toml").write_text(LOCAL.format(of_clients=f'["{of_clients}"]', of_public=f'["{of_public}"]'))
    result = CliRunner().invoke(cli.app, [arguments[0], "local.toml", *arguments[1:]])
    assert result.exit_code == INVALID_INPUT, result.output
    assert not Path("out").exists()
    (line,) = (line for line in result.output.splitlines() if not line.startswith("starting a dealer"))
    assert "sekret" not in line
    assert "4711" not in line
    return line


@pytest.mark.parametrize(("metric", "why"), FAULTS)
@pytest.mark.parametrize("command", [["check"], ["run", "--output", "out"]], ids=["check", "run"])
def test_metrics_of_clients_and_of_operators_are_refused(command: list[str], metric: str, why: str) -> None:
    of_clients = refused(command, metric, "accuracy")
    of_public = refused(command, "accuracy", metric)
    for field, line in (("client.metrics", of_clients), ("aggregator.b.evaluation_metrics", of_public)):
        assert re.match(f"precad: {field}: {why}", line), line


@pytest.mark.parametrize(("metric", "why"), FAULTS)
def test_a_simulation_refuses_them_without_a_folder(metric: str, why: str) -> None:
    line = refused(["simulate", "--output", "out"], metric, "accuracy")
    assert re.match(f"precad: {why}", line), line


def test_what_can_be_measured_is_said(tmp_path: Path) -> None:
    (tmp_path / "local.toml").write_text(
        LOCAL.format(of_clients='["tried_metrics:worst"]', of_public='["tried_metrics:worst"]')
    )
    result = CliRunner().invoke(cli.app, ["check", "local.toml"])
    assert result.exit_code == 0, result.output
    assert "5 public records of shape (1, 8, 8): accuracy, worst" in result.output


@pytest.mark.parametrize("n_classes", [1, 2])
def test_a_run_says_that_all_records_are_of_one_class(tmp_path: Path, n_classes: int) -> None:
    """Its accuracy is 1 from the first round on, and means nothing. No label is told."""
    images = np.random.default_rng(0).random((60, 1, 8, 8), dtype=np.float32)
    np.savez(tmp_path / "own.npz", x=images, labels=7 - np.arange(60) % n_classes)
    text = LOCAL.partition("evaluation =")[0] + '[client]\nrecords = "npz:own.npz"\n'
    (tmp_path / "local.toml").write_text(text)
    said = io.StringIO()
    LocalRun(read_local(tmp_path / "local.toml"), tmp_path / "out", Console(file=said, width=200))
    assert bool(re.search(r"warning: all \d+ records are of one class: ", said.getvalue())) is (n_classes == 1)
