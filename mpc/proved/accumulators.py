"""Where the passes over the uploads add up their tiles: on the processor, in compiled loops, or on a GPU, in PyTorch.

The first pass adds up rows, the second wires and the sum of shares. Both places give the same elements. The rows on a
GPU are products in float64 of bits and 28-bit limbs, whose sums over a tile stay below 2^42. The wires are products of
limbs in int64, of which 32 are added up before a reduction.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import numpy as np

from precad.mpc.errors import ParameterError
from precad.mpc.kernels import loading
from precad.mpc.kernels.lanes import BYTE_VALUES, LANES, zero_buckets
from precad.mpc.local.step import Engine
from precad.mpc.local.torch_engine import TorchEngine
from precad.mpc.proved.field import MAX_ADDITIONS, FieldArray, P
from precad.mpc.proved.sizes import N_POINTS, N_ROWS
from precad.mpc.ring import WORD_BITS

_CLIENTS_PER_FOLD: Final = MAX_ADDITIONS - 6
"""Clients that the sum takes before it is folded: a folded word and 248 elements fit."""
_LIMB_BITS: Final = 28
_LOW_LIMB: Final = (1 << _LIMB_BITS) - 1
_TERMS: Final = 32
"""Sums of two products of limbs, below 2^57, that fit into an int64."""


class RowAccumulator(Protocol):
    """Row values of one server's shares over a span. Tiles are opened in order; in each, every client is added."""

    group: int
    """How many clients `add` takes at once."""

    def open_tile(self, row_words: FieldArray, sign_words: FieldArray) -> None:
        """Begin a tile. Shapes: (m,), (ceil(m / 64),)."""

    def add(self, first: int, shares: FieldArray) -> None:
        """Add the tile of the clients from `first` on. shares: (group, m), overwritten, with zeros for nobody."""

    def sums(self) -> FieldArray:
        """Return the row values after the last tile, (n, 64). Uses them up."""


class WireAccumulator(Protocol):
    """Both values of each wire, and the sum of shares, over a span. Tiles as in `RowAccumulator`."""

    group: int
    """How many clients `add` takes at once."""

    def open_tile(self, start: int, share_sum: FieldArray) -> None:
        """Begin a tile. start: its first coordinate. share_sum: zeros, (m,), which take the sum of shares."""

    def add(self, first: int, shares: FieldArray) -> None:
        """Add the tile of the clients from `first` on. shares: (group, m), with zeros for nobody."""

    def close_tile(self) -> None:
        """Complete the tile's sum of shares, below p."""

    def sums(self) -> FieldArray:
        """Return both values of each wire after the last tile, (n, 2, c)."""


def row_accumulator(engine: Engine, n_clients: int) -> RowAccumulator:
    """Return zero rows of a span, where this engine computes."""
    return TorchRows(engine, n_clients) if isinstance(engine, TorchEngine) else CpuRows(n_clients)


def wire_accumulator(engine: Engine, n_clients: int, n_wires: int, weights: FieldArray) -> WireAccumulator:
    """Return zero wires of a span, where this engine computes. weights: (2, N)."""
    if isinstance(engine, TorchEngine):
        return TorchWires(engine, n_clients, n_wires, weights)
    return CpuWires(n_clients, n_wires, weights)


class CpuRows:
    """See `RowAccumulator`. Clients alone or in fours: 16 KiB of buckets for each."""

    def __init__(self, n_clients: int) -> None:
        self.group = 1 if n_clients == 1 else LANES
        self._n_clients, self._kernels = n_clients, loading.proofs()
        self._buckets = [zero_buckets(self.group) for _ in range(-(-n_clients // self.group))]

    def open_tile(self, row_words: FieldArray, sign_words: FieldArray) -> None:
        """See `RowAccumulator.open_tile`."""
        self._row_words, self._sign_words = row_words, sign_words

    def add(self, first: int, shares: FieldArray) -> None:
        """See `RowAccumulator.add`. Leaves the signed shares in their place."""
        group = first // self.group
        for share in shares[: self._n_clients - first]:
            self._kernels.apply_signs(share, self._sign_words)
        self._kernels.scatter(self._row_words, shares, self._buckets[group].reshape(-1))

    def sums(self) -> FieldArray:
        """See `RowAccumulator.sums`."""
        rows = np.empty((self.group * len(self._buckets), N_ROWS), dtype=np.uint64)
        folded = np.empty(BYTE_VALUES * self.group, dtype=np.uint64)
        for group, buckets in enumerate(self._buckets):
            self._kernels.reduce_all(buckets.reshape(-1))  # so that 256 of them fit into a word
            here = rows[self.group * group : self.group * (group + 1)]
            loading.local().add_up(buckets, folded, here)
        self._kernels.reduce_all(rows.reshape(-1))
        return rows[: self._n_clients]


class CpuWires:
    """See `WireAccumulator`. A client at a time."""

    group = 1

    def __init__(self, n_clients: int, n_wires: int, weights: FieldArray) -> None:
        self._kernels = loading.proofs()
        low, high = weights & np.uint64(_LOW_LIMB), weights >> np.uint64(_LIMB_BITS)
        self._limbs = np.stack([low, high], axis=1).reshape(2 * N_POINTS, -1)
        self._wires = np.zeros((n_clients, N_POINTS, n_wires), dtype=np.uint64)

    def open_tile(self, start: int, share_sum: FieldArray) -> None:
        """See `WireAccumulator.open_tile`."""
        self._start, self._sum = start, share_sum

    def add(self, first: int, shares: FieldArray) -> None:
        """See `WireAccumulator.add`. Raises ParameterError where compiled loops would write behind an array's end."""
        n_places = self._limbs.shape[1] * self._wires.shape[2] - self._start
        if not shares.shape[1] == self._sum.size <= n_places:
            raise ParameterError(f"share: expected {self._sum.size} elements of wires, found {shares.shape[1]}")
        self._kernels.weigh(shares[0], self._start, self._limbs, self._wires[first], self._sum)
        if first % _CLIENTS_PER_FOLD == _CLIENTS_PER_FOLD - 1:
            self._kernels.fold_all(self._sum)

    def close_tile(self) -> None:
        """See `WireAccumulator.close_tile`."""
        self._kernels.reduce_all(self._sum)

    def sums(self) -> FieldArray:
        """See `WireAccumulator.sums`."""
        return self._wires


class _OnDevice:
    """Holds what both passes on PyTorch have: 32 clients of a tile at once."""

    group = TorchEngine.group

    def __init__(self, engine: TorchEngine, n_clients: int) -> None:
        self._torch, self._device, self._n_clients = engine.torch, engine.device, n_clients

    def _clients(self, first: int) -> slice:
        return slice(first, min(first + self.group, self._n_clients))

    def _shifted(self, x: Any) -> Any:
        """Return 2^28 x modulo p, of elements: 2^56 is 2^32 - 1."""
        low, high = self._limbs(x)
        return ((low << _LIMB_BITS) + high * ((1 << 32) - 1)) % P

    @staticmethod
    def _limbs(x: Any) -> tuple[Any, Any]:
        return x & _LOW_LIMB, x >> _LIMB_BITS

    def _copy(self, array: FieldArray) -> Any:
        return self._torch.tensor(array.view(np.int64), device=self._device)

    def _zeros(self, *shape: int) -> Any:
        return self._torch.zeros(shape, dtype=self._torch.int64, device=self._device)


class TorchRows(_OnDevice):
    """See `RowAccumulator`."""

    def __init__(self, engine: TorchEngine, n_clients: int) -> None:
        super().__init__(engine, n_clients)
        self._rows = self._zeros(n_clients, N_ROWS)
        self._shifts = engine.torch.arange(WORD_BITS, device=engine.device)

    def open_tile(self, row_words: FieldArray, sign_words: FieldArray) -> None:
        """See `RowAccumulator.open_tile`."""
        self._row_bits = self._bits(row_words).double()
        self._is_negative = self._bits(sign_words).reshape(-1)[: row_words.size].bool()

    def add(self, first: int, shares: FieldArray) -> None:
        """See `RowAccumulator.add`."""
        clients = self._clients(first)
        x = self._copy(shares[: clients.stop - first])
        low, high = self._limbs(self._torch.where(self._is_negative, P - x, x))
        rows = (low.double() @ self._row_bits).long() + self._shifted((high.double() @ self._row_bits).long())
        self._rows[clients] = (self._rows[clients] + rows) % P

    def sums(self) -> FieldArray:
        """See `RowAccumulator.sums`."""
        rows: FieldArray = self._rows.cpu().numpy().view(np.uint64)
        return rows

    def _bits(self, words: FieldArray) -> Any:
        """(m,) to (m, 64), 0 and 1, lowest bit first."""
        return (self._copy(words).unsqueeze(1) >> self._shifts) & 1


class TorchWires(_OnDevice):
    """See `WireAccumulator`. Keeps the wires' values on the device."""

    def __init__(self, engine: TorchEngine, n_clients: int, n_wires: int, weights: FieldArray) -> None:
        super().__init__(engine, n_clients)
        limbs = self._limbs(self._copy(weights))
        self._low, self._high = (limb.unsqueeze(1).unsqueeze(1) for limb in limbs)  # (2, 1, 1, N)
        self._length = weights.shape[1]
        self._wires = self._zeros(N_POINTS, n_clients, n_wires)

    def open_tile(self, start: int, share_sum: FieldArray) -> None:
        """See `WireAccumulator.open_tile`."""
        self._start, self._to, self._sum = start, share_sum, self._zeros(share_sum.size)

    def add(self, first: int, shares: FieldArray) -> None:
        """See `WireAccumulator.add`."""
        clients = self._clients(first)
        x = self._copy(shares[: clients.stop - first])
        self._sum = (self._sum + x.sum(dim=0)) % P
        wire, offset = divmod(self._start, self._length)
        if offset + x.shape[1] > self._length:  # whole wires, filled up with zeros
            x = self._torch.nn.functional.pad(x, (0, -x.shape[1] % self._length)).unflatten(1, (-1, self._length))
        else:
            x = x.unsqueeze(1)
        wires = slice(wire, wire + x.shape[1])
        self._wires[:, clients, wires] = (self._wires[:, clients, wires] + self._weighed(x, offset)) % P

    def close_tile(self) -> None:
        """See `WireAccumulator.close_tile`."""
        self._to[:] = self._sum.cpu().numpy().view(np.uint64)

    def sums(self) -> FieldArray:
        """See `WireAccumulator.sums`."""
        return np.ascontiguousarray(self._wires.transpose(0, 1).cpu().numpy().view(np.uint64))

    def _weighed(self, x: Any, offset: int) -> Any:
        """Return sum_j weights[e, offset + j] x[.., j], (n, w, m) to (2, n, w)."""
        here = slice(offset, offset + x.shape[-1])
        (low, high), w_low, w_high = self._limbs(x), self._low[..., here], self._high[..., here]
        middle = self._summed(low * w_high + high * w_low)
        top = self._shifted(self._shifted(self._summed(high * w_high)))
        return (self._summed(low * w_low) + self._shifted(middle) + top) % P

    def _summed(self, x: Any) -> Any:
        """Return the sum over the last axis modulo p, of words below 2^57."""
        while x.shape[-1] > 1:
            x = self._torch.nn.functional.pad(x, (0, -x.shape[-1] % _TERMS)).unflatten(-1, (-1, _TERMS)).sum(-1) % P
        return x.squeeze(-1)
