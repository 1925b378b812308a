"""Masked equality: one opened bit per client, and nothing else, from XOR shares of bits that must all be zero.

XOR shares of a string are shares of zero exactly when both servers hold the same string. Each server hashes its
string by a polynomial over F_p at a public random point (alpha at A, beta at B); with a dealt (rho != 0, omega,
rho omega) they open e = alpha - beta - omega, which is uniform, and then z = rho e + rho omega = rho (alpha - beta):
zero if the strings are equal, otherwise uniform and not zero, unless the hash collides.

Source: `secure_validation.md` section 5, step 5. There p = 2^61 - 1, which leaves a forger 2^-54 per upload and would
dominate the 2^-64 of the rows; with p = 2^127 - 1 a collision has probability at most 66 / 2^127.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence

import numpy as np

from mpc import prg
from mpc.channel import Channel, exchange_alike
from mpc.errors import MalformedMessageError
from mpc.prg import Label, Purpose, Seed
from mpc.ring import WORD_BYTES, RingArray
from mpc.tuples import FIELD_PRIME, FIELD_WORDS, EqualityTuple, field_element

FIELD_BYTES = FIELD_WORDS * WORD_BYTES


def hash_key(seed: Seed, label: Label) -> int:
    """The public evaluation point of a round, in F_p, from the joint coin."""
    return field_element(prg.stream(seed, Purpose.EQUALITY_HASH_KEY, label, FIELD_WORDS)) & FIELD_PRIME


def polynomial_hash(words: RingArray, key: int) -> int:
    """sum_j w_j key^(m+1-j) mod p over the words w_1..w_m, unsigned: each is below p, so the map is injective."""
    value = 0
    for word in words.view(np.uint64).tolist():
        value = (value + word) * key % FIELD_PRIME
    return value


def polynomial_hashes(words: RingArray, key: int) -> list[int]:
    """`polynomial_hash` of every row of (n, m): the key's powers once for all, and one reduction a row."""
    powers = list(itertools.accumulate([key] * words.shape[1], lambda x, y: x * y % FIELD_PRIME))[::-1]
    return [sum(map(operator.mul, row, powers)) % FIELD_PRIME for row in words.view(np.uint64).tolist()]


def all_zero(bits: RingArray, key: int, tuples: Sequence[EqualityTuple], channel: Channel) -> list[bool]:
    """For each client, whether its XOR-shared words are all zero. Two rounds, 32 bytes per client. Run by both servers.

    Shapes: bits (n, w), this server's XOR shares, already masked to the bits that count.
    """
    sign = 1 if channel.party == 0 else -1
    hashes = polynomial_hashes(bits, key)
    e_shares = [sign * value - t.omega_share for value, t in zip(hashes, tuples, strict=True)]
    e = _open_field("equality/difference", e_shares, channel)
    z_shares = [t.rho_share * e_i + t.product_share for t, e_i in zip(tuples, e, strict=True)]
    return [z == 0 for z in _open_field("equality/masked", z_shares, channel)]


def _open_field(label: str, shares: Sequence[int], channel: Channel) -> list[int]:
    """Sums of both parties' shares modulo p."""
    ours = [share % FIELD_PRIME for share in shares]
    payload = b"".join(value.to_bytes(FIELD_BYTES, "little") for value in ours)
    received = exchange_alike(channel, label, payload)
    starts = range(0, len(received), FIELD_BYTES)
    theirs = [int.from_bytes(received[start : start + FIELD_BYTES], "little") for start in starts]
    if any(value >= FIELD_PRIME for value in theirs):
        raise MalformedMessageError(f"step {label!r} carries a value outside F_p")
    return [(a + b) % FIELD_PRIME for a, b in zip(ours, theirs, strict=True)]
