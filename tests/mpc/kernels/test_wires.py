"""Eight wires side by side: the same sums as of one at a time, by the transforms of `precad.mpc.proved.field`.

Those are compared with evaluations by definition in `test_field.py`. Failure means: a proof that servers reject.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from precad.mpc.kernels import loading
from precad.mpc.proved import field
from precad.mpc.proved.field import P

Words = NDArray[np.uint64]
LARGEST = P // 2


def by_kernel(x: NDArray[np.int64], masks: Words, length: int) -> tuple[Words, Words]:
    """Return what `wires` writes. What is written to holds other words before."""
    tables = field.transform(length)
    squares, tops = np.full((2, length), 2**64 - 1, dtype=np.uint64), np.full(masks.shape[1], 2**64 - 1, np.uint64)
    constants = tables.inverse, tables.twist, tables.forward
    loading.wires().wires(x, masks, np.uint64(tables.root), *constants, squares, tops)
    return squares, tops


def one_by_one(x: NDArray[np.int64], masks: Words, length: int) -> tuple[list[list[int]], list[int]]:
    """Return the same in Python's integers, from each wire's coefficients."""
    tables, padded = field.transform(length), np.zeros(masks.shape[1] * length, dtype=np.int64)
    padded[: x.size] = x
    squares, tops = [[0] * length, [0] * length], []
    for wire, s, s_x in zip(padded.reshape(-1, length), *masks.tolist(), strict=True):
        values = field.from_integers(wire)
        coefficients = tables.coefficients(values)
        tops.append(length * int(coefficients[-1]) % P)
        on_coset = tables.coset_values(coefficients).tolist()
        for i, value in enumerate(values.tolist()):
            at = tables.root * pow(tables.root, 2 * i, P)
            masked = on_coset[i] - 2 * (s + s_x * at)
            squares[0][i] = (squares[0][i] + value**2) % P
            squares[1][i] = (squares[1][i] + masked**2) % P
    return squares, tops


@pytest.mark.parametrize("n_wires", [1, 2, 7, 8, 9, 16, 17])
@pytest.mark.parametrize("length", [16, 32])
def test_any_number_of_wires_is_that_of_one_at_a_time(n_wires: int, length: int) -> None:
    """Whole groups of eight and parts of one; the last wire whole, half, and of one coordinate; any masks."""
    random = np.random.default_rng(n_wires)
    for n_last in (length, length // 2, 1):
        x = random.integers(-LARGEST, LARGEST + 1, length * (n_wires - 1) + n_last)
        x[[0, -1]] = LARGEST, -LARGEST
        masks = random.integers(0, P, (2, n_wires), dtype=np.uint64)
        masks[:, -1] = P - 1
        squares, tops = by_kernel(x, masks, length)
        assert (squares.tolist(), tops.tolist()) == one_by_one(x, masks, length)


def test_the_longest_wires_do_not_overflow() -> None:
    """2^15 coordinates, as of 2^30 parameters: the most layers, with values and masks at their largest."""
    length = 1 << 15
    for value in (LARGEST, -LARGEST, -1):
        x, masks = np.full(2 * length, value, dtype=np.int64), np.full((2, 2), P - 1, dtype=np.uint64)
        x[1::3] *= -1
        squares, tops = by_kernel(x, masks, length)
        assert (squares.tolist(), tops.tolist()) == one_by_one(x, masks, length)


def test_more_wires_than_a_word_takes_squares() -> None:
    """3000 of them, as of nine million parameters: the sums of their squares are folded in time."""
    length, n_wires = 16, 3000
    random = np.random.default_rng(1)
    x = random.integers(-LARGEST, LARGEST + 1, length * n_wires)
    masks = random.integers(0, P, (2, n_wires), dtype=np.uint64)
    squares, _ = by_kernel(x, masks, length)
    in_groups = [
        by_kernel(x[length * i : length * (i + 8)], masks[:, i : i + 8].copy(), length)[0].tolist()
        for i in range(0, n_wires, 8)
    ]
    expected = [[sum(column) % P for column in zip(*part, strict=True)] for part in zip(*in_groups, strict=True)]
    assert squares.tolist() == expected
