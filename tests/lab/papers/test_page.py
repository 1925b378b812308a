"""The page of an experiment: everything is inside, nothing of what it shows is markup.

Failure means a page that loads something, that lacks a table or a picture, or whose text can become code.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import html
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from precad.deploy.shown.tables import titled
from precad.lab.papers import page, runner
from precad.lab.papers.precad import theorem_1
from tests.lab.papers.in_small import experiment, marks_of

HOSTILE = "<script>alert(1)</script>&\"'"
REPORT: dict[str, Any] = {
    "experiment": "small",
    "paragraph": f"What came out: {HOSTILE}.",
    "output": "/somewhere/of/mine",
    "dataset": HOSTILE,
    "numbers": [10, None, 2.5],
    "none": [],
    "python": "/somewhere/of/mine/bin/python",
    "cases": [{"accuracy": 0.5}],
    "deployed": True,
}


def print_report(console: Console, report: dict[str, Any]) -> None:
    """Print as an experiment does: with marks of rich in a cell."""
    table = titled("Figure 0", "method", "accuracy", words=("method",), caption="of one training")
    table.add_row(HOSTILE, "0.7512")
    table.add_row("[bold]PRECAD[/bold]", "-")
    runner.print_result(console, table, report)


@pytest.fixture
def made(tmp_path: Path) -> str:
    pytest.importorskip("matplotlib")
    runner.save_figure(lambda axes: axes[0].plot([0, 1], [0, 1], label="a"), tmp_path / "figure-0.png", panels=1)
    page.write(tmp_path, "small", REPORT, print_report)
    return (tmp_path / "report.html").read_text()


def test_a_page_has_what_was_printed_and_the_pictures(made: str, tmp_path: Path) -> None:
    seen = html.unescape(made)
    for text in (REPORT["paragraph"], "Figure 0", "0.7512", '<th scope="row">PRECAD</th>', "of one training"):
        assert text in seen
    assert "two real servers" in seen
    assert "10, -, 2.5" in seen
    assert '<th scope="row">none</th><td>-</td>' in seen
    assert '<th scope="row">python</th><td>python</td>' in seen
    with (tmp_path / "table.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [["method", "accuracy"], [HOSTILE, "0.7512"], ["PRECAD", "-"]]
    (picture,) = re.findall(r'<img src="data:image/png;base64,([^"]+)"', made)
    assert base64.b64decode(picture) == (tmp_path / "figure-0.png").read_bytes()


COMPUTED = {"precad-theorem-1": 30, "precad-theorem-2": 24, "xie-tables": 40, "ptr-figures": 100}
"""Commands that train nothing, with the least number of cells that their pages have."""
LONG = ("xie-tables", "ptr-figures")
"""Those of them that compute for seconds. Their reports have quick tests of their own."""
PICTURES = {
    "precad-theorem-1": ["figure-2-left"],
    "precad-theorem-2": ["theorem-2"],
    "xie-tables": ["xie-tables"],
    "ptr-figures": [f"figure-{i}" for i in range(1, 6)],
}


@pytest.mark.parametrize("command", [pytest.param(c, marks=[pytest.mark.slow] * (c in LONG)) for c in COMPUTED])
def test_what_is_computed_has_a_page_with_its_curves(command: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    folder = tmp_path / "new" / "folder"
    done = experiment(command, "--output", folder, "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert json.loads((folder / "report.json").read_text()) == report
    made = html.unescape((folder / "report.html").read_text())
    assert page.COMPUTED in made
    assert "curves.csv" not in made
    assert made.count("<td>") > COMPUTED[command]
    assert not re.search(r"https?://|<script", made)
    assert str(tmp_path) not in made
    pictures = re.findall(r'<img src="data:image/png;base64,([^"]+)"', made)
    files = [folder / f"{name}.png" for name in PICTURES[command]]
    assert [base64.b64decode(picture) for picture in pictures] == [file.read_bytes() for file in files]


def test_without_a_folder_the_page_is_below_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of an experiment that trains; the command says where."""
    monkeypatch.chdir(tmp_path)
    done = experiment("precad-theorem-1")
    (page_file,) = tmp_path.glob("runs/precad-theorem-1-*/report.html")
    assert f"written to {page_file.parent.relative_to(tmp_path)}" in done.stdout


def test_without_matplotlib_there_are_numbers_and_people_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    done = experiment("precad-theorem-1", "--output", tmp_path / "run")
    assert done.exit_code == 0, done.output
    assert "no pictures: matplotlib: expected for the figure, found none" in done.stderr
    assert "<img" not in (tmp_path / "run" / "report.html").read_text()


def test_what_the_paper_prints_is_marked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """At the last epoch, as PRECAD's are. Xie's are in `test_xie_tables`, whose table takes seconds."""
    pytest.importorskip("matplotlib")
    marked = marks_of(monkeypatch)
    theorem_1.save(theorem_1.theorem_1(), tmp_path)
    assert marked == [(25, 6.8), (25, 3.5), (25, 2.4)]


def test_a_file_where_a_folder_was_expected_is_refused(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("mine")
    done = experiment("precad-theorem-2", "--output", taken)
    assert done.exit_code == 2, done.output
    assert "--output" in done.output
    assert taken.read_text() == "mine"


def test_a_page_loads_nothing_runs_nothing_and_names_no_folder(made: str) -> None:
    assert "<script" not in made
    assert not re.search(r"https?://|url\(|@import|/somewhere", made)
    assert set(re.findall(r'(?:src|href)="([^"]{0,15})', made)) == {"data:image/png;"}
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', made)
    (style,) = re.findall(r"<style>(.*?)</style>", made, flags=re.DOTALL)
    found = re.findall(r"sha256-([A-Za-z0-9+/=]+)", html.unescape(policy))
    assert [base64.b64decode(one) for one in found] == [hashlib.sha256(style.encode()).digest()]
    assert policy.startswith("default-src &#39;none&#39;; img-src data:; style-src ")
