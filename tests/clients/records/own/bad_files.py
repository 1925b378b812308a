"""Bad records, each as files in a folder and the sections that name them.

`SECRET`, as a text or as a number, stands in the cell that is wrong: no message may hold it.
"""

from __future__ import annotations

import gzip
import io
import os
import pickle
import shutil
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SECRET, SECRET_NUMBER = "sekret", "987654321"
GOOD = "x,y,diagnosis\n1,2,0\n3,4,1\n5,6,0\n"
Write = Callable[[Path], None]


@dataclass(frozen=True)
class Bad:
    """One kind of bad records."""

    write: Write
    message: str
    """A regular expression that the one line must match."""
    records: str = "csv:patients.csv"
    client: Mapping[str, Any] = field(default_factory=dict)
    task: Mapping[str, Any] = field(default_factory=dict)


def csv(text: str | bytes) -> Write:
    data = text.encode() if isinstance(text, str) else text
    return lambda folder: (folder / "patients.csv").write_bytes(data) and None


def cell(value: str, column: str = "x") -> Write:
    """A good file but for one cell of row 3."""
    rows = {"x": f"{value},4,1", "y": f"3,{value},1", "diagnosis": f"3,4,{value}"}
    return csv(f"x,y,diagnosis\n1,2,0\n{rows[column]}\n5,6,0\n")


def npz(**arrays: Any) -> Write:
    return lambda folder: np.savez(folder / "scans.npz", **arrays)


def raw_npz(data: bytes) -> Write:
    return lambda folder: (folder / "scans.npz").write_bytes(data) and None


def _npz_bytes(shape: tuple[int, ...]) -> bytes:
    """An .npz file whose first array says that it has this shape, and holds next to nothing."""
    header, packed = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("inputs.npy", header.getvalue())
        file.writestr("labels.npy", header.getvalue())
    return packed.getvalue()


def images(**changed: Callable[[Path], object]) -> Write:
    """Two classes with two images each; then what is changed in the folder."""

    def write(folder: Path) -> None:
        for label in ("no", "yes"):
            (folder / "scans" / label).mkdir(parents=True)
            for i in range(2):
                Image.new("L", (4, 4), 10 * i).save(folder / "scans" / label / f"{i}.png")
        for change in changed.values():
            change(folder / "scans")

    return write


def module(text: str, name: str) -> Write:
    return lambda folder: (folder / f"{name}.py").write_text(text) and None


def _two_pages(file: Path) -> None:
    page = Image.new("L", (4, 4))
    page.save(file, format="TIFF", save_all=True, append_images=[page])


def _link(file: Path, target: Path) -> None:
    file.symlink_to(target)


def _sparse(file: Path, size: int) -> None:
    """Make a file that says that it is so long, and takes no room."""
    with file.open("wb") as made:
        made.truncate(size)


def _zip_bomb(folder: Path) -> None:
    """Arrays of 10^12 numbers by their header, of which twenty million zeros are packed small."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (10**12,)})
    with zipfile.ZipFile(folder / "scans.npz", "w", zipfile.ZIP_DEFLATED) as packed:
        for name in ("labels.npy", "inputs.npy"):
            packed.writestr(name, header.getvalue() + bytes(2 * 10**7))


def _pickled(folder: Path) -> None:
    (folder / "scans.npz").write_bytes(pickle.dumps(SECRET))


def npy_header(text: str) -> bytes:
    """An .npy file of this header, and nothing behind it."""
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text) + 1) + text.encode() + b"\n"


def members(*each: tuple[str, Any]) -> Write:
    """An .npz file with these members, bytes or arrays, whatever their names."""

    def write(folder: Path) -> None:
        with zipfile.ZipFile(folder / "scans.npz", "w") as packed, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a name that is there twice
            for name, content in each:
                data = io.BytesIO(content if isinstance(content, bytes) else b"")
                if not isinstance(content, bytes):
                    np.save(data, content)
                packed.writestr(name, data.getvalue())

    return write


def _encrypted(folder: Path) -> None:
    """Set the bit that says so, in the header of the first member and in the archive's list."""
    np.savez(folder / "scans.npz", inputs=np.zeros((4, 3), np.float32), labels=np.arange(4) % 2)
    data = bytearray((folder / "scans.npz").read_bytes())
    for place in (6, data.find(b"PK\x01\x02") + 8):
        data[place] |= 1
    (folder / "scans.npz").write_bytes(data)


def _picture(file: Path, width: int, height: int, *, text: int = 0) -> None:
    """Write a PNG image that says its size, with a packed text of so many bytes, and pixels of 16 at most."""
    parts = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))]
    if text:
        parts.append((b"zTXt", b"note\0\0" + zlib.compress(bytes(text))))
    parts += [(b"IDAT", zlib.compress(bytes(20))), (b"IEND", b"")]
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
    file.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))


def _palette(file: Path) -> None:
    Image.new("L", (4, 4)).convert("P").save(file, transparency=0)


def _sideways(scans: Path) -> None:
    """Write 4 rows of 6 pixels, which EXIF says to turn by a quarter."""
    image = Image.new("L", (6, 4))
    image.getexif()[0x0112] = 6
    image.save(scans / "yes" / "9.png", exif=image.getexif())


def _gif(file: Path) -> None:
    first, second = Image.new("L", (4, 4)), Image.new("L", (4, 4), 255)
    first.save(file, save_all=True, append_images=[second])


SHAPED = "{'descr': '<f4', 'fortran_order': False, 'shape': (%d, 3), }"
X = np.arange(12, dtype=np.float32).reshape(4, 3)
LABELS = np.array([0, 1, 0, 1])
NAMES = {"class_names": ["no", "yes"]}
ROW = r"patients\.csv, row 3"
NUMBERS = {"loss": "mse", "model": "tests.clients.records.own.any_shape:OneNumber"}
IN_X = ROW + r", column 'x': "

OF_CSV: dict[str, Bad] = {
    "old ends of lines": Bad(csv(f"x,y,diagnosis\r1,2,0\r{SECRET},4,1\r"), IN_X + "expected a number"),
    "ends of lines twice": Bad(
        csv("x,diagnosis\r\r\n1,0\r\r\n2,1\r\r\n"), "row 3: expected no row after an empty line"
    ),
    "a byte order mark in a cell": Bad(cell("\ufeff987654321"), IN_X + "expected a number, found something that is no"),
    "a space of no width": Bad(cell("\u200b987654321"), IN_X + "expected a number, found something that is no number"),
    "a minus sign that is none": Bad(cell("\u2212987654321"), IN_X + "expected a number, found something that is no"),
    "hexadecimal": Bad(cell("0x3ADE68B1"), IN_X + "expected a number, found something that is no number"),
    "a date": Bad(cell("2024-01-01"), IN_X + "expected a number, found something that is no number"),
    "half of a pair of code units": Bad(csv(b"x,y,diagnosis\n1,2,0\n\xed\xa0\x80,4,1\n"), ROW + ": expected UTF-8"),
    "UTF-16 without a mark": Bad(
        csv(GOOD.encode("utf-16-le")), "expected a column 'diagnosis', found none of that name"
    ),
    "packed": Bad(csv(gzip.compress(GOOD.encode())), r"patients\.csv, row 1: expected UTF-8, found another encoding"),
    "a separator of its own": Bad(
        csv(GOOD.replace(",", "|")), "expected a column 'diagnosis', found none of that name am"
    ),
    "a class in two notations": Bad(
        cell("01", "diagnosis"), ROW + ".* expected a whole number as its label, or names in task.class_names"
    ),
    "one name among classes": Bad(
        csv(f"x,diagnosis\n1,0\n2,{SECRET}\n3,1\n"), ROW + ".* expected a whole number as its label"
    ),
    "a line that ends within a cell": Bad(
        csv("x,y,diagnosis\n1,2,0\n987654321,4,1\u20281,2,0\n"), ROW + ": expected 3 fields, .* found 5"
    ),
    "the command line of this process": Bad(
        lambda folder: None,
        "/proc/self/cmdline: expected (a column 'diagnosis'|names of at most 256 characters), found",
        "csv:/proc/self/cmdline",
    ),
    "a name longer than a path": Bad(
        lambda folder: None, "expected records, found File name too long", f"csv:{'a' * 5000}"
    ),
    "an address": Bad(
        lambda folder: None, "a file or folder https://", "csv:https://hospital.example.org/patients.csv"
    ),
    "a number with underscores as a label": Bad(
        cell("987_654_321", "diagnosis"), ROW + ".* expected a number as its label, found something that", task=NUMBERS
    ),
    "no number as a label": Bad(
        cell("", "diagnosis"), ROW + ".* expected a number as its label, found an empty cell", task=NUMBERS
    ),
    "a number beyond float32 as a label": Bad(
        cell("987654321e40", "diagnosis"),
        ROW + ".* expected a finite number that float32 holds as its label",
        task=NUMBERS,
    ),
    "names but for case": Bad(
        csv("x,diagnosis\n1,ill\n2,well\n3,Ill \n4,well\n"), r"row 4, column 'diagnosis': expected classes that differ"
    ),
    "a field of millions": Bad(
        csv(f"x,y,diagnosis\n1,2,0\n{SECRET * 1_700_000},4,1\n"), "row 3: expected CSV, found field larger than"
    ),
    "a column of a Cyrillic letter": Bad(
        csv("x,y,di\u0430gnosis\n1,2,0\n3,4,1\n"), "expected a column 'diagnosis', found none of that name among 3$"
    ),
    "a label but for case": Bad(
        csv("x,y,Diagnosis\n1,2,0\n3,4,1\n"), "none of that name among 3; column 3's differs in spaces, case or Unicode"
    ),
    "a device": Bad(lambda folder: (folder / "patients.csv").symlink_to("/dev/zero"), "expected a CSV file, found a f"),
    "hundreds of thousands of columns": Bad(
        csv(",".join(f"c{i}" for i in range(200_000)) + ",diagnosis\n1\n"),
        "expected at most 65536 columns, found 200001",
    ),
    "a word": Bad(cell(SECRET), IN_X + "expected a number, found something that is no number"),
    "not a number": Bad(cell("nan"), IN_X + "expected a finite number, found NaN, which is no empty cell"),
    "infinite": Bad(cell("-inf"), IN_X + "expected a finite number, found an infinite one"),
    "beyond float64": Bad(cell("9e999"), IN_X + "expected a finite number"),
    "beyond float32": Bad(cell(SECRET_NUMBER + "e35"), IN_X + "expected a number that float32 holds"),
    "an empty cell": Bad(cell(""), IN_X + "expected a number, found an empty cell; `missing` of a column"),
    "spaces": Bad(cell("   ", "y"), ROW + ", column 'y': expected a number, found an empty cell"),
    "underscores": Bad(cell("987_654_321"), IN_X + "expected a number, found something that is no number"),
    "a decimal comma": Bad(cell('"987654321,5"'), IN_X + "expected .* no number; decimals follow a point"),
    "a NUL": Bad(cell("98\0"), IN_X + "expected a number"),
    "no label": Bad(cell("", "diagnosis"), ROW + ", column 'diagnosis': expected a label, found an empty cell"),
    "a wrong class": Bad(
        csv(f"x,diagnosis\n1,no\n2,{SECRET}\n"), ROW + r".* one of the 2 classes of task\.class_names", task=NAMES
    ),
    "a negative class": Bad(cell("-1", "diagnosis"), ROW + r".* expected a class in \[0, 65535\] as its label"),
    "a class without a logit": Bad(
        cell("7", "diagnosis"), ROW + r": expected a class in \[0, 1\], for which the model"
    ),
    "a mark of a missing label": Bad(
        csv("x,diagnosis\n1,ill\n2,N/A\n3,well\n"),
        ROW + r", column 'diagnosis': expected a label, or names in task\.class_names, found a mark",
    ),
    "a label that is a feature": Bad(
        csv(GOOD),
        r"task\.columns: expected features, which a label is none of, found the label 'diagnosis'",
        task={"columns": {"x": {}, "diagnosis": {}}},
    ),
    "a huge class": Bad(cell("9" * 4000, "diagnosis"), ROW + r".* expected a class in \[0, 65535\]"),
    "one class": Bad(
        csv("x,diagnosis\n1,well\n2,well\n"),
        ROW.replace("3", "2") + r".* between 2 and 1000 classes from here on, or names in task\.class_names, found 1",
    ),
    "a class each": Bad(
        csv("x,diagnosis\n" + "".join(f"1,{SECRET}{i}\n" for i in range(1001))),
        "between 2 and 1000 classes .* found 1001",
    ),
    "a short row": Bad(csv("x,y,diagnosis\n1,2,0\n3,sekret\n"), ROW + ": expected 3 fields, as in the header, found 2"),
    "a long row": Bad(csv("x,y,diagnosis\n1,2,0\n3,4,1,sekret\n"), ROW + ": expected 3 fields, .* found 4"),
    "duplicated columns": Bad(csv("x,x,diagnosis\n1,2,0\n"), "expected columns of different names, found column 2"),
    "many columns, one of them twice": Bad(
        csv(",".join([*map(str, range(65_535)), "7"]) + "\n"), "found column 65536 named as one before it"
    ),
    "a column without a name": Bad(csv("x,,diagnosis\n1,2,0\n"), "names every column, found no name for column 2"),
    "an empty file": Bad(csv(""), r"patients\.csv: expected a header and records, found an empty file"),
    "a header alone": Bad(csv("x,y,diagnosis\n"), r"patients\.csv: expected at least one record, found none"),
    "a byte order mark alone": Bad(csv(b"\xef\xbb\xbf"), "expected a header and records, found an empty file"),
    "no such label": Bad(csv("x,y\n1,2\n"), r"patients\.csv: expected a column 'diagnosis', found none"),
    "a label alone": Bad(csv("diagnosis\n1\n0\n"), "expected a column beside the label, found none"),
    "Latin-1": Bad(csv(b"x,y,diagnosis\n1,2,0\n\xe9,4,1\n"), ROW + ": expected UTF-8, found another encoding"),
    "UTF-16": Bad(csv(GOOD.encode("utf-16")), r"patients\.csv, row 1: expected UTF-8, found another encoding"),
    "an open quote": Bad(csv('x,y,diagnosis\n1,2,0\n"sekret,4,1\n'), ROW + ": expected CSV, found unexpected end"),
    "text behind a quote": Bad(
        csv('x,y,diagnosis\n1,2,0\n"3"sekret,4,1\n'), ROW + ": expected CSV, found ',' expected"
    ),
    "a huge field": Bad(cell("9" * 200_000), ROW + ": expected CSV, found field larger than field limit"),
    "too many columns": Bad(csv(",".join(map(str, range(70_000))) + "\n"), "at most 65536 columns, found 70000"),
    "an empty line": Bad(csv("x,y,diagnosis\n1,2,0\n\n3,4,1\n"), "row 4: expected no row after an empty line"),
    "another separator": Bad(csv("x;y;diagnosis\n1;2;0\n3,4,1\n"), ROW + ": expected 3 fields, .* found 1"),
    "below the range": Bad(
        cell("-987654321"), IN_X + "expected a number of at least 0", task={"columns": {"x": {"min": 0}}}
    ),
    "above the range": Bad(
        cell(SECRET_NUMBER), IN_X + "expected a number of at most 9", task={"columns": {"x": {"max": 9}}}
    ),
    "another category": Bad(
        cell(SECRET),
        IN_X + "expected one of the 3 categories, found another",
        task={"columns": {"x": {"categories": ["1", "3", "5"]}}},
    ),
    "no category": Bad(
        cell(""),
        IN_X + "expected one of the 2 categories, found an empty",
        task={"columns": {"x": {"categories": ["1", "5"]}}},
    ),
    "no such column": Bad(csv(GOOD), r"patients\.csv: expected a column 'z', found none", task={"columns": {"z": {}}}),
    "another shape": Bad(
        csv(GOOD), r"records of shape \(3,\) \(task\.record_shape\), found shape \(2,\)", task={"record_shape": [3]}
    ),
    "a long name of a column": Bad(
        csv(f"{'x' * 300},diagnosis\n1,0\n"), "names of at most 256 characters, found 300 in that of column 1"
    ),
    "a long name of a class": Bad(
        csv(f"x,diagnosis\n1,no\n2,{SECRET * 99}\n"), ROW + ".* at most 256 printable characters, found another"
    ),
    "a line break in a class": Bad(
        csv(f'x,diagnosis\n1,no\n2,"{SECRET}\nx"\n'), ROW + ".* 256 printable characters, found another"
    ),
    "a line break in a column": Bad(csv(f'"x\n1",diagnosis\n1,0\n{SECRET},1\n'), ROW + r", column 'x\\n1': expected a"),
    "many numbers and a name": Bad(
        csv(f"x,diagnosis\n1,0\n2,{SECRET}\n3,1\n4,0\n"), ROW + ".* expected a whole number as its label"
    ),
    "a class in another notation": Bad(
        csv("x,diagnosis\n1,0\n2,1.0\n3,1\n"),
        ROW + ".* expected a whole number as its label, .* something that is none",
    ),
    "a class beyond int64": Bad(cell("9" * 20, "diagnosis"), ROW + r".* expected a class in \[0, 65535\]"),
    "Excel's semicolons and commas": Bad(
        csv("x;y;diagnosis\n1;2;0\n987654321,5;4;1\n"), IN_X + "expected .* no number; decimals follow a point"
    ),
    "a million columns": Bad(csv(",".join(map(str, range(10**6))) + "\n"), "at most 65536 columns, found 1000000"),
    "NULs alone": Bad(csv(b"\0" * 5000), "names of at most 256 characters, found 5000"),
    "random bytes": Bad(csv(bytes(range(256))), r"patients\.csv, row 2: expected UTF-8"),
    "an endless device": Bad(
        lambda folder: _link(folder / "patients.csv", Path("/dev/zero")), "expected a CSV file, found a folder or a dev"
    ),
    "a file of a tebibyte": Bad(lambda folder: _sparse(folder / "patients.csv", 2**40), "records that fit in memory"),
    "a name of escape codes": Bad(
        lambda folder: (folder / "a\nb\x1b[31m.csv").write_text(f"x,diagnosis\n1,0\n{SECRET},1\n") and None,
        r"/a\\nb\\x1b\[31m\.csv, row 3, column 'x': expected a number",
        "csv:a\nb\x1b[31m.csv",
    ),
    "no file of such a name": Bad(lambda folder: None, r"file or folder a\\nb\.csv, looked in", "csv:a\nb.csv"),
    "no file": Bad(lambda folder: None, r"expected a file or folder patients\.csv, looked in .*, then in "),
    "a folder": Bad(
        lambda folder: (folder / "patients.csv").mkdir(), "expected a CSV file, found a folder or a device"
    ),
    "a pipe": Bad(lambda folder: os.mkfifo(folder / "patients.csv"), "expected a CSV file, found a folder or a device"),
    "a link to itself": Bad(
        lambda folder: _link(folder / "patients.csv", folder / "patients.csv"), "expected a file or"
    ),
    "unreadable": Bad(
        lambda folder: _link(folder / "patients.csv", Path("/proc/self/mem")), "expected a CSV file, found Input"
    ),
    "everything kept aside": Bad(
        csv(GOOD), r"client\.holdout: expected a share that leaves", client={"holdout": 0.999999}
    ),
    "nothing kept aside": Bad(csv(GOOD), r"client\.holdout: expected .* found 0$", client={"holdout": 0.0}),
    "too few to keep one aside": Bad(
        csv("x,y,diagnosis\n1,2,0\n3,4,1\n"), r"client\.holdout: .* one of the 2 records .* found 0\.2; or more records"
    ),
}
OF_NPZ: dict[str, Bad] = {
    "records of fields": Bad(
        npz(inputs=np.zeros(4, dtype=[("a", [("b", "f4", (2,))])]), labels=LABELS),
        "inputs: expected numbers of one shape",
    ),
    "labels that are dates": Bad(npz(inputs=X, labels=np.zeros(4, "M8[s]")), "labels: .* found an array of datetime64"),
    "a class beyond int64": Bad(
        npz(inputs=X, labels=np.full(4, 2**64 - 1, np.uint64)), r"row 0 \(from 0\): expected a class in \[0, 65535\]"
    ),
    "classes of places beyond int64": Bad(
        npz(inputs=X, labels=np.full((4, 2), 2**64 - 1, np.uint64)),
        r"npz, row 0 \(from 0\): expected whole numbers from 0",
    ),
    "negative classes of places": Bad(
        npz(inputs=X, labels=np.full((4, 2), -7, np.int8)),
        r"npz, row 0 \(from 0\): expected whole numbers from 0 on, or -100",
    ),
    "texts as numbers": Bad(
        npz(inputs=X, labels=np.array(["1", SECRET, "2", "3"])),
        r"row 1 \(from 0\): expected a number as its",
        task=NUMBERS,
    ),
    "an array twice": Bad(members(("labels.npy", LABELS), ("labels.npy", LABELS)), "expected two arrays, one of them"),
    "a header that is code": Bad(
        members(("inputs.npy", npy_header("__import__('os').abort()")), ("labels.npy", LABELS)),
        "expected an .npz file, found",
    ),
    "a header of brackets": Bad(
        members(("inputs.npy", npy_header("(" * 9000)), ("labels.npy", LABELS)),
        "expected an .npz file, found something",
    ),
    "a negative shape": Bad(
        members(("inputs.npy", npy_header(SHAPED % -4)), ("labels.npy", LABELS)), "expected an .npz"
    ),
    "a shape beyond int64": Bad(
        members(("inputs.npy", npy_header(SHAPED % 2**65)), ("labels.npy", LABELS)),
        "expected an .npz file, found something",
    ),
    "an encrypted archive": Bad(_encrypted, r"expected an .npz file, found something that cannot be read as it"),
    "no archive": Bad(raw_npz(b"sekret"), r"scans\.npz: expected an \.npz file, as numpy"),
    "half an archive": Bad(raw_npz(_npz_bytes((4, 3))[:-30]), r"expected an \.npz file"),
    "arrays cut short": Bad(
        raw_npz(_npz_bytes((4, 3))), r"expected an \.npz file, found something that cannot be read"
    ),
    "arrays of petabytes": Bad(raw_npz(_npz_bytes((10**15,))), r"scans\.npz: expected "),
    "pickled objects": Bad(
        npz(inputs=np.array([{"a": SECRET}]), labels=LABELS[:1]), r"expected an \.npz file, found something"
    ),
    "a zip bomb": Bad(_zip_bomb, r"scans\.npz: expected records that fit in memory, found more"),
    "a pickle": Bad(_pickled, r"scans\.npz: expected an \.npz file, as numpy"),
    "pickled labels": Bad(
        npz(inputs=X, labels=np.array([0, {"a": SECRET}, 1, 0], dtype=object)),
        r"expected an \.npz file, found something",
    ),
    "infinite": Bad(
        npz(inputs=np.where(X == 7, np.inf, X), labels=LABELS), r"row 2 \(from 0\): expected finite numbers"
    ),
    "beyond float32": Bad(
        npz(inputs=X.astype(np.float64) * 1e300, labels=LABELS), r"row 0 \(from 0\): expected finite numbers"
    ),
    "negative labels": Bad(npz(inputs=X, labels=LABELS - 1), r"row 0 \(from 0\): expected a class in \[0, 65535\]"),
    "labels beyond int64": Bad(
        npz(inputs=X, labels=np.array([0, 2**64 - 1, 0, 1], dtype=np.uint64)),
        r"row 1 .* expected a class in \[0, 65535\]",
    ),
    "a class without a logit": Bad(
        npz(inputs=X, labels=LABELS + 1), r"row 1 .* expected a class in \[0, 1\], for which"
    ),
    "a NaN for a class": Bad(
        npz(inputs=X, labels=np.array([0, np.nan, 0, 1])),
        r"row 1 .* expected a class as its label, found a number that",
    ),
    "fields": Bad(
        npz(inputs=np.zeros(4, dtype=[("a", "f4")]), labels=LABELS),
        "expected numbers of one shape, found an array of void",
    ),
    "dates": Bad(
        npz(inputs=X.astype("datetime64[s]"), labels=LABELS), "numbers of one shape, found an array of datetime64"
    ),
    "a pipe": Bad(lambda folder: os.mkfifo(folder / "scans.npz"), r"expected an \.npz file, as numpy"),
    "three arrays": Bad(npz(a=X, b=X, labels=LABELS), "two arrays, one of them 'labels' .* found 'a', 'b', 'labels'$"),
    "no labels": Bad(npz(a=X, b=LABELS), r"two arrays, one of them 'labels' \(client\.label\), found 'a', 'b'$"),
    "many arrays": Bad(
        npz(**{f"of_a_long_name_{i}": X for i in range(9)}, labels=LABELS), r"found 'of_a_long_name_0', .*\.\.\. of 10$"
    ),
    "fewer labels": Bad(npz(inputs=X, labels=LABELS[:3]), "a label for each of 4 inputs, found 3"),
    "NaN": Bad(npz(inputs=np.where(X == 7, np.nan, X), labels=LABELS), r"row 2 \(from 0\): expected finite numbers"),
    "texts": Bad(
        npz(inputs=np.array([[SECRET]] * 4), labels=LABELS), "expected numbers of one shape, found an array of str"
    ),
    "complex numbers": Bad(
        npz(inputs=X * 1j, labels=LABELS), "expected numbers of one shape, found an array of complex64"
    ),
    "no records": Bad(npz(inputs=X[:0], labels=LABELS[:0]), "expected at least one record, found none"),
    "no columns": Bad(npz(inputs=X[:, :0], labels=LABELS), r"inputs that hold something, found shape \(4, 0\)"),
    "one label for all": Bad(npz(inputs=X, labels=np.int64(1)), "a label for each input, found one for all"),
    "several labels": Bad(npz(inputs=X, labels=X), "one class as its label, or whole numbers"),
    "half a class": Bad(
        npz(inputs=X, labels=LABELS + 0.5), r"row 0 .* expected a class as its label, found a number that"
    ),
}
OF_FOLDERS: dict[str, Bad] = {
    "no folder": Bad(
        lambda folder: (folder / "scans").write_text(SECRET) and None, "one folder for each class, found a file"
    ),
    "no images": Bad(lambda folder: (folder / "scans" / "no").mkdir(parents=True), "expected at least one image"),
    "an image of no class": Bad(
        images(a=lambda s: Image.new("L", (4, 4)).save(s / "loose.png")), r"loose\.png: expected a folder"
    ),
    "another size": Bad(
        images(a=lambda s: Image.new("L", (5, 4)).save(s / "yes" / "1.png")), r"yes/1\.png: .* \(1, 4, 4\)"
    ),
    "another mode": Bad(
        images(a=lambda s: Image.new("RGBA", (4, 4)).save(s / "yes" / "1.png")), r"yes/1\.png: .* mode RGBA"
    ),
    "half an image": Bad(
        images(a=lambda s: (s / "yes" / "1.png").write_bytes((s / "yes" / "0.png").read_bytes()[:45])),
        r"yes/1\.png: expected an im",
    ),
    "a text": Bad(
        images(a=lambda s: (s / "yes" / "notes.txt").write_text(SECRET)), r"yes/notes\.txt: expected an image"
    ),
    "several pages": Bad(
        images(a=lambda s: _two_pages(s / "yes" / "1.png")), r"yes/1\.png: expected one image, found several"
    ),
    "a folder in a class": Bad(
        images(a=lambda s: (s / "yes" / "more").mkdir()), r"yes/more: expected an image, found a folder"
    ),
    "a link out": Bad(
        images(a=lambda s: _link(s / "yes" / "z.png", Path("/etc/hostname"))), r"yes/z\.png: .* found a link that leads"
    ),
    "a link to a folder out": Bad(
        images(a=lambda s: _link(s / "zz", Path("/etc"))), r"scans/zz: .* found a link that leads out"
    ),
    "a dangling link": Bad(
        images(a=lambda s: _link(s / "yes" / "z.png", s / "none.png")),
        r"yes/z\.png: expected a readable file or folder, found No such file",
    ),
    "an unknown class": Bad(
        images(a=lambda s: (s / "yes").rename(s / "maybe")), r"maybe/0\.png: expected one of the 2", task=NAMES
    ),
    "one class": Bad(images(a=lambda s: shutil.rmtree(s / "no")), "scans: expected a folder for each of two classes"),
    "a class without an image": Bad(
        images(a=lambda s: (s / "maybe").mkdir()), r"scans/maybe: expected an image in it, or its class in task\.cla"
    ),
    "an unknown class without an image": Bad(
        images(a=lambda s: (s / "maybe").mkdir()), r"scans/maybe: expected an image in it, or its class", task=NAMES
    ),
    "a transparent palette": Bad(
        images(a=lambda s: _palette(s / "yes" / "1.png")), r"yes/1\.png: .* without transparency, found one with"
    ),
    "a photograph on its side": Bad(
        images(a=_sideways), r"yes/9\.png: .* shape \(1, 4, 4\), as before it, found shape \(1, 6, 4\)"
    ),
    "two classes but for case": Bad(
        images(a=lambda s: shutil.copytree(s / "no", s / "No")), r"scans/no: expected classes .* more than case"
    ),
    "two classes but for the encoding of an accent": Bad(
        images(
            a=lambda s: shutil.copytree(s / "no", s / "caf\u00e9"),
            b=lambda s: shutil.copytree(s / "no", s / "cafe\u0301"),
        ),
        r"scans/caf\u00e9: expected classes .* look-alikes",
    ),
    "a CMYK image": Bad(
        images(a=lambda s: Image.new("CMYK", (4, 4)).save(s / "yes" / "1.jpg")), r"yes/1\.jpg: .* mode CMYK"
    ),
    "a loop of links": Bad(
        images(a=lambda s: _link(s / "yes" / "loop", s)), r"yes/loop: expected an image, found a folder"
    ),
    "a class of escape codes": Bad(
        images(a=lambda s: (s / "yes").rename(s / "a\nb\x1b[31m")), r"scans/a\\nb\\x1b\[31m: .*256 printable characters"
    ),
    "a class in another encoding": Bad(
        images(a=lambda s: os.rename(s / "yes", os.fsencode(s) + b"/y\xff")), r"scans/y\\udcff: .*printable characters"
    ),
    "escape codes and a text": Bad(
        images(a=lambda s: (s / "yes" / "a\nb\x1b[31m").write_text(SECRET)), r"yes/a\\nb\\x1b\[31m: expected an image"
    ),
    "a pipe": Bad(images(a=lambda s: os.mkfifo(s / "yes" / "p.png")), r"yes/p\.png: expected an image.* or a device"),
    "an animation": Bad(images(a=lambda s: _gif(s / "yes" / "1.gif")), r"yes/1\.gif: expected an image \(PNG, "),
    "no bytes": Bad(images(a=lambda s: (s / "yes" / "1.png").write_bytes(b"")), r"yes/1\.png: expected an image"),
    "sixteen bits": Bad(
        images(a=lambda s: Image.new("I;16", (4, 4)).save(s / "yes" / "1.png")), r"yes/1\.png: .* mode I;16"
    ),
    "too many pixels": Bad(
        images(a=lambda s: _picture(s / "no" / "0.png", 12_000, 10_000)),
        r"no/0\.png: .* 16777216 pixels, found 120000000",
    ),
    "a bomb": Bad(images(a=lambda s: _picture(s / "yes" / "1.png", 50_000, 50_000)), r"yes/1\.png: expected an image"),
    "a bomb of text": Bad(
        images(a=lambda s: _picture(s / "yes" / "1.png", 4, 4, text=2 * 10**7)), r"yes/1\.png: expected an image"
    ),
    "a link to itself": Bad(
        images(a=lambda s: _link(s / "yes" / "z.png", s / "yes" / "z.png")), r"yes/z\.png: expected a readable file"
    ),
    "a link to a device": Bad(
        images(a=lambda s: _link(s / "yes" / "z.png", Path("/dev/zero"))), r"yes/z\.png: .* found a link that leads"
    ),
}
_DATA = "class Data:\n    def __len__(self): return 4\n    def __getitem__(self, i): "
_MASKED = "import numpy as np\nmasked = np.ma.masked_equal(np.arange(8).reshape(4, 2) % 3, 2)\n"
OF_MODULES: dict[str, Bad] = {
    "an error of its own kind": Bad(
        module(f"class Own(BaseException): pass\ndef load(): raise Own('{SECRET}')", "own_kind"),
        "expected a function that gives records, found one that raises Own",
        "own_kind:load",
    ),
    "a generator": Bad(
        module(f"def load():\n    yield '{SECRET}'", "own_generator"),
        "expected a map-style data set of .*, found a generator",
        "own_generator:load",
    ),
    "a function that wants a path": Bad(
        module("def load(path, size, n=3, **others): return path", "own_path"),
        "expected a function without arguments that gives records, found one of path, size",
        "own_path:load",
    ),
    "records of three parts": Bad(
        module(_DATA + "return 1.0, 1, 'patient'\ndef load(): return Data()", "own_triples"),
        r"row 0 \(from 0\): expected a pair \(input, label\), found a tuple of 3",
        "own_triples:load",
    ),
    "a coroutine": Bad(
        module("async def load(): return 3", "own_async"),
        "expected a map-style data set of .*, found a",
        "own_async:load",
    ),
    "a length below zero": Bad(
        module(_DATA.replace("4", "-4") + "return 1.0, 1\ndef load(): return Data()", "own_negative"),
        "expected a map-style data set of .*, found one whose length raises ValueError",
        "own_negative:load",
    ),
    "fewer records than it says": Bad(
        module(_DATA + "return [(1.0, 1)][i]\ndef load(): return Data()", "own_fewer"),
        r"row 1 \(from 0\): expected a record, found that reading it raises IndexError",
        "own_fewer:load",
    ),
    "bytes and numbers as images": Bad(
        module(
            "import numpy as np\ndef load():\n    return [(np.zeros((1, 4, 4), t), 0) for t in (np.uint8, np.float32)]",
            "own_scales",
        ),
        r"row 1 \(from 0\): expected an input of uint8, as before it, found float32",
        "own_scales:load",
    ),
    "images with transparency": Bad(
        module(
            "from PIL import Image\ndef load(): return [(Image.new('RGBA', (4, 4)), 0)] * 2",
            "own_transparent",
        ),
        r"row 0 \(from 0\): expected a grey or colour image without transparency, found one with",
        "own_transparent:load",
    ),
    "a sparse tensor": Bad(
        module("import torch\ndef load(): return torch.eye(4).to_sparse(), torch.arange(4) % 2", "own_sparse"),
        "own_sparse:load, inputs: expected an array, found something of which NumPy makes none",
        "own_sparse:load",
    ),
    "a tensor without values": Bad(
        module("import torch\ndef load(): return torch.empty(4, 2, device='meta'), torch.arange(4)", "own_meta"),
        "own_meta:load, inputs: expected an array, found something of which NumPy makes none",
        "own_meta:load",
    ),
    "an integer beyond all": Bad(
        module("def load(): return [[1.0], [2.0]], [10**400, 0]", "own_huge"),
        r"row 0 \(from 0\): expected a class in \[0, 65535\]",
        "own_huge:load",
    ),
    "no module": Bad(
        lambda folder: None, r"No module named 'own_nowhere' \(looked in .*, then in ", "own_nowhere:load"
    ),
    "no function": Bad(module("", "own_empty"), "own_empty:load.* has no attribute 'load'", "own_empty:load"),
    "no call": Bad(module("load = 3", "own_three"), "load cannot be called", "own_three:load"),
    "a module that raises": Bad(
        module(f"raise ValueError('{SECRET}')", "own_raises"),
        "importing it raises ValueError in own_raises.py, line 1",
        "own_raises:load",
    ),
    "no Python": Bad(
        module(f"{SECRET} =", "own_syntax"),
        "importing it raises SyntaxError in own_syntax.py, line 1",
        "own_syntax:load",
    ),
    "a hidden package": Bad(
        lambda folder: (folder / "xml").mkdir() or module("def load(): pass", "xml/mine")(folder),
        "another module 'xml' .* hides yours, .*: rename yours",
        "xml.mine:load",
    ),
    "a hidden name": Bad(
        module("def load(): pass", "wave"), "another module 'wave' .* hides yours, .*: rename yours", "wave:load"
    ),
    "a function that raises": Bad(
        module(f"def load(): raise KeyError('{SECRET}')", "own_keyerror"),
        "found one that raises KeyError",
        "own_keyerror:load",
    ),
    "nothing": Bad(
        module("def load(): return None", "own_none"),
        "expected records, a map-style data set.*, found none",
        "own_none:load",
    ),
    "no pairs": Bad(
        module(_DATA + "return 3\ndef load(): return Data()", "own_no_pairs"),
        r"row 0 \(from 0\): expected a pair",
        "own_no_pairs:load",
    ),
    "ragged records": Bad(
        module(_DATA + "return [1.0] * (i + 1), 1\ndef load(): return Data()", "own_ragged"),
        r"row 1 \(from 0\): expected an input of shape \(1,\), as before it, found shape \(2,\)",
        "own_ragged:load",
    ),
    "a record that raises": Bad(
        module(_DATA + f"raise OSError('{SECRET}')\ndef load(): return Data()", "own_item"),
        r"row 0 \(from 0\): .*raises OSError",
        "own_item:load",
    ),
    "no records": Bad(
        module("def load(): return []", "own_no_records"), "expected at least one record", "own_no_records:load"
    ),
    "a module that ends the process": Bad(
        module(f"raise SystemExit('{SECRET}')", "own_exits"), "importing it raises SystemExit", "own_exits:load"
    ),
    "a function that ends the process": Bad(
        module(f"def load(): raise SystemExit('{SECRET}')", "own_leaves"),
        "found one that raises SystemExit",
        "own_leaves:load",
    ),
    "a function that cancels a task": Bad(
        module(f"import asyncio\ndef load(): raise asyncio.CancelledError('{SECRET}')", "own_cancels"),
        "found one that raises CancelledError",
        "own_cancels:load",
    ),
    "masked values": Bad(
        module(_MASKED + "def load(): return masked, np.arange(4) % 2", "own_masked"),
        "own_masked:load, inputs: expected values for all of it, found masked ones",
        "own_masked:load",
    ),
    "masked labels": Bad(
        module(_MASKED + "def load(): return np.ones((4, 2)), masked[:, 0]", "own_masked_labels"),
        "own_masked_labels:load, labels: expected values for all of it, found masked ones",
        "own_masked_labels:load",
    ),
    "a million million records": Bad(
        module(_DATA.replace("4", "10**12") + "return 1.0, 1\ndef load(): return Data()", "own_endless"),
        "own_endless:load: expected at most 1000000000 records, found 1000000000000",
        "own_endless:load",
    ),
    "objects": Bad(
        module(_DATA + f"return '{SECRET}', 1\ndef load(): return Data()", "own_objects"),
        "expected numbers of one shape",
        "own_objects:load",
    ),
}
OF_SECTIONS: dict[str, Bad] = {
    "no kind": Bad(
        csv(GOOD), r"client\.records: expected one of csv:PATH, .*, or module:function, found", "patients.csv"
    ),
    "no path": Bad(csv(GOOD), r"client\.records: expected one of csv:PATH", "csv:"),
    "a data set beside": Bad(
        csv(GOOD), "records, dataset: expected one of both, found both", client={"dataset": "mnist"}
    ),
    "no name of a label": Bad(csv(GOOD), r"client\.label: expected the name of a column of ", client={"label": None}),
    "a source for each client": Bad(csv(GOOD), r"expected a file or folder a\.csv, looked in", "csv:{client}.csv"),
    "one source for all": Bad(
        csv(GOOD), r"client\.records: expected \{client\} in it, as 3 clients", client={"dealt": False}
    ),
}
