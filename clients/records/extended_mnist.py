"""EMNIST: handwritten digits and letters in the format of MNIST, four of its six splits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np

from precad.clients.errors import CorruptDataError
from precad.clients.records import download
from precad.clients.records.folder import find, missing, read_members, read_unpacked
from precad.clients.records.idx import parse_idx
from precad.clients.records.records import N_CLASSES, Records, Split

FOLDER: Final = "EMNIST/raw"
ARCHIVE: Final = f"{FOLDER}/gzip.zip"
ARCHIVE_SHA256: Final = "fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e"
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


SPLITS: Final[Mapping[str, EmnistSplit]] = MappingProxyType(
    {
        "digits": EmnistSplit(10, 240_000, 40_000),
        "letters": EmnistSplit(26, 124_800, 20_800, first_label=1),
        "balanced": EmnistSplit(47, 112_800, 18_800),
        "byclass": EmnistSplit(62, 697_932, 116_323),
    }
)
"""`letters` has capital and small letters in one class each, `balanced` those that look alike, `byclass` none."""


def emnist(name: str, *, may_download: bool = False) -> Split:
    """Return the split of that name; uint8 images (n, 1, 28, 28), upright.

    From the authors' archive, whose checksum is verified, where it is; else from its files, of which format, numbers
    and classes are. The files have images transposed, that is, column by column.
    Raises: MissingDataError, CorruptDataError.
    Source: Cohen, Afshar, Tapson and van Schaik, "EMNIST: Extending MNIST to Handwritten Letters", IJCNN '17.
    """
    split = SPLITS[name]
    kinds = ("images-idx3", "labels-idx1")
    names = [f"emnist-{name}-{half}-{kind}-ubyte" for half in ("train", "test") for kind in kinds]
    files = _files(name, names, may_download=may_download)
    train, test = _records(files[:2], split, split.n_train), _records(files[2:], split, split.n_test)
    return Split(train, test, n_logits=max(N_CLASSES, split.n_classes))


def _files(name: str, names: Sequence[str], *, may_download: bool) -> list[tuple[Path, bytes]]:
    """Return where each of them is, and its content. Raises MissingDataError, CorruptDataError."""
    archive, paths = find(ARCHIVE), [find(f"{FOLDER}/{file}") for file in names]
    if archive is None and any(path is None for path in paths):
        if not may_download:
            raise missing(f"emnist-{name}", f"{ARCHIVE}, or {FOLDER}/emnist-{name}-*-ubyte(.gz)")
        root = download.emnist(name)
        archive, paths = root / ARCHIVE, [root / FOLDER / file for file in names]
        archive = archive if archive.is_file() else None
    if archive is not None:
        members = [f"gzip/{file}.gz" for file in names]
        return [(archive, data) for data in read_members(archive, ARCHIVE_SHA256, members)]
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
