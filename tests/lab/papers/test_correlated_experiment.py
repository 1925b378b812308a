"""`precad experiment correlated-noise`: what sets its trainings apart, and in small, all of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from precad.deploy.cli.main import app
from precad.lab.papers import correlated_noise
from tests.harness.command_line import CliRunner


def test_trainings_differ_in_their_noise_and_its_rate_alone() -> None:
    found = [correlated_noise.Experiment().case(name).config for name in correlated_noise.NOISES]
    own = ("name", "noise_bands", "learning_rate", "target_epsilon")
    shared = [{key: value for key, value in one["task"].items() if key not in own} for one in found]
    assert shared[0] == shared[1] == shared[2]
    assert [one["task"]["noise_bands"] for one in found] == [1, 10, 10]
    assert [one["task"]["target_epsilon"] for one in found] == [2.0, 2.0, 0.9]
    assert all(one["client"] == found[0]["client"] for one in found)
    assert all(one["simulation"] == found[0]["simulation"] for one in found)


def test_the_experiment_runs_in_small_at_equal_epsilon(tmp_path: Path) -> None:
    """Two turns at most, and the epsilon that was asked for is met by both."""
    pytest.importorskip("matplotlib")

    def report(rounds: int, folder: str) -> dict[str, Any]:
        words = ["experiment", "correlated-noise", "--dataset", "digits", "--model", "mlp", "--quick", "--json"]
        words += ["--rounds", str(rounds), "--output", str(tmp_path / folder)]
        done = CliRunner().invoke(app, words, terminal_width=200, prog_name="precad")
        assert done.exit_code == 0, done.output
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    found = report(12, "run")
    assert [case["noise"] for case in found["cases"]] == [noise.words for noise in correlated_noise.NOISES.values()]
    for case, wanted in zip(found["cases"], (2.0, 2.0, 0.9), strict=True):
        assert 0.995 * wanted < case["epsilon"] <= wanted
    assert (tmp_path / "run" / "correlated-noise.png").read_bytes()[:4] == b"\x89PNG"
    assert "final models: independent" in found["paragraph"]
