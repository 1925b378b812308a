"""The trim: this server's share of the sum without the F longest vectors, and nobody knows which they are.

Of each pair i < j of accepted clients, a bit says whether N_i <= N_j; equally long vectors are in the order of slots.
A client's rank is a sum of such bits, and it is kept if its rank is below m - F: one more comparison. Its bit stays
shared by XOR. With a dealt random bit u, the servers open e = keep ^ u, which is uniform. As X = b + a with b public,

    keep X = (e + (1 - 2e) u) b + e a + (1 - 2e) u a,

of which each server has its share: of u, of the mask a, and of the dealt u a. Nothing of length d is opened.

Source: ours. The slots of a round are in the order of clients' ids, which does not depend on who else was drawn.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from precad.mpc import ring
from precad.mpc.channel import Channel, Prefixed
from precad.mpc.local.step import Words, read_tile
from precad.mpc.prg import Stream
from precad.mpc.ring import RingArray
from precad.mpc.robust.proposal import TrimmedRound
from precad.mpc.robust.shared_bits import additive_bits, bit_shares, open_bits
from precad.mpc.sharing import Party
from precad.mpc.tuples.correlations import plane_of_bits
from precad.mpc.tuples.held import TrimTuple


def trimmed_share_sum(it: TrimmedRound, channel: Channel) -> RingArray:
    """Return this server's share of the accepted vectors' sum without the F longest, (d,). Run by both servers.

    After `precad.mpc.robust.margin.open_noisy_margin`, once what it opened has passed the test. Rounds: twice the
    gate's, and two; none where F leaves nobody or everybody, which is public.
    Raises: MalformedMessageError, TupleExhaustedError, TupleReusedError.
    """
    accepted, dim = it.accepted, it.proposal.bound.dim
    trims = it.tuples.trim_tuples(accepted.clients)
    if it.trim_count >= it.n_accepted:
        return np.zeros(dim, dtype=np.int64)
    if it.trim_count == 0:
        return accepted.share_sum
    lane = Prefixed(channel, "robust/trim")
    hidden = _hidden_keep_bits(it, _ranks(it, lane), trims, lane)
    masks = [it.tuples.mask_share(client) for client in accepted.clients]
    total = np.zeros(dim, dtype=np.int64)
    for opened, mask, trim, e in zip(accepted.opened, masks, trims, hidden.tolist(), strict=True):
        _add_kept(total, opened, mask, trim, e, lane.party)
    return total


def _ranks(it: TrimmedRound, lane: Channel) -> RingArray:
    """Return shares of each vector's rank, (m,): how many are before it, the shortest first."""
    norms, n_bits = it.accepted.squared_norms, it.proposal.norm_bits
    first, second = np.triu_indices(it.n_accepted, 1)
    words: RingArray = norms[second] - norms[first]
    if lane.party == 0:
        words += 1 << n_bits
    in_order = additive_bits(words, n_bits, it.gate, it.tuples, lane)
    ranks = np.zeros(it.n_accepted, dtype=np.int64)
    np.add.at(ranks, second, in_order)
    np.subtract.at(ranks, first, in_order)
    if lane.party == 0:
        np.add.at(ranks, first, 1)
    return ranks


def _hidden_keep_bits(it: TrimmedRound, ranks: RingArray, trims: Sequence[TrimTuple], lane: Channel) -> RingArray:
    """Open keep ^ u of every client, (m,): whether its rank is below m - F, behind the dealer's bit."""
    words: RingArray = -ranks
    if lane.party == 0:
        words += (1 << it.count_bits) + it.n_accepted - it.trim_count - 1
    keep = bit_shares(words, it.count_bits, it.gate, it.tuples, lane)
    u = plane_of_bits(np.array([trim.bit for trim in trims], dtype=np.uint8))
    return open_bits(keep ^ u, it.n_accepted, "keep", lane)


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
