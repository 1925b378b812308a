"""The steps that both servers take after the last proof: two points, what each opens there, and equal verdicts.

    validation/proofs     coins, and the digests of the proofs: which slots are proved, and the points
    validation/verifier   each server's part of every opened value
    validation/accepted   both servers hold the same verdicts, or nothing is released

Nothing that leaves before the last step depends on what the peer sends in the second. The charge comes before the
first. Run by both servers, each in the one thread that does MPC. Source: `proved.md` section 7.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping, Sequence

import numpy as np

from precad.mpc import joint_coin
from precad.mpc.channel import Channel, exchange_alike
from precad.mpc.errors import VerdictsDifferError
from precad.mpc.joint_coin import COIN_BYTES
from precad.mpc.local.engines import CPU
from precad.mpc.local.step import Engine
from precad.mpc.prg import Label, RandomBytes
from precad.mpc.proved.check import ProofCheck
from precad.mpc.proved.field import FieldArray
from precad.mpc.proved.query import PROOFS_STEP, Query, admissible_points, prepare, query_elements, query_seed
from precad.mpc.proved.sizes import ProofSizes
from precad.mpc.proved.submission import DIGEST_BYTES
from precad.mpc.proved.verifier import VERIFIER_STEP, message_pieces, read_message

ACCEPTED_STEP = "validation/accepted"


def validate(
    check: ProofCheck,
    label: Label,
    sizes: ProofSizes,
    chosen: Sequence[int],
    channel: Channel,
    random_bytes: RandomBytes = os.urandom,
    engine: Engine = CPU,
) -> tuple[dict[int, bool], FieldArray]:
    """Return the verdicts of the proved slots, and this server's share of the sum of the valid, (d,).

    check: the round's proofs, of which no more are taken. label: of the round. chosen: its slots, in the order of
    clients. Raises VerdictsDifferError where the servers hold different verdicts, before anything is released.
    """
    proved, query = _query(check, label, sizes, channel, random_bytes)
    verdicts, share_sum = dict[int, bool](), np.zeros(sizes.dim, dtype=np.uint64)
    if query is not None:
        opened = check.open(proved, query, engine)
        received = channel.exchange_pieces(VERIFIER_STEP, message_pieces(list(opened.values())))
        theirs = read_message(received, len(opened), sizes)
        verdicts = check.verdicts(dict(zip(opened, theirs, strict=True)))
        share_sum = check.accepted_sum(verdicts)
    _compare(verdicts, chosen, channel)
    return verdicts, share_sum


def _query(
    check: ProofCheck, label: Label, sizes: ProofSizes, channel: Channel, random_bytes: RandomBytes
) -> tuple[dict[int, bytes], Query | None]:
    """Exchange `validation/proofs`. Return the proved slots, and the round's two points where there are any."""
    ours, coin = check.close(), random_bytes(COIN_BYTES)
    if not ours:
        return {}, None
    received = exchange_alike(channel, PROOFS_STEP, coin + b"".join(ours))
    body = received[COIN_BYTES:]
    proved = check.proved([body[i : i + DIGEST_BYTES] for i in range(0, len(body), DIGEST_BYTES)])
    if not proved:
        return {}, None
    theirs = received[:COIN_BYTES]
    coins = (coin, theirs) if channel.party == 0 else (theirs, coin)
    seed = query_seed(label, coins, [proved[slot] for slot in sorted(proved)])
    return proved, prepare(admissible_points(query_elements(seed, label), sizes), sizes)


def _compare(verdicts: Mapping[int, bool], chosen: Sequence[int], channel: Channel) -> None:
    """End the task where the servers hold different verdicts."""
    ours = joint_coin.digest(b"accepted", bytes(verdicts.get(slot, False) for slot in chosen))
    if not hmac.compare_digest(ours, exchange_alike(channel, ACCEPTED_STEP, ours)):
        raise VerdictsDifferError(())
