"""The paper's check without the no-wrap test, as fast as ours: one pass for both inner products and the sum of shares.

What it leaves out, the rows, is what makes ours sound; it accepts 2^32 e_1. For comparison only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import njit, types

from precad.mpc.kernels.machine_code import READ, WRITE
from precad.mpc.local.step import LocalSums
from precad.mpc.local.threads import ALONE
from precad.mpc.ring import RingArray
from precad.mpc.sharing import Party


@njit(types.UniTuple(types.uint64, 2)(READ, READ, WRITE, types.uint64), nogil=True, error_model="numpy")
def _fused(opened: Any, mask: Any, share_sum: Any, opened_mask: Any) -> Any:
    """Return `kernels.combine` without the signs."""
    by_mask = by_opened = np.uint64(0)
    for i in range(opened.size):
        by_mask += opened[i] * mask[i]
        by_opened += opened[i] * opened[i]
        share_sum[i] += mask[i] + (opened[i] & opened_mask)
    return by_mask, by_opened


class NoRows:
    """In the place of `precad.mpc.local.rows.RowStreams`: expands nothing."""

    def read(self, n_coordinates: int) -> tuple[RingArray, RingArray]:
        """See `RowStreams.read`."""
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)

    def after(self, n_coordinates: int) -> NoRows:
        """See `precad.mpc.local.rows.RowStreams`."""
        return self


class UnsoundEngine:
    """Inner products and the sum of shares; rows are zero."""

    name, group, threads = "unsound", 1, ALONE

    def accumulator(self, party: Party, n_clients: int, share_sum: RingArray) -> UnsoundAccumulator:
        """See `precad.mpc.local.step.Engine`."""
        return UnsoundAccumulator(party, n_clients, share_sum)

    def warm_up(self) -> None:
        """Do nothing: there is nothing to warm up."""


class UnsoundAccumulator:
    """See `precad.mpc.local.step.Accumulator`."""

    def __init__(self, party: Party, n_clients: int, share_sum: RingArray) -> None:
        self._opened_mask = np.uint64(2**64 - 1 if party == 0 else 0)
        self._products = np.zeros((2, n_clients), dtype=np.uint64)
        self._share_sum = share_sum.view(np.uint64)

    def open_tile(self, tile: slice, row_words: RingArray, sign_words: RingArray) -> None:
        """See `Accumulator.open_tile`."""
        self._tile_sum = self._share_sum[tile]

    def add(self, first: int, opened: Sequence[RingArray], masks: RingArray) -> None:
        """See `Accumulator.add`, for one client."""
        b, a = opened[0].view(np.uint64), masks[0, : opened[0].size].view(np.uint64)
        self._products[:, first] += np.array(_fused(b, a, self._tile_sum, self._opened_mask), dtype=np.uint64)

    def sums(self) -> LocalSums:
        """See `Accumulator.sums`."""
        by_mask, by_opened = self._products.view(np.int64)
        rows = np.zeros((by_mask.size, 64), dtype=np.int64)
        return LocalSums(rows, by_mask, by_opened, self._share_sum.view(np.int64))
