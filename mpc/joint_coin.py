"""A coin that neither server chose: both commit, then both reveal.

Used twice a round: to select clients before the round, and to draw the rows of the no-wrap test after every upload is
fixed. Used once in a task whose clients take turns, to deal them. Commitments are SHA-256 over 32 uniform bytes, which
hide by their entropy and bind by collision resistance.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from precad.mpc import prg
from precad.mpc.channel import Channel
from precad.mpc.errors import CommitmentError, MalformedMessageError, ParameterError
from precad.mpc.prg import SYSTEM_BYTES, Label, Purpose, RandomBytes, Seed

COIN_BYTES = 32
REVEAL = "coin/reveal"
"""The step's label; in `precad.mpc.validation` more than the coin may go with it."""


def digest(*parts: bytes) -> bytes:
    """Return the SHA-256 over length-prefixed parts: injective in their sequence."""
    hasher = hashlib.sha256()
    for part in (prg.VERSION, *parts):
        hasher.update(len(part).to_bytes(8, "big"))
        hasher.update(part)
    return hasher.digest()


@dataclass(frozen=True, slots=True)
class CoinShare:
    """One server's half of a coin for one `context` (task, round and use), before it is revealed."""

    party: int
    context: str
    value: bytes = field(repr=False)

    @classmethod
    def draw(cls, party: int, context: str, random_bytes: RandomBytes = SYSTEM_BYTES) -> CoinShare:
        """Return a fresh half."""
        return cls(party, context, random_bytes(COIN_BYTES))

    @property
    def commitment(self) -> bytes:
        """Return 32 bytes; bound to the party and to the context, so that a commitment cannot be echoed."""
        return digest(b"coin commitment", bytes([self.party]), self.context.encode(), self.value)


def commit(context: str, channel: Channel, random_bytes: RandomBytes = SYSTEM_BYTES) -> tuple[CoinShare, bytes]:
    """Exchange our half and the peer's commitment: the first of a toss's two rounds, after which nobody knows the coin.

    A half that is never revealed may be forgotten, and another drawn for its context. Raises PeerMismatchError.
    """
    share = CoinShare.draw(channel.party, context, random_bytes)
    return share, channel.exchange("coin/commit", share.commitment)


def reveal(share: CoinShare, peers_commitment: bytes, transcript: bytes, channel: Channel) -> Seed:
    """Return the joint seed, once both halves are shown. One round. Raises as `joint_seed`."""
    return joint_seed(share, channel.exchange(REVEAL, share.value), peers_commitment, transcript)


def joint_seed(share: CoinShare, peers_value: bytes, peers_commitment: bytes, transcript: bytes) -> Seed:
    """Return the seed of both halves and of `transcript` (what both servers had fixed before).

    Raises: CommitmentError when the peer reveals something else than it committed to; MalformedMessageError.
    """
    if len(peers_value) != COIN_BYTES:
        raise MalformedMessageError(f"coin: expected {COIN_BYTES} bytes, found {len(peers_value)}")
    peers_share = CoinShare(1 - share.party, share.context, peers_value)
    if not hmac.compare_digest(peers_share.commitment, peers_commitment):
        raise CommitmentError(f"the peer's coin for {share.context!r} is not the one that it committed to")
    return seed_of(share.context, in_order(share.party, share.value, peers_value), transcript)


def in_order(party: int, ours: bytes, theirs: bytes) -> tuple[bytes, bytes]:
    """Return both servers' values, A's first. party: ours."""
    return (ours, theirs) if party == 0 else (theirs, ours)


def seed_of(context: str, values: tuple[bytes, bytes], transcript: bytes) -> Seed:
    """Return the seed of the values of servers A and B, and of `transcript` (what both servers had fixed before)."""
    return Seed(digest(b"joint coin", context.encode(), *values, transcript)[: prg.SEED_BYTES])


def select_poisson(seed: Seed, label: Label, clients: Sequence[str], sampling_rate: float) -> list[str]:
    """Choose each client independently with probability q: a 64-bit word below floor(q 2^64). Run by both servers.

    The empty selection is a possible and proper outcome (the round then releases noise). Rounding q down by at most
    2^-64 can only lower a client's participation. Source: PRECAD, Algorithm 1, line 2, as Poisson sampling.
    Raises ParameterError for a q outside [0, 1].
    """
    if not 0 <= sampling_rate <= 1:
        raise ParameterError(f"sampling_rate: expected a number in [0, 1], found {sampling_rate}")
    if sampling_rate == 1:
        return list(clients)
    threshold = np.uint64(math.floor(Fraction(sampling_rate) * 2**64))
    words = prg.stream(seed, Purpose.SELECTION, label, len(clients)).view(np.uint64)
    return [clients[i] for i in np.flatnonzero(words < threshold).tolist()]


def turns(seed: Seed, label: Label, clients: Sequence[str], n_turns: int) -> dict[str, int]:
    """Deal every client a turn below `n_turns`: as many clients to each, or one fewer. Run by both servers.

    Clients are sorted by 64-bit words of their own, equal words by their places. The i-th of them has turn i mod b.
    Raises ParameterError for fewer turns than one.
    """
    if n_turns < 1:
        raise ParameterError(f"n_turns: expected at least 1, found {n_turns}")
    words = prg.stream(seed, Purpose.TURNS, label, len(clients)).view(np.uint64)
    order = np.argsort(words, kind="stable").tolist()
    return {clients[place]: i % n_turns for i, place in enumerate(order)}
