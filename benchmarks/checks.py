"""What the clock runs over, from held submissions to verdicts and the sum of the accepted shares.

sound      the protocol as the servers run it
unsound    the same without rows: a modular square-sum and one comparison, which a wrapping vector passes
exchange   one empty message in each direction: the link's own cost of a round
floor      what no implementation of the sound check can leave out: masks, rows, one pass over the data
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from benchmarks.workload import Case, Held
from mpc import equality, joint_coin, projection, ring, sharing, validation
from mpc.channel import Channel
from mpc.gates import Gate
from mpc.norm_bound import NormBound
from mpc.prg import Label, Seed
from mpc.ring import RingArray
from mpc.sharing import Mode
from mpc.tuples import AndBlock, ServerTuples
from mpc.validation import Locked, Validated

UNSOUND, FLOOR, EXCHANGE = "unsound", "floor", "exchange"
GATE_OF_UNSOUND = "native"
AES_TILE = 1 << 18
"""Bytes of a buffer that stays in the cache: the cipher's own rate, without the memory's."""


def gate_blocks(case: Case, gate: Gate) -> tuple[AndBlock, ...]:
    """The binary correlations of the whole batch: 65 words per client, or 1 without rows."""
    per_client = 1 if case.implementation == UNSOUND else case.bound.words_per_client
    return gate.and_blocks(per_client * case.clients)


def run_check(case: Case, held: Held, gate: Gate, channel: Channel) -> Validated:
    """Lock, opening where the form has one, check. Run by both servers."""
    locked = validation.lock(held.bindings, held.tuples.shape, channel)
    vectors = held.vectors()
    opened = (
        validation.open_masked(vectors, held.tuples, locked, channel)
        if case.mode == Mode.SHARES
        else [vectors[client] for client in locked.active]
    )
    check = validate_without_rows if case.implementation == UNSOUND else validation.validate
    return check(locked, opened, held.tuples, case.bound, gate, channel)


def validate_without_rows(
    locked: Locked,
    opened: list[RingArray],
    tuples: ServerTuples,
    bound: NormBound,
    gate: Gate,
    channel: Channel,
) -> Validated:
    """`mpc.validation.validate` less the no-wrap test: accepts 2^32 e_1. For comparison only.

    Source: PRECAD, Sec. 4.3, as printed, on the integers modulo 2^64.
    """
    challenge = joint_coin.reveal(locked.coin, locked.peers_commitment, locked.transcript, channel)
    public = bound.threshold if channel.party == 0 else 0
    share_sum = np.zeros(bound.dim, dtype=np.int64)
    slack: list[int] = []
    shares: list[RingArray] = []
    for client, b in zip(locked.active, opened, strict=True):
        mask_share = tuples.mask_share(client)
        slack.append(ring.centred(public - validation.squared_norm_share(tuples, client, b, mask_share)))
        shares.append(sharing.share_of_opened(channel.party, b, mask_share))
    binary = gate.to_binary(np.array(slack, dtype=np.int64), tuples.binary_triples(), channel).reshape(-1, 1)
    verdicts = equality.all_zero(
        binary & np.array([bound.norm_mask], dtype=np.uint64).view(np.int64),
        equality.hash_key(challenge, tuples.shape.label()),
        [tuples.equality_tuple(client) for client in locked.active],
        channel,
    )
    for share, is_accepted in zip(shares, verdicts, strict=True):
        if is_accepted:
            share_sum += share
    return Validated(locked.active, tuple(verdicts), share_sum)


@dataclass(frozen=True, slots=True)
class Floor:
    """Seconds of the parts, for a whole batch at one server."""

    aes: float
    memory: float
    rows: float

    @property
    def total(self) -> float:
        """One after the other on one core, as the server runs them."""
        return self.aes + self.memory + self.rows


def run_floor(case: Case) -> Floor:
    """The parts of the sound check that depend on d, each as bare as it gets.

    aes     one word per coordinate and client for the mask, one per coordinate for the rows of the whole batch, by
            AES-128-CTR into a buffer that stays in the cache
    memory  one pass per client that reads the upload and the running sum and writes the sum, 24 bytes a coordinate
    rows    the rows kernel of `mpc.projection` on the same batch, less the AES of the row words counted above
    """
    shares = np.ones((case.clients, case.dim), dtype=np.int64)
    running = np.zeros(case.dim, dtype=np.int64)
    row_words = _aes_seconds(case.dim)
    masks = _aes_seconds(case.dim * case.clients)

    start = time.perf_counter()
    for share in shares:
        np.add(running, share, out=running)
    memory = time.perf_counter() - start

    start = time.perf_counter()
    projection.project(shares, Seed(bytes(16)), Label("floor", 0), case.bound.n_rows)
    rows = time.perf_counter() - start - row_words
    return Floor(aes=masks + row_words, memory=memory, rows=max(0.0, rows))


def _aes_seconds(n_words: int) -> float:
    """AES-128-CTR of n_words, at the rate that the `cryptography` package reaches in place."""
    encryptor = Cipher(algorithms.AES128(bytes(16)), modes.CTR(bytes(16))).encryptor()
    zeros, out = bytes(AES_TILE), bytearray(AES_TILE)
    n_bytes = 8 * n_words
    start = time.perf_counter()
    for _ in range(n_bytes // AES_TILE):
        encryptor.update_into(zeros, out)
    encryptor.update_into(memoryview(zeros)[: n_bytes % AES_TILE], out)
    return time.perf_counter() - start
