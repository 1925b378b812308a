"""Run the check of a round's proofs at one server: from the end of its intake to the verdicts and the sum.

    proofs     both servers show the proofs that they took, and a coin; now nobody can change a proof
    query      the coins give two points
    open       the second pass over the uploads; each server's part of every opened value
    verifier   the parts are exchanged: one message each, 14 (c + 3) bytes for a client
    verdict    one bit for each client, alike at both servers
    accepted   both servers hold the same verdicts, or nothing is released

It is `precad.mpc.validation` for mode `proved`. Run by both servers, each in the one thread that does MPC. Source:
docs/reference/protocol-v2.md, sections 8 and 9.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from precad.mpc import joint_coin
from precad.mpc.channel import Channel, exchange_alike
from precad.mpc.errors import VerdictsDifferError
from precad.mpc.joint_coin import COIN_BYTES
from precad.mpc.local.engines import CPU
from precad.mpc.local.step import Engine
from precad.mpc.prg import SYSTEM_BYTES, RandomBytes
from precad.mpc.proved.check import ProofCheck
from precad.mpc.proved.field import FieldArray
from precad.mpc.proved.query import PROOFS_STEP, Query, admissible_points, prepare, query_elements, query_seed
from precad.mpc.proved.submission import DIGEST_BYTES
from precad.mpc.proved.verifier import VERIFIER_STEP, message_pieces, read_message

ACCEPTED_STEP = "validation/accepted"


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a round's check, alike at both servers but for the share."""

    verdicts: Mapping[int, bool]
    """Whether the update of each proved slot is short enough."""
    share_sum: FieldArray
    """This server's share of the sum of the valid updates, (d,); the caller's to change."""


def validate(
    check: ProofCheck,
    slots: Sequence[int],
    channel: Channel,
    engine: Engine = CPU,
    random_bytes: RandomBytes = SYSTEM_BYTES,
) -> Checked:
    """Check every proof of the round, and add up the valid uploads. Three rounds of messages, one where none is active.

    slots: of all who were drawn, in an order that both servers share. random_bytes: of this server's coin. Raises
    VerdictsDifferError when the servers hold different verdicts, before anything is released; PeerMismatchError,
    ChannelClosedError, MalformedMessageError.
    """
    proved, query = _query(check, channel, random_bytes)
    verdicts = dict[int, bool]()
    if query is not None:
        opened = check.open(proved, query, engine)
        received = channel.exchange_pieces(VERIFIER_STEP, message_pieces(list(opened.values())))
        theirs = read_message(received, len(opened), check.sizes)
        verdicts = check.verdicts(dict(zip(opened, theirs, strict=True)))
    _compare(verdicts, slots, channel)  # first: of verdicts that differ there is no sum
    if query is None:
        return Checked(verdicts, np.zeros(check.sizes.dim, dtype=np.uint64))
    return Checked(verdicts, check.accepted_sum(verdicts, engine))


def _query(check: ProofCheck, channel: Channel, random_bytes: RandomBytes) -> tuple[dict[int, bytes], Query | None]:
    """Exchange `validation/proofs`. Return the proved slots, and the round's two points where there are any."""
    ours, coin = check.close(), random_bytes(COIN_BYTES)
    if not ours:
        return {}, None
    received = exchange_alike(channel, PROOFS_STEP, coin + b"".join(ours))
    body = received[COIN_BYTES:]
    proved = check.proved([body[i : i + DIGEST_BYTES] for i in range(0, len(body), DIGEST_BYTES)])
    if not proved:
        return {}, None
    coins = joint_coin.in_order(channel.party, coin, received[:COIN_BYTES])
    seed = query_seed(check.label, coins, [proved[slot] for slot in sorted(proved)])
    return proved, prepare(admissible_points(query_elements(seed, check.label), check.sizes), check.sizes)


def _compare(verdicts: Mapping[int, bool], slots: Sequence[int], channel: Channel) -> None:
    """End the task where the servers hold different verdicts, before anything is released."""
    ours = joint_coin.digest(b"accepted", bytes(verdicts.get(slot, False) for slot in slots))
    if not hmac.compare_digest(ours, exchange_alike(channel, ACCEPTED_STEP, ours)):
        raise VerdictsDifferError(())
