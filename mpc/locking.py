"""The lock of a round: both servers fix the same set of uploads, and commit to a coin, before anything is checked.

All modes lock alike. Source: docs/reference/protocol.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from precad.mpc import joint_coin
from precad.mpc.channel import Channel
from precad.mpc.errors import MalformedMessageError
from precad.mpc.joint_coin import COIN_BYTES, CoinShare
from precad.mpc.prg import SYSTEM_BYTES, Label, RandomBytes

BINDING_BYTES = 32


@dataclass(frozen=True, slots=True)
class Locked:
    """The uploads that both servers hold with equal bindings, fixed before the coin is known."""

    active: tuple[str, ...]
    coin: CoinShare
    peers_commitment: bytes
    transcript: bytes


def lock_list(
    bindings: Mapping[str, bytes],
    label: Label,
    clients: Sequence[str],
    channel: Channel,
    random_bytes: RandomBytes = SYSTEM_BYTES,
) -> Locked:
    """Exchange the list of bindings, in the order of `clients`, and the commitment to a coin. One round of messages.

    bindings: for every upload this server holds complete, 32 bytes that bind it to its content and its round. The
    active set is the intersection; an upload that one server lacks, or holds with another binding, is left out.
    label: of the round. Run by both servers. Raises MalformedMessageError.
    """
    coin = CoinShare.draw(channel.party, f"{label.task}/{label.round}/challenge", random_bytes)
    ours = [bindings.get(client, bytes(BINDING_BYTES)) for client in clients]
    received = channel.exchange("validation/lock", coin.commitment + b"".join(ours))
    if len(received) != COIN_BYTES + BINDING_BYTES * len(ours):
        raise MalformedMessageError(f"a lock of {len(ours)} clients has another length than {len(received)} bytes")
    body = received[COIN_BYTES:]
    theirs = [body[i : i + BINDING_BYTES] for i in range(0, len(body), BINDING_BYTES)]
    active = tuple(client for client, a, b in zip(clients, ours, theirs, strict=True) if a == b and client in bindings)
    return Locked(
        active=active,
        coin=coin,
        peers_commitment=received[:COIN_BYTES],
        transcript=joint_coin.digest(b"lock", *(bindings[client] for client in active)),
    )
