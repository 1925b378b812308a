"""The trimmed sum: what is left of a sum without its F longest vectors, and how stable that is.

TSum_F drops the F vectors of largest norm, ties in a fixed total order, and adds up the others. The sorted norms of the
m vectors are x_(1) <= .. <= x_(m), each at most R. Neighbours differ in one vector. Source: Wang, Mahloujifar, Wang,
Jia, Mittal, "Renyi Differential Privacy of Propose-Test-Release and Applications to Private and Robust Machine
Learning", NeurIPS '22. The closed form of the margin is our derivation.
"""

import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from precad.dp.checks import require_count, require_positive


def trimmed_sum(vectors: NDArray[np.int64], F: int, squares: Sequence[int] | None = None) -> NDArray[np.int64]:
    """TSum_F of grid vectors. Shapes: (m, d) -> (d,). `squares`: their squared norms, where they are known.

    Equally long vectors are ordered by their content, never by where they stand: that may differ between neighbours.
    """
    squares = [squared_norm(vector) for vector in vectors] if squares is None else squares
    order: list[int] = []
    for _, tied in itertools.groupby(sorted(range(len(vectors)), key=squares.__getitem__), key=squares.__getitem__):
        group = list(tied)
        order += group if len(group) == 1 else sorted(group, key=lambda i: vectors[i].tobytes())
    total = np.zeros(vectors.shape[1], dtype=np.int64)
    for i in order[: max(0, len(vectors) - F)]:
        total += vectors[i]
    return total


def require_grid(clip: float, frac_bits: int) -> None:
    """R 2^f must be at most 2^40: then a coordinate fits a word, and so does the sum of 2^22 vectors with its noise."""
    require_positive("clip", clip)
    require_count("frac_bits", frac_bits)
    if clip > math.ldexp(1.0, 40 - frac_bits):
        raise ValueError(f"clip: expected at most 2^(40 - frac_bits) = 2^{40 - frac_bits}, found {clip}")


def squared_norm(vector: NDArray[np.int64]) -> int:
    """Return the sum of squares, exact whatever its size."""
    largest = max(int(vector.max(initial=0)), -int(vector.min(initial=0)))
    if largest**2 * len(vector) < 1 << 63:
        return int(vector @ vector)
    return sum(v * v for v in vector.tolist())
