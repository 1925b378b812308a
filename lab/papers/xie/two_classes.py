"""The two classes that Xie et al. tell apart, and by which model: digits 0 and 1, airplanes and birds, or tweets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from precad.clients.records import Records
from precad.clients.training import evaluation


@dataclass(frozen=True, slots=True)
class Pair:
    """Two classes of a data set."""

    classes: tuple[int, int]
    words: str
    model: str
    """With two outputs, one for each."""

    def indices(self, records: Records) -> NDArray[np.int64]:
        """Return the label of each record as 0 or 1, (n,)."""
        found: NDArray[np.int64] = np.searchsorted(self.classes, records.labels).astype(np.int64)
        return found

    def mean_confidences(self, folder: Path, seeds: int, test: Records) -> NDArray[np.float64]:
        """Return the mean confidences over the final models of a case's seeds, which lie in its folder; (n, 2)."""
        total = np.zeros((len(test), len(self.classes)))
        for seed in range(seeds):
            with np.load(folder / f"seed-{seed}.npz", allow_pickle=False) as saved:
                total += evaluation.confidences(saved["parameters"], self.model, test)[:, list(self.classes)]
        mean: NDArray[np.float64] = total / seeds
        return mean


DIGITS: Final = Pair((0, 1), "classes 0 and 1", "cnn-binary")
AIRPLANES_AND_BIRDS: Final = Pair((0, 2), "airplanes and birds", "cnn-pooled-binary")
TWEETS: Final = Pair((0, 1), "negative and positive tweets", "lstm-binary")
PAIRS: Final[Mapping[str, Pair]] = MappingProxyType(
    {"mnist": DIGITS, "cifar10": AIRPLANES_AND_BIRDS, "sentiment140-50k": TWEETS}
)


def pair_of(dataset: str) -> Pair:
    """Return the classes of one of the paper's data sets; what has the shape of digits is taken for digits."""
    return PAIRS.get(dataset, DIGITS)
