"""The step of a round whose sum is of the updates closest to their neighbours alone: behind the check, without noise.

It comes after the verdicts were compared, and opens nothing but what dealt words mask
(docs/reference/protocol-krum.md).
"""

from __future__ import annotations

from collections.abc import Sequence

from precad.mpc.channel import Channel
from precad.mpc.gate.top_bits import Gate
from precad.mpc.local.step import Words
from precad.mpc.ring import RingArray
from precad.mpc.robust.krum import KrumRound, selected_share_sum
from precad.mpc.robust.proposal import Accepted
from precad.mpc.tuples.held import ServerTuples
from precad.mpc.validation import Validated
from precad.protos.task.krum_fields import KrumRule


def selected_sum(
    rule: KrumRule, checked: Validated, opened: Sequence[Words], tuples: ServerTuples, gate: Gate, channel: Channel
) -> RingArray:
    """Return this server's share of the sum of the updates that Krum's rule chooses, (d,). By both servers.

    opened: b of each active client. Raises: MalformedMessageError, TupleExhaustedError, TupleReusedError.
    """
    accepted = Accepted.of(checked.active, checked.verdicts, opened, checked.squared_norms, checked.accepted_share_sum)
    krum = rule.krum(len(accepted.clients))
    return selected_share_sum(KrumRound(accepted, krum, tuples, gate), channel)
