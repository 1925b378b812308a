"""The trim: this server's share of the sum without the F longest vectors, and nobody knows which they are.

Norms of accepted clients are ranked, and those whose rank is below m - F are added up (`precad.mpc.robust.keeping`).
Equally long vectors are in the order of slots.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from precad.mpc.channel import Channel, Prefixed
from precad.mpc.gate.top_bits import Gate
from precad.mpc.norm_bound import NormBound
from precad.mpc.ring import RingArray
from precad.mpc.robust.keeping import ranks, sum_of_low_ranks
from precad.mpc.robust.proposal import Accepted, TrimmedRound, count_bits, norm_bits, require_few
from precad.mpc.tuples.correlations import BitBlock, Block
from precad.mpc.tuples.held import ServerTuples


def blocks(gate: Gate, n_clients: int, bound: NormBound) -> tuple[Block, ...]:
    """Return what a trim without a test uses up, behind the blocks of its check: pairs of norms, ranks below m - F."""
    require_few(n_clients)
    return tuple(_blocks(gate, n_clients, norm_bits(bound)))


def _blocks(gate: Gate, n: int, n_bits: int) -> Iterator[Block]:
    yield from gate.blocks([(math.comb(n, 2), n_bits)])
    yield BitBlock(math.comb(n, 2))
    yield from gate.blocks([(n, count_bits(n))])


def trimmed_share_sum(it: TrimmedRound, channel: Channel) -> RingArray:
    """Return this server's share of the accepted vectors' sum without the F longest, (d,). Run by both servers.

    After `precad.mpc.robust.margin.open_noisy_margin`, once what it opened has passed the test.
    See `share_sum_of_shortest`.
    """
    return share_sum_of_shortest(it.accepted, it.proposal.bound, it.trim_count, it.tuples, it.gate, channel)


def share_sum_of_shortest(
    accepted: Accepted, bound: NormBound, trim_count: int, tuples: ServerTuples, gate: Gate, channel: Channel
) -> RingArray:
    """Return this server's share of the accepted vectors' sum without the F longest, (d,). Run by both servers.

    trim_count: F, not negative. Rounds: twice the gate's, and two; none where F leaves nobody or everybody, which is
    public. Raises: MalformedMessageError, TupleExhaustedError, TupleReusedError.
    """
    trims, n_kept = tuples.trim_tuples(accepted.clients), len(accepted.clients) - trim_count
    if n_kept <= 0:
        return np.zeros(bound.dim, dtype=np.int64)
    if trim_count == 0:
        return accepted.share_sum
    lane = Prefixed(channel, "robust/trim")
    (of_norms,) = ranks(accepted.squared_norms[np.newaxis], norm_bits(bound), gate, tuples, lane)
    return sum_of_low_ranks(accepted, of_norms, n_kept, trims, gate, tuples, lane)
