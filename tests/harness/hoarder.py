"""An attack of a user's own that no honest client's process may load."""

from __future__ import annotations

import numpy as np

from precad.clients.attacks import Attack
from precad.clients.records import Records


class Hoarder(Attack):
    """Want the records of class 1."""

    name = "hoarder"

    def hoarded(self, records: Records) -> np.ndarray:
        """Return which of them it takes (n,)."""
        return np.asarray(records.labels == 1)
