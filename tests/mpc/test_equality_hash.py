"""The hashes of a round's words at once, against Horner's rule for one client."""

from __future__ import annotations

import numpy as np
import pytest

from mpc.equality import polynomial_hash, polynomial_hashes
from mpc.tuples import FIELD_PRIME


@pytest.mark.parametrize("shape", [(0, 65), (1, 0), (1, 1), (3, 65), (8, 9)])
@pytest.mark.parametrize("key", [0, 1, 2, FIELD_PRIME - 1, FIELD_PRIME // 3])
def test_hashes_of_all_rows_are_the_hashes_of_each(shape, key):
    """Random words and the extremes of the ring, at special and ordinary points."""
    words = np.random.default_rng(3).integers(-(2**63), 2**63, shape, dtype=np.int64)
    words[:, ::3] = -1
    words[:, 1::5] = -(2**63)

    assert polynomial_hashes(words, key) == [polynomial_hash(row, key) for row in words]
