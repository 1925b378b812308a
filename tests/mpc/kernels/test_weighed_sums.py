"""The servers' second pass over a share, against Python's integers.

Failure means: a wire's value that is another at a server, so an honest proof that is refused.
"""

from __future__ import annotations

import numpy as np
import pytest

from precad.mpc.errors import ParameterError
from precad.mpc.kernels.vectors import VECTORS_PER_BLOCK
from precad.mpc.proved.accumulators import CpuWires
from precad.mpc.proved.field import P

BLOCK = 8 * VECTORS_PER_BLOCK


@pytest.mark.parametrize("length", [16, 32, 1024, 2048])
@pytest.mark.parametrize("start", [0, 1, 15, 1000])
@pytest.mark.parametrize("size", [1, 7, 8, 9, 40, BLOCK - 1, BLOCK, BLOCK + 9, 2500])
def test_both_weighted_sums_are_the_integers(length: int, start: int, size: int) -> None:
    """Tiles that begin and end anywhere in a wire. Elements at random, and all at their largest: no sum overflows."""
    random = np.random.default_rng(size)
    n_wires = (start + size - 1) // length + 1
    for share, weights in (
        (random.integers(0, P, size, dtype=np.uint64), random.integers(0, P, (2, length), dtype=np.uint64)),
        (np.full(size, P - 1, dtype=np.uint64), np.full((2, length), P - 1, dtype=np.uint64)),
        (np.full(size, 2**56 - 2**33 + 2**28 - 1, dtype=np.uint64), np.full((2, length), 2**56 - 2**33 - 1, np.uint64)),
    ):
        wires, total = CpuWires(1, n_wires, weights), np.full(size, 5, dtype=np.uint64)
        for _ in range(2):
            wires.open_tile(start, total)
            wires.add(0, share.reshape(1, -1))
        expected = [[0] * n_wires for _ in range(2)]
        for i, x in enumerate(share.tolist(), start):
            for e in range(2):
                expected[e][i // length] += 2 * x * int(weights[e, i % length])
        assert wires.sums()[0].tolist() == [[value % P for value in row] for row in expected]
        assert total.tolist() == [5 + 2 * x for x in share.tolist()]


@pytest.mark.parametrize(("start", "size", "room"), [(17, 16, 16), (0, 33, 33), (0, 16, 15), (0, 15, 16)])
def test_no_tile_is_taken_that_ends_behind_the_wires_or_the_sum(start: int, size: int, room: int) -> None:
    """The loops would write there: two wires of 16 places, and a sum of as many elements as the tile has."""
    wires = CpuWires(1, 2, np.ones((2, 16), dtype=np.uint64))
    wires.open_tile(start, np.zeros(room, dtype=np.uint64))
    with pytest.raises(ParameterError, match=f"share: expected {room} elements of wires, found {size}"):
        wires.add(0, np.ones((1, size), dtype=np.uint64))
    assert not wires.sums().any()
