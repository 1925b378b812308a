"""The two steps of a round together: the test, and this server's share of the sum of its branch."""

from __future__ import annotations

from collections.abc import Callable

from precad.mpc.channel import Channel
from precad.mpc.ring import RingArray
from precad.mpc.robust.margin import open_noisy_margin
from precad.mpc.robust.proposal import TrimmedRound
from precad.mpc.robust.trimming import trimmed_share_sum


def share_of_branch(
    it: TrimmedRound, noise: int, has_passed: Callable[[int], bool], channel: Channel
) -> tuple[RingArray, int]:
    """Return this server's share of the sum that the test decides on, (d,), and the noisy margin. By both servers.

    noise: this server's own, on the margin. has_passed: public, and decides by the noisy margin alone.
    Raises: MalformedMessageError, PeerMismatchError, TupleExhaustedError, TupleReusedError.
    """
    margin = open_noisy_margin(it, noise, channel)
    share = trimmed_share_sum(it, channel) if has_passed(margin) else it.accepted.share_sum
    return share, margin
