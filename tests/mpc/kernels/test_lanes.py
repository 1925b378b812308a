"""Buckets begin at a line of the cache, wherever NumPy's memory begins."""

from __future__ import annotations

import numpy as np
import pytest

from precad.mpc.kernels.lanes import LANES, zero_buckets


@pytest.mark.parametrize("lanes", [1, LANES])
def test_buckets_are_zeros_that_begin_at_a_line_of_the_cache(lanes: int) -> None:
    kept = []
    for n_words_between in range(16):
        buckets = zero_buckets(lanes)
        kept += [buckets, np.empty(n_words_between, dtype=np.uint64)]
        assert buckets.ctypes.data % 64 == 0
        assert buckets.shape == (8, 256, lanes)
        assert buckets.flags.c_contiguous
        assert not buckets.any()
