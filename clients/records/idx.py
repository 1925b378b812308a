"""MNIST and Fashion-MNIST: the four idx files of each, plain or gzip-compressed."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from precad.clients.errors import CorruptDataError
from precad.clients.records import download
from precad.clients.records.folder import find, missing, read_verified
from precad.clients.records.records import Records, Split

_IMAGES, _LABELS = "images-idx3-ubyte", "labels-idx1-ubyte"

SHA256: Final[Mapping[str, str]] = MappingProxyType(
    {
        f"MNIST/raw/train-{_IMAGES}": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        f"MNIST/raw/train-{_LABELS}": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        f"MNIST/raw/t10k-{_IMAGES}": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        f"MNIST/raw/t10k-{_LABELS}": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        f"FashionMNIST/raw/train-{_IMAGES}": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        f"FashionMNIST/raw/train-{_LABELS}": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        f"FashionMNIST/raw/t10k-{_IMAGES}": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        f"FashionMNIST/raw/t10k-{_LABELS}": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    }
)
"""Checksums of the unpacked files. The authors published MD5: for MNIST 6bbc9ace.., a25bea73.., 2646ac64..,
27ae3e4e.. in this order."""


def mnist(*, may_download: bool = False) -> Split:
    """60 000 handwritten digits to train on and 10 000 to test; uint8 images (n, 1, 28, 28).

    Raises: MissingDataError, CorruptDataError.
    Source: LeCun, Cortes and Burges, "The MNIST database of handwritten digits".
    """
    return _load("mnist", "MNIST", download.mnist if may_download else None)


def fashion_mnist(*, may_download: bool = False) -> Split:
    """60 000 pieces of clothing to train on and 10 000 to test; uint8 images (n, 1, 28, 28).

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
