"""The steps of a round whose sum is trimmed, always or after a noisy test: behind the check, before the noise.

They come after the verdicts were compared. The round was charged before its check, so it is paid for when the margin
opens, whatever becomes of it then (docs/reference/protocol-trimmed-sums.md).
"""

from __future__ import annotations

from collections.abc import Sequence

from precad.mpc.channel import Channel
from precad.mpc.gate.top_bits import Gate
from precad.mpc.local.step import Words
from precad.mpc.ring import RingArray
from precad.mpc.robust import trimming
from precad.mpc.robust.proposal import Accepted, Proposal, TrimmedRound
from precad.mpc.robust.release import share_of_branch
from precad.mpc.tuples.held import ServerTuples
from precad.mpc.validation import Validated
from precad.protos.task.task import Task
from precad.protos.task.trim_fields import Tested, TrimRule


def sum_of_shortest(
    task: Task,
    trim_count: int,
    checked: Validated,
    opened: Sequence[Words],
    tuples: ServerTuples,
    gate: Gate,
    channel: Channel,
) -> RingArray:
    """Return this server's share of the sum without the F longest updates, (d,), untested. By both servers.

    trim_count: F. opened: b of each active client.
    Raises: MalformedMessageError, TupleExhaustedError, TupleReusedError.
    """
    return trimming.share_sum_of_shortest(
        _accepted_of(checked, opened), task.norm_bound, trim_count, tuples, gate, channel
    )


def tested_sum(
    task: Task,
    rule: TrimRule,
    trim_count: int,
    checked: Validated,
    opened: Sequence[Words],
    tuples: ServerTuples,
    gate: Gate,
    noise: int,
    channel: Channel,
) -> tuple[RingArray, Tested]:
    """Return this server's share of the sum of the test's branch, (d,), and what the test released. By both servers.

    trim_count: F. opened: b of each active client. noise: this server's own, on the margin.
    Raises: MalformedMessageError, PeerMismatchError, TupleExhaustedError, TupleReusedError.
    """
    it = TrimmedRound(_accepted_of(checked, opened), Proposal(task.norm_bound, task.trim_tau), trim_count, tuples, gate)
    share, margin = share_of_branch(it, noise, rule.mechanism.has_passed, channel)
    return share, rule.tested(margin, trim_count)


def _accepted_of(checked: Validated, opened: Sequence[Words]) -> Accepted:
    return Accepted.of(checked.active, checked.verdicts, opened, checked.squared_norms, checked.accepted_share_sum)
