"""Run what the clock measures, from held submissions to verdicts and the sum of the accepted shares.

Measured are:

    sound     the protocol as the servers run it
    tested    sound, and the test of propose-test-release behind it: the noisy margin is opened
    trimmed   tested, and the sum without the longest quarter of the clients (`precad.mpc.robust`)
    krum      sound, and the sum of the updates that multi-Krum chooses, all but a quarter (the same)
    unsound   the check without rows: a modular square-sum and one comparison, which a wrapping vector passes
    exchange  one empty message in each direction: the link's own cost of a round
    floor     what no implementation of the sound check can leave out: masks, rows, one pass over the data
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from precad.lab.bench.unsound import NoRows, UnsoundEngine
from precad.lab.bench.workload import KRUM, Case, Held
from precad.mpc import ring, validation
from precad.mpc.channel import Channel
from precad.mpc.gate import equality, top_bits
from precad.mpc.gate.top_bits import Gate
from precad.mpc.kernels import local as local_kernels
from precad.mpc.kernels.lanes import LANES, zero_buckets
from precad.mpc.local.step import add_shares, local_sums
from precad.mpc.locking import lock_list
from precad.mpc.norm_bound import NormBound
from precad.mpc.parameters import Mode
from precad.mpc.prg import SEED_BYTES, Seed, Stream
from precad.mpc.robust.krum import KrumRound, selected_share_sum
from precad.mpc.robust.krum import blocks as krum_blocks
from precad.mpc.robust.margin import open_noisy_margin
from precad.mpc.robust.proposal import Accepted, Proposal, TrimmedRound
from precad.mpc.robust.proposal import blocks as robust_blocks
from precad.mpc.robust.trimming import trimmed_share_sum
from precad.mpc.tuples.correlations import Block
from precad.mpc.tuples.held import ServerTuples
from precad.mpc.validation import Revealed, Validated

UNSOUND, FLOOR, EXCHANGE = "unsound", "floor", "exchange"
TESTED, TRIMMED = "tested", "trimmed"
NATIVE_ONLY = (UNSOUND, TESTED, TRIMMED, KRUM)
GATE_OF_UNSOUND = "native"
TAU = 0.5
AES_TILE = 1 << 15
"""Words of a buffer that stays in the cache: the cipher's own rate, without the memory's."""


def gate_blocks(case: Case, gate: Gate) -> tuple[Block, ...]:
    """Return the binary correlations of the whole batch: 65 words per client, or 1 without rows."""
    low_bits = case.bound.low_bits
    of_check = top_bits.blocks(gate, case.clients, low_bits[-1:] if case.implementation == UNSOUND else low_bits)
    if case.krum is not None:
        return (*of_check, *krum_blocks(gate, case.clients, case.krum))
    if case.implementation not in (TESTED, TRIMMED):
        return of_check
    return (*of_check, *robust_blocks(gate, case.clients, Proposal(case.bound, TAU)))


def run_check(case: Case, held: Held, gate: Gate, channel: Channel) -> Validated:
    """Lock, reveal, check. Run by both servers."""
    locked = lock_list(held.bindings, held.tuples.shape.label(), held.tuples.shape.clients, channel)
    if case.mode == Mode.MASKED:
        revealed = validation.reveal(locked, held.vectors(), held.tuples, channel)
    else:
        revealed = validation.reveal_and_open(locked, held.vectors(), held.tuples, channel, held.rooms)
    check = validate_without_rows if case.implementation == UNSOUND else validation.validate
    checked = check(revealed, held.tuples, case.bound, gate, channel)
    if case.implementation in (TESTED, TRIMMED, KRUM):
        return _robust(case, revealed, checked, held.tuples, gate, channel)
    return checked


def _robust(
    case: Case, revealed: Revealed, checked: Validated, tuples: ServerTuples, gate: Gate, channel: Channel
) -> Validated:
    """Run the test without noise, whose draw takes no time, and in a trimmed round leave out the longest. Or choose."""
    validation.compare_verdicts(checked, channel)
    of_check = (revealed.active, checked.verdicts, revealed.opened, checked.squared_norms, checked.accepted_share_sum)
    accepted = Accepted.of(*of_check)
    if case.krum is not None:
        share = selected_share_sum(KrumRound(accepted, case.krum, tuples, gate), channel)
        return replace(checked, accepted_share_sum=share)
    trimmed = TrimmedRound(accepted, Proposal(case.bound, TAU), case.clients // 4, tuples, gate)
    open_noisy_margin(trimmed, 0, channel)
    if case.implementation == TESTED:
        return checked
    return replace(checked, accepted_share_sum=trimmed_share_sum(trimmed, channel))


def validate_without_rows(
    revealed: Revealed, tuples: ServerTuples, bound: NormBound, gate: Gate, channel: Channel
) -> Validated:
    """Run `precad.mpc.validation.validate` less the no-wrap test: it accepts 2^32 e_1. For comparison only.

    Source: PRECAD, Sec. 4.3, as printed, on the integers modulo 2^64.
    """
    active, opened = revealed.active, revealed.opened
    engine = UnsoundEngine()
    sums = local_sums(tuples.party, validation.masked_shares(active, opened, tuples), NoRows(), bound.dim, engine)
    words = validation.words_to_check(active, sums, tuples, bound)[:, -1:]
    verdicts = equality.all_zero(
        top_bits.shares_of_zero(words, bound.low_bits[-1:], gate, tuples.correlations(), channel),
        equality.hash_key(revealed.challenge, tuples.shape.label()),
        tuples.equality_tuples(active),
        channel,
    )
    rejected = [i for i, is_accepted in enumerate(verdicts) if not is_accepted]
    again = validation.masked_shares([active[i] for i in rejected], [opened[i] for i in rejected], tuples)
    add_shares(sums.share_sum, tuples.party, again, engine, negate=True)
    return Validated(active, tuple(verdicts), sums.share_sum)


@dataclass(frozen=True, slots=True)
class Floor:
    """Seconds of the parts, for a whole batch at one server."""

    aes: float
    memory: float
    rows: float

    @property
    def total(self) -> float:
        """Return the sum of the parts, one after the other on one core, as the server runs them."""
        return self.aes + self.memory + self.rows


def run_floor(case: Case) -> Floor:
    """Measure the parts of the sound check that depend on d, each as bare as it gets.

    - aes: one word per coordinate and client for the mask, one per coordinate for the rows of the whole batch.
      AES-128-CTR writes them into a buffer that stays in the cache.
    - memory: one pass per client that reads the upload and the running sum and writes the sum, 24 bytes a coordinate.
    - rows: the compiled loop of the rows on words and shares that lie in the cache.
    """
    shares = np.ones((case.clients, case.dim), dtype=np.int64)
    running = np.zeros(case.dim, dtype=np.int64)
    row_words = _aes_seconds(case.dim)
    masks = _aes_seconds(case.dim * case.clients)

    start = time.perf_counter()
    for share in shares:
        np.add(running, share, out=running)
    memory = time.perf_counter() - start

    return Floor(aes=masks + row_words, memory=memory, rows=_rows_seconds(case.dim, case.clients))


def _rows_seconds(dim: int, n_clients: int) -> float:
    """Time the rows of a batch: one client alone, more of them in groups of four."""
    words = np.arange(ring.TILE, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    lanes = 1 if n_clients == 1 else LANES
    buckets = zero_buckets(lanes).reshape(-1)
    signed = words if lanes == 1 else np.tile(words, (lanes, 1))
    scatter = local_kernels.scatter_one if lanes == 1 else local_kernels.scatter_four
    n_tiles = -(-dim // ring.TILE)
    start = time.perf_counter()
    for _ in range(n_tiles):
        scatter(words, signed, buckets)
    seconds = time.perf_counter() - start
    return seconds * dim / (n_tiles * ring.TILE) * -(-n_clients // lanes)


def _aes_seconds(n_words: int) -> float:
    """Time n_words of AES-128 in counter mode, at the rate at which streams are read here."""
    stream, out = Stream(Seed(bytes(SEED_BYTES))), np.empty(AES_TILE, dtype=np.int64)
    start = time.perf_counter()
    for _ in range(n_words // AES_TILE):
        stream.fill(out)
    stream.fill(out[: n_words % AES_TILE])
    return time.perf_counter() - start
