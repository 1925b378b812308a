"""Run an experiment in small, in this process, and read what it wrote."""

from __future__ import annotations

import csv
import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from precad.deploy.cli.main import app
from precad.lab.papers import runner
from tests.harness.command_line import CliRunner


def experiment(*arguments: object) -> Result:
    """The command in this process."""
    words = [str(argument) for argument in ("experiment", *arguments)]
    return CliRunner().invoke(app, words, terminal_width=200, prog_name="precad")


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "curves.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def small(command: str, folder: Path, *arguments: object) -> dict[str, Any]:
    """Its report."""
    done = experiment(command, "--dataset", "digits", "--seeds", 1, *arguments, "--output", folder, "--json")
    assert done.exit_code == 0, done.output
    report: dict[str, Any] = json.loads(done.stdout)
    assert json.loads((folder / "report.json").read_text()) == report
    assert (folder / "report.txt").read_text().strip() == report["paragraph"]
    assert report["paragraph"] in html.unescape((folder / "report.html").read_text())
    assert "not the paper's 5000" in report["paragraph"]
    return report


def marks_of(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float]]:
    """Return what pictures mark as printed in a paper from now on; they are drawn all the same."""
    marked: list[tuple[float, float]] = []
    mark = runner.mark_paper

    def seen(axes: Any, points: Sequence[tuple[float, float]], **looks: Any) -> None:
        marked.extend(points)
        mark(axes, points, **looks)

    monkeypatch.setattr(runner, "mark_paper", seen)
    return marked
