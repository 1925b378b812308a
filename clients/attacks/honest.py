"""The client that follows the protocol."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Honest:
    """Uploads what Algorithm 2 says."""

    @property
    def name(self) -> str:
        """The key in `ATTACKS`."""
        return "none"

    def on_update(self, update: NDArray[np.float64]) -> NDArray[np.float64]:
        """The update itself."""
        return update.copy()

    def on_encoded(self, encoded: NDArray[np.int64]) -> NDArray[np.int64]:
        """The encoded update itself."""
        return encoded.copy()
