"""The trim: this server's share of the sum without the F longest vectors, and nobody knows which they are.

Norms of accepted clients are ranked, and those whose rank is below m - F are added up (`precad.mpc.robust.keeping`).
Equally long vectors are in the order of slots.
"""

from __future__ import annotations

import numpy as np

from precad.mpc.channel import Channel, Prefixed
from precad.mpc.ring import RingArray
from precad.mpc.robust.keeping import ranks, sum_of_low_ranks
from precad.mpc.robust.proposal import TrimmedRound


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
    (of_norms,) = ranks(accepted.squared_norms[np.newaxis], it.proposal.norm_bits, it.gate, it.tuples, lane)
    n_kept = it.n_accepted - it.trim_count
    return sum_of_low_ranks(accepted, of_norms, n_kept, trims, it.gate, it.tuples, lane)
