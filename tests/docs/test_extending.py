"""The code of docs/guides/extending.md, as it stands there: written to files and run by the command."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(?:python|toml)\n# ([\w.]+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every named block of the page, in a file of that name."""
    folder = tmp_path_factory.mktemp("newcomer")
    for name, content in BLOCK.findall((ROOT / "docs" / "guides" / "extending.md").read_text()):
        (folder / name).write_text(content)
    return folder


def simulate(folder: Path, config: str) -> dict[str, Any]:
    """The command, in the newcomer's folder; its summary."""
    done = subprocess.run(
        [
            sys.executable,
            "-P",
            "-m",
            "precad.deploy.cli.main",
            "simulate",
            config,
            "--output",
            f"run-{config}",
            "--json",
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def test_a_model_an_attack_and_an_algorithm_of_a_newcomer_run(folder: Path) -> None:
    summary = simulate(folder, "experiment.toml")
    assert (summary["algorithm"], summary["dim"]) == ("my_algorithm:SignPrecad", 650)
    (run,) = summary["seeds"]
    assert run["rounds"] == 10
    assert run["accuracy"] > 0.3
    assert "nobody has proved any" in run["guarantees"][0]["sentence"]


def test_a_rule_of_a_newcomer_runs(folder: Path) -> None:
    (run,) = simulate(folder, "rule.toml")["seeds"]
    assert run["accuracy"] > 0.3
    assert "'midrange' is no privacy mechanism" in run["guarantees"][1]["note"]
