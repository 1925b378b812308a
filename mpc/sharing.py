"""Additive shares over Z_2^64, and what a client uploads in each of the two forms.

`shares` (PRECAD, Sec. 4.2): share A is a seed, share B is X - PRG(seed). The servers later open b = x - a, which
costs 8d bytes each way.
`masked`: each server gives the client its half of one tuple's mask a = a_A + a_B and the client uploads
b = X - a_A - a_B. This is the state that the paper's protocol reaches after its opening: both servers know b and their
own half of a.

Either way a submission ends as (b, a_A, a_B) with X = b + a_A + a_B, and every later step is common to both forms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np

from precad.mpc import prg, ring
from precad.mpc.errors import ParameterError
from precad.mpc.prg import SYSTEM_BYTES, Label, Purpose, RandomBytes, Seed, Stream
from precad.mpc.ring import RingArray

Party: TypeAlias = Literal[0, 1]
"""0 is aggregation server A, 1 is B."""


def mask_key(mask_seed: Seed, label: Label) -> Seed:
    """Return the key of the stream of one server's half of the mask, a_P."""
    return prg.derive(mask_seed, Purpose.MASK, label)


def mask_stream(mask_seed: Seed, label: Label) -> Stream:
    """Return a_P from its seed. Run by the dealer and, in `masked` form, by the client; its server keeps the key."""
    return Stream(mask_key(mask_seed, label))


def mask(encoded: RingArray, mask_seeds: tuple[Seed, Seed], label: Label) -> RingArray:
    """Return b = X - a_A - a_B. Run by the client. Uniform to anyone who lacks either seed."""
    return subtract_streams(encoded, [mask_stream(seed, label) for seed in mask_seeds])


def subtract_streams(x: RingArray, streams: Sequence[Stream]) -> RingArray:
    """Return x minus the next words of every stream, as a new array, tile by tile. Shapes: (d,) to (d,)."""
    difference = np.empty_like(x)
    scratch = np.empty(min(x.size, ring.TILE), dtype=np.int64)
    for tile in ring.tiles(x.size):
        part, words = difference[tile], scratch[: tile.stop - tile.start]
        part[:] = x[tile]
        for stream in streams:
            stream.fill(words)
            part -= words
    return difference


def split(encoded: RingArray, label: Label, random_bytes: RandomBytes = SYSTEM_BYTES) -> tuple[Seed, RingArray]:
    """Return (seed of share A, share B) with PRG(seed) + share B = X. Run by the client."""
    seed = Seed.random(random_bytes)
    return seed, subtract_streams(encoded, [prg.open_stream(seed, Purpose.UPLOAD_SHARE, label)])


def expand_share(seed: Seed, label: Label, dim: int) -> RingArray:
    """Share A of the `shares` form, shape (dim,)."""
    return prg.stream(seed, Purpose.UPLOAD_SHARE, label, dim)


class ExpandedShare:
    """Share A of the `shares` form, expanded as it is read: one pass from the start, tile after tile.

    Nothing of length d is kept.
    """

    def __init__(self, seed: Seed, label: Label, dim: int) -> None:
        self._stream, self._dim, self._position = prg.open_stream(seed, Purpose.UPLOAD_SHARE, label), dim, 0

    def __len__(self) -> int:
        return self._dim

    def __getitem__(self, tile: slice, /) -> RingArray:
        """Return the next tile. Raises ParameterError for any other."""
        start, stop, _ = tile.indices(self._dim)
        if start != self._position:
            raise ParameterError(
                f"expanded share: expected coordinate {self._position}, as it is read in order, found {start}"
            )
        words = np.empty(stop - start, dtype=np.int64)
        self._stream.fill(words)
        self._position = stop
        return words

    def __repr__(self) -> str:
        return f"ExpandedShare({self._dim} words)"


def reconstruct(share_a: RingArray, share_b: RingArray) -> RingArray:
    """Return x = [x]_A + [x]_B."""
    return share_a + share_b
