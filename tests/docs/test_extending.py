"""The code of docs/guides/extending.md, as it stands there: written to files and run by the command."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from precad.clients import own_code
from precad.deploy.cli.main import app
from tests.harness.command_line import CliRunner

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(?:python|toml)\n# ([\w.]+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every named block of the page, in a file of that name."""
    folder = tmp_path_factory.mktemp("newcomer")
    for name, content in BLOCK.findall((ROOT / "docs" / "guides" / "extending.md").read_text()):
        (folder / name).write_text(content)
    return folder


@pytest.fixture
def simulate(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    """The command, in the newcomer's folder; its summary."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(own_code, "_BESIDE", [])

    def summary_of(config: str) -> dict[str, Any]:
        done = CliRunner().invoke(app, ["simulate", config, "--output", f"run-{config}", "--json"])
        assert done.exit_code == 0, done.output
        summary: dict[str, Any] = json.loads(done.stdout)
        return summary

    return summary_of


def test_a_model_an_attack_and_an_algorithm_of_a_newcomer_run(simulate: Callable[[str], dict[str, Any]]) -> None:
    summary = simulate("experiment.toml")
    assert (summary["algorithm"], summary["dim"]) == ("my_algorithm:SignPrecad", 650)
    (run,) = summary["seeds"]
    assert run["rounds"] == 10
    assert run["accuracy"] > 0.3
    assert "not proved yet" in run["guarantees"][0]["sentence"]


def test_a_rule_of_a_newcomer_runs(simulate: Callable[[str], dict[str, Any]]) -> None:
    (run,) = simulate("rule.toml")["seeds"]
    assert run["accuracy"] > 0.3
    assert "'midrange' is no privacy mechanism" in run["guarantees"][1]["note"]
