"""The servers' second pass over a share, against Python's integers.

Failure means: a wire's value that is another at a server, so an honest proof that is refused.
"""

from __future__ import annotations

import numpy as np
import pytest

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
