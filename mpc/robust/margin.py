"""The test: how far the trimmed sum is from a proposal that would be false, noised by both servers.

With k of the accepted vectors longer than tau C, the margin is max(0, F - k). Bits [N_i > (tau C)^2] come from the
shares of squared norms that the check has, and are added up. k stays shared. F - min(k, F) is F less
the number of j in 1 .. F with k >= j: comparisons of k with public numbers. Each server adds its own noise
to its share, and then the noisy margin is opened. Nothing else is.

Source: Wang et al., NeurIPS '22, Algorithm 2; the closed form is of docs/explanation/privacy.md, the protocol ours.
"""

from __future__ import annotations

import numpy as np

from precad.mpc import ring
from precad.mpc.channel import Channel, Prefixed, exchange_alike
from precad.mpc.errors import PeerMismatchError
from precad.mpc.ring import RingArray
from precad.mpc.robust.proposal import MARGIN_BITS, TrimmedRound
from precad.mpc.robust.shared_bits import additive_bits


def open_noisy_margin(it: TrimmedRound, noise: int, channel: Channel) -> int:
    """Return the margin plus both servers' noise, in steps of 2^-20, equal at both. Run by both servers.

    noise: this server's own, in steps of 2^-20, drawn for this round alone. Rounds: twice the gate's and one, then two.
    Raises: MalformedMessageError, PeerMismatchError, TupleExhaustedError, TupleReusedError.
    """
    lane = Prefixed(channel, "robust/test")
    return _open((_margin(it, _exceeding(it, lane), lane) << MARGIN_BITS) + noise, lane)


def _exceeding(it: TrimmedRound, lane: Channel) -> int:
    """Return a share of k, the number of norms above tau C."""
    n_bits, is_a = it.proposal.norm_bits, lane.party == 0
    words: RingArray = np.int64((1 << n_bits) + it.proposal.threshold if is_a else 0) - it.accepted.squared_norms
    within = additive_bits(words, n_bits, it.gate, it.tuples, lane)
    return (it.n_accepted if is_a else 0) - int(within.sum())


def _margin(it: TrimmedRound, exceeding: int, lane: Channel) -> int:
    """Return a share of max(0, F - k), as an integer of which only the value modulo 2^64 counts."""
    n_bits, is_a = it.count_bits, lane.party == 0
    levels = np.arange(1, min(it.trim_count, it.n_accepted) + 1, dtype=np.int64)
    words = np.full_like(levels, ring.centred(exceeding))
    if is_a:
        words += (1 << n_bits) - levels
    reached = additive_bits(words, n_bits, it.gate, it.tuples, lane)
    return (it.trim_count if is_a else 0) - int(reached.sum())


def _open(share: int, lane: Channel) -> int:
    """Open one word, and compare what both have opened: from here on both take the same branch. Two rounds."""
    ours = ring.centred(share)
    opened = ring.centred(ours + _exchanged(ours, "margin", lane))
    if (theirs := _exchanged(opened, "compare", lane)) != opened:
        raise PeerMismatchError("noisy margin", ours=opened, peers=theirs)
    return opened


def _exchanged(word: int, label: str, lane: Channel) -> int:
    received = exchange_alike(lane, label, ring.to_bytes(np.array([word], dtype=np.int64)))
    return int(ring.from_bytes(received, n_words=1)[0])
