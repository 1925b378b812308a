"""Masked equality: one opened bit per client, and nothing else, from XOR shares of bits that must all be zero.

XOR shares of a string are shares of zero exactly when both servers hold the same string. Each server hashes its string
by a polynomial over F_p at a public random point (alpha at A, beta at B). With a dealt (rho != 0, omega, rho omega)
they open e = alpha - beta - omega, which is uniform. Then they open z = rho e + rho omega = rho (alpha - beta). It is
zero if the strings are equal, otherwise uniform and not zero, unless the hash collides.

Each server commits to its share of z before it sees the other's. Otherwise whoever answers last would know the bit of a
question of its own. It could then complete z to the bit that the other server shall see. The commitment needs no nonce:
all that can be tried against it is z = 0, which the opening tells next.

Source: ours, docs/reference/protocol.md, section 12. With p = 2^61 - 1 a forger would have 2^-54 per upload, more than
the 2^-64 of the rows. With p = 2^127 - 1 a collision has probability at most 66 / 2^127.
"""

from __future__ import annotations

import hmac

import numpy as np
from numpy.typing import NDArray

from precad.mpc import prg, ring
from precad.mpc.channel import Channel, exchange_alike
from precad.mpc.errors import CommitmentError, MalformedMessageError, ParameterError
from precad.mpc.joint_coin import digest
from precad.mpc.kernels import loading
from precad.mpc.parameters import MODULUS
from precad.mpc.prg import Label, Purpose, Seed
from precad.mpc.ring import WORD_BITS, RingArray
from precad.mpc.sharing import Party
from precad.mpc.tuples.held import FIELD_PRIME, FIELD_WORDS, field_element

Elements = NDArray[np.uint64]
"""Elements of F_p, (n, 2): two words each, the low one first."""

_NEGATED = np.uint64(2**64 - 1)


def hash_key(seed: Seed, label: Label) -> int:
    """Return the public evaluation point of a round, in F_p, from the joint coin."""
    return field_element(prg.stream(seed, Purpose.EQUALITY_HASH_KEY, label, FIELD_WORDS)) & FIELD_PRIME


def polynomial_hashes(words: RingArray, key: int) -> Elements:
    """Return sum_j w_j key^(m+1-j) mod p over the words w_1..w_m of each row, unsigned: each is below p, so the map is
    injective. Shapes: (n, m) to (n, 2)."""
    hashes = np.empty((len(words), FIELD_WORDS), dtype=np.uint64)
    low, high = np.uint64(key & (MODULUS - 1)), np.uint64(key >> WORD_BITS)
    loading.field().hashes(np.ascontiguousarray(words).view(np.uint64), low, high, hashes)
    return hashes


def all_zero(bits: RingArray, key: int, tuples: RingArray, channel: Channel) -> list[bool]:
    """Tell for each client whether its XOR-shared words are all zero. Three rounds, run by both servers.

    The rounds take 32 bytes per client in all, and 32 bytes more for all clients together.

    Shapes:
    - bits (n, w), this server's XOR shares, already masked to the bits that count
    - tuples (n, 3, 2), its shares of rho, omega and rho omega (`ServerTuples.equality_tuples`)

    Raises: ParameterError, MalformedMessageError, CommitmentError.
    """
    n, field, shares = len(bits), loading.field(), np.ascontiguousarray(tuples).view(np.uint64)
    if shares.shape != (n, 3, FIELD_WORDS):
        raise ParameterError(f"tuples: expected shape {(n, 3, FIELD_WORDS)}, found {shares.shape}")
    e_share, z_share = np.empty((2, n, FIELD_WORDS), dtype=np.uint64)
    field.differences(polynomial_hashes(bits, key), shares, np.uint64(0) if channel.party == 0 else _NEGATED, e_share)
    field.masked(e_share, _peers_share("equality/difference", e_share, channel), shares, z_share)
    z = np.empty_like(z_share)
    field.sums(z_share, _peers_committed_share(z_share, key, channel), z)
    return [not any(element) for element in z.tolist()]


def commitment(party: Party, key: int, z_share: Elements) -> bytes:
    """Return what binds a server to its share of z: 32 bytes, of this party and of the round whose hash key this is."""
    key_bytes = key.to_bytes(FIELD_WORDS * ring.WORD_BYTES, "little")
    return digest(b"equality commitment", bytes([party]), key_bytes, ring.to_bytes(z_share.view(np.int64)))


def _peers_committed_share(z_share: Elements, key: int, channel: Channel) -> Elements:
    """Send our share of z and return the peer's, both committed to before. Two rounds."""
    committed = exchange_alike(channel, "equality/commit", commitment(channel.party, key, z_share))
    theirs = _peers_share("equality/masked", z_share, channel)
    if not hmac.compare_digest(commitment(1 if channel.party == 0 else 0, key, theirs), committed):
        raise CommitmentError("the peer's shares of the verdicts are not the ones that it committed to")
    return theirs


def _peers_share(label: str, ours: Elements, channel: Channel) -> Elements:
    """Send our elements and return the peer's. Raises MalformedMessageError unless they are as many, below p."""
    received = exchange_alike(channel, label, ring.to_bytes(ours.view(np.int64)))
    theirs = ring.from_bytes(received, n_words=ours.size).view(np.uint64).reshape(ours.shape)
    low, high = theirs[:, 0].tolist(), theirs[:, 1].tolist()
    if any((of_high << WORD_BITS) + of_low >= FIELD_PRIME for of_low, of_high in zip(low, high, strict=True)):
        raise MalformedMessageError(f"step {label!r} carries a value outside F_p")
    return theirs
