"""`precad run` on a table and a model of the user's own, over real processes.

Its twin without processes is tests/deploy/configuration/test_own_sources.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.harness.hospital import hospital

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-P", "-m", "precad.deploy.cli.main")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def run_of(folder: Path) -> dict[str, Any]:
    """Return the summary of `precad run` in a folder with a task."""
    done = subprocess.run(
        [*COMMAND, "run", "task.toml", "--output", "out", "--json"],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


@pytest.mark.slow
def test_operators_measure_on_public_records_what_the_model_is(tmp_path: Path) -> None:
    """The figures are those that this process finds for the run's model, by other code."""
    hospital(tmp_path, "my_model", rounds=3)
    rows = [line.split(",") for line in (tmp_path / "patients.csv").read_text().splitlines()]
    (tmp_path / "public.csv").write_text("\n".join(",".join(row) for row in rows[:51]) + "\n")
    task = (tmp_path / "task.toml").read_text()
    measured = '[aggregator.b]\nevaluation_records = "csv:public.csv"\nevaluation_label = "diagnosis"\n'
    (tmp_path / "task.toml").write_text(task.replace("[task]", '[task]\nevaluation = "public"') + measured)
    summary = run_of(tmp_path)
    found = summary["public_quality"]["b"]
    assert set(summary["public_quality"]) == {"b"}
    assert (found["round"], found["is_of_final_model"]) == (2, True)
    weights = np.split(np.load(tmp_path / "out" / "b" / "model.npy"), np.cumsum([64, 16, 32]))
    inner, bias, outer, last = (
        part.reshape(-1, *shape) for part, shape in zip(weights, ((4,), (), (16,), ()), strict=True)
    )
    features = [[(float(a) - 50) / 20, (float(b) - 135) / 20, sex == "f", sex == "m"] for a, b, sex, _ in rows[1:51]]
    logits = np.tanh(np.array(features, dtype=float) @ inner.T + bias) @ outer.T + last
    is_well = [row[3] == "well" for row in rows[1:51]]
    assert found["figures"] == {"accuracy": pytest.approx(np.mean(logits.argmax(axis=1) == is_well))}


@pytest.mark.slow
def test_a_run_whose_clients_all_refuse_ends_and_says_why(tmp_path: Path) -> None:
    """Nobody starts them again: servers that waited for them would wait for minutes."""
    hospital(tmp_path, "my_model")
    (tmp_path / "my_model.py").write_text(
        "from torch import nn\nclass net(nn.Linear):\n    def __init__(self):\n        super().__init__(4, 2)\n"
        "    def forward(self, x):\n        return super().forward(x).detach()\n"
    )
    done = subprocess.run(
        [*COMMAND, "run", "task.toml", "--output", "out"],
        cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert (
        "no client is left: a ended with code 2: precad: the model does not fit records of shape (4,): it has no"
        in done.stderr
    )


def test_what_a_users_module_prints_spoils_no_json(tmp_path: Path) -> None:
    """Standard output has one object; prints go where people read."""
    hospital(tmp_path, "my_model")
    module = tmp_path / "my_model.py"
    module.write_text(f"print('loading')\n{module.read_text()}")
    done = subprocess.run(
        [*COMMAND, "check", "task.toml", "--json"],
        cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["task"] == "patients"
    assert "loading" in done.stderr


@pytest.mark.slow
def test_a_local_run_in_a_folder_that_has_our_names(tmp_path: Path) -> None:
    """Four clients train on parts of one CSV file. Folders `clients`, `mpc` and so on beside it are never imported."""
    hospital(tmp_path, "my_model", rounds=4)
    summary = run_of(tmp_path)
    assert (summary["rounds"], summary["accepted"], summary["rejected"], summary["missing"]) == (4, 16, 0, 0)
    assert summary["accuracy"] > 0.8
    logs = "".join(log.read_text() for log in sorted((tmp_path / "out" / "logs").glob("*.log")))
    assert "client.finished" in logs
    rows = (tmp_path / "patients.csv").read_text().splitlines()[1:]
    assert [row for row in rows if row in logs] == []


NAN_LOSS = """
import torch
from torch import nn
from torch.nn import functional

def net():
    return nn.Linear(4, 2)

def always(model, record):
    return functional.cross_entropy(model(record[0]), record[1]) * torch.tensor(0.0) / torch.tensor(0.0)

class Zero(nn.Linear):
    def __init__(self):
        super().__init__(4, 2)
        nn.init.zeros_(self.weight), nn.init.zeros_(self.bias)

def later(model, record):  # NaN as soon as a round has moved the model
    room = 1e-6 - model.weight.square().sum()
    return functional.cross_entropy(model(record[0]), record[1]) + 0.0 * torch.sqrt(room)
"""


def ended_run(folder: Path, module: str, model: str, loss: str) -> subprocess.CompletedProcess[str]:
    """Run a task of three rounds with these functions of `NAN_LOSS`."""
    hospital(folder, module, rounds=3)
    (folder / f"{module}.py").write_text(NAN_LOSS)
    config = folder / "task.toml"
    config.write_text(config.read_text().replace(f'"{module}:net"', f'"{module}:{model}"\nloss = "{module}:{loss}"'))
    return subprocess.run(
        [*COMMAND, "run", "task.toml", "--output", "out"],
        cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_a_loss_that_is_nan_for_every_record_ends_the_run_before_a_round(tmp_path: Path) -> None:
    """Gradients that are not finite add zero: without this the run would train on noise, and end well."""
    done = ended_run(tmp_path, "nan_always", "net", "always")
    assert done.returncode == 2, done.stderr
    assert "records of a: expected a record whose loss and gradient are finite" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out" / "metrics.jsonl").exists()


@pytest.mark.slow
def test_a_loss_that_becomes_nan_is_said_at_once_and_ends_the_run_with_code_3(tmp_path: Path) -> None:
    """Clients stay: who left would tell of its records. Whoever reads the public model sees it, and says so once."""
    done = ended_run(tmp_path, "nan_later", "Zero", "later")
    assert done.returncode == 3, done.stderr
    assert done.stderr.count("further rounds spend the budget on noise") == 1
    assert "round 0: the training diverged: the model, its outputs or its loss are not finite" in done.stderr
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["rounds"], summary["missing"], summary["model_is_finite"]) == (3, 0, False)
