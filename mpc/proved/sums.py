"""The pass over the uploads in mode `proved`: rows, two weighted sums of each wire, and the sum of all shares.

The pass goes tile by tile, for all clients of the round. It expands the public rows once. Per client it reads or
expands a tile of the share once. What is kept is one vector of d words (the sum), and per client the row values, its
buckets and two values of each wire. On a processor clients go in fours, whose buckets are added to side by side.

Tiles are independent, so the coordinates may be cut into spans, one for each thread. The sums are the same elements,
however many threads there are. Source: `proved.md` sections 7 and 12.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from precad.mpc import ring
from precad.mpc.errors import ParameterError
from precad.mpc.kernels import loading
from precad.mpc.local.engines import CPU
from precad.mpc.local.step import TILES_BESIDE_OTHERS, WORDS_PER_SPAN, Engine, Rows
from precad.mpc.proved import field
from precad.mpc.proved.accumulators import Accumulator, Buckets, accumulator
from precad.mpc.proved.field import FieldArray
from precad.mpc.proved.query import Query
from precad.mpc.proved.shares import Share
from precad.mpc.proved.sizes import ProofSizes
from precad.mpc.ring import RingArray


@dataclass(frozen=True, slots=True, repr=False)
class ShareSums:
    """Sums of one pass, elements. Shapes: (n, 64), (n, 2, c), (d,)."""

    rows: FieldArray
    """<r_j, x> of each client's share."""
    wires: FieldArray
    """Each wire's value at both points, before its mask."""
    share_sum: FieldArray
    """The sum of all shares; the caller's to change."""


def share_sums(shares: Sequence[Share], rows: Rows, query: Query, sizes: ProofSizes, engine: Engine = CPU) -> ShareSums:
    """Return the sums over every share of the round. Run by each server.

    Points of other sizes may be roots of unity here, where nothing is masked. Raises ParameterError for them. Raises
    MalformedMessageError when a share that was sent is cut short, or has an element that is not below p.
    """
    if query.sizes != sizes:
        raise ParameterError("query: expected points for these sizes, found others")
    share_sum = np.zeros(sizes.dim, dtype=np.uint64)
    spans = _spans(sizes.dim, len(shares), engine)
    at_once = 1 if len(spans) == 1 else TILES_BESIDE_OTHERS

    def over(span: slice) -> tuple[FieldArray, FieldArray]:
        sums = accumulator(engine, len(shares), sizes.n_wires, query.wire_weights)
        _add_span(span, at_once, shares, rows, sums, share_sum)
        return sums.sums()

    parts = engine.threads.map(over, spans)
    of_rows, of_wires = (_added([part[i] for part in parts]) for i in (0, 1))
    return ShareSums(of_rows, of_wires, share_sum)


def _add_span(
    span: slice, at_once: int, shares: Sequence[Share], rows: Rows, sums: Accumulator, share_sum: FieldArray
) -> None:
    """Go over every tile of a span. at_once: tiles. share_sum: zeros, (d,)."""
    own_rows, own_shares = rows.after(span.start), [share.after(span.start) for share in shares]
    tiles = np.empty((sums.group, min(span.stop - span.start, at_once * ring.TILE)), dtype=np.uint64)
    for tile in ring.tiles(span.stop - span.start, at_once):
        m, start = tile.stop - tile.start, span.start + tile.start
        row_words, sign_words = (words.view(np.uint64) for words in own_rows.read(m))
        sums.open_tile(start, row_words, sign_words, share_sum[start : start + m])
        for first in range(0, len(shares), sums.group):
            here = own_shares[first : first + sums.group]
            for lane, share in enumerate(here):
                share.fill(tiles[lane, :m])
            tiles[len(here) :] = 0
            sums.add(first, tiles)
        sums.close_tile()


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
    buckets, unused = Buckets(1), np.zeros(min(x.size, ring.TILE), dtype=np.uint64)
    own_rows = rows.after(0)
    for tile in ring.tiles(x.size):
        row_words, sign_words = (words.view(np.uint64) for words in own_rows.read(tile.stop - tile.start))
        elements = field.from_integers(x[tile])
        loading.proofs().combine(elements, sign_words, unused)
        buckets.add(0, row_words, elements.reshape(1, -1))
    values: FieldArray = buckets.rows()[0]
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
                kernels.add(part, words, sign, part)

    engine.threads.map(over, _spans(total.size, len(shares), engine))


def _spans(dim: int, n_shares: int, engine: Engine) -> list[slice]:
    """Return the spans of the coordinates that threads take: one where there is little to do."""
    return ring.spans(dim, min(engine.threads.n, dim * n_shares // WORDS_PER_SPAN))
