"""Correlated randomness of one round, as one server holds it: a key, digests, and at B a few words more.

Each client has an inner-product tuple (a, r) with r = <a, a> (PRECAD, Sec. 4.3) and an equality tuple (rho, omega, rho
* omega) over F_p. Each round has the binary correlations of the comparison gate (`precad.mpc.tuples.correlations`).
Server A's shares are streams of its key. Server B's are streams of its own key, except the products, which are
corrections of one word each. A message of the dealer grows with d only in a round that adds up a part of the accepted
updates. It then has d + 1 words more for each client.

Each server also gets the digest of every mask seed of the other server, for clients to compare with the seed that they
get. A server that handed out another seed would have a linear function of the update added to the norm.

Whatever a key alone decides is expanded when the batch arrives, some seconds before the check that waits for it: about
7 kB a client. Only the masks, whose length is d, stay seeds.

A batch belongs to one (task, round). It lives in memory only and is dropped with the round. Each tuple is burnt before
its mask seed leaves and before it enters a check. The record of that outlives the process
(`precad.mpc.tuples.burning`).
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from precad.mpc import prg, ring
from precad.mpc.errors import MalformedMessageError, ParameterError, TupleReusedError
from precad.mpc.prg import Label, Purpose, Seed, Stream
from precad.mpc.ring import RingArray
from precad.mpc.sharing import Party, mask_key
from precad.mpc.tuples.burning import Burns, MemoryBurns, TupleUse
from precad.mpc.tuples.correlations import Block, Correlations, ProductBlock, SquareBlock

FIELD_PRIME = (1 << 127) - 1
"""Prime p of the equality hash. As a Mersenne prime, it leaves 127 masked bits uniform but for one value. It is so
large that a collision of the hash adds nothing to the error of the no-wrap test."""
FIELD_WORDS = 2
DIGEST_BYTES = 32
MAX_OF_PAIRS = 1 << 7
"""Clients of a batch with words for pairs at most: it has comparisons for each three of them, too."""


@dataclass(frozen=True)
class BatchShape:
    """Shape of a batch, as both servers ask the dealer for it; public, and equal at both or nothing is dealt."""

    task: str
    round: int
    clients: tuple[str, ...]
    """In the order of the round's slots."""
    dim: int
    blocks: tuple[Block, ...]
    """Binary correlations of the comparison gate, for the whole round, in the order of their use."""
    trims: bool = False
    """Whether each client has a trim tuple, too: for a sum whose summands stay secret (`precad.mpc.robust`)."""
    pairs: bool = False
    """Whether each pair of clients has the inner product of its masks, too: for distances between updates."""
    layer_sizes: tuple[int, ...] = ()
    """Layers whose norms are checked, too, by their numbers of coordinates (`precad.mpc.convex_set`)."""

    def __post_init__(self) -> None:
        if len(set(self.clients)) != len(self.clients):
            raise ParameterError(f"clients of a batch: expected each of them once, found {list(self.clients)}")
        if self.dim < 1 or self.round < 0:
            raise ParameterError(f"dim, round: expected at least 1 and at least 0, found {self.dim} and {self.round}")
        if self.pairs and len(self.clients) > MAX_OF_PAIRS:
            raise ParameterError(
                f"clients: expected at most {MAX_OF_PAIRS} in a batch with pairs, found {len(self.clients)}"
            )
        if self.layer_sizes and not (min(self.layer_sizes) >= 1 and sum(self.layer_sizes) == self.dim):
            raise ParameterError(f"layer_sizes: expected 1 or more each, {self.dim} in all, found {self.layer_sizes}")

    @classmethod
    def anonymous(
        cls,
        task: str,
        round: int,
        n_clients: int,
        dim: int,
        blocks: tuple[Block, ...],
        trims: bool = False,
        pairs: bool = False,
        layer_sizes: tuple[int, ...] = (),
    ) -> BatchShape:
        """Return the shape as the dealer knows it: slots without names. It deals exactly what the named shape
        expects."""
        slots = tuple(str(slot) for slot in range(n_clients))
        return cls(task, round, slots, dim, blocks, trims, pairs, layer_sizes)

    @property
    def n_products(self) -> int:
        """Count the words of products: the dealer's corrections to server B."""
        return sum(block.n_products for block in self.blocks)

    @property
    def has_ring_products(self) -> bool:
        """Return whether there are triples or squares modulo 2^64: for a function of the sum alone."""
        return any(isinstance(block, ProductBlock | SquareBlock) for block in self.blocks)

    @property
    def n_trim_words(self) -> int:
        """Count the words of trim tuples: the dealer's corrections to server B, d + 1 for each client."""
        return len(self.clients) * (self.dim + 1) if self.trims else 0

    @property
    def n_pairs(self) -> int:
        """Count the words of pairs of clients: the dealer's corrections to server B."""
        return math.comb(len(self.clients), 2) if self.pairs else 0

    @property
    def n_layer_squares(self) -> int:
        """Count the words of squared norms of the masks' layers: the dealer's corrections to server B."""
        return len(self.clients) * len(self.layer_sizes)

    @property
    def bytes_to_server_b(self) -> int:
        """Count what the dealer sends server B beyond its key. Server A gets the digests of it alone."""
        per_client = ring.WORD_BYTES * (1 + 3 * FIELD_WORDS) + DIGEST_BYTES  # <r, r>; equality; the seed's digest
        n_words = self.n_products + self.n_trim_words + self.n_pairs + self.n_layer_squares
        return len(self.clients) * per_client + ring.WORD_BYTES * n_words

    def slot_of(self, client: str) -> int:
        """Return the client's place in the round. Streams are labelled by it: the dealer need not know who was
        chosen.

        Raises ParameterError for a client outside the batch.
        """
        if client not in self._slots:
            raise ParameterError(f"{client!r} is not among the {len(self.clients)} clients of round {self.round}")
        return self._slots[client]

    @cached_property
    def _slots(self) -> dict[str, int]:
        return {client: slot for slot, client in enumerate(self.clients)}

    def label(self, client: str | None = None) -> Label:
        """Return the domain of the streams of this batch, or of one client in it."""
        return Label(self.task, self.round, "" if client is None else str(self.slot_of(client)))


@dataclass(frozen=True, slots=True, repr=False)
class Dealt:
    """Part of a batch that the dealer sends one server: a key, digests and, to B only, the corrections.

    - peer_seed_digests: 32 bytes a client, of the other server's mask seeds, in the order of the slots
    - squared_masks: (n,) words; empty at A
    - equality: (n, 3, 2) words, three field elements a client; empty at A
    - products: (n_products,) words; empty at A
    - trims: (n_trim_words,) words, client by client; empty at A
    - pairs: (n_pairs,) words, slots (0, 1), (0, 2), .., (1, 2), ..; empty at A
    - layer_squares: (n_layer_squares,) words, client by client; empty at A
    """

    key: Seed
    peer_seed_digests: bytes
    squared_masks: RingArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    equality: RingArray = field(default_factory=lambda: np.zeros((0, 3, FIELD_WORDS), dtype=np.int64))
    products: RingArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    trims: RingArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    pairs: RingArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    layer_squares: RingArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


@dataclass(frozen=True, slots=True, repr=False)
class TrimTuple:
    """One server's shares of a random bit u and of u a, with a the client's mask.

    A bit that is shared by XOR, opened as e = bit ^ u, then multiplies a without anything of length d being opened.
    """

    bit: int
    """Share of u by XOR."""
    share: int
    """Share of u modulo 2^64, as an integer."""
    product: Stream | RingArray
    """Share of u a, d words: at A a stream at their start, at B the dealer's corrections."""


@dataclass(frozen=True, slots=True, repr=False)
class EqualityTuple:
    """One server's shares modulo p of rho != 0, omega and rho * omega."""

    rho_share: int
    omega_share: int
    product_share: int

    @property
    def words(self) -> RingArray:
        """Return both words of each element, (3, 2)."""
        return np.stack([field_words(value) for value in (self.rho_share, self.omega_share, self.product_share)])


class ServerTuples:
    """One server's side of a batch. Raises MalformedMessageError when the corrections do not fit the shape."""

    def __init__(self, party: Party, shape: BatchShape, dealt: Dealt, burns: Burns | None = None) -> None:
        """burns: the server's record of used tuples; without one, a record of this batch alone."""
        n, corrected = len(shape.clients), party == 1
        m = shape.n_products if corrected else 0
        expected = ((n if corrected else 0,), (n if corrected else 0, 3, FIELD_WORDS), (m,))
        found = (dealt.squared_masks.shape, dealt.equality.shape, dealt.products.shape)
        if found != expected:
            raise MalformedMessageError(f"corrections of a batch: expected shapes {expected}, found {found}")
        for name, words, n_words in (
            ("trims", dealt.trims, shape.n_trim_words),
            ("pairs", dealt.pairs, shape.n_pairs),
            ("layer_squares", dealt.layer_squares, shape.n_layer_squares),
        ):
            if words.size != (due := n_words if corrected else 0):
                raise MalformedMessageError(f"{name} of a batch: expected {due} words, found {words.size}")
        if not _are_elements(dealt.equality):
            raise MalformedMessageError(
                "equality corrections of a batch: expected all below 2^127 - 1, found larger ones"
            )
        if len(dealt.peer_seed_digests) != n * DIGEST_BYTES:
            raise MalformedMessageError(
                f"peer_seed_digests of a batch: expected {n * DIGEST_BYTES} bytes, found {len(dealt.peer_seed_digests)}"
            )
        self._peer_seed_digests = dealt.peer_seed_digests
        self.party: Party = party
        self.shape = shape
        self._burns: Burns = MemoryBurns() if burns is None else burns
        self._checked: tuple[str, ...] | None = None
        self._spent: set[str] = set()
        self._expand(dealt)

    def _expand(self, dealt: Dealt) -> None:
        """Everything but the masks themselves, whose streams are opened.

        By slot: seeds and keys of the masks, r_P as words (n,), equality tuples as words (n, 3, 2).
        """
        shape, key = self.shape, dealt.key
        labels = [shape.label(client) for client in shape.clients]
        self._mask_seeds = [mask_seed(key, label) for label in labels]
        self._mask_keys = [mask_key(seed, label) for seed, label in zip(self._mask_seeds, labels, strict=True)]
        self._opened_masks = {slot: Stream(key) for slot, key in enumerate(self._mask_keys)}
        masks, products = correlation_streams(key, shape)
        if self.party == 0:
            self._squared_masks = np.array([squared_mask_share_a(key, label) for label in labels], dtype=np.int64)
            self._equality = np.array([equality_share_a(key, label).words for label in labels], dtype=np.int64)
            self._equality = self._equality.reshape(len(labels), 3, FIELD_WORDS)
            squares = [layer_squares_a(key, label, len(shape.layer_sizes)) for label in labels]
        else:
            squares = [dealt.layer_squares]
            self._squared_masks, self._equality, products = dealt.squared_masks, dealt.equality, dealt.products
        self._correlations: Correlations | None = Correlations(shape.blocks, masks, products)
        self._after_check = self._correlations
        self._trims: Dealt | None = dealt if shape.trims else None
        self._pairs = pair_shares_a(key, shape) if self.party == 0 else dealt.pairs
        self._layer_squares = np.reshape(squares, (len(labels), len(shape.layer_sizes))).astype(np.int64, copy=False)

    def hand_out_mask_seeds(self, clients: Collection[str]) -> dict[str, Seed]:
        """Return the seeds of this server's halves of these clients' masks, for them. Once: raises TupleReusedError
        after."""
        self._burn(clients, TupleUse.MASK)
        return {client: self._mask_seeds[self.shape.slot_of(client)] for client in clients}

    def hand_out_mask_seed(self, client: str) -> Seed:
        """Return the seed of this server's half of one client's mask, for that client.

        Once: raises TupleReusedError after.
        """
        return self.hand_out_mask_seeds((client,))[client]

    def peer_mask_seed_digest(self, client: str) -> bytes:
        """Return the digest of the seed that the other server was dealt for this client, as the dealer told us."""
        start = self.shape.slot_of(client) * DIGEST_BYTES
        return self._peer_seed_digests[start : start + DIGEST_BYTES]

    def burn_for_check(self, active: tuple[str, ...]) -> None:
        """Burn before anything that depends on these clients' shares leaves. Opening and check of a round are one use.

        Raises TupleReusedError when they were checked before, or others of this batch.
        """
        if self._checked is None:
            self._burn(active, TupleUse.CHECK)
            self._checked = active
        elif self._checked != active:
            raise TupleReusedError(f"round {self.shape.round} is checked for another set of clients already")

    def _burn(self, clients: Collection[str], use: TupleUse) -> None:
        slots = {self.shape.slot_of(client): client for client in clients}
        self._burns.burn(self.shape.task, self.shape.round, slots, use)

    def mask_share(self, client: str) -> Stream:
        """Return a_P, from its start: a stream of the caller's own, the first time one that is open already."""
        slot = self.shape.slot_of(client)
        return self._opened_masks.pop(slot, None) or Stream(self._mask_keys[slot])

    def squared_mask_shares(self, clients: Sequence[str]) -> RingArray:
        """Return r_P of each, with r_A + r_B = <a, a> modulo 2^64. Shape (n,)."""
        return self._squared_masks[self._slots_of(clients)]

    def mask_product_shares(self, clients: Sequence[str]) -> RingArray:
        """Return shares of <a_i, a_j> of each pair i < j of these clients, in the order of their slots.

        Shape (n(n - 1)/2,), by i, then j. Raises ParameterError where none are dealt, or for another order.
        """
        slots, n = np.array(self._slots_of(clients), dtype=np.intp), len(self.shape.clients)
        if not self.shape.pairs or (np.diff(slots) <= 0).any():
            raise ParameterError(f"round {self.shape.round} has words for pairs of clients in the order of slots only")
        first, second = (slots[index] for index in np.triu_indices(len(slots), 1))
        shares: RingArray = self._pairs[first * (2 * n - first - 1) // 2 + second - first - 1]
        return shares

    def layer_square_shares(self, clients: Sequence[str]) -> RingArray:
        """Return r_P of each layer of each, with r_A + r_B = <a_l, a_l> modulo 2^64. Shape (n, L)."""
        return self._layer_squares[self._slots_of(clients)]

    def equality_tuples(self, clients: Sequence[str]) -> RingArray:
        """Return this server's shares of each client's rho, omega and rho omega, as words (n, 3, 2).

        Once each: raises TupleReusedError, and spends none, when one of them was taken before.
        """
        slots, spent = self._slots_of(clients), self._spent.copy()
        for client in clients:
            if client in spent:
                raise TupleReusedError(f"the equality tuple of {client!r} in round {self.shape.round} is spent")
            spent.add(client)
        self._spent = spent
        return self._equality[slots]

    def _slots_of(self, clients: Sequence[str]) -> list[int]:
        return [self.shape.slot_of(client) for client in clients]

    def correlations(self) -> Correlations:
        """Return the round's binary correlations. Once: raises TupleReusedError after."""
        correlations, self._correlations = self._correlations, None
        if correlations is None:
            raise TupleReusedError(f"the binary correlations of round {self.shape.round} are spent")
        return correlations

    def correlations_after_check(self) -> Correlations:
        """Return the round's binary correlations behind those of the check; each block is taken once.

        Raises ParameterError before the check has taken its own.
        """
        if self._correlations is not None:
            raise ParameterError(f"the check of round {self.shape.round} comes first: it takes the first correlations")
        return self._after_check

    def correlations_from(self, block: int) -> Correlations:
        """Return the round's correlations from the block of this number on, for the last step that takes some.

        What earlier steps left is passed over, and never used. Raises TupleExhaustedError where they took of it.
        """
        self._correlations = None
        self._after_check.skip_to(block)
        return self._after_check

    def trim_tuples(self, clients: Sequence[str]) -> list[TrimTuple]:
        """Return the trim tuples of these clients. Once a round: raises TupleReusedError after, or where none are
        dealt."""
        dealt, self._trims = self._trims, None
        if dealt is None:
            raise TupleReusedError(f"round {self.shape.round} has no trim tuples left")
        return [self._trim_tuple(dealt, client) for client in clients]

    def _trim_tuple(self, dealt: Dealt, client: str) -> TrimTuple:
        label = self.shape.label(client)
        bit = trim_bit(dealt.key, label)
        if self.party == 0:
            share, product = trim_share_a(dealt.key, label)
            return TrimTuple(bit, share, product)
        words = dealt.trims.reshape(-1, self.shape.dim + 1)[self.shape.slot_of(client)]
        return TrimTuple(bit, int(words[0]), words[1:])

    def __repr__(self) -> str:
        return f"ServerTuples(party={self.party}, round={self.shape.round}, clients={len(self.shape.clients)})"


def mask_seed(key: Seed, label: Label) -> Seed:
    """Return the seed of one server's half of one client's mask. The client gets this, never the key."""
    return prg.derive(key, Purpose.MASK_SEED, label)


def mask_seed_digest(seed: Seed) -> bytes:
    """Return the SHA-256 of a mask seed. It says nothing that helps to find one of 2^128 seeds."""
    return hashlib.sha256(seed.reveal()).digest()


def squared_mask_share_a(key: Seed, label: Label) -> int:
    """Return r_A: one word of A's key."""
    return int(prg.stream(key, Purpose.SQUARED_MASK_SHARE, label, 1)[0])


def layer_squares_a(key: Seed, label: Label, n_layers: int) -> RingArray:
    """Return r_A of each layer: words of A's key, (L,)."""
    return prg.stream(key, Purpose.LAYER_SQUARES, label, n_layers)


def equality_share_a(key: Seed, label: Label) -> EqualityTuple:
    """A's three field elements: 127-bit pairs of words, the single value p skipped."""
    pairs = prg.stream(key, Purpose.EQUALITY_TUPLE, label, 8 * FIELD_WORDS).reshape(8, FIELD_WORDS)
    elements = (value for pair in pairs if (value := field_element(pair) & FIELD_PRIME) != FIELD_PRIME)
    return EqualityTuple(
        *itertools.islice(elements, 3)
    )  # five spare pairs: fewer than three remain with probability below 2^-700


def trim_bit(key: Seed, label: Label) -> int:
    """Return a server's share by XOR of the bit u of a trim tuple."""
    return int(prg.stream(key, Purpose.TRIM_BIT, label, 1)[0]) & 1


def trim_share_a(key: Seed, label: Label) -> tuple[int, Stream]:
    """A's additive shares of u, and of u a as a stream at its start."""
    stream, first = prg.open_stream(key, Purpose.TRIM_SHARE, label), np.empty(1, dtype=np.int64)
    stream.fill(first)
    return int(first[0]), stream


def pair_shares_a(key: Seed, shape: BatchShape) -> RingArray:
    """A's shares of <a_i, a_j> of each pair of slots, (n_pairs,)."""
    return prg.stream(key, Purpose.PAIR_SHARE, shape.label(), shape.n_pairs)


def field_element(words: RingArray) -> int:
    """Return two little-endian words, (2,), as one unsigned integer."""
    return int.from_bytes(ring.to_bytes(words), "little")


def _are_elements(words: RingArray) -> bool:
    """Return whether each pair, (.., 2), is below p: its high word is not negative, and both are not those of p."""
    low, high = words[..., 0], words[..., 1]
    is_p = (high == ring.centred(FIELD_PRIME >> ring.WORD_BITS)) & (low == -1)
    return not ((high < 0) | is_p).any()


def field_words(value: int) -> RingArray:
    """Invert `field_element`."""
    return ring.from_bytes(value.to_bytes(FIELD_WORDS * ring.WORD_BYTES, "little"), n_words=FIELD_WORDS)


def correlation_streams(key: Seed, shape: BatchShape) -> tuple[RingArray, RingArray]:
    """Return a server's streams for (masks, products) of all blocks. B's products are replaced by the dealer's
    corrections."""
    label, n_masks = shape.label(), sum(block.n_masks for block in shape.blocks)
    return (
        prg.stream(key, Purpose.CORRELATION_MASKS, label, n_masks),
        prg.stream(key, Purpose.CORRELATION_PRODUCTS, label, shape.n_products),
    )
