"""The local step in Numba's loops (`precad.mpc.kernels.local`), imported when they are first needed: on one core, or
on several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from precad.mpc.kernels import loading
from precad.mpc.kernels.lanes import BYTE_VALUES, LANES, zero_buckets
from precad.mpc.local.rows import MAX_ROWS
from precad.mpc.local.step import LocalSums
from precad.mpc.local.threads import Threads
from precad.mpc.parameters import MODULUS
from precad.mpc.ring import RingArray
from precad.mpc.sharing import Party


class CpuEngine:
    """The default."""

    name = "cpu"
    group = LANES

    def __init__(self, n_threads: int = 1) -> None:
        self.threads = Threads(n_threads)

    def accumulator(self, party: Party, n_clients: int, share_sum: RingArray) -> CpuAccumulator:
        """See `Engine.accumulator`."""
        return CpuAccumulator(loading.local(), party, n_clients, share_sum)

    def warm_up(self) -> None:
        """See `Engine.warm_up`. About a second of one core."""
        loading.local()


class CpuAccumulator:
    """See `precad.mpc.local.step.Accumulator`. Keeps 16 KiB of buckets per client."""

    def __init__(self, kernels: Any, party: Party, n_clients: int, share_sum: RingArray) -> None:
        self._kernels = kernels
        self._opened_mask = np.uint64(2**64 - 1 if party == 0 else 0)
        self._by_mask, self._by_opened = [0] * n_clients, [0] * n_clients
        self._share_sum = share_sum.view(np.uint64)
        sizes = [min(LANES, n_clients - first) for first in range(0, n_clients, LANES)]
        self._buckets = [zero_buckets(1 if size == 1 else LANES) for size in sizes]

    def open_tile(self, tile: slice, row_words: RingArray, sign_words: RingArray) -> None:
        """See `Accumulator.open_tile`."""
        self._row_words, self._sign_words = row_words.view(np.uint64), sign_words.view(np.uint64)
        self._tile_sum = self._share_sum[tile]

    def add(self, first: int, opened: Sequence[RingArray], masks: RingArray) -> None:
        """See `Accumulator.add`. Leaves the signed shares s o [x]_P in `masks`."""
        lanes, m = masks.view(np.uint64), self._row_words.size
        for lane, b in enumerate(opened):
            by_mask, by_opened = self._kernels.combine(
                b.view(np.uint64), lanes[lane, :m], self._sign_words, self._tile_sum, self._opened_mask
            )
            self._by_mask[first + lane] += by_mask
            self._by_opened[first + lane] += by_opened
        buckets = self._buckets[first // LANES].reshape(-1)
        if len(opened) == 1:
            self._kernels.scatter_one(self._row_words, lanes[0, :m], buckets)
        else:
            lanes[len(opened) :, :m] = 0
            self._kernels.scatter_four(self._row_words, lanes, buckets)

    def sums(self) -> LocalSums:
        """See `Accumulator.sums`."""
        n_clients = len(self._by_mask)
        rows = np.empty((-(-n_clients // LANES) * LANES, MAX_ROWS), dtype=np.uint64)
        for group, buckets in enumerate(self._buckets):
            lanes, first = buckets.shape[2], LANES * group
            folded = np.empty(BYTE_VALUES * lanes, dtype=np.uint64)
            self._kernels.add_up(buckets, folded, rows[first : first + lanes])
        return LocalSums(
            rows=rows[:n_clients].view(np.int64),
            by_mask=_words(self._by_mask),
            by_opened=_words(self._by_opened),
            share_sum=self._share_sum.view(np.int64),
        )


def _words(values: Sequence[int]) -> RingArray:
    return np.array([value % MODULUS for value in values], dtype=np.uint64).view(np.int64)
