"""Bad records of a client's own: one line with file and row, exit code 2, nothing written, nothing of a record."""

from __future__ import annotations

import datetime
import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from precad.clients import own_code
from precad.deploy.cli import main as cli
from precad.deploy.errors import INVALID_INPUT
from tests.clients.records.own import bad_files
from tests.clients.records.own.bad_files import SECRET, SECRET_NUMBER, Bad
from tests.harness.command_line import CliRunner

CASES = {
    **{f"csv: {name}": bad for name, bad in bad_files.OF_CSV.items()},
    **{f"npz: {name}": bad for name, bad in bad_files.OF_NPZ.items()},
    **{f"folder: {name}": bad for name, bad in bad_files.OF_FOLDERS.items()},
    **{f"module: {name}": bad for name, bad in bad_files.OF_MODULES.items()},
    **{f"configuration: {name}": bad for name, bad in bad_files.OF_SECTIONS.items()},
}
SOURCES = {"npz": "npz:scans.npz", "folder": "folder:scans"}


@pytest.fixture(autouse=True)
def _own_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a case's modules are looked for is forgotten after it."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(own_code, "_BESIDE", [])


def configuration(bad: Bad, records: str) -> dict[str, Any]:
    task = {
        "clients": ["a", "b", "c"],
        "rounds": 1,
        "client_rate": 1.0,
        "record_rate": 0.5,
        "record_clip": 1.0,
        "client_clip": 16.0,
        "noise_multiplier": 4.0,
        "learning_rate": 1.0,
        "model": "tests.clients.records.own.any_shape:AnyShape",
        "gate": "native",
        **bad.task,
    }
    label = {"label": "diagnosis"} if records.startswith(("csv:", "parquet:")) else {}
    client = {"records": records, **label, **bad.client}
    return {"task": task, "client": {name: value for name, value in client.items() if value is not None}}


def refused(bad: Bad, records: str, folder: Path) -> str:
    """Write the case, and run it as a user does. Return what is said beside what is being started."""
    bad.write(folder)
    (folder / "task.toml").write_text(tomli_w.dumps(configuration(bad, records)))
    before = sorted(folder.rglob("*"))
    result = CliRunner().invoke(cli.app, ["run", str(folder / "task.toml"), "--output", str(folder / "run")])
    assert result.exit_code == INVALID_INPUT, result.output
    assert [path for path in sorted(folder.rglob("*")) if "__pycache__" not in str(path)] == before
    return "".join(line for line in result.output.splitlines(keepends=True) if not line.startswith("starting a dealer"))


@pytest.mark.parametrize("name", CASES)
def test_bad_records_are_refused_in_one_line_that_says_nothing_of_them(name: str, tmp_path: Path) -> None:
    bad = CASES[name]
    records = SOURCES.get(name.partition(":")[0], bad.records)
    said = refused(bad, records, tmp_path)
    assert re.search(bad.message, said), said
    assert said.startswith("precad: ")
    assert said.count("\n") == 1
    assert SECRET not in said.replace(str(tmp_path), "")
    assert SECRET_NUMBER not in said


def test_there_are_fifty_kinds_at_least() -> None:
    assert len(CASES) >= 50


DAMAGED = {"bytes": SECRET.encode(), "path": None}
CLASSES = {"names": ["no", "yes"], "_type": "ClassLabel"}
NUMBER, VECTOR = (
    {"dtype": "float64", "_type": "Value"},
    {"feature": {"dtype": "float64", "_type": "Value"}, "_type": "List"},
)
ON_DISK: dict[str, tuple[list[Any], dict[str, Any], list[Any], dict[str, Any], str]] = {
    "no class": (
        [1.0, 2.0],
        NUMBER,
        [0, -1],
        CLASSES,
        r"d, row 1 \(from 0\), column 'label': expected a class in \[0, 65535",
    ),
    "no label": ([1.0, 2.0], NUMBER, [0, None], CLASSES, "row 1 .* expected a label, found an empty cell"),
    "no number": ([1.0, None], NUMBER, [0, 1], CLASSES, "row 1 .*, column 'x': expected a number, found an empty cell"),
    "a text": (
        ["1", SECRET],
        {"dtype": "string", "_type": "Value"},
        [0, 1],
        CLASSES,
        "row 1 .* found something that is no",
    ),
    "ragged": (
        [[1.0], [1.0, 2.0]],
        VECTOR,
        [0, 1],
        CLASSES,
        r"row 1 .* expected an input of shape \(1,\), as before it",
    ),
    "a hole": (
        [[1.0, None], [1.0, 2.0]],
        VECTOR,
        [0, 1],
        CLASSES,
        "row 0 .* expected finite numbers that float32 holds",
    ),
    "no vector": ([[1.0], None], VECTOR, [0, 1], CLASSES, "row 1 .* expected numbers of one shape"),
    "a damaged image": (
        [DAMAGED, DAMAGED],
        {"_type": "Image"},
        [0, 1],
        CLASSES,
        "row 0 .*, column 'x': expected an input",
    ),
    "a number and a list": (
        [1.0, 2.0],
        NUMBER,
        [[0.5], [1.0]],
        VECTOR,
        "row 0 .* expected a class as its label, found a l",
    ),
}


@pytest.mark.skipif(importlib.util.find_spec("datasets") is None, reason="needs the library datasets")
@pytest.mark.parametrize("name", ON_DISK)
def test_bad_data_sets_on_disk_are_refused_alike(name: str, tmp_path: Path) -> None:
    import datasets

    datasets.disable_progress_bars()
    inputs, of_inputs, labels, of_labels, message = ON_DISK[name]
    features = datasets.Features.from_dict({"x": of_inputs, "label": of_labels})

    def write(folder: Path) -> None:
        datasets.Dataset.from_dict({"x": inputs, "label": labels}, features=features).save_to_disk(str(folder / "d"))

    said = refused(Bad(write, message), "datasets:d", tmp_path)
    assert re.search(message, said), said
    assert said.count("\n") == 1
    assert SECRET not in said


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="needs pyarrow, of precad[records]")
@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (None, "expected a Parquet file, found something that cannot be read as it"),
        ({"x": [1.0, None], "diagnosis": [0, 1]}, "row 2, column 'x': expected a number, found an empty cell"),
        ({"x": [1.0, float("nan")], "diagnosis": [0, 1]}, "row 2, column 'x': expected a finite number"),
        ({"x": ["1", SECRET], "diagnosis": [0, 1]}, "row 2, column 'x': expected a number"),
        ({"x": [[1.0], [2.0]], "diagnosis": [0, 1]}, "row 1, column 'x': expected a number"),
        ({"x": [{SECRET: 1.0}, {SECRET: 2.0}], "diagnosis": [0, 1]}, "row 1, column 'x': expected a number"),
        ({"x": [1.0, 2.0], "diagnosis": [0, None]}, "row 2, column 'diagnosis': expected a label, found an empty cell"),
        ({"x": [1.0, 2.0], "diagnosis": [0.0, 0.5]}, "row 2, column 'diagnosis': expected a class as its label"),
        ({"x": [b"sekret", b"b"], "diagnosis": [0, 1]}, "row 1, column 'x': expected a number"),
        (
            {"x": [datetime.date(2024, 1, 1)] * 2, "diagnosis": [0, 1]},
            "row 1, column 'x': expected a number, found .* no number; task.columns can leave a column out",
        ),
        ({"x": [1.0, 2.0], "diagnosis": [{SECRET: 1}] * 2}, "row 1, column 'diagnosis': expected a class as its label"),
        ({"x": [1.0, 2.0], "diagnosis": [2**63 - 1, 0]}, "row 1, column 'diagnosis': expected a class in"),
        (
            {"x": [1.0, 2.0, 3.0], "diagnosis": [b"a", b"\xff", b"\xfe"]},
            "row 2, column 'diagnosis': expected UTF-8 as its label, found another encoding",
        ),
        ({"x": [1.0, 2.0]}, "expected a column 'diagnosis', found none of that name"),
        ({"x": [], "diagnosis": []}, "expected at least one record, found none"),
    ],
)
def test_bad_tables_of_parquet_are_refused_alike(columns: dict[str, Any] | None, message: str, tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        if columns is None:
            (folder / "patients.parquet").write_text(SECRET)
            return
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.table(columns), folder / "patients.parquet")

    said = refused(Bad(write, message), "parquet:patients.parquet", tmp_path)
    assert re.search(message, said), said
    assert said.count("\n") == 1
    assert SECRET not in said
