"""What an attack is: two places on the way from gradient to upload where a malicious client deviates."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Attack(Protocol):
    """One malicious behaviour. Both methods return a new vector and leave their argument as it was."""

    @property
    def name(self) -> str:
        """The key in `ATTACKS`."""
        ...

    def on_update(self, update: NDArray[np.float64]) -> NDArray[np.float64]:
        """What goes into the encoding in place of the honest update (d,), which has norm <= C."""
        ...

    def on_encoded(self, encoded: NDArray[np.int64]) -> NDArray[np.int64]:
        """What is shared in place of the encoded update: (d,) words of Z_2^64, centred in [-2^63, 2^63)."""
        ...
