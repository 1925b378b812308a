"""Eight elements in seven words, against Python's integers.

Failure means: a server that takes an element for another, or one of p or above for one below.
"""

from __future__ import annotations

import numpy as np
import pytest

from precad.mpc.kernels import loading
from precad.mpc.proved.field import P

EDGES = [0, 1, 255, 2**48, 2**55, P - 1, P, P + 1, 2**56 - 1]


@pytest.mark.parametrize("n_groups", [0, 1, 2, 3, 64])
def test_words_are_unpacked_and_counted_in_any_place(n_groups: int) -> None:
    """Each edge in each of the eight places of a group, first, last and between; and nothing behind is written."""
    random = np.random.default_rng(n_groups)
    for shift in range(len(EDGES)):
        values = random.integers(0, 2**56, 8 * n_groups, dtype=np.uint64).tolist()
        values[:: len(EDGES)] = [EDGES[(i + shift) % len(EDGES)] for i in range(len(values[:: len(EDGES)]))]
        values[-1:] = [EDGES[shift]] if values else []
        packed = np.frombuffer(b"".join(value.to_bytes(7, "little") for value in values), dtype="<u8").astype(np.uint64)
        out = np.full(8 * n_groups + 8, 7, dtype=np.uint64)
        refused = loading.packing().unpack(packed, out[: 8 * n_groups])
        assert out.tolist() == values + [7] * 8
        assert refused == sum(value >= P for value in values)
        again = np.empty_like(packed)
        loading.packing().pack(np.array(values, dtype=np.uint64), again)
        assert np.array_equal(again, packed)
