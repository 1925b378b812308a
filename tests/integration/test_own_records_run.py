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


def run_of(folder: Path) -> dict[str, Any]:
    """Return the summary of `precad run` in a folder with a task."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "precad.deploy.cli.main", "run", "task.toml", "--output", "out", "--json"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
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
