"""Masked equality: one opened bit per client, and nothing else, from XOR shares of bits that must all be zero.

XOR shares of a string are shares of zero exactly when both servers hold the same string. Each server hashes its
string by a polynomial over F_p at a public random point (alpha at A, beta at B); with a dealt (rho != 0, omega,
rho omega) they open e = alpha - beta - omega, which is uniform, and then z = rho e + rho omega = rho (alpha - beta):
zero if the strings are equal, otherwise uniform and not zero, unless the hash collides (at most 130 / 2^61).

Source: `secure_validation.md` section 5, step 5.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mpc import prg, ring
from mpc.channel import Channel
from mpc.errors import MalformedMessageError
from mpc.prg import Label, Purpose, Seed
from mpc.ring import RingArray
from mpc.tuples import FIELD_PRIME, EqualityTuple


def hash_key(seed: Seed, label: Label) -> int:
    """The public evaluation point of a round, in F_p, from the joint coin."""
    return int(prg.stream(seed, Purpose.EQUALITY_HASH_KEY, label, 1)[0]) & FIELD_PRIME


def polynomial_hash(words: RingArray, key: int) -> int:
    """sum_j h_j key^(m+1-j) mod p over the 32-bit halves h_1..h_m of the words (each half is below p: injective)."""
    value = 0
    for half in words.astype("<i8").view("<u4").tolist():
        value = (value + half) * key % FIELD_PRIME
    return value


def all_zero(bits: RingArray, key: int, tuples: Sequence[EqualityTuple], channel: Channel) -> list[bool]:
    """For each client, whether its XOR-shared words are all zero. Two rounds, 16 bytes per client. Run by both servers.

    Shapes: bits (n, w), this server's XOR shares, already masked to the bits that count.
    """
    sign = 1 if channel.party == 0 else -1
    e_shares = [sign * polynomial_hash(row, key) - t.omega_share for row, t in zip(bits, tuples, strict=True)]
    e = _open_field("equality/difference", e_shares, channel)
    z_shares = [t.rho_share * e_i + t.product_share for t, e_i in zip(tuples, e, strict=True)]
    return [z == 0 for z in _open_field("equality/masked", z_shares, channel)]


def _open_field(label: str, shares: Sequence[int], channel: Channel) -> list[int]:
    """Sums of both parties' shares modulo p."""
    ours = np.array([share % FIELD_PRIME for share in shares], dtype=np.int64)
    theirs = ring.from_bytes(channel.exchange(label, ring.to_bytes(ours)), n_words=ours.size)
    if theirs.size and not (int(theirs.min()) >= 0 and int(theirs.max()) < FIELD_PRIME):
        raise MalformedMessageError(f"step {label!r} carries a value outside F_p")
    return [(int(a) + int(b)) % FIELD_PRIME for a, b in zip(ours, theirs, strict=True)]
