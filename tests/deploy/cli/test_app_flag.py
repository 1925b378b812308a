"""`--app` of `precad check` and `precad run`: model, loss and records of the user's own, named on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from precad.deploy.configuration.sections import is_local, read_toml
from tests.harness.command_line import precad
from tests.harness.organisations import SAMPLES

TASK = """
[task]
name = "ward"
clients = ["north", "south"]
rounds = 1
client_rate = 1.0
record_rate = 0.5
record_clip = 1.0
client_clip = 8.0
noise_multiplier = 0.5
learning_rate = 1.0
gate = "native"
"""
CODE = """
import precad
from torch import nn
app = precad.App(model=lambda: nn.Linear(3, 2), records="csv:patients.csv", label="sick")
other = precad.App(model="mlp", records="csv:patients.csv", label="sick")
"""


@pytest.fixture
def hospital(tmp_path: Path) -> tuple[Path, str]:
    """A configuration beside a module and records; and the module's name, which no other test has imported."""
    module = f"ward_{tmp_path.name.replace('-', '_')}"
    rows = np.random.default_rng(1).standard_normal((60, 3))
    lines = [f"{a:.4f},{b:.4f},{c:.4f},{'yes' if a + b > c else 'no'}" for a, b, c in rows]
    (tmp_path / "patients.csv").write_text("\n".join(["a,b,c,sick", *lines]) + "\n")
    (tmp_path / f"{module}.py").write_text(CODE)
    (tmp_path / "run.toml").write_text(TASK)
    return tmp_path / "run.toml", module


def test_a_check_reads_what_a_run_of_the_app_would_train_on(hospital: tuple[Path, str]) -> None:
    config, module = hospital
    found = precad("check", config, "--app", f"{module}:app", "--json")
    assert found.exit_code == 0, found.output
    report = json.loads(found.stdout)
    assert report["model"] == f"{module}:app, 8 parameters"
    assert report["records"].split(" of ")[1].startswith("shape (3,) in 2 classes (no, yes); ")
    n_train, n_test = int(report["records"].split()[0]), int(report["records"].split("; ")[1].split()[0])
    assert (n_train, n_test) == (60, 60)  # without `test`, an app is measured on what it is trained on
    assert "a round draws" in precad("check", config, "--app", f"{module}:app").output
    assert sorted(path.name for path in config.parent.iterdir() if path.name != "__pycache__") == sorted(
        ["patients.csv", "run.toml", f"{module}.py"]
    )


@pytest.mark.parametrize(
    ("added", "app", "why"),
    [
        ('loss = "mse"\n', "app", "task.loss: expected 'cross-entropy', of the app"),
        ("", "nobody", "nobody"),
        ('[client]\nrecords = "csv:others.csv"\n', "app", "client.records: expected"),
        ("", "other", "the model does not fit records of shape (3,)"),
    ],
    ids=["another loss", "no such name", "other records", "a model of images"],
)
@pytest.mark.parametrize("command", ["check", "run"])
def test_an_app_that_does_not_fit_is_refused(
    hospital: tuple[Path, str], command: str, added: str, app: str, why: str
) -> None:
    """Exit code 2, and nothing is written."""
    config, module = hospital
    config.write_text(TASK + added)
    before = {path.name for path in config.parent.iterdir()}
    output = ["--output", config.parent / "run"] if command == "run" else []
    found = precad(command, config, "--app", f"{module}:{app}", *output)
    assert (found.exit_code, why in found.output) == (2, True), found.output
    assert {path.name for path in config.parent.iterdir()} - before <= {"__pycache__"}


def test_a_file_of_an_organisation_is_no_local_run() -> None:
    roles = [sample for sample in SAMPLES.glob("*.toml") if sample.name != "project.toml"]
    assert not any(is_local(read_toml(sample)) for sample in roles)
    assert is_local({"task": {}, "client": {"dataset": "digits"}, "aggregator": {"a": {"engine": "cpu"}}})
    assert not is_local({"task": {}, "dealer": {"certificate": "cert.pem"}})
    assert not is_local({"task": {}, "network": {}})


@pytest.mark.slow
def test_a_run_takes_its_app_from_beside_the_configuration(
    hospital: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From another folder; the processes find module and records, and the model is the app's."""
    config, module = hospital
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    found = precad("run", config, "--app", f"{module}:app", "--output", "run", "--json")
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["ended"] == "1 round done"
    assert torch.load("run/model.pt")["weight"].shape == (2, 3)
