"""MNIST, Fashion-MNIST and four splits of EMNIST: idx files, plain or gzip-compressed."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from precad.clients.errors import CorruptDataError
from precad.clients.records import download
from precad.clients.records.folder import find, missing, read_members, read_unpacked, read_verified
from precad.clients.records.records import N_CLASSES, Records, Split

_IMAGES, _LABELS = "images-idx3-ubyte", "labels-idx1-ubyte"

SHA256: Final[Mapping[str, str]] = {
    f"MNIST/raw/train-{_IMAGES}": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    f"MNIST/raw/train-{_LABELS}": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    f"MNIST/raw/t10k-{_IMAGES}": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    f"MNIST/raw/t10k-{_LABELS}": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    f"FashionMNIST/raw/train-{_IMAGES}": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    f"FashionMNIST/raw/train-{_LABELS}": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    f"FashionMNIST/raw/t10k-{_IMAGES}": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    f"FashionMNIST/raw/t10k-{_LABELS}": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
"""Checksums of the unpacked files. The authors published MD5: for MNIST 6bbc9ace.., a25bea73.., 2646ac64..,
27ae3e4e.. in this order."""


def mnist(*, may_download: bool = False) -> Split:
    """Read 60 000 handwritten digits to train on and 10 000 to test; uint8 images (n, 1, 28, 28).

    Raises: MissingDataError, CorruptDataError.
    Source: LeCun, Cortes and Burges, "The MNIST database of handwritten digits".
    """
    return _load("mnist", "MNIST", download.mnist if may_download else None)


def fashion_mnist(*, may_download: bool = False) -> Split:
    """Read 60 000 pieces of clothing to train on and 10 000 to test; uint8 images (n, 1, 28, 28).

    Raises: MissingDataError, CorruptDataError.
    Source: Xiao, Rasul and Vollgraf, "Fashion-MNIST", 2017.
    """
    return _load("fashion-mnist", "FashionMNIST", download.fashion_mnist if may_download else None)


def _load(name: str, folder: str, fetch: Callable[[], Path] | None) -> Split:
    paths = {file: find(file) for file in SHA256 if file.startswith(f"{folder}/")}
    if any(path is None for path in paths.values()):
        if fetch is None:
            raise missing(name, f"{folder}/raw/*-ubyte(.gz)")
        root = fetch()
        paths = {file: root / file for file in paths}
    contents = {file: (path, read_verified(path, SHA256[file])) for file, path in paths.items() if path is not None}
    halves = []
    for half in ("train", "t10k"):
        images = parse_idx(*contents[f"{folder}/raw/{half}-{_IMAGES}"])
        labels = parse_idx(*contents[f"{folder}/raw/{half}-{_LABELS}"])
        halves.append(Records(images[:, None], labels.astype(np.int64)))
    return Split(train=halves[0], test=halves[1])


def parse_idx(path: Path, data: bytes) -> NDArray[np.uint8]:
    """Return the array of unsigned bytes that an idx file holds. Raises CorruptDataError.

    Format: two zero bytes, the type (8: unsigned byte), the number of axes, their lengths as big-endian 32-bit words,
    the values in row-major order.
    """
    if len(data) < 4 or data[:3] != b"\x00\x00\x08":
        raise CorruptDataError(path, "expected an idx file of unsigned bytes")
    start = 4 + 4 * data[3]
    if len(data) < start:
        raise CorruptDataError(path, "its header is cut short")
    shape = struct.unpack(f">{data[3]}I", data[4:start])
    values = np.frombuffer(data, dtype=np.uint8, offset=start)
    if values.size != math.prod(shape):  # Python's integers, which do not wrap
        raise CorruptDataError(path, f"expected {shape} values, found {values.size}")
    return values.reshape(shape)


EMNIST_FOLDER: Final = "EMNIST/raw"
EMNIST_ARCHIVE: Final = f"{EMNIST_FOLDER}/gzip.zip"
EMNIST_SHA256: Final = "fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e"
"""Checksum of the archive that the authors publish, 561 753 746 bytes, as tensorflow/datasets has it
(tensorflow_datasets/url_checksums/emnist.txt). No checksums of the files in the archive are known to us."""
_SIDE: Final = 28


@dataclass(frozen=True, slots=True)
class EmnistSplit:
    """One of the ways in which the authors cut and labelled their images."""

    n_classes: int
    n_train: int
    n_test: int
    first_label: int = 0
    """In the files; here, classes count from 0."""


EMNIST_SPLITS: Final[Mapping[str, EmnistSplit]] = {
    "digits": EmnistSplit(10, 240_000, 40_000),
    "letters": EmnistSplit(26, 124_800, 20_800, first_label=1),
    "balanced": EmnistSplit(47, 112_800, 18_800),
    "byclass": EmnistSplit(62, 697_932, 116_323),
}
"""`letters` has capital and small letters in one class each, `balanced` those that look alike, `byclass` none."""


def emnist(name: str, *, may_download: bool = False) -> Split:
    """Return the split of that name; uint8 images (n, 1, 28, 28), upright.

    From the authors' archive, whose checksum is verified, where it is; else from its files, of which format, numbers
    and classes are. The files have images transposed, that is, column by column.
    Raises: MissingDataError, CorruptDataError.
    Source: Cohen, Afshar, Tapson and van Schaik, "EMNIST: Extending MNIST to Handwritten Letters", IJCNN '17.
    """
    split = EMNIST_SPLITS[name]
    kinds = ("images-idx3", "labels-idx1")
    names = [f"emnist-{name}-{half}-{kind}-ubyte" for half in ("train", "test") for kind in kinds]
    files = _files(name, names, may_download=may_download)
    train, test = _records(files[:2], split, split.n_train), _records(files[2:], split, split.n_test)
    return Split(train, test, n_logits=max(N_CLASSES, split.n_classes))


def _files(name: str, names: Sequence[str], *, may_download: bool) -> list[tuple[Path, bytes]]:
    """Return where each of them is, and its content. Raises MissingDataError, CorruptDataError."""
    archive, paths = find(EMNIST_ARCHIVE), [find(f"{EMNIST_FOLDER}/{file}") for file in names]
    if archive is None and any(path is None for path in paths):
        if not may_download:
            raise missing(f"emnist-{name}", f"{EMNIST_ARCHIVE}, or {EMNIST_FOLDER}/emnist-{name}-*-ubyte(.gz)")
        root = download.emnist(name)
        archive, paths = root / EMNIST_ARCHIVE, [root / EMNIST_FOLDER / file for file in names]
        archive = archive if archive.is_file() else None
    if archive is not None:
        return [(archive, data) for data in read_members(archive, EMNIST_SHA256, [f"gzip/{file}.gz" for file in names])]
    return [(path, read_unpacked(path)) for path in paths if path is not None]


def _records(files: Sequence[tuple[Path, bytes]], split: EmnistSplit, n: int) -> Records:
    """Return one half. Raises CorruptDataError unless it has n images of 28x28 pixels, and each of the classes."""
    images, labels = (parse_idx(path, data) for path, data in files)
    if images.shape != (n, _SIDE, _SIDE):
        raise CorruptDataError(files[0][0], f"expected images of shape {(n, _SIDE, _SIDE)}, found {images.shape}")
    classes = np.arange(split.n_classes) + split.first_label
    if labels.shape != (n,) or not np.array_equal(np.unique(labels), classes):
        found = f"{labels.shape} of classes {np.unique(labels).tolist()}"
        raise CorruptDataError(files[1][0], f"expected {n} labels of {classes[0]} to {classes[-1]}, found {found}")
    upright = np.ascontiguousarray(images.transpose(0, 2, 1))
    return Records(upright[:, None], labels.astype(np.int64) - split.first_label)
