"""The handwritten digits that come with scikit-learn: nothing is downloaded."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from precad.clients.errors import ArgumentError, MissingDataError
from precad.clients.records.records import Records, Split

DIGITS_SIDE: Final = 8
_MAX: Final = 16.0
_N_TEST: Final = 360
_ROWS: Final = Path(__file__).parent / "digits_rows.txt"
"""The order of the 1797 records: 1437 to train, then 360 to test, stratified by label (scikit-learn, seed 0)."""


def digits(*, side: int = DIGITS_SIDE) -> Split:
    """Return the 1797 handwritten digits that come with scikit-learn, 1437 to train and 360 to test; nothing is
    downloaded.

    The split is stratified by label and always the same. `side` > 8 enlarges the images bilinearly to
    (n, 1, side, side), which is how a model for 28x28 images is tried without a download.
    Raises: ArgumentError if side < 8, MissingDataError without scikit-learn.
    """
    if side < DIGITS_SIDE:
        raise ArgumentError(f"side: expected at least {DIGITS_SIDE}, found {side}")
    pixels, labels = _table()
    images = (pixels / _MAX).astype(np.float32).reshape(-1, 1, DIGITS_SIDE, DIGITS_SIDE)
    everything = Records(_enlarge(images, side), labels)
    train, test = np.split(np.array(_ROWS.read_text().split(), dtype=np.int64), [-_N_TEST])
    return Split(train=everything.take(train), test=everything.take(test))


@cache
def _table() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Read scikit-learn's file of the digits without importing scikit-learn, which takes two seconds.

    Returns pixels of 0..16, (1797, 64), and labels, (1797,).
    """
    installed = importlib.util.find_spec("sklearn")
    if installed is None or installed.origin is None:
        raise MissingDataError("digits: expected scikit-learn, which holds them, found none installed")
    table = np.loadtxt(Path(installed.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    return table[:, :-1], table[:, -1].astype(np.int64)


def _enlarge(images: NDArray[np.float32], side: int) -> NDArray[np.float32]:
    """(n, 1, s, s) -> (n, 1, side, side), bilinear: a new pixel is an average of old ones, so it stays in [0, 1]."""
    if images.shape[-1] == side:
        return images
    import torch

    enlarged = torch.nn.functional.interpolate(
        torch.from_numpy(images), size=(side, side), mode="bilinear", align_corners=False
    )
    return np.asarray(enlarged.numpy(), dtype=np.float32)
