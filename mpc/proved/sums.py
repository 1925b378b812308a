"""The passes over the uploads in mode `proved`: rows, then two weighted sums of each wire and the sum of all shares.

Rows need the challenge, wires the query. So the first pass runs while clients prove, and only the second one is waited
for. Its price is a second reading or expansion of each share. Both go tile by tile, for all clients of the round.
What is kept is one vector of d words (the sum), and per client the row values, their buckets and two values of each
wire. In the first pass on a processor clients go in fours, whose buckets are added to side by side.

Tiles are independent, so the coordinates may be cut into spans, one for each thread. The sums are the same elements,
however many threads there are. Source: docs/reference/protocol-v2.md, section 8.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from precad.mpc import ring
from precad.mpc.errors import ParameterError
from precad.mpc.kernels import loading
from precad.mpc.local.engines import CPU
from precad.mpc.local.step import TILES_BESIDE_OTHERS, WORDS_PER_SPAN, Engine, Rows
from precad.mpc.proved import field
from precad.mpc.proved.accumulators import CpuRows, row_accumulator, wire_accumulator
from precad.mpc.proved.field import FieldArray
from precad.mpc.proved.query import Query
from precad.mpc.proved.shares import Share
from precad.mpc.proved.sizes import ProofSizes
from precad.mpc.ring import RingArray

_TILES_OF_WIRES: Final = 2
"""Tiles that the second pass takes at once: a call for each tile of one client costs 8 % more than for two."""


@dataclass(frozen=True, slots=True, repr=False)
class ShareSums:
    """Sums of both passes, elements. Shapes: (n, 64), (n, 2, c), (d,)."""

    rows: FieldArray
    """<r_j, x> of each client's share."""
    wires: FieldArray
    """Each wire's value at both points, before its mask."""
    share_sum: FieldArray
    """The sum of all shares; the caller's to change."""


def share_sums(shares: Sequence[Share], rows: Rows, query: Query, sizes: ProofSizes, engine: Engine = CPU) -> ShareSums:
    """Return the sums of both passes. Raises as they do."""
    share_sum = np.zeros(sizes.dim, dtype=np.uint64)
    values = row_sums(shares, rows, sizes, engine)
    return ShareSums(values, wire_sums(shares, query, sizes, share_sum, engine), share_sum)


def row_sums(
    shares: Sequence[Share],
    rows: Rows,
    sizes: ProofSizes,
    engine: Engine = CPU,
    is_wanted: Callable[[], bool] = lambda: True,
) -> FieldArray:
    """Return <r_j, x> of every share, (n, 64): the first pass, run by each server while clients prove.

    is_wanted: asked before each tile. Once it says no, what is returned is no row value. Raises MalformedMessageError
    when a share that was sent is cut short, or has an element that is not below p.
    """

    def over(span: slice, at_once: int) -> FieldArray:
        sums, own_rows = row_accumulator(engine, len(shares)), rows.after(span.start)
        readers = _Readers(shares, span, at_once, sums.group)
        for tile in itertools.takewhile(lambda _: is_wanted(), readers.tiles):
            row_words, sign_words = (words.view(np.uint64) for words in own_rows.read(tile.stop - tile.start))
            sums.open_tile(row_words, sign_words)
            for first, words in readers.groups(tile):
                sums.add(first, words)
        return sums.sums()

    return _added(_over_spans(over, sizes.dim, len(shares), engine))


def wire_sums(
    shares: Sequence[Share], query: Query, sizes: ProofSizes, share_sum: FieldArray, engine: Engine = CPU
) -> FieldArray:
    """Return both values of each wire of every share, (n, 2, c): the second pass. share_sum: zeros, (d,), to which all
    shares are added.

    Points of other sizes may be roots of unity here, where nothing is masked. Raises ParameterError for them and for a
    sum of another length, and MalformedMessageError as `row_sums`.
    """
    if query.sizes != sizes:
        raise ParameterError("query: expected points for these sizes, found others")
    if share_sum.shape != (sizes.dim,):
        raise ParameterError(f"share_sum: expected {sizes.dim} elements, found shape {share_sum.shape}")

    def over(span: slice, at_once: int) -> FieldArray:
        sums = wire_accumulator(engine, len(shares), sizes.n_wires, query.wire_weights)
        readers = _Readers(shares, span, at_once, sums.group)
        for tile in readers.tiles:
            sums.open_tile(tile.start, share_sum[tile])
            for first, words in readers.groups(tile):
                sums.add(first, words)
            sums.close_tile()
        return sums.sums()

    return _added(_over_spans(over, sizes.dim, len(shares), engine, at_once=_TILES_OF_WIRES))


class _Readers:
    """All shares over a span, read tile by tile, in groups of clients."""

    def __init__(self, shares: Sequence[Share], span: slice, at_once: int, group: int) -> None:
        """at_once: what `ring.tiles` takes. group: clients."""
        size = span.stop - span.start
        self._shares, self._group = [share.after(span.start) for share in shares], group
        self._words = np.empty((group, min(size, at_once * ring.TILE)), dtype=np.uint64)
        self.tiles = [slice(span.start + t.start, span.start + t.stop) for t in ring.tiles(size, at_once)]
        """In the order in which `groups` must take them."""

    def groups(self, tile: slice) -> Iterator[tuple[int, FieldArray]]:
        """Yield the first client of each group and its tile, (group, m), with zeros for nobody."""
        m = tile.stop - tile.start
        words = self._words if m == self._words.shape[1] else np.empty((self._group, m), dtype=np.uint64)
        for first in range(0, len(self._shares), self._group):
            here = self._shares[first : first + self._group]
            for lane, share in enumerate(here):
                share.fill(words[lane])
            words[len(here) :] = 0
            yield first, words


def _over_spans(
    over: Callable[[slice, int], FieldArray], dim: int, n_shares: int, engine: Engine, at_once: int = 1
) -> Sequence[FieldArray]:
    """Return `over` of each thread's span and the number of tiles that it takes at once. at_once: of a thread alone."""
    spans = _spans(dim, n_shares, engine)
    tiles = at_once if len(spans) == 1 else TILES_BESIDE_OTHERS
    return engine.threads.map(lambda span: over(span, tiles), spans)


def _added(parts: Sequence[FieldArray]) -> FieldArray:
    """Return their sum, in the shape of each."""
    total = parts[0]
    for part in parts[1:]:
        total = field.add(total.reshape(-1), part.reshape(-1)).reshape(total.shape)
    return total


def row_values(x: RingArray, rows: Rows) -> FieldArray:
    """Return <r_j, X> of a vector that is not shared, (64,). Run by the client. X: integers, (d,).

    The rows are read from coordinate 0 on, even where they were read before. A proof for other rows than the servers'
    would open to a linear function of X.
    """
    sums, own_rows = CpuRows(1), rows.after(0)
    for tile in ring.tiles(x.size):
        row_words, sign_words = (words.view(np.uint64) for words in own_rows.read(tile.stop - tile.start))
        sums.open_tile(row_words, sign_words)
        sums.add(0, field.from_integers(x[tile]).reshape(1, -1))
    values: FieldArray = sums.sums()[0]
    return values


def add_shares(total: FieldArray, shares: Sequence[Share], engine: Engine = CPU, *, negate: bool = False) -> None:
    """Add shares to a sum, or take them out of it again, in place: d words may be most of a server's memory. (d,)."""
    kernels, sign = loading.prime_field(), field.MINUS if negate else field.PLUS

    def over(span: slice) -> None:
        here = total[span]
        scratch = np.empty(min(here.size, ring.TILE), dtype=np.uint64)
        for share in shares:
            reader = share.after(span.start)
            for tile in ring.tiles(here.size):
                part, words = here[tile], scratch[: tile.stop - tile.start]
                reader.fill(words)
                kernels.add_to(part, words, sign)

    engine.threads.map(over, _spans(total.size, len(shares), engine))


def _spans(dim: int, n_shares: int, engine: Engine) -> list[slice]:
    """Return the spans of the coordinates that threads take: one where there is little to do."""
    return ring.spans(dim, min(engine.threads.n, dim * n_shares // WORDS_PER_SPAN))
