"""Values of a column: which cells are numbers, whose records they are, and nothing of them in a message."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precad.clients.config import ClientConfig
from precad.clients.errors import ArgumentError, OwnRecordsError
from precad.clients.queries.columns import sizes, values_of

HOSTILE = {"": math.nan, "n/a": math.nan, "inf": math.inf, "-1e999": -math.inf, "1_0": math.nan, "0x10": math.nan}
"""Cells, and what they are to a query."""


def config(folder: Path, **fields: Any) -> ClientConfig:
    """Return a `[client]` section with records of its own."""
    asked = {"records": "csv:t.csv", "label": "sex", "folder": folder, "certificates": "pki", "authority": "ca.pem"}
    return ClientConfig.model_validate({**asked, **fields}, context={"base": folder})


def write(folder: Path, cells: list[str], name: str = "t.csv") -> None:
    """Write a table of two columns."""
    (folder / name).write_text("age,sex\n" + "".join(f"{cell},f\n" for cell in cells))


def test_cells_that_are_no_numbers_are_read_as_such(tmp_path: Path) -> None:
    """None of them stops the answer: whether one is there is nobody's business."""
    write(tmp_path, ["41", *HOSTILE, " 1e2 "])
    (found,) = values_of(config(tmp_path), "age", ["a", "b"], ["a"]).values()

    np.testing.assert_array_equal(found, [41.0, *HOSTILE.values(), 100.0])


def test_each_client_reads_its_own_table(tmp_path: Path) -> None:
    """And nobody else's: those are on other machines."""
    write(tmp_path, ["1", "2"], "a.csv")
    write(tmp_path, ["3"], "b.csv")
    found = values_of(config(tmp_path, records="csv:{client}.csv"), "age", ["a", "b", "c"], ["a", "b"])

    assert {name: own.tolist() for name, own in found.items()} == {"a": [1.0, 2.0], "b": [3.0]}
    assert sizes({**found, "c": np.empty(0)}) == {"a": 2, "b": 1, "c": 1}


def test_a_table_that_is_dealt_is_dealt_alike_at_every_client(tmp_path: Path) -> None:
    """Each record goes to one client, whoever reads."""
    write(tmp_path, [str(i) for i in range(50)])
    ids, own = ["c", "a", "b"], config(tmp_path, dealt=True)
    together = values_of(own, "age", ids, ids)
    alone = {name: values_of(own, "age", ids, [name])[name] for name in ids}

    assert sorted(np.concatenate(list(together.values())).tolist()) == list(range(50))
    assert all(np.array_equal(together[name], alone[name]) for name in ids)
    with pytest.raises(ArgumentError, match=r"client.partition: expected 'iid' of a table in a query, found 'shards'"):
        values_of(config(tmp_path, dealt=True, partition="shards"), "age", ids, ids)


def test_a_parquet_file_has_the_same_values(tmp_path: Path) -> None:
    """Numbers, empty cells and texts; a column of 64-bit integers."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"age": [41, None, 7], "bmi": ["20.5", "x", None]}), tmp_path / "t.parquet")
    own = config(tmp_path, records="parquet:t.parquet")

    np.testing.assert_array_equal(values_of(own, "age", ["a"], ["a"])["a"], [41, math.nan, 7])
    np.testing.assert_array_equal(values_of(own, "bmi", ["a"], ["a"])["a"], [20.5, math.nan, math.nan])


def test_a_data_set_has_its_labels(tmp_path: Path) -> None:
    """Labels are those of the records that clients train on. There is no other column."""
    own = config(tmp_path, records=None, label=None, dataset="digits")
    found = values_of(own, "label", ["a", "b"], ["a", "b"])

    assert set(np.concatenate(list(found.values()))) == set(range(10))
    with pytest.raises(ArgumentError, match="expected 'label', the one column of digits, found 'age'"):
        values_of(own, "age", ["a", "b"], ["a"])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("bmi,sex\n1,f\n", "none of that name"),
        ("age,age\n1,2\n", "several of that name"),
        ("", "an empty file"),
        ("age,sex\n1,f\n2\n", "1"),
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path: Path, text: str, found: str) -> None:
    """Place, expected and found, and no cell."""
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(OwnRecordsError, match=f"t.csv.*: expected .*, found {found}"):
        values_of(config(tmp_path), "age", ["a"], ["a"])
