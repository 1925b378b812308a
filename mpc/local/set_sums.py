"""One server's sums for the constraints of a convex set, beside those of the norm: one more pass over the uploads.

Each layer has <b, a_P> and <b, b> over its coordinates, each half-space <[x]_P, g> of the server's own share. The
last needs nothing dealt: an inner product with a public vector is linear.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from precad.mpc import ring
from precad.mpc.local.step import Engine, Masked, read_tile, require_length
from precad.mpc.ring import RingArray
from precad.mpc.sharing import Party


@dataclass(frozen=True, slots=True, repr=False)
class SetSums:
    """Sums of one pass, modulo 2^64. Shapes: (n, L), (n, L), (n, J) for L layers and J half-spaces."""

    by_mask: RingArray
    """<b, a_P> of each client and layer."""
    by_opened: RingArray
    """<b, b> of each client and layer."""
    along: RingArray
    """<[x]_P, g> of each client and direction."""

    @classmethod
    def zero(cls, n_clients: int, n_layers: int, n_directions: int) -> Self:
        """Return zeros."""
        return cls(*(np.zeros((n_clients, n), dtype=np.int64) for n in (n_layers, n_layers, n_directions)))


def set_sums(
    party: Party,
    clients: Sequence[Masked],
    layer_sizes: Sequence[int],
    directions: Sequence[RingArray],
    dim: int,
    engine: Engine,
) -> SetSums:
    """Run the pass over every client. Run by each server. Each client has its streams at their start.

    Raises MalformedMessageError when an upload has another length than d.
    """
    require_length([client.opened for client in clients], dim)
    ends, at_once = np.cumsum(layer_sizes, dtype=np.int64), max(1, -(-len(clients) // engine.threads.n))

    def over(some: Sequence[Masked]) -> SetSums:
        sums = SetSums.zero(len(some), len(ends), len(directions))
        for i, client in enumerate(some):
            _add_client(sums, i, party, client, ends, directions)
        return sums

    parts = engine.threads.map(over, [clients[i : i + at_once] for i in range(0, len(clients), at_once)])
    return SetSums(
        by_mask=np.concatenate([part.by_mask for part in parts]),
        by_opened=np.concatenate([part.by_opened for part in parts]),
        along=np.concatenate([part.along for part in parts]),
    )


def _add_client(
    sums: SetSums, i: int, party: Party, client: Masked, ends: RingArray, directions: Sequence[RingArray]
) -> None:
    """Add the sums of one client to row i, tile by tile. In place."""
    dim = len(client.opened)
    scratch = np.empty(min(dim, ring.TILE), dtype=np.int64)
    for tile in ring.tiles(dim):
        b, a = read_tile(client.opened, tile), scratch[: tile.stop - tile.start]
        client.mask_share.fill(a)
        if len(ends):
            ring.add_by_layer(sums.by_mask[i], b * a, ends, tile)
            ring.add_by_layer(sums.by_opened[i], b * b, ends, tile)
        share = a + b if party == 0 else a
        sums.along[i] += np.array([ring.dot(share, direction[tile]) for direction in directions], dtype=np.int64)
