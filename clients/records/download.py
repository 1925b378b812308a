"""Data sets through torchvision, where the configuration allows to download them.

torchvision knows the mirrors and verifies what they send. Files land in the folder that PRECAD_DATA names, otherwise in
the user's cache, and are downloaded once.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precad.clients.errors import MissingDataError
from precad.clients.extras import extra
from precad.clients.records.folder import data_folder


def mnist() -> Path:
    """Download the idx files of MNIST. Returns the folder that holds `MNIST/raw`. Raises MissingDataError."""
    _fetch("MNIST", train=True)
    return _root()


def fashion_mnist() -> Path:
    """Download the idx files of Fashion-MNIST.

    Returns the folder that holds `FashionMNIST/raw`. Raises MissingDataError.
    """
    _fetch("FashionMNIST", train=True)
    return _root()


def emnist(split: str) -> Path:
    """Download EMNIST's archive and unpack its idx files. Returns the folder that holds `EMNIST/raw`. Raises
    MissingDataError."""
    _fetch("EMNIST", train=True, split=split)
    return _root()


def cifar10(*, train: bool) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return one half of CIFAR-10: images (n, 32, 32, 3) and labels (n,). Raises MissingDataError."""
    half = _fetch("CIFAR10", train=train)
    return np.asarray(half.data, dtype=np.uint8), np.asarray(half.targets, dtype=np.int64)


def _root() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME", "") or Path.home() / ".cache")
    return data_folder() or cache / "precad"


def _fetch(name: str, *, train: bool, split: str | None = None) -> Any:
    library = extra(
        "torchvision.datasets",
        MissingDataError(
            f"{name} is not there, and torchvision, which would download it, is missing: install "
            '"precad[datasets]" from where precad came from'
        ),
    )
    root = _root()
    try:
        root.mkdir(parents=True, exist_ok=True)
        options = {} if split is None else {"split": split}
        return getattr(library, name)(str(root), train=train, download=True, **options)
    except (OSError, RuntimeError) as error:
        raise MissingDataError(f"{name} could not be downloaded to {root}: {error}") from None
