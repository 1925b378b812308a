"""Ranks of secret numbers, and the sum of the vectors whose rank is low: nobody knows which they are.

For each pair i < j, a bit says whether v_i <= v_j; equal numbers are in the order of slots. A rank is a sum of such
bits, and a vector is kept if its rank is below a public number: one more comparison. Its bit stays shared by XOR. With
a dealt random bit u, the servers open e = keep ^ u, which is uniform. As X = b + a with b public,

    keep X = (e + (1 - 2e) u) b + e a + (1 - 2e) u a,

of which each server has its share: of u, of the mask a, and of the dealt u a. Nothing of length d is opened.

Source: ours. The slots of a round are in the order of clients' ids, which does not depend on who else was drawn.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from precad.mpc import ring
from precad.mpc.channel import Channel
from precad.mpc.gate.top_bits import Gate
from precad.mpc.local.step import Words, read_tile
from precad.mpc.prg import Stream
from precad.mpc.ring import RingArray
from precad.mpc.robust.proposal import Accepted, count_bits
from precad.mpc.robust.shared_bits import additive_bits, bit_shares, open_bits
from precad.mpc.sharing import Party
from precad.mpc.tuples.correlations import Planes, plane_of_bits
from precad.mpc.tuples.held import ServerTuples, TrimTuple


def ranks(values: RingArray, n_bits: int, gate: Gate, tuples: ServerTuples, lane: Channel) -> RingArray:
    """Return shares of each number's rank in its row: how many are before it, the least first. Shapes (r, c).

    values: shares of numbers in [0, 2^n_bits). Rounds: the gate's, and one.
    """
    n_rows, n_columns = values.shape
    first, second = np.triu_indices(n_columns, 1)
    words: RingArray = values[:, second] - values[:, first]
    if lane.party == 0:
        words += 1 << n_bits
    in_order = additive_bits(words.reshape(-1), n_bits, gate, tuples, lane).reshape(words.shape)
    is_before = np.zeros((n_rows, n_columns, n_columns), dtype=np.int64)
    is_before[:, first, second] = in_order
    is_before[:, second, first] = (1 if lane.party == 0 else 0) - in_order
    found: RingArray = is_before.sum(axis=1)
    return found


def low_ranks(ranks: RingArray, n_low: int, gate: Gate, tuples: ServerTuples, lane: Channel) -> Planes:
    """Return XOR shares of whether each rank is below n_low, in a plane. Shape (m,). The gate's rounds."""
    n_bits = count_bits(len(tuples.shape.clients))
    words: RingArray = -ranks
    if lane.party == 0:
        words += (1 << n_bits) + n_low - 1
    return bit_shares(words, n_bits, gate, tuples, lane)


def sum_of_low_ranks(
    accepted: Accepted,
    ranks: RingArray,
    n_kept: int,
    trims: Sequence[TrimTuple],
    gate: Gate,
    tuples: ServerTuples,
    lane: Channel,
) -> RingArray:
    """Return this server's share of the sum of the vectors whose rank is below n_kept, (d,). Gate's rounds, and one.

    ranks: shares of those of the accepted, (m,). trims: their trim tuples.
    """
    keep = low_ranks(ranks, n_kept, gate, tuples, lane)
    u = plane_of_bits(np.array([trim.bit for trim in trims], dtype=np.uint8))
    hidden = open_bits(keep ^ u, ranks.size, "keep", lane)
    masks = [tuples.mask_share(client) for client in accepted.clients]
    total = np.zeros_like(accepted.share_sum)
    for opened, mask, trim, e in zip(accepted.opened, masks, trims, hidden.tolist(), strict=True):
        _add_kept(total, opened, mask, trim, e, lane.party)
    return total


def _add_kept(total: RingArray, opened: Words, mask: Stream, trim: TrimTuple, e: int, party: Party) -> None:
    """Add this server's share of keep X to its share of the sum, tile by tile."""
    sign = 1 - 2 * e
    factor = np.int64(ring.centred((e if party == 0 else 0) + sign * trim.share))
    a, product = np.empty((2, min(total.size, ring.TILE)), dtype=np.int64)
    for tile in ring.tiles(total.size):
        part, n = total[tile], tile.stop - tile.start
        part += factor * read_tile(opened, tile)
        if isinstance(trim.product, Stream):
            trim.product.fill(product[:n])
        else:
            product[:n] = trim.product[tile]
        part += sign * product[:n]
        if e:
            mask.fill(a[:n])
            part += a[:n]
