"""The local step on a GPU, in PyTorch. The only engine that imports torch; it does so when it is made.

CUDA has no product of integer matrices, so float64 does it exactly. A word is cut in two halves of 32 bits, and a 0/1
combination of at most 2^14 halves stays below 2^46. Streams are expanded on the host, by AES instructions.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from precad.mpc.errors import EngineUnavailableError
from precad.mpc.local.rows import MAX_ROWS
from precad.mpc.local.step import LocalSums
from precad.mpc.local.threads import ALONE
from precad.mpc.ring import WORD_BITS, RingArray
from precad.mpc.sharing import Party

LOW_HALF = (1 << 32) - 1


class TorchEngine:
    """Raises EngineUnavailableError without torch or without a GPU. `device="cpu"` is the tests' twin of the GPU."""

    name = "cuda"
    group = 32
    threads = ALONE

    def __init__(self, device: str = "cuda") -> None:
        try:
            self.torch = importlib.import_module("torch")
        except ImportError as error:
            raise EngineUnavailableError(f"engine 'cuda' needs PyTorch: {error}") from error
        if device == "cuda" and not self.torch.cuda.is_available():
            raise EngineUnavailableError("engine 'cuda' needs a GPU that PyTorch can use; it finds none")
        self.device = self.torch.device(device)

    def accumulator(self, party: Party, n_clients: int, share_sum: RingArray) -> TorchAccumulator:
        """See `Engine.accumulator`."""
        return TorchAccumulator(self.torch, self.device, party, n_clients, share_sum)

    def warm_up(self) -> None:
        """See `Engine.warm_up`: makes the device's context."""
        self.torch.zeros(1, device=self.device)


class TorchAccumulator:
    """See `precad.mpc.local.step.Accumulator`. Keeps d words, and 66 per client, on the device."""

    def __init__(self, torch: Any, device: Any, party: Party, n_clients: int, share_sum: RingArray) -> None:
        self._torch, self._device, self._is_a = torch, device, party == 0
        self._rows = self._zeros(n_clients, MAX_ROWS)
        self._by_mask, self._by_opened = self._zeros(n_clients), self._zeros(n_clients)
        self._share_sum, self._to = self._zeros(share_sum.size), share_sum
        self._shifts = torch.arange(WORD_BITS, device=device)

    def open_tile(self, tile: slice, row_words: RingArray, sign_words: RingArray) -> None:
        """See `Accumulator.open_tile`."""
        self._row_bits = self._bits(row_words).double()
        self._signs = 1 - 2 * self._bits(sign_words).reshape(-1)[: row_words.size]
        self._tile_sum = self._share_sum[tile]

    def add(self, first: int, opened: Sequence[RingArray], masks: RingArray) -> None:
        """See `Accumulator.add`."""
        b, a = self._copy(np.stack(opened)), self._copy(masks[: len(opened), : opened[0].size])
        clients = slice(first, first + len(opened))
        self._by_mask[clients] += (b * a).sum(dim=1)
        self._by_opened[clients] += (b * b).sum(dim=1)
        share = b + a if self._is_a else a
        self._tile_sum += share.sum(dim=0)
        self._rows[clients] += self._project(share * self._signs)

    def sums(self) -> LocalSums:
        """See `Accumulator.sums`."""
        self._torch.from_numpy(self._to).copy_(self._share_sum)
        rows, by_mask, by_opened = (part.cpu().numpy() for part in (self._rows, self._by_mask, self._by_opened))
        return LocalSums(rows, by_mask, by_opened, self._to)

    def _project(self, signed: Any) -> Any:
        """U y modulo 2^64, (n, m) to (n, 64). The high halves are signed: shifts of int64 are arithmetic."""
        low = ((signed & LOW_HALF).double() @ self._row_bits).long()
        high = ((signed >> 32).double() @ self._row_bits).long()
        return low + (high << 32)

    def _bits(self, words: RingArray) -> Any:
        """(m,) to (m, 64), 0 and 1, lowest bit first."""
        return (self._copy(words).unsqueeze(1) >> self._shifts) & 1

    def _copy(self, array: RingArray) -> Any:
        return self._torch.tensor(array, device=self._device)

    def _zeros(self, *shape: int) -> Any:
        return self._torch.zeros(shape, dtype=self._torch.int64, device=self._device)
