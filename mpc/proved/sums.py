"""The pass over the uploads in mode `proved`: rows, two weighted sums of each wire, and the sum of all shares.

The pass goes tile by tile, for all clients of the round. It expands the public rows once. Per client it reads or
expands a tile of the share once. What is kept is one vector of d words (the sum), and per client the row values, its
buckets and two values of each wire. Clients go in fours, whose buckets are added to side by side.

Tiles are independent, so the coordinates may be cut into spans, one for each thread. The sums are the same elements,
however many threads there are. Source: `proved.md` sections 7 and 12.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from precad.mpc import ring
from precad.mpc.kernels import loading
from precad.mpc.local.cpu_engine import BYTE_VALUES, BYTES, LANES
from precad.mpc.local.step import TILES_BESIDE_OTHERS, WORDS_PER_SPAN, Rows
from precad.mpc.local.threads import ALONE, Threads
from precad.mpc.proved import field
from precad.mpc.proved.field import MAX_ADDITIONS, FieldArray
from precad.mpc.proved.query import Query
from precad.mpc.proved.shares import Share
from precad.mpc.proved.sizes import N_POINTS, N_ROWS, ProofSizes
from precad.mpc.ring import RingArray

_GROUPS_PER_FOLD = MAX_ADDITIONS // LANES - 1
"""Groups of clients that the sum takes before it is folded: a folded word and 248 elements fit."""


@dataclass(frozen=True, slots=True, repr=False)
class ShareSums:
    """Sums of one pass, elements. Shapes: (n, 64), (n, 2, c), (d,)."""

    rows: FieldArray
    """<r_j, x> of each client's share."""
    wires: FieldArray
    """Each wire's value at both points, before its mask."""
    share_sum: FieldArray
    """The sum of all shares; the caller's to change."""


def share_sums(
    shares: Sequence[Share], rows: Rows, query: Query, sizes: ProofSizes, threads: Threads = ALONE
) -> ShareSums:
    """Return the sums over every share of the round. Run by each server.

    Raises MalformedMessageError when a share that was sent is cut short, or has an element that is not below p.
    """
    share_sum = np.zeros(sizes.dim, dtype=np.uint64)
    spans = ring.spans(sizes.dim, min(threads.n, sizes.dim * len(shares) // WORDS_PER_SPAN))
    at_once = 1 if len(spans) == 1 else TILES_BESIDE_OTHERS
    passes = [_Pass(span, at_once, shares, rows, sizes.n_wires, query.wire_weights) for span in spans]
    threads.map(lambda one: one.run(share_sum[one.span]), passes)
    return ShareSums(
        rows=_added([one.buckets.rows() for one in passes]),
        wires=_added([one.wires for one in passes]),
        share_sum=share_sum,
    )


def _added(parts: Sequence[FieldArray]) -> FieldArray:
    """Return their sum, in the shape of each."""
    total = parts[0]
    for part in parts[1:]:
        total = field.add(total.reshape(-1), part.reshape(-1)).reshape(total.shape)
    return total


class _Buckets:
    """Row values of some clients on their way: 16 KiB of buckets per client."""

    def __init__(self, n_clients: int) -> None:
        self.lanes = 1 if n_clients == 1 else LANES
        self._n_clients, self._kernels = n_clients, loading.proofs()
        size = BYTES * BYTE_VALUES * self.lanes
        self._buckets = [np.zeros(size, dtype=np.uint64) for _ in range(-(-n_clients // self.lanes))]

    def add(self, group: int, row_words: FieldArray, signed: FieldArray) -> None:
        """Take a tile of one group of clients. Shapes: (m,), (lanes, >= m)."""
        self._kernels.scatter(row_words, signed, self._buckets[group])

    def rows(self) -> FieldArray:
        """Return the row values, (n, 64). Uses the buckets up."""
        rows = np.empty((self.lanes * len(self._buckets), N_ROWS), dtype=np.uint64)
        folded = np.empty(BYTE_VALUES * self.lanes, dtype=np.uint64)
        for group, buckets in enumerate(self._buckets):
            self._kernels.reduce_all(buckets)  # so that 256 of them fit into a word
            here = rows[self.lanes * group : self.lanes * (group + 1)]
            loading.local().add_up(buckets.reshape(BYTES, BYTE_VALUES, self.lanes), folded, here)
        self._kernels.reduce_all(rows.reshape(-1))
        return rows[: self._n_clients]


class _Pass:
    """The pass over the coordinates of one span."""

    def __init__(
        self, span: slice, at_once: int, shares: Sequence[Share], rows: Rows, n_wires: int, weights: FieldArray
    ) -> None:
        self.span = span
        self.wires = np.zeros((len(shares), N_POINTS, n_wires), dtype=np.uint64)
        self.buckets = _Buckets(len(shares))
        self._at_once, self._weights, self._kernels = at_once, weights, loading.proofs()
        self._row_words, self._shares = rows.after(span.start), [share.after(span.start) for share in shares]
        room = min(span.stop - span.start, at_once * ring.TILE)
        self._scratch = np.empty((self.buckets.lanes, room), dtype=np.uint64)

    def run(self, share_sum: FieldArray) -> None:
        """Go over every tile. share_sum: zeros, of the span's length, which take the sum."""
        lanes = self.buckets.lanes
        for tile in ring.tiles(share_sum.size, self._at_once):
            row_words, sign_words = (words.view(np.uint64) for words in self._row_words.read(tile.stop - tile.start))
            part, start = share_sum[tile], self.span.start + tile.start
            for group in range(-(-len(self._shares) // lanes)):
                for lane in range(lanes):
                    self._add(lanes * group + lane, lane, start, sign_words, part)
                self.buckets.add(group, row_words, self._scratch)
                if group % _GROUPS_PER_FOLD == _GROUPS_PER_FOLD - 1:
                    self._kernels.fold_all(part)
            self._kernels.reduce_all(part)

    def _add(self, client: int, lane: int, start: int, sign_words: FieldArray, share_sum: FieldArray) -> None:
        """Take one client's tile: weigh it, add it up, and leave it signed in its lane."""
        tile = self._scratch[lane, : share_sum.size]
        if client >= len(self._shares):
            tile[:] = 0
            return
        self._shares[client].fill(tile)
        self._kernels.weigh(tile, start, self._weights, self.wires[client])
        self._kernels.combine(tile, sign_words, share_sum)


def row_values(x: RingArray, rows: Rows) -> FieldArray:
    """Return <r_j, X> of a vector that is not shared, (64,). Run by the client. X: integers, (d,)."""
    buckets, unused = _Buckets(1), np.zeros(min(x.size, ring.TILE), dtype=np.uint64)
    for tile in ring.tiles(x.size):
        row_words, sign_words = (words.view(np.uint64) for words in rows.read(tile.stop - tile.start))
        elements = field.from_integers(x[tile])
        loading.proofs().combine(elements, sign_words, unused)
        buckets.add(0, row_words, elements.reshape(1, -1))
    values: FieldArray = buckets.rows()[0]
    return values


def add_shares(total: FieldArray, shares: Sequence[Share], *, negate: bool = False) -> None:
    """Add shares to a sum, or take them out of it again, in place: d words may be most of a server's memory. (d,)."""
    kernels, sign = loading.prime_field(), field.MINUS if negate else field.PLUS
    scratch = np.empty(min(total.size, ring.TILE), dtype=np.uint64)
    for share in shares:
        reader = share.after(0)
        for tile in ring.tiles(total.size):
            part, words = total[tile], scratch[: tile.stop - tile.start]
            reader.fill(words)
            kernels.add(part, words, sign, part)
