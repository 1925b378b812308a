"""Secure validation: is ||X||_2 <= C, for every client of a round at once, one opened bit each.

The steps are those of PRECAD, Sec. 4.3, with the no-wrap test that the ring needs (`secure_validation.md`, section 5):

    lock      both servers fix the same set of uploads, and commit to a coin
    coin      the coin is revealed; only now does anyone know the rows
    local     shares of <X, X> from the inner-product tuple, shares of 64 row values
    gate      XOR shares of the bits of 65 words per client, one batch
    verdict   masked equality: one bit per client

Run by both servers, each in the one thread that does MPC. Everything that is exchanged is independent of d, except the
opening that the `shares` form needs before the coin.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mpc import equality, joint_coin, projection, ring
from mpc.channel import Channel
from mpc.errors import MalformedMessageError
from mpc.gates import Gate
from mpc.joint_coin import COIN_BYTES, CoinShare
from mpc.norm_bound import WINDOW, NormBound
from mpc.prg import Label, RandomBytes, Seed
from mpc.ring import RingArray
from mpc.sharing import share_of_opened
from mpc.tuples import BatchShape, ServerTuples

BINDING_BYTES = 32
LOCK_ROUNDS, COIN_ROUNDS, OPENING_ROUNDS = 1, 1, 2


@dataclass(frozen=True, slots=True)
class Locked:
    """The uploads that both servers hold with equal bindings, fixed before the coin is known."""

    active: tuple[str, ...]
    coin: CoinShare
    peers_commitment: bytes
    transcript: bytes


def lock(
    bindings: Mapping[str, bytes], shape: BatchShape, channel: Channel, random_bytes: RandomBytes = os.urandom
) -> Locked:
    """Exchanges the list (client, binding) and the commitment to a coin. One round. Run by both servers.

    bindings: for every upload this server holds complete, 32 bytes that bind it to its content and its round. The
    active set is the intersection; an upload that one server lacks, or holds with another binding, is left out.
    """
    coin = CoinShare.draw(channel.party, f"{shape.task}/{shape.round}/challenge", random_bytes)
    ours = [bindings.get(client, bytes(BINDING_BYTES)) for client in shape.clients]
    received = channel.exchange("validation/lock", coin.commitment + b"".join(ours))
    if len(received) != COIN_BYTES + BINDING_BYTES * len(ours):
        raise MalformedMessageError(f"a lock of {len(ours)} clients has another length than {len(received)} bytes")
    body = received[COIN_BYTES:]
    theirs = [body[i : i + BINDING_BYTES] for i in range(0, len(body), BINDING_BYTES)]
    active = tuple(
        client for client, a, b in zip(shape.clients, ours, theirs, strict=True) if a == b and client in bindings
    )
    return Locked(
        active=active,
        coin=coin,
        peers_commitment=received[:COIN_BYTES],
        transcript=joint_coin.digest(b"lock", *(bindings[client] for client in active)),
    )


def open_masked(
    shares: Mapping[str, RingArray], tuples: ServerTuples, locked: Locked, channel: Channel
) -> list[RingArray]:
    """b = x - a of every active client, from the `shares` form. One round of 8d bytes per client and direction.

    Source: PRECAD, Sec. 4.3, step 1.
    """
    dim = tuples.shape.dim
    ours = [shares[client] - tuples.mask_share(client) for client in locked.active]
    received = channel.exchange("validation/open", b"".join(ring.to_bytes(b) for b in ours))
    theirs = ring.from_bytes(received, n_words=dim * len(ours)).reshape(len(ours), dim)
    return [b + peers for b, peers in zip(ours, theirs, strict=True)]


@dataclass(frozen=True, slots=True, repr=False)
class Validated:
    """Verdicts in the order of `active`, and this server's shares of the accepted clients' vectors, summed."""

    active: tuple[str, ...]
    verdicts: tuple[bool, ...]
    accepted_share_sum: RingArray

    @property
    def accepted(self) -> tuple[str, ...]:
        """Clients whose update enters the sum."""
        return tuple(c for c, ok in zip(self.active, self.verdicts, strict=True) if ok)

    @property
    def rejected(self) -> tuple[str, ...]:
        """Clients whose update is longer than C, or wraps."""
        return tuple(c for c, ok in zip(self.active, self.verdicts, strict=True) if not ok)


def validate(
    locked: Locked,
    opened: Sequence[RingArray],
    tuples: ServerTuples,
    bound: NormBound,
    gate: Gate,
    channel: Channel,
) -> Validated:
    """The check of every active client and the sum of the accepted shares. Run by both servers.

    Shapes: opened[i] is b of active[i], (d,). Rounds: 1 coin, the gate's, 2.
    Raises: CommitmentError, PeerMismatchError, ChannelClosedError.
    """
    challenge = joint_coin.reveal(locked.coin, locked.peers_commitment, locked.transcript, channel)
    if not locked.active:
        return Validated((), (), np.zeros(bound.dim, dtype=np.int64))
    label = tuples.shape.label()
    mask_shares = [tuples.mask_share(client) for client in locked.active]
    shares = np.stack([share_of_opened(channel.party, b, a) for b, a in zip(opened, mask_shares, strict=True)])
    words = _words(locked, opened, mask_shares, shares, tuples, bound, challenge, label)
    binary = gate.to_binary(words.reshape(-1), tuples.binary_triples(), channel).reshape(words.shape)
    masks = np.array([bound.row_mask] * bound.n_rows + [bound.norm_mask], dtype=np.uint64).view(np.int64)
    verdicts = equality.all_zero(
        binary & masks,
        equality.hash_key(challenge, label),
        [tuples.equality_tuple(client) for client in locked.active],
        channel,
    )
    return Validated(locked.active, tuple(verdicts), shares[np.array(verdicts)].sum(axis=0, dtype=np.int64))


def _words(
    locked: Locked,
    opened: Sequence[RingArray],
    mask_shares: Sequence[RingArray],
    shares: RingArray,
    tuples: ServerTuples,
    bound: NormBound,
    challenge: Seed,
    label: Label,
) -> RingArray:
    """This server's shares of the words whose top bits must vanish: v_j + 2^29 per row, and T - N.

    Shapes: opened and mask_shares n of (d,), shares (n, d); result (n, n_rows + 1).
    """
    is_a = tuples.party == 0
    rows = projection.project(shares, challenge, label, bound.n_rows) + (WINDOW if is_a else 0)
    norms = [
        squared_norm_share(tuples, client, b, a)
        for client, b, a in zip(locked.active, opened, mask_shares, strict=True)
    ]
    slack = [ring.centred((bound.threshold if is_a else 0) - norm) for norm in norms]
    return np.column_stack([rows, np.array(slack, dtype=np.int64)])


def squared_norm_share(tuples: ServerTuples, client: str, opened: RingArray, mask_share: RingArray) -> int:
    """n_P with n_A + n_B = <X, X> modulo 2^64: r_P + 2 <b, a_P>, and server A adds the public <b, b>.

    Source: PRECAD, Sec. 4.3, step 2. The printed halving has no meaning modulo 2^64: one server adds the public term.
    """
    share = tuples.squared_mask_share(client) + 2 * ring.dot(opened, mask_share)
    return share + ring.dot(opened, opened) if tuples.party == 0 else share
