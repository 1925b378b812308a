"""The compiled arithmetic of F_p, against Python's integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from precad.mpc.gate.equality import polynomial_hashes
from precad.mpc.kernels import loading
from precad.mpc.tuples.held import FIELD_PRIME
from tests.mpc.field_twin import integers, polynomial_hash, words_of


@pytest.mark.parametrize("shape", [(0, 65), (1, 0), (1, 1), (3, 65), (8, 9)])
@pytest.mark.parametrize("key", [0, 1, 2, FIELD_PRIME - 1, FIELD_PRIME, FIELD_PRIME // 3])
def test_hashes_of_all_rows_are_the_hashes_of_each(shape, key):
    """Random words and the extremes of the ring, at special and ordinary points."""
    words = np.random.default_rng(3).integers(-(2**63), 2**63, shape, dtype=np.int64)
    words[:, ::3] = -1
    words[:, 1::5] = -(2**63)

    assert integers(polynomial_hashes(words, key)) == [polynomial_hash(row, key) for row in words]


NEAR = (0, 1, 2, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**126, FIELD_PRIME - 2, FIELD_PRIME - 1, FIELD_PRIME)
ELEMENTS = st.sampled_from(NEAR) | st.integers(0, FIELD_PRIME)


@given(x=ELEMENTS, y=ELEMENTS)
def test_sums_and_products_are_those_of_integers(x, y):
    """Below p, whatever the operands: p itself, which is zero, among them; and where words carry into one another."""
    field, operands = loading.field(), [np.uint64(word) for word in (*words_of(x), *words_of(y))]
    assert field.add(*operands) == words_of((x + y) % FIELD_PRIME)
    assert field.multiply(*operands) == words_of(x * y % FIELD_PRIME)


def test_the_edges_of_the_field_meet_each_other():
    """Every pair of the edges above, in every run."""
    field = loading.field()
    for x in NEAR:
        for y in NEAR:
            operands = [np.uint64(word) for word in (*words_of(x), *words_of(y))]
            assert field.add(*operands) == words_of((x + y) % FIELD_PRIME)
            assert field.multiply(*operands) == words_of(x * y % FIELD_PRIME)
