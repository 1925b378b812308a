"""Labels of several columns: a row of numbers for every record, alike from every kind of table, or refused by name."""

from __future__ import annotations

import csv
import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from pydantic import ValidationError

from precad.clients.config import ClientConfig
from precad.clients.errors import OwnRecordsError, TargetError
from precad.clients.models.losses import LOSSES
from precad.clients.records import Records
from precad.clients.records.own import OwnRecords, load

FEATURES = np.array([[0.5, -1.0], [2.0, 3.5], [4.0, 0.25]], dtype=np.float32)
TARGETS = {"fever": [1.0, 0.0, 1.0], "cough": [0.0, 0.0, 1.0], "dose": [0.125, -7.5, 3.0]}


def write_csv(path: Path) -> str:
    with path.with_suffix(".csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["dose", "x", "fever", "y", "cough"])
        for i, (x, y) in enumerate(FEATURES.tolist()):
            rows.writerow([TARGETS["dose"][i], x, int(TARGETS["fever"][i]), y, int(TARGETS["cough"][i])])
    return f"csv:{path.name}.csv"


def write_parquet(path: Path) -> str:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {
        "x": FEATURES[:, 0],
        "fever": [1, 0, 1],
        "y": FEATURES[:, 1],
        **{k: TARGETS[k] for k in ("cough", "dose")},
    }
    parquet.write_table(arrow.table(columns), path.with_suffix(".parquet"))
    return f"parquet:{path.name}.parquet"


def write_npz(path: Path) -> str:
    np.savez(path.with_suffix(".npz"), x=FEATURES, **{name: np.array(values) for name, values in TARGETS.items()})
    return f"npz:{path.name}.npz"


def read(source: str, folder: Path, label: object, numbers: bool | None = True) -> Records:
    return load(OwnRecords(source=source, label=label, numbers=numbers, folders=(folder,)))  # type: ignore[arg-type]


@pytest.mark.parametrize("write", [write_csv, write_parquet, write_npz])
def test_every_table_gives_the_same_rows_of_numbers(write: object, tmp_path: Path) -> None:
    """In the order of the list, whatever the order in the file; the other columns are features."""
    if write is write_parquet and importlib.util.find_spec("pyarrow") is None:
        pytest.skip("needs pyarrow")
    names = ["dose", "fever", "cough"]
    found = read(write(tmp_path / "table"), tmp_path, names)  # type: ignore[operator]

    assert_array_equal(found.features, FEATURES)
    assert found.labels.dtype == np.float32
    assert_array_equal(found.labels, np.array([TARGETS[name] for name in names], dtype=np.float32).T)


def test_rows_are_what_the_losses_on_numbers_take(tmp_path: Path) -> None:
    """Against PyTorch on the same numbers."""
    found = read(write_csv(tmp_path / "table"), tmp_path, ["fever", "cough"])
    outputs, targets = torch.tensor([[0.3, -2.0]] * 3), torch.tensor(found.labels)

    LOSSES["multi-label"].require_targets(found.labels, (2,), "labels")
    each = LOSSES["mse"].of_outputs(outputs, targets)  # type: ignore[attr-defined]
    assert_array_equal(each.numpy(), ((outputs - targets) ** 2).mean(dim=1).numpy())
    with pytest.raises(TargetError, match="expected"):
        LOSSES["multi-label"].require_targets(found.labels, (3,), "labels")


def test_a_list_of_one_is_a_row_of_one(tmp_path: Path) -> None:
    source = write_csv(tmp_path / "table")
    narrow = source.replace("table", "narrow")
    lines = [line.split(",") for line in (tmp_path / "table.csv").read_text().splitlines()]
    (tmp_path / "narrow.csv").write_text("\n".join(",".join(line[:2]) for line in lines))

    assert read(narrow, tmp_path, ["dose"]).labels.shape == (3, 1)
    assert read(narrow, tmp_path, "dose").labels.shape == (3,)


def test_a_loss_of_the_users_own_takes_rows_as_numbers(tmp_path: Path) -> None:
    """Nobody knows what it reads; a list says that it is numbers."""
    assert read(write_csv(tmp_path / "table"), tmp_path, ["fever", "cough"], None).labels.dtype == np.float32


@pytest.mark.parametrize(
    ("label", "numbers", "message"),
    [
        (["fever", "cough"], False, r"client\.label: expected one column, as the loss reads classes, found 2 columns"),
        (["fever", "fever"], True, r"client\.label: expected different names, found one twice"),
        (["fever", "sneeze"], True, r"expected a column 'sneeze', found none of that name among 5"),
    ],
)
def test_what_is_refused_by_name(label: list[str], numbers: bool, message: str, tmp_path: Path) -> None:
    with pytest.raises(OwnRecordsError, match=message):
        read(write_csv(tmp_path / "table"), tmp_path, label, numbers)


def test_a_cell_that_is_no_number_is_named_by_its_column_and_row(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x,a,b\n1,0,1\n2,1,many\n")
    with pytest.raises(OwnRecordsError, match=r"row 3, column 'b': expected a number as its label") as raised:
        read("csv:t.csv", tmp_path, ["a", "b"])
    assert "many" not in str(raised.value)


def test_npz_wants_one_array_of_features_beside_the_labels(tmp_path: Path) -> None:
    source = write_npz(tmp_path / "table")
    with pytest.raises(
        OwnRecordsError, match=r"expected 3 arrays, among them 'fever', 'cough' \(client\.label\), found '.*', '"
    ):
        read(source, tmp_path, ["fever", "cough"])


def test_an_empty_list_is_no_label() -> None:
    with pytest.raises(ValidationError, match="label"):
        ClientConfig.model_validate({"certificates": "c", "authority": "a", "records": "csv:x.csv", "label": []})
