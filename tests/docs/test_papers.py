"""Each figure and table of the five papers has a row, and no number of ours stands in a row."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from docs.generate.papers import FOLDER, RowError, find, papers_page, rows
from docs.generate.results import DATA
from tests.harness.command_line import CliRunner

ITEMS = {
    "precad": [
        "Figure 1", "Figure 2, left", "Figure 2, right", "Figure 3a", "Figure 3b", "Figure 4a", "Figure 4b",
        "Figure 2, on two servers", "Figure 3a, on two servers", "Figure 4a, on two servers",
        "Figure 5a", "Figure 5b", "Figure 6", "Figure 7", "Table 1", "Table 2", "Theorem 2",
    ],
    "xie": [
        "Table 1", "Table 2", "Table 3", *(f"Table {i}, accuracy" for i in range(4, 9)),
        *(f"Table {i}, epsilon" for i in range(4, 9)), "Table 4, on two servers", "Table 7, on two servers",
        "Table 9", *(f"Figure {i}" for i in range(1, 11)),
    ],
    "xie-preprint": ["Table 1", *(f"Figure {i}" for i in range(3, 12))],
    "ptr": [
        *(f"Figure {i}" for i in range(1, 6)), "Table 1, MNIST", "Table 1, MNIST, on two servers",
        "Table 1, CIFAR-10", "Table 1, EMNIST",
        "Table 2", "Table 3", "Table 4",
    ],
    "naseri": ["Algorithm 1", "Backdoor sentences"],
}  # fmt: skip
"""Captions of the papers; our copy of the preprint begins with its appendix."""


def declared(folder: Path = FOLDER) -> list[dict[str, Any]]:
    """Return the rows as they are written."""
    found: list[dict[str, Any]] = tomllib.loads((folder / "rows.toml").read_text())["row"]
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a copy of the rows and of all result files."""
    shutil.copytree(DATA, tmp_path / "data")
    return Path(shutil.copytree(FOLDER, tmp_path / "papers"))


def write(folder: Path, row: str, **changed: Any) -> None:
    """Change the fields of one row."""
    every = declared(folder)
    (one,) = [raw for raw in every if raw["id"] == row]
    one |= changed
    (folder / "rows.toml").write_text(tomli_w.dumps({"row": every}))


def test_every_figure_and_table_has_one_row() -> None:
    found: dict[str, list[str]] = {}
    for row in declared():
        found.setdefault(row["paper"], []).append(row["item"])
    assert {paper: sorted(items) for paper, items in found.items()} == {k: sorted(v) for k, v in ITEMS.items()}


def test_every_record_is_used_and_says_where_it_comes_from() -> None:
    used = {name for row in declared() for name in row.get("records", ())}
    assert used == {path.stem for path in FOLDER.glob("*.json")}
    for name in used:
        record = json.loads((FOLDER / f"{name}.json").read_text())
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", record["date"])
        assert record["machine"]["cpu"]
        assert record["ran"].startswith(record["command"])
        assert "/" not in record["ran"], "a path of the machine"


def test_every_record_names_a_commit_of_this_history() -> None:
    """Whoever reads a record can look at the code that made it."""

    def git(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", *words], cwd=FOLDER, capture_output=True, text=True, check=False)

    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("no history of Git's here")
    versions = {json.loads(path.read_text())["version"].removesuffix("-dirty") for path in FOLDER.glob("*.json")}
    lost = {one for one in versions if git("merge-base", "--is-ancestor", one, "HEAD").returncode}
    if lost == versions:
        pytest.skip("another history than the one in which results were made")
    assert not lost


def test_what_could_have_been_run_is_counted_apart() -> None:
    """Pictures, notation and words are not among what nobody ran."""
    without = [row for row in declared() if row.get("no_result")]
    assert all(row["reason"].startswith("It reports no result.") and row["status"] == "not run" for row in without)
    n_not_run = sum(row["status"] == "not run" for row in declared())
    assert f"| not run | {n_not_run}, {len(without)} of them without a result in the paper |" in papers_page()
    assert n_not_run > len(without) > 5


def test_every_command_is_one_that_exists() -> None:
    from precad.deploy.cli.main import app

    commands = {row["command"] for row in declared() if "command" in row}
    assert len(commands) > 10
    for command in sorted(commands):
        words = command.split()[1:]
        given = {word for word in words if word.startswith("--")}
        shown = CliRunner().invoke(app, [*words[:2], "--help"], terminal_width=200).stdout
        assert given <= set(re.findall(r"--[a-z][\w-]*", shown)), command


def test_every_command_that_trains_is_accepted_up_to_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values, too: nothing but the missing files of a data set stops one."""
    from precad.deploy.cli.main import app

    pytest.importorskip("matplotlib")
    monkeypatch.setenv("PRECAD_DATA", str(tmp_path))
    every = {row["command"] for row in declared() if "command" in row}
    computed = {"precad-noise", "precad-theorem-1", "precad-theorem-2", "ptr-accounting", "ptr-figures", "xie-tables"}
    trained = {command for command in every if command.split()[2] not in computed}
    assert len(trained) > 20
    for command in sorted(trained):
        done = CliRunner().invoke(app, [*command.split()[1:], "--output", str(tmp_path / "run")])
        said = f"{command}: {done.output}"
        assert done.exit_code == 2, said
        assert "is not there: set PRECAD_DATA to a folder" in done.output, said


def test_a_number_is_the_result_files(folder: Path) -> None:
    """A changed result changes the row: none of ours is written anywhere else."""
    path = folder / "precad-table-1.json"
    record = json.loads(path.read_text())
    before = record["report"]["rows"][0]["measured"]
    record["report"]["rows"][0]["measured"] = 1.0321
    path.write_text(json.dumps(record))
    (row,) = [row for row in rows(folder) if row.raw["id"] == "precad-table-1"]
    assert row.numbers[0].ours[0] == 1.0321
    assert f"{before:.4g}" in papers_page()
    record["report"]["rows"][0]["measured"] = 1.2
    path.write_text(json.dumps(record))
    with pytest.raises(RowError, match="precad-table-1: expected each number within its spread, found central DP"):
        rows(folder)


@pytest.mark.parametrize(
    ("row", "changed", "fault"),
    [
        ("precad-table-1", {"reason": "We measured 1.4 here."}, "found '1.4' in 'reason'"),
        ("precad-table-1", {"reason": "Off by 3 % at most."}, "found '3 %' in 'reason'"),
        ("precad-table-1", {"reason": "We saw 151 rounds and 17 clients."}, "found '151' in 'reason'"),
        ("precad-figure-2-right", {"shows": "accuracy 0.999 in all"}, "found '0.999' in 'shows'"),
        ("precad-figure-2-right", {"item": "Figure 2, right, of 42 trainings"}, "found '42' in 'item'"),
        ("precad-figure-2-right", {"rounds": 99}, "the rounds of precad-figure-2-right.json, found 99"),
        ("ptr-table-1-mnist", {"rounds": 99}, "the rounds of ptr-table-1-mnist.json, found 99"),
        ("precad-figure-2-right", {"where": "two servers"}, "expected the place of its result, simulation, found 'two"),
        ("precad-figure-2-two-servers", {"where": "simulation"}, "expected the place of its result, two servers"),
        ("precad-figure-3a", {"where": "two servers"}, "expected the place of its result, simulation, found 'two"),
        ("precad-figure-2-right", {"seeds": "0 to 9"}, "expected seeds such as '0 to 9' of a table alone"),
        ("xie-table-5", {"seeds": "7 of the best"}, "expected seeds such as '0 to 9' of a table alone"),
        ("precad-table-1", {"records": ["precad-table-1"]}, "expected two records of other seeds"),
        ("precad-table-1", {"where": "arithmetic"}, "expected the place of its result, simulation"),
        ("precad-table-1", {"records": ["precad-table-1", "precad-table-1"]}, "expected two records of other seeds"),
        ("xie-table-4-epsilon", {"where": "simulation"}, "expected the place of its result, arithmetic"),
        ("precad-table-1", {"records": ["precad-table-1", "xie-tables"]}, "expected 'precad experiment precad-noise'"),
        ("precad-table-1", {"status": "trend", "reason": ""}, "expected a reason"),
        ("precad-table-1", {"status": "not run"}, "expected numbers exactly if it was run"),
        ("precad-table-1", {"status": "nearly"}, "expected a status"),
        ("ptr-table-2", {"command": ""}, "ptr-table-2: expected a command, as it reports a result, found none"),
        ("precad-table-1", {"no_result": True}, "expected 'not run' of what reports no result, found 'reproduced'"),
        ("precad-theorem-2", {"status": "reproduced"}, "expected a number of the paper"),
        ("precad-figure-4a", {"status": "reproduced"}, "found local DP, C = 30: backdoor outside"),
        ("xie-table-5", {"status": "reproduced"}, "expected two records of other seeds"),
        ("xie-figure-9", {"status": "reproduced"}, "found InsDP-FedSGD outside"),
        ("xie-table-8-epsilon", {"number": [{"name": "x", "at": "rows/sigma=99/pld"}]}, "found none at 'sigma"),
    ],
)  # fmt: skip
def test_a_row_that_its_results_do_not_bear_out_is_refused(
    folder: Path, row: str, changed: dict[str, Any], fault: str
) -> None:
    write(folder, row, **changed)
    with pytest.raises(RowError, match=re.escape(fault)):
        rows(folder)


@pytest.mark.parametrize("changed", [{}, {"seeds": 0}, {"first_seed": 1000}], ids=["equal", "none", "of the second"])
def test_seeds_of_another_record_do_not_count_twice(folder: Path, changed: dict[str, int]) -> None:
    """A third record with seeds of an earlier one, or without any, is no reproduction."""
    record = json.loads((folder / "precad-table-1.json").read_text())
    (folder / "copy.json").write_text(json.dumps(record | changed))
    write(folder, "precad-table-1", records=["precad-table-1", "precad-table-1-again", "copy"])
    fault = "expected two records of other seeds" if changed != {"seeds": 0} else "expected the place of its result"
    with pytest.raises(RowError, match=fault):
        rows(folder)


def test_a_row_holds_no_field_for_a_number_of_ours() -> None:
    for row in declared():
        assert set(row) <= {
            "id", "paper", "item", "shows", "status", "where", "rounds", "seeds", "command", "records", "table",
            "reason", "number", "no_result",
        }  # fmt: skip
        for number in row.get("number", ()):
            assert set(number) <= {"name", "paper", "above", "below", "at", "within", "errors"}


def test_no_two_rows_have_numbers_under_one_name() -> None:
    """A figure of the preprint is told from the one of that number in CCS '23."""
    lines = papers_page().partition("## Numbers")[2].partition("## Records")[0].splitlines()
    items = [line.split(" | ")[0] for line in lines if line.startswith("| ")][2:]
    runs = [name for name, _ in itertools.groupby(items)]
    assert len(runs) == len(set(runs)) > 30


def test_a_value_is_found_by_key_index_and_condition() -> None:
    report = {"rows": [{"a": 1.0, "b": "x=y", "c": 2}, {"a": 1.0, "b": "z", "c": 3}]}
    assert find(report, "rows/a=1.0&b=x=y/c") == 2
    assert find(report, "rows/1/c") == 3
    with pytest.raises(RowError, match=r"expected a result at 'rows/a=1\.0/c', found none"):
        find(report, "rows/a=1.0/c")
