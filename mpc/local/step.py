"""The local step: everything that a server computes from vectors of length d, in one pass over the uploads.

The pass goes tile by tile, for all clients of the round. It expands the public rows once. Per client it expands a_P,
reads b, and lets an engine add up both inner products, the row values and the sum of shares. What is kept is one vector
of d words (the sum) and a few kilobytes per client. So d is bounded by the disk that holds the uploads, not by memory.

The sum is taken over every client before anybody knows the verdicts. Rejections are rare, and `add_shares` takes them
out again, from b and the seed of a_P. Sums in a ring are exact, so the result is the same.

Tiles are independent, so the coordinates may be cut into spans, one for each thread of an engine. Every stream can be
read from any word on, and the sums of the spans add up modulo 2^64. Each span has its own part of the d words. The
result is the same integers, however many threads there are.

Source: ours, docs/reference/protocol.md, section 10.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from precad.mpc import ring
from precad.mpc.errors import MalformedMessageError
from precad.mpc.local.threads import Threads
from precad.mpc.prg import Stream
from precad.mpc.ring import RingArray
from precad.mpc.sharing import Party

WORDS_PER_SPAN: Final = 1 << 17
"""Half a millisecond of one core: below that, a second thread costs more than it saves."""
TILES_BESIDE_OTHERS: Final = 4
"""Tiles that a thread takes at once when it is not alone, which costs one core 2 %. After each call it has to ask for
Python's lock, and with calls of one tile two threads lose there what they gain (docs/results/performance.md)."""


class Words(Protocol):
    """A vector that can be read tile by tile: an array, a NumPy memory map,
    `precad.mpc.local.spooled_words.SpooledWords`."""

    def __len__(self) -> int: ...

    def __getitem__(self, tile: slice, /) -> RingArray: ...


class WritableWords(Words, Protocol):
    """A vector that is written tile by tile, too."""

    def __setitem__(self, tile: slice, words: RingArray, /) -> None: ...


@dataclass(frozen=True, slots=True, repr=False)
class Masked:
    """One client's vector as one server holds it."""

    opened: Words
    """b = x - a."""
    mask_share: Stream
    """a_P, at its start; one pass reads it once."""


@dataclass(frozen=True, slots=True, repr=False)
class LocalSums:
    """Sums of one pass, modulo 2^64. Shapes: (n, 64), (n,), (n,), (d,)."""

    rows: RingArray
    """v = U (s o [x]_P) of each client."""
    by_mask: RingArray
    """<b, a_P> of each client."""
    by_opened: RingArray
    """<b, b> of each client."""
    share_sum: RingArray
    """The sum of [x]_P over all clients; the caller's to change."""


class Rows(Protocol):
    """The round's public rows, read from coordinate 0 on: `precad.mpc.local.rows.RowStreams`."""

    def read(self, n_coordinates: int) -> tuple[RingArray, RingArray]:
        """Return (row words, sign words) of the next tile."""

    def after(self, n_coordinates: int) -> Rows:
        """Return the rows from that coordinate on, a multiple of 64, for another thread."""


class Accumulator(Protocol):
    """One server's sums of one pass. Tiles are opened in order; in each, every client is added once."""

    def open_tile(self, tile: slice, row_words: RingArray, sign_words: RingArray) -> None:
        """Take the tile's public rows. Shapes: (m,) and (ceil(m / 64),), words as `RowStreams.read` gives them."""

    def add(self, first: int, opened: Sequence[RingArray], masks: RingArray) -> None:
        """Take in the tile of the clients from `first` on, as many as `opened` has, (m,) each.

        masks: scratch, (engine.group, >= m) or, with one client in the round, (1, >= m): a_P of the k-th of them is in
        masks[k, :m]. The accumulator may overwrite it.
        """

    def sums(self) -> LocalSums:
        """Return the sums after the last tile."""


class Engine(Protocol):
    """One way to compute the sums."""

    name: str
    group: int
    """How many clients `Accumulator.add` takes at once, at most."""
    threads: Threads
    """Threads that work on spans at once."""

    def accumulator(self, party: Party, n_clients: int, share_sum: RingArray) -> Accumulator:
        """Return zero sums of a span. Server A's share of x is b + a_A, B's is a_B.

        share_sum: zeros, of the span's length, which take the sum of shares, after `Accumulator.sums` at the latest.
        """

    def warm_up(self) -> None:
        """Load and compile whatever the first use would otherwise wait for."""


def local_sums(party: Party, clients: Sequence[Masked], rows: Rows, dim: int, engine: Engine) -> LocalSums:
    """Pass over every client of the round. Run by each server.

    Raises MalformedMessageError when an upload has another length than d.
    """
    require_length([client.opened for client in clients], dim)
    share_sum = np.zeros(dim, dtype=np.int64)
    spans, at_once = _spans(dim, len(clients), engine)
    parts = engine.threads.map(
        lambda span: _sums_over(span, at_once, party, clients, rows, share_sum[span], engine), spans
    )
    return LocalSums(
        rows=_added([part.rows for part in parts]),
        by_mask=_added([part.by_mask for part in parts]),
        by_opened=_added([part.by_opened for part in parts]),
        share_sum=share_sum,
    )


def _sums_over(
    span: slice, at_once: int, party: Party, clients: Sequence[Masked], rows: Rows, share_sum: RingArray, engine: Engine
) -> LocalSums:
    """Pass over the coordinates of one span. at_once: tiles. share_sum: zeros, (m,)."""
    own_rows, own_masks = rows.after(span.start), [client.mask_share.after(span.start) for client in clients]
    accumulator = engine.accumulator(party, len(clients), share_sum)
    n_lanes = engine.group if len(clients) > 1 else 1
    masks = np.empty((n_lanes, min(share_sum.size, at_once * ring.TILE)), dtype=np.int64)
    for tile in ring.tiles(share_sum.size, at_once):
        accumulator.open_tile(tile, *own_rows.read(tile.stop - tile.start))
        where = slice(span.start + tile.start, span.start + tile.stop)
        for first in range(0, len(clients), engine.group):
            opened = []
            for lane, client in enumerate(clients[first : first + engine.group]):
                opened.append(read_tile(client.opened, where))
                own_masks[first + lane].fill(masks[lane, : opened[-1].size])
            accumulator.add(first, opened, masks)
    return accumulator.sums()


def _spans(dim: int, n_clients: int, engine: Engine) -> tuple[list[slice], int]:
    """Return the spans of the threads that pay, and how many tiles each takes at once."""
    spans = ring.spans(dim, min(engine.threads.n, dim * n_clients // WORDS_PER_SPAN))
    return spans, 1 if len(spans) == 1 else TILES_BESIDE_OTHERS


def _added(parts: Sequence[RingArray]) -> RingArray:
    """Their sum modulo 2^64, in the shape of each."""
    return functools.reduce(np.add, parts)


def add_shares(
    total: RingArray, party: Party, clients: Sequence[Masked], engine: Engine, *, negate: bool = False
) -> None:
    """Add the sum of [x]_P over `clients` to `total`, or subtract it; (d,).

    In place: d words may be most of a server's memory.
    """
    if not clients:
        return
    require_length([client.opened for client in clients], total.size)
    add = np.subtract if negate else np.add

    spans, at_once = _spans(total.size, len(clients), engine)

    def over(span: slice) -> None:
        sums, masks = total[span], [client.mask_share.after(span.start) for client in clients]
        scratch = np.empty(min(sums.size, at_once * ring.TILE), dtype=np.int64)
        for tile in ring.tiles(sums.size, at_once):
            part, mask = sums[tile], scratch[: tile.stop - tile.start]
            for client, stream in zip(clients, masks, strict=True):
                stream.fill(mask)
                add(part, mask, out=part)
                if party == 0:
                    where = slice(span.start + tile.start, span.start + tile.stop)
                    add(part, read_tile(client.opened, where), out=part)

    engine.threads.map(over, spans)


def require_length(vectors: Sequence[Words], dim: int) -> None:
    """Raises MalformedMessageError unless each vector has d words."""
    for words in vectors:
        if len(words) != dim:
            raise MalformedMessageError(f"upload: expected {dim} words, found {len(words)}")


def read_tile(words: Words, tile: slice) -> RingArray:
    """Return one tile, aligned and contiguous, of exactly the length that compiled loops will read.

    Raises MalformedMessageError.
    """
    read = np.asarray(words[tile])
    if read.dtype != np.int64 or not (read.flags.c_contiguous and read.flags.aligned):
        read = np.require(read, dtype=np.int64, requirements=["C", "A"])
    if read.shape != (tile.stop - tile.start,):
        raise MalformedMessageError(f"tile: expected {tile.stop - tile.start} words, found shape {read.shape}")
    return read
