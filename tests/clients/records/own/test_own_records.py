"""Records of a client's own, by source: the same records whatever holds them, each value as it was written."""

from __future__ import annotations

import importlib
import importlib.util
import json
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from PIL import Image, ImageOps
from torch.utils.data import TensorDataset

from precad.clients.config import PartitionName
from precad.clients.errors import DataError, ExtensionError, MissingDataError, OwnRecordsError
from precad.clients.records import Records
from precad.clients.records.own import OwnRecords, OwnSource, load, read_given
from precad.clients.records.own.found import read_as
from precad.clients.records.own.labels import Wanted, targets
from precad.clients.records.own.table import _features
from precad.protos.task.record_fields import Column

X = np.array([[40.5, 1.0], [61.0, 0.0], [-3.25, 1.0]])
LABELS = np.array([1, 0, 1])
NAMES = ("well", "ill")


def described(source: str, folder: Path, **changed: object) -> OwnRecords:
    return OwnRecords(**{"source": source, "label": "diagnosis", "folders": (folder,), **changed})


def require_same(found: Records, features: np.ndarray = X, labels: np.ndarray = LABELS) -> None:
    assert_array_equal(found.features, features.astype(np.float32))
    assert found.features.dtype == np.float32
    assert_array_equal(found.labels, labels)
    assert found.labels.dtype == np.int64


def as_records(value: object, **wanted: Any) -> Records:
    """Return what a source reads that gives this value."""
    with read_as("records", "records"):
        return read_given(value, OwnRecords(source="records", **wanted)).records


def write_csv(folder: Path, *, separator: str = ",", encoding: str = "utf-8", names: bool = False) -> str:
    rows = [["age", "diagnosis", "sex"]]
    rows += [[str(a), NAMES[y] if names else str(y), str(b)] for (a, b), y in zip(X, LABELS, strict=True)]
    text = "\r\n".join(separator.join(row) for row in rows) + "\r\n\r\n"
    (folder / "patients.csv").write_bytes(text.encode(encoding))
    return "csv:patients.csv"


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_csv(separator: str, encoding: str, tmp_path: Path) -> None:
    """With every separator, with and without a byte order mark, the label in the middle, empty lines at the end."""
    require_same(load(described(write_csv(tmp_path, separator=separator, encoding=encoding), tmp_path)))


def test_names_of_classes_come_from_the_task(tmp_path: Path) -> None:
    """In the task's order, whatever the alphabet's. Without them two organisations could number classes differently."""
    source = write_csv(tmp_path, names=True)
    require_same(load(described(source, tmp_path, class_names=NAMES)))
    with pytest.raises(OwnRecordsError, match=r"task\.class_names: expected the names of the classes"):
        load(described(source, tmp_path))


def test_a_local_run_may_take_the_names_from_the_records(tmp_path: Path) -> None:
    """By the alphabet: ill is 0."""
    found = load(described(write_csv(tmp_path, names=True), tmp_path, infers_classes=True))
    require_same(found, labels=1 - LABELS)


def test_columns_are_those_of_the_task_in_its_order(tmp_path: Path) -> None:
    """Standardised by its constants, categories one by one; a column that it does not name is not read."""
    (tmp_path / "patients.csv").write_text("sex,note,diagnosis,age\nf,Ann,0,40\nm,Bob,1,\n")
    columns = (Column(name="age", mean=50.0, std=20.0, missing=60.0), Column(name="sex", categories=["m", "f"]))
    found = load(described("csv:patients.csv", tmp_path, columns=columns))
    require_same(found, np.array([[-0.5, 0, 1], [0.5, 1, 0]]), np.array([0, 1]))


def test_clients_whose_columns_are_in_another_order_are_told_so(tmp_path: Path) -> None:
    """Without columns of the task: their features would change places without a word."""
    (tmp_path / "a.csv").write_text("x,y,label\n1,2,0\n3,4,1\n")
    (tmp_path / "b.csv").write_text("y,x,label\n1,2,0\n3,4,1\n")
    alike = OwnSource(described=described("csv:{client}.csv", tmp_path, label="label"), clients=("a", "b"))
    with pytest.raises(DataError, match=r"expected the same columns in the same order.*task\.columns"):
        alike.load()
    named = (Column(name="x"), Column(name="y"))
    agreed = OwnSource(
        described=described("csv:{client}.csv", tmp_path, label="label", columns=named), clients=("a", "b")
    )
    assert agreed.load().train.features.tolist() == [[1, 2], [3, 4], [2, 1], [4, 3]]
    assert (OwnSource(described=alike.described, clients=("b",)).load().columns, agreed.load().columns) == (
        ("y", "x"),
        (),
    )


@pytest.mark.parametrize("partition", ["iid", "dirichlet", "shards"])
def test_code_that_shuffles_gives_no_record_to_two_clients(partition: PartitionName, tmp_path: Path) -> None:
    """Each client's process runs it again. Dealt by place, a record of two clients would move two updates."""
    (tmp_path / f"in_any_order_{partition}.py").write_text(
        "import numpy as np\ndef rows():\n    at = np.random.permutation(96)\n    return at * 0.5, at % 3\n"
    )
    whole = described(f"in_any_order_{partition}:rows", tmp_path)
    dealt, tested = [], []
    for client in "abc":  # each in a process of its own
        source = OwnSource(described=whole, clients=("a", "b", "c"), is_dealt=True, partition=partition, holdout=0.2)
        split = source.load()
        dealt.append(source.records_of(split, "abc", client)[client])
        tested.append(source.held_out_of(split, "abc", client)[client])
    everything = np.sort(np.concatenate([part.features for part in (*dealt, *tested)]).ravel())
    assert_array_equal(everything, np.arange(96) * 0.5)


def test_labels_may_be_numbers(tmp_path: Path) -> None:
    """A loss such as the mean squared error wants numbers."""
    (tmp_path / "patients.csv").write_text("x,diagnosis\n1,-0.5\n2,1e3\n")
    found = load(described("csv:patients.csv", tmp_path, numbers=True))
    assert found.labels.dtype == np.float32
    assert_array_equal(found.labels, [-0.5, 1000.0])
    (tmp_path / "patients.csv").write_text("x,diagnosis\n1,-0.5\n2,nan\n")
    with pytest.raises(OwnRecordsError, match=r"row 3, column 'diagnosis': expected a finite number"):
        load(described("csv:patients.csv", tmp_path, numbers=True))


@pytest.mark.parametrize("labels", [[0.0, 1.0, 1.0], [0.0, 0.5, 1.0], [np.float32(0), np.float32(1), np.float32(2)]])
def test_the_type_of_labels_decides_what_they_are_where_no_loss_does(labels: list) -> None:
    """Never their values: another record would turn all others from classes to numbers."""
    wanted = Wanted(numbers=None)
    found, names = targets(labels, wanted, str)
    assert (found.dtype, names) == (np.float32, ())
    assert_array_equal(found, np.array(labels, dtype=np.float32))
    whole, _ = targets([int(label) for label in labels], wanted, str)
    assert whole.dtype == np.int64


@pytest.mark.parametrize("labels", [[0, 0.5, 1], [0.0, 1.0, 1], [1, 1, np.float32(1)]])
def test_one_record_decides_for_no_other_what_labels_are(labels: list) -> None:
    """Without it, the others would be of the other type."""
    row = next(row for row, label in enumerate(labels) if isinstance(label, int) is not isinstance(labels[0], int))
    with pytest.raises(OwnRecordsError, match=f"^row {row}: expected a label of the type of those before it"):
        targets(labels, Wanted(numbers=None), lambda row: f"row {row}")


@pytest.mark.parametrize("kind", [np.array, torch.tensor, list])
def test_nor_does_it_where_labels_are_arrays(kind: Any) -> None:
    """A loss of one's own would get the type of all labels together; one that wants numbers takes both types."""
    rows = [(np.zeros(2), kind(label)) for label in ([0, 1], [1, 1], [0, 0.5])]
    with pytest.raises(
        OwnRecordsError, match=r"row 2 \(from 0\): expected a label of int64, as before it, found float"
    ):
        as_records(rows, numbers=None)
    assert as_records(rows[:2], numbers=None).labels.dtype == np.int64
    assert as_records(rows, numbers=True).labels.tolist() == [[0, 1], [1, 1], [0, 0.5]]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["0.5", "1.5"], r"^0: expected a whole number as its label"),
        (["1", "2", "ill"], r"^2: expected a whole number as its label"),
        (["0", "1.0", "1"], r"^1: expected a whole number as its label"),
        (["1.0", "01.0", "0.0"], r"^1: expected a whole number as its label"),
        (["1.0", "0.0", "ill"], r"^2: expected a whole number as its label"),
        (["1.0", "0.0", "2"], r"^2: expected a whole number as its label"),
        (["well", "1e3"], r"^1: expected a class by name.* found a number"),
        (["well", "ill", "2"], r"^2: expected a class by name.* found a number"),
    ],
)
def test_names_of_classes_are_never_numbers_that_records_hold(labels: list[str], message: str) -> None:
    """The refusal names a record that is unlike most of the others."""
    with pytest.raises(OwnRecordsError, match=message):
        targets(labels, Wanted(numbers=None, infers=True), str)
    found, _ = targets(labels, Wanted(names=tuple(labels), numbers=None), str)
    assert_array_equal(found, np.arange(len(labels)))


def test_whole_numbers_with_a_point_are_classes_where_all_have_one() -> None:
    """A table writes them so that once had an empty cell; the same numbers in an array are these classes too."""
    for labels in (["1.0", "0.0", "10.0"], np.array([1.0, 0.0, 10.0])):
        found, names = targets(labels, Wanted(), str)
        assert (found.tolist(), names) == ([1, 0, 10], ())
    with pytest.raises(OwnRecordsError, match=r"expected a class in \[0, 65535\]"):
        targets(["-1.0", "1.0"], Wanted(), str)


def test_whole_numbers_with_a_point_are_classes_that_the_task_names_without_one() -> None:
    """As texts or in an array, where all have a point; a name with a point of its own is that text alone."""
    for labels in (["1.0", "0.0", "1.0"], np.array([1.0, 0.0, 1.0]), ["1", "0", "1"]):
        assert targets(labels, Wanted(names=("0", "1")), str)[0].tolist() == [1, 0, 1]
    assert targets(["1.0", "1.0"], Wanted(names=("1", "1.0")), str)[0].tolist() == [1, 1]
    for mixture, row in ((["1.0", "0", "1.0"], 0), (["0", "1.0"], 1), (["0.0", "01.0"], 0), (["1.0", "ill"], 0)):
        with pytest.raises(OwnRecordsError, match=f"^{row}: expected one of the 3 classes of task.class_names"):
            targets(mixture, Wanted(names=("0", "1", "ill")), str)
    with pytest.raises(OwnRecordsError, match=r"^1: expected one of the 2 classes"):
        targets(["0.0", "2.0"], Wanted(names=("0", "1")), str)


def test_a_long_csv_is_read_in_parts_with_the_right_rows(tmp_path: Path) -> None:
    """Beyond the rows that are taken at once."""
    lines = [f"{i},{i % 2}" for i in range(20_000)]
    (tmp_path / "patients.csv").write_text("x,diagnosis\n" + "\n".join(lines) + "\n")
    found = load(described("csv:patients.csv", tmp_path))
    require_same(found, np.arange(20_000).reshape(-1, 1), np.arange(20_000) % 2)
    lines[18_000] = "sekret,0"
    (tmp_path / "patients.csv").write_text("x,diagnosis\n" + "\n".join(lines) + "\n")
    with pytest.raises(OwnRecordsError, match=r"row 18002, column 'x'"):
        load(described("csv:patients.csv", tmp_path))


def test_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "one.npz", x=X, diagnosis=LABELS)
    np.savez_compressed(tmp_path / "two.npz", x=X, labels=np.array([NAMES[y] for y in LABELS]))
    require_same(load(described("npz:one.npz", tmp_path)))
    require_same(load(described("npz:two.npz", tmp_path, label=None, class_names=NAMES)))


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="needs pyarrow, of precad[records]")
def test_parquet(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    names = pyarrow.array([NAMES[y] for y in LABELS]).dictionary_encode()
    table = pyarrow.table({"age": X[:, 0], "diagnosis": names, "sex": X[:, 1].astype(bool)})
    parquet.write_table(table, tmp_path / "patients.parquet", row_group_size=2)
    require_same(load(described("parquet:patients.parquet", tmp_path, class_names=NAMES)))


def test_a_folder_of_images(tmp_path: Path) -> None:
    """Class by class as the task orders them, colours first; hidden files are not looked at."""
    pixels = np.arange(2 * 3 * 5 * 3, dtype=np.uint8).reshape(2, 3, 5, 3)
    for i, name in enumerate(("well", "ill")):
        (tmp_path / "scans" / name).mkdir(parents=True)
        Image.fromarray(pixels[i]).save(tmp_path / "scans" / name / "a.png")
        (tmp_path / "scans" / name / ".DS_Store").write_text("x")
    found = load(described("folder:scans", tmp_path, class_names=NAMES))
    assert found.features.dtype == np.uint8
    assert found.shape == (3, 3, 5)
    by_class = {int(label): image for image, label in zip(found.features, found.labels, strict=True)}
    for i in (0, 1):
        assert_array_equal(by_class[i], pixels[i].transpose(2, 0, 1))


def test_a_class_that_the_task_names_may_have_no_image(tmp_path: Path) -> None:
    """An organisation may have no such case."""
    for name in NAMES:
        (tmp_path / "scans" / name).mkdir(parents=True)
    Image.new("L", (2, 2)).save(tmp_path / "scans" / "ill" / "a.png")
    assert load(described("folder:scans", tmp_path, class_names=NAMES)).labels.tolist() == [1]


@pytest.mark.parametrize("name", ["a.png", "a.tiff"])
@pytest.mark.parametrize("orientation", range(10))
def test_photographs_are_read_as_they_are_shown(orientation: int, name: str, tmp_path: Path) -> None:
    """Turned once as EXIF says, in a folder and in a data set; Pillow's own function tells how."""
    pixels = np.random.default_rng(orientation).integers(0, 256, (3, 5, 3)).astype(np.uint8)
    image = Image.fromarray(pixels)
    image.getexif()[0x0112] = orientation
    (tmp_path / "scans" / "ill").mkdir(parents=True)
    file = tmp_path / "scans" / "ill" / name
    image.save(file, exif=image.getexif())
    with Image.open(file) as opened:
        shown = np.asarray(ImageOps.exif_transpose(opened)).transpose(2, 0, 1)
    with Image.open(file) as opened:  # Pillow has not read its pixels yet
        of_a_data_set = as_records([(opened, 0)])
    assert (orientation in range(5, 9)) == (shown.shape == (3, 5, 3))
    assert_array_equal(load(described("folder:scans", tmp_path, class_names=NAMES)).features[0], shown)
    assert_array_equal(of_a_data_set.features[0], shown)


class OneBuffer:
    """A data set that reads every record into the same memory."""

    def __init__(self, inputs: Any, label: Any) -> None:
        self.inputs, self.label = inputs, label

    def __len__(self) -> int:
        return 3

    def __getitem__(self, row: int) -> tuple[Any, Any]:
        self.inputs[:], self.label[...] = row, row
        return self.inputs, self.label


@pytest.mark.parametrize("made", [np.zeros, torch.zeros])
def test_a_data_set_may_fill_the_same_memory_again(made: Any) -> None:
    """Without a copy the last record would stand in every row, and move an update by more than R."""
    found = as_records(OneBuffer(made(2), made(())))
    assert_array_equal(found.features, [[0, 0], [1, 1], [2, 2]])
    assert found.labels.tolist() == [0, 1, 2]


def test_a_palette_is_read_by_its_colours(tmp_path: Path) -> None:
    """Never by the numbers of its entries, which mean something else in every file."""
    colours = np.array([[200, 10, 30], [5, 250, 60]], dtype=np.uint8)
    index = np.array([[0, 1, 1], [1, 0, 0]], dtype=np.uint8)
    image = Image.fromarray(index, mode="P")
    image.putpalette(colours.tobytes())
    expected = colours[index].transpose(2, 0, 1)
    (tmp_path / "scans" / "ill").mkdir(parents=True)
    image.save(tmp_path / "scans" / "ill" / "a.png")
    assert_array_equal(load(described("folder:scans", tmp_path, class_names=NAMES)).features[0], expected)
    assert_array_equal(as_records([(image, 0)]).features[0], expected)
    image.info["transparency"] = 0
    with pytest.raises(OwnRecordsError, match=r"row 0 \(from 0\): .* without transparency, found one with"):
        as_records([(image, 0)])


def save_dataset(folder: Path, columns: dict[str, list], **features: dict) -> None:
    """Write what `save_to_disk` writes, without the library: its own hashing fails beside some releases of dill."""
    import pyarrow

    folder.mkdir()
    table = pyarrow.table(columns)
    path = str(folder / "data-00000-of-00001.arrow")
    with pyarrow.OSFile(path, "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_fingerprint": "0123456789abcdef"}
    nothing = {"_format_columns": None, "_format_kwargs": {}, "_format_type": None, "_split": None}
    (folder / "state.json").write_text(json.dumps(state | nothing | {"_output_all_columns": False}))
    about = dict.fromkeys(("citation", "description", "homepage", "license"), "")
    (folder / "dataset_info.json").write_text(json.dumps(about | {"features": features}))


@pytest.mark.skipif(importlib.util.find_spec("datasets") is None, reason="needs the library datasets")
def test_a_hugging_face_data_set_on_disk(tmp_path: Path) -> None:
    """A table, with names of classes of its own or the task's; and one column of vectors beside the label."""
    number, several = (
        {"dtype": "float64", "_type": "Value"},
        {"feature": {"dtype": "float64", "_type": "Value"}, "_type": "List"},
    )
    classes = {"names": list(NAMES), "_type": "ClassLabel"}
    columns = {"age": X[:, 0].tolist(), "sex": X[:, 1].tolist(), "diagnosis": LABELS.tolist()}
    save_dataset(tmp_path / "one", columns, age=number, sex=number, diagnosis=classes)
    whole = {"dtype": "int64", "_type": "Value"}
    save_dataset(tmp_path / "two", {"x": X.tolist(), "diagnosis": LABELS.tolist()}, x=several, diagnosis=whole)
    require_same(load(described("datasets:one", tmp_path, infers_classes=True)))
    require_same(load(described("datasets:one", tmp_path, class_names=NAMES)))
    with pytest.raises(OwnRecordsError, match=r"task\.class_names: expected the names of the 2 classes, .* found none"):
        load(described("datasets:one", tmp_path))
    require_same(load(described("datasets:two", tmp_path)))
    with pytest.raises(
        OwnRecordsError, match=r"expected the classes of task\.class_names, in their order, found others"
    ):
        load(described("datasets:one", tmp_path, class_names=NAMES[::-1]))
    with pytest.raises(OwnRecordsError, match="expected a column 'verdict'"):
        load(described("datasets:one", tmp_path, label="verdict"))
    doses = {"age": X[:, 0].tolist(), "diagnosis": X.tolist()}
    save_dataset(tmp_path / "three", doses, age=number, diagnosis=several)
    found = load(described("datasets:three", tmp_path, numbers=True))
    assert_array_equal(found.labels, X.astype(np.float32))
    (tmp_path / "one" / "state.json").write_text("sekret")
    with pytest.raises(OwnRecordsError, match="a data set that save_to_disk wrote") as caught:
        load(described("datasets:one", tmp_path))
    assert "sekret" not in str(caught.value)


@pytest.mark.parametrize("kind", ["parquet", "datasets"])
def test_what_reads_it_is_missing(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says how to install it."""
    (tmp_path / "file").write_text("x")
    monkeypatch.setitem(importlib.sys.modules, "pyarrow.parquet", None)
    monkeypatch.setitem(importlib.sys.modules, "datasets", None)
    with pytest.raises(MissingDataError, match=r'install "precad\[\w+\]" from where precad came from'):
        load(described(f"{kind}:file", tmp_path))


@pytest.mark.parametrize("kind", [object, "S"])
def test_labels_as_texts_in_an_array(kind: Any, tmp_path: Path) -> None:
    """As a column of pandas gives them, and as C does; each label is looked at by itself."""
    texts = np.array(["ill", "well", "ill"], dtype=kind)
    require_same(as_records((X, texts), class_names=("well", "ill")))
    assert_array_equal(
        as_records((X, np.array([2, 0.5, 1], dtype=object)), numbers=True).labels, np.float32([2, 0.5, 1])
    )
    with pytest.raises(OwnRecordsError, match=r"row 1 \(from 0\): expected a class as its label, found a dict"):
        as_records((X, np.array(["ill", {"sekret": 1}, "ill"], dtype=object)), class_names=("well", "ill"))


def test_categories_of_a_typed_table_are_written_as_classes_are() -> None:
    """Whole numbers without a point, and bytes as the text that they are."""
    column = Column(name="sex", categories=["1", "2"])
    for cells in ([1.0, 2.0], [np.float32(1), 2], [b"1", b"2"], ["1", "2"]):
        assert_array_equal(_features(cells, column, str), np.eye(2))
    with pytest.raises(OwnRecordsError, match="expected one of the 2 categories"):
        _features([1.5, 2.0], column, str)


class Pairs(torch.utils.data.Dataset):
    """A map-style data set of the user's."""

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.tensor(X[index]), int(LABELS[index])


@pytest.mark.parametrize(
    "value",
    [
        (X, LABELS),
        [torch.tensor(X), torch.tensor(LABELS)],
        (X.tolist(), LABELS.tolist()),
        TensorDataset(torch.tensor(X, dtype=torch.float32), torch.tensor(LABELS)),
        Pairs(),
        [(list(row), label) for row, label in zip(X, LABELS, strict=True)],
        Records(X.astype(np.float32), LABELS),
    ],
    ids=["arrays", "tensors", "lists", "TensorDataset", "Dataset", "pairs", "Records"],
)
def test_as_records(value: object) -> None:
    require_same(as_records(value))


def test_images_texts_and_targets_of_other_shapes_keep_their_types() -> None:
    """Pixels as bytes, tokens as integers, several numbers or classes for a record where the loss wants them."""
    pixels, tokens = np.zeros((3, 1, 2, 2), np.uint8), np.ones((3, 4), np.int64)
    assert as_records((pixels, LABELS)).features.dtype == np.uint8
    assert as_records((tokens, LABELS)).is_text
    assert as_records((X.astype(np.int32), LABELS)).features.dtype == np.float32
    assert as_records((tokens, tokens)).labels.shape == (3, 4)
    several = as_records((X, np.eye(3)), numbers=True)
    assert (several.labels.dtype, several.labels.shape) == (np.float32, (3, 3))
    pictures = [(Image.new("RGB", (5, 3)), 0), (Image.new("RGB", (5, 3)), 1)]
    assert as_records(pictures).shape == (3, 3, 5)


def test_names_and_a_shape_are_required_where_they_are_said(tmp_path: Path) -> None:
    require_same(as_records((X, [NAMES[y] for y in LABELS]), class_names=NAMES))
    with pytest.raises(OwnRecordsError, match=r"expected records of shape \(3,\) .* found shape \(2,\)"):
        load(described(write_csv(tmp_path), tmp_path, shape=(3,)))


def test_a_traceback_says_nothing_of_a_record() -> None:
    """Not by a chain of errors either, as a notebook would show it."""

    class Leaking(Pairs):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            raise KeyError("sekret")

    for value in (Leaking(), (X, np.array(["well", "sekret", "ill"])), ([["sekret"]], [0])):
        with pytest.raises(OwnRecordsError) as caught:
            as_records(value, class_names=NAMES)
        shown = traceback.format_exception(caught.value, limit=0)
        assert "sekret" not in "".join(shown)


def test_a_function_of_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found beside the configuration before the current folder; what an installed module hides is refused."""
    monkeypatch.setattr(importlib.sys, "path", [*importlib.sys.path])
    here, beside = tmp_path / "here", tmp_path / "beside"
    for folder, first in ((here, 7.0), (beside, 40.5)):
        folder.mkdir()
        rows = X.tolist()
        rows[0][0] = first
        (folder / "own_hospital.py").write_text(f"def records():\n    return {rows}, {LABELS.tolist()}\n")
    monkeypatch.chdir(here)
    source = OwnRecords(source="own_hospital:records", folders=(beside, here))
    require_same(load(source))
    pairs = f"zip({X.tolist()}, {LABELS.tolist()})"
    methods = f"    def __len__(self): return 3\n    def __getitem__(self, i): return list({pairs})[i]\n"
    (beside / "own_pairs.py").write_text(f"class Pairs:\n{methods}")
    require_same(load(OwnRecords(source="own_pairs:Pairs", folders=(beside, here))))  # a class makes a data set
    with pytest.raises(ExtensionError, match=r"another module 'own_hospital' .*beside.* hides yours, .*here.*: rename"):
        load(OwnRecords(source="own_hospital:records", folders=(here,)))


def test_paths_are_looked_for_beside_the_configuration_then_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names both."""
    here, beside = tmp_path / "here", tmp_path / "beside"
    for folder in (here, beside):
        folder.mkdir()
    monkeypatch.chdir(here)
    source = described("csv:patients.csv", beside, folders=(beside, here))
    with pytest.raises(DataError, match=f"patients.csv, looked in {beside}, then in {here}"):
        load(source)
    write_csv(here)
    require_same(load(source))
    (beside / "patients.csv").write_text("x,diagnosis\n1,0\n2,1\n")
    assert len(load(source)) == 2
