"""CIFAR-10 as one lossless image per half and class: a mosaic of 32x32 tiles, 100 tiles a row."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from precad.clients.errors import CorruptDataError, MissingDataError
from precad.clients.extras import extra
from precad.clients.records import download
from precad.clients.records.folder import find, missing, read_verified
from precad.clients.records.records import Records, Split

CLASSES: Final = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
SHA256: Final[Mapping[str, str]] = {
    "cifar10/train_0_airplane.png": "6c72997b4e56c058b43ffd89cf85dfc79056aaac54282213290e33af92fd4c50",
    "cifar10/train_1_automobile.png": "c4f99e6203b59204beb5387a9bae4871726270db9cef985e1f96fffd1fd9fbde",
    "cifar10/train_2_bird.png": "c4a68113cea6afa38fc1cf66ab55c8a57220731d82f78baaf2a88ca42f6f766f",
    "cifar10/train_3_cat.png": "059c9346839a37dde42450cd1056c65ae8dfd4e6a57dd603b8a78a5ba4c11a1d",
    "cifar10/train_4_deer.png": "4a3b2ad703b0f6f91d0b2e7298ce2dd2398856e854d26ca066785302de9e3931",
    "cifar10/train_5_dog.png": "6a3fb2c71a5a4aa95627c7eb32d3bc414e81141a96dde08cd21c2ed63e56405d",
    "cifar10/train_6_frog.png": "eaee6c65cc7ac7ac845af3ebef4536a2d5fb4df135c5e4b86fdc690c1e678274",
    "cifar10/train_7_horse.png": "817e03db1d9d25f2b4617498d3d4f0d48f005ede5ddbb965923e7f77c506cac7",
    "cifar10/train_8_ship.png": "25e1b91d10d8e31417dc6ddac4a3d3ac0ea0cfe90c0508ef7f6381953e63376b",
    "cifar10/train_9_truck.png": "7132658b9cddf11c0b12ad173b83cd6559f928fcd89b9ee6e3f2dd6eadbb5f02",
    "cifar10/test_0_airplane.png": "838eea9eac770f9ce500613d6dadd993010bc37f354ec8c1969c2306a3a0b1b3",
    "cifar10/test_1_automobile.png": "2bbf207930e7fcb6f03665786a2db1886b2dab68692ccb8f653e09c48425f8e1",
    "cifar10/test_2_bird.png": "7fcaa4edd245c0eff7852ba684e55ff13eb34b94496664b748062a1698218c26",
    "cifar10/test_3_cat.png": "e2c2a2bdb49724fc6e45001e20cc5fff0395d4292eaa94976dd5f2ee72ca8ab0",
    "cifar10/test_4_deer.png": "6fb19fd0dcf770e166652023ff953b557ed49785e25b85f7d15e866a8d46bdc4",
    "cifar10/test_5_dog.png": "d0c0a4d49b99d9d699f82343f5fc23fce070835ca6bea78fe872d681e123f76e",
    "cifar10/test_6_frog.png": "8cabbf91c6ff0a46e33fc6d62c985fa9b7f8de8a69841233ff035819205f4f8a",
    "cifar10/test_7_horse.png": "b3ead60edc76a9f0c675dc231acac89eca46d6c4b21cc680ba04352a69d62084",
    "cifar10/test_8_ship.png": "4bbc9c6cae16e97b2cfa743d29d4695cd758b321f6e10c4ab89360b5e936d4fd",
    "cifar10/test_9_truck.png": "59e04c2d29734685bd5a5e131c93b6b7e35da4fa8cae716d41bca66ff35b9177",
}
"""Checksums of the mosaics. They decode to exactly the published pixels: 5000 + 1000 images per class."""
_SIDE, _PER_ROW, _ORDER_SEED = 32, 100, 0


def cifar10(*, may_download: bool = False) -> Split:
    """Read 50 000 images to train on and 10 000 to test; uint8 (n, 3, 32, 32), red, green, blue.

    From mosaics the images come class by class, so they are put in one fixed random order.
    Raises: MissingDataError, CorruptDataError.
    Source: Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.
    """
    names = list(SHA256)
    if all(find(name) is not None for name in names):
        return Split(train=_from_mosaics("train"), test=_from_mosaics("test"))
    if not may_download:
        raise missing("cifar10", "cifar10/{train,test}_<label>_<class>.png")
    return Split(train=_records(*download.cifar10(train=True)), test=_records(*download.cifar10(train=False)))


def _from_mosaics(half: str) -> Records:
    images, labels = [], []
    for label, name in enumerate(CLASSES):
        tiles = _tiles(f"cifar10/{half}_{label}_{name}.png")
        images.append(tiles)
        labels.append(np.full(len(tiles), label, dtype=np.int64))
    order = np.random.default_rng(_ORDER_SEED).permutation(sum(map(len, labels)))
    return _records(np.concatenate(images)[order], np.concatenate(labels)[order])


def _tiles(file: str) -> NDArray[np.uint8]:
    """Return (n, 32, 32, 3). Raises MissingDataError, CorruptDataError."""
    path = find(file)
    assert path is not None  # `cifar10` has looked
    mosaic = np.asarray(_pillow().open(io.BytesIO(read_verified(path, SHA256[file]))), dtype=np.uint8)
    if mosaic.ndim != 3 or mosaic.shape[0] % _SIDE or mosaic.shape[1:] != (_PER_ROW * _SIDE, 3):
        raise CorruptDataError(path, f"expected rows of {_PER_ROW} tiles, found an image of shape {mosaic.shape}")
    rows = mosaic.reshape(-1, _SIDE, _PER_ROW, _SIDE, 3)
    return np.ascontiguousarray(rows.swapaxes(1, 2).reshape(-1, _SIDE, _SIDE, 3))


def _pillow() -> Any:
    return extra(
        "PIL.Image",
        MissingDataError('reading PNG files needs Pillow: install "precad[datasets]" from where precad came from'),
    )


def _records(images: NDArray[np.uint8], labels: NDArray[np.int64]) -> Records:
    return Records(np.ascontiguousarray(images.transpose(0, 3, 1, 2)), labels)
