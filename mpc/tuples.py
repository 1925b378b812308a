"""Correlated randomness of one round, as one server holds it: 16 bytes from the dealer, and at B a few words more.

Per client, an inner-product tuple (a, r) with r = <a, a> (PRECAD, Sec. 4.3) and an equality tuple (rho, omega,
rho * omega) over F_p; per round, one pool of binary triples (a, b, c) with c = a & b for the comparison gate. Server
A's shares are streams of its key. Server B's are streams of its own key, except the products, which are corrections of
one word each. No message of the dealer grows with d.

A batch belongs to one (task, round). It lives in memory only and is dropped with the round, so a crash burns it; each
mask seed is handed out once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from mpc import prg
from mpc.errors import MalformedMessageError, ParameterError, TupleReusedError
from mpc.prg import Label, Purpose, Seed
from mpc.ring import RingArray
from mpc.sharing import Party, expand_mask

FIELD_PRIME = (1 << 61) - 1
"""p of the equality hash: a Mersenne prime, so that 61 masked bits are uniform but for one value."""


@dataclass(frozen=True, slots=True)
class BatchShape:
    """What both servers ask the dealer for; public, and equal at both or nothing is dealt."""

    task: str
    round: int
    clients: tuple[str, ...]
    """In the order of the round's slots."""
    dim: int
    triple_words: int
    """Binary triples, 64 at a time, for the whole round."""

    def __post_init__(self) -> None:
        if len(set(self.clients)) != len(self.clients):
            raise ParameterError("clients of a batch must be distinct")
        if self.dim < 1 or self.triple_words < 0 or self.round < 0:
            raise ParameterError(
                f"dim must be >= 1, triple_words and round >= 0; got {self.dim}, {self.triple_words}, {self.round}"
            )

    def label(self, client: str = "") -> Label:
        """Domain of the streams of this batch, or of one client in it."""
        return Label(self.task, self.round, client)


@dataclass(frozen=True, slots=True, repr=False)
class Dealt:
    """What the dealer sends one server: a key and, to B only, the corrections.

    squared_masks: (n,) words; equality: (n, 3) field elements; triples: (triple_words,) words. Empty at A.
    """

    key: Seed
    squared_masks: RingArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    equality: RingArray = field(default_factory=lambda: np.zeros((0, 3), dtype=np.int64))
    triples: RingArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


class EqualityTuple(NamedTuple):
    """One server's shares modulo p of rho != 0, omega and rho * omega."""

    rho_share: int
    omega_share: int
    product_share: int

    def __repr__(self) -> str:
        return "EqualityTuple(REDACTED)"


class BinaryTriples:
    """One server's XOR shares of a pool of triples c = a & b, 64 bits a word, taken from the front, each once."""

    def __init__(self, a: RingArray, b: RingArray, c: RingArray) -> None:
        self._a, self._b, self._c = a, b, c
        self._taken = 0

    def take(self, n_words: int) -> tuple[RingArray, RingArray, RingArray]:
        """The next n_words words of a, b and c. Raises TupleReusedError when the pool is exhausted."""
        start, end = self._taken, self._taken + n_words
        if end > self._a.size:
            raise TupleReusedError(f"the round's pool holds {self._a.size} words of binary triples, asked for {end}")
        self._taken = end
        return self._a[start:end].copy(), self._b[start:end].copy(), self._c[start:end].copy()

    def __repr__(self) -> str:
        return f"BinaryTriples({self._a.size} words, {self._taken} taken)"


class ServerTuples:
    """One server's side of a batch. Raises MalformedMessageError when the corrections do not fit the shape."""

    def __init__(self, party: Party, shape: BatchShape, dealt: Dealt) -> None:
        n, corrected = len(shape.clients), party == 1
        expected = ((n,), (n, 3), (shape.triple_words,)) if corrected else ((0,), (0, 3), (0,))
        found = (dealt.squared_masks.shape, dealt.equality.shape, dealt.triples.shape)
        if found != expected:
            raise MalformedMessageError(f"corrections of a batch must have shapes {expected}, got {found}")
        self.party: Party = party
        self.shape = shape
        self._dealt = dealt
        self._slots = {client: slot for slot, client in enumerate(shape.clients)}
        self._handed_out: set[str] = set()

    def hand_out_mask_seed(self, client: str) -> Seed:
        """The seed of this server's half of `client`'s mask, for that client. Once: raises TupleReusedError after."""
        if client in self._handed_out:
            raise TupleReusedError(f"the mask seed of {client!r} in round {self.shape.round} was handed out before")
        self._handed_out.add(client)
        return mask_seed(self._dealt.key, self.shape.label(client))

    def mask_share(self, client: str) -> RingArray:
        """a_P, shape (dim,)."""
        label = self.shape.label(client)
        return expand_mask(mask_seed(self._dealt.key, label), label, self.shape.dim)

    def squared_mask_share(self, client: str) -> int:
        """r_P with r_A + r_B = <a, a> modulo 2^64."""
        if self.party == 0:
            return squared_mask_share_a(self._dealt.key, self.shape.label(client))
        return int(self._dealt.squared_masks[self._slots[client]])

    def equality_tuple(self, client: str) -> EqualityTuple:
        """The client's equality tuple."""
        if self.party == 0:
            return equality_share_a(self._dealt.key, self.shape.label(client))
        return EqualityTuple(*(int(v) for v in self._dealt.equality[self._slots[client]]))

    def binary_triples(self) -> BinaryTriples:
        """The round's pool, from its start; the caller takes it once."""
        a, b, c = triple_streams(self._dealt.key, self.shape)
        return BinaryTriples(a, b, c if self.party == 0 else self._dealt.triples)

    def __repr__(self) -> str:
        return f"ServerTuples(party={self.party}, round={self.shape.round}, clients={len(self.shape.clients)})"


def mask_seed(key: Seed, label: Label) -> Seed:
    """Seed of one server's half of one client's mask. The client gets this, never the key."""
    return prg.derive(key, Purpose.MASK_SEED, label)


def squared_mask_share_a(key: Seed, label: Label) -> int:
    """r_A: one word of A's key."""
    return int(prg.stream(key, Purpose.SQUARED_MASK_SHARE, label, 1)[0])


def equality_share_a(key: Seed, label: Label) -> EqualityTuple:
    """A's three field elements: 61-bit words, the single value p skipped."""
    words = prg.stream(key, Purpose.EQUALITY_TUPLE, label, 8) & FIELD_PRIME
    elements = [int(word) for word in words if int(word) != FIELD_PRIME]
    return EqualityTuple(*elements[:3])  # five spare words: fewer than three remain with probability below 2^-300


def triple_streams(key: Seed, shape: BatchShape) -> tuple[RingArray, RingArray, RingArray]:
    """A server's streams for a, b and c, each (triple_words,). B's c is replaced by the dealer's correction."""
    label, n = shape.label(), shape.triple_words
    return (
        prg.stream(key, Purpose.BINARY_TRIPLE_A, label, n),
        prg.stream(key, Purpose.BINARY_TRIPLE_B, label, n),
        prg.stream(key, Purpose.BINARY_TRIPLE_C, label, n),
    )
