"""The handwritten digits that come with scikit-learn: nothing is downloaded."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from clients.datasets.records import Records, Split
from clients.errors import ArgumentError

DIGITS_SIDE: Final = 8
_MAX: Final = 16.0
_N_TEST: Final = 360
_SPLIT_SEED: Final = 0


def digits(*, side: int = DIGITS_SIDE) -> Split:
    """The 1797 handwritten digits that come with scikit-learn, 1437 to train and 360 to test; nothing is downloaded.

    The split is stratified by label and always the same. `side` > 8 enlarges the images bilinearly to
    (n, 1, side, side), which is how a model for 28x28 images is tried without a download.
    Raises: ArgumentError if side < 8.
    """
    if side < DIGITS_SIDE:
        raise ArgumentError(f"side must be >= {DIGITS_SIDE}, got {side}")
    pixels, labels = load_digits(return_X_y=True)
    images = (pixels / _MAX).astype(np.float32).reshape(-1, 1, DIGITS_SIDE, DIGITS_SIDE)
    train, test = train_test_split(np.arange(len(labels)), test_size=_N_TEST, stratify=labels, random_state=_SPLIT_SEED)
    everything = Records(_enlarge(images, side), labels.astype(np.int64))
    return Split(train=everything.take(train), test=everything.take(test))


def _enlarge(images: NDArray[np.float32], side: int) -> NDArray[np.float32]:
    """(n, 1, s, s) -> (n, 1, side, side), bilinear: a new pixel is an average of old ones, so it stays in [0, 1]."""
    if images.shape[-1] == side:
        return images
    enlarged = torch.nn.functional.interpolate(
        torch.from_numpy(images), size=(side, side), mode="bilinear", align_corners=False
    )
    return np.asarray(enlarged.numpy(), dtype=np.float32)
