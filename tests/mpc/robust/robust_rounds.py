"""Whole rounds of propose-test-release on shares, both servers in threads, and the same in the clear."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from precad.mpc import prg, sharing, validation
from precad.mpc.channel import MemoryChannel, run_pair
from precad.mpc.gate import top_bits
from precad.mpc.gate.top_bits import Gate
from precad.mpc.norm_bound import NormBound
from precad.mpc.opening import open_in_place
from precad.mpc.parameters import Mode
from precad.mpc.robust.margin import open_noisy_margin
from precad.mpc.robust.proposal import MARGIN_BITS, Accepted, Proposal, TrimmedRound, blocks
from precad.mpc.robust.trimming import trimmed_share_sum
from precad.mpc.tuples import held
from precad.mpc.tuples.dealt import deal
from precad.mpc.tuples.held import BatchShape, ServerTuples
from tests.mpc.recording import RecordingChannel


@dataclass(frozen=True)
class Round:
    """Hold what both servers have agreed on, and what each of them draws."""

    vectors: Any
    bound: NormBound
    tau: float
    trim_count: int
    threshold: int
    """In steps of 2^-20; a noisy margin above it passes."""
    margin_noise: tuple[int, int] = (0, 0)
    sum_noise: Any = None
    """(2, 2, d): of each server, after a failed and after a passed test."""
    mode: Mode = Mode.MASKED
    n_silent: int = 0
    """Chosen clients behind the others whose upload did not arrive."""

    @property
    def proposal(self) -> Proposal:
        return Proposal(self.bound, self.tau)


@dataclass(frozen=True)
class Outcome:
    """Hold what one server ends with, and what it sent."""

    accepted: tuple[str, ...]
    noisy_margin: int
    has_passed: bool
    total: Any
    sent: list[tuple[str, bytes]]
    own_bits: list[int]
    """Its shares of the dealer's bits u, which it knows beside what it sees."""


def shape_of(chosen: int, bound: NormBound, gate: Gate, proposal: Proposal) -> BatchShape:
    clients = tuple(f"c{i:03d}" for i in range(chosen))
    of_check = top_bits.blocks(gate, chosen, bound.low_bits)
    return BatchShape("t", 1, clients, bound.dim, (*of_check, *blocks(gate, chosen, proposal)), trims=True)


def run(it: Round, gate: Gate, random_bytes: Any = None, wrap: Any = RecordingChannel) -> tuple[Outcome, Outcome]:
    """The round by both servers. wrap: what stands between each of them and the channel."""
    shape = shape_of(len(it.vectors) + it.n_silent, it.bound, gate, it.proposal)
    dealt = deal(shape) if random_bytes is None else deal(shape, random_bytes)
    sides = (ServerTuples(0, shape, dealt[0]), ServerTuples(1, shape, dealt[1]))
    uploads = _uploads(it, shape, sides, random_bytes)
    coins = {} if random_bytes is None else {"random_bytes": lambda n: bytes(range(n))}

    def party(channel: MemoryChannel) -> Outcome:
        lane, tuples = wrap(channel), sides[channel.party]
        locked = validation.lock(dict.fromkeys(uploads[channel.party], bytes([7]) * 32), shape, lane, **coins)
        reveal = validation.reveal if it.mode is Mode.MASKED else validation.reveal_and_open
        revealed = reveal(locked, uploads[channel.party], tuples, lane)
        checked = validation.validate(revealed, tuples, it.bound, gate, lane)
        validation.compare_verdicts(checked, lane)
        held_of = (revealed.active, checked.verdicts, revealed.opened, checked.squared_norms)
        accepted = Accepted.of(*held_of, checked.accepted_share_sum)
        ours = TrimmedRound(accepted, it.proposal, it.trim_count, tuples, gate)
        margin = open_noisy_margin(ours, it.margin_noise[channel.party], lane)
        has_passed = margin > it.threshold
        share = trimmed_share_sum(ours, lane) if has_passed else accepted.share_sum
        if it.sum_noise is not None:
            share = share + it.sum_noise[channel.party][int(has_passed)]
        open_in_place(share, "noisy sum", lane)
        own = [held.trim_bit(dealt[channel.party].key, shape.label(client)) for client in checked.accepted]
        return Outcome(checked.accepted, margin, has_passed, share, getattr(lane, "sent", []), own)

    return run_pair(party)


def _uploads(it: Round, shape: BatchShape, sides: Any, random_bytes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    uploads: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    for client, x in zip(shape.clients, it.vectors, strict=False):
        if it.mode is Mode.MASKED:
            seeds = (sides[0].hand_out_mask_seed(client), sides[1].hand_out_mask_seed(client))
            uploads[0][client] = uploads[1][client] = sharing.mask(x, seeds, shape.label(client))
        else:
            seed = prg.Seed.random() if random_bytes is None else prg.Seed(random_bytes(16))
            uploads[0][client] = sharing.expand_share(seed, shape.label(client), x.size)
            uploads[1][client] = x - uploads[0][client]
    return uploads


def in_the_clear(it: Round) -> tuple[list[int], int, bool, list[int]]:
    """(accepted, noisy margin, whether it passed, noisy sum) over Python's integers: the ideal functionality."""
    vectors = [list(map(int, x)) for x in it.vectors]
    norms = [sum(v * v for v in x) for x in vectors]
    accepted = [i for i, norm in enumerate(norms) if norm <= it.bound.threshold]
    exceeding = sum(norms[i] > it.proposal.threshold for i in accepted)
    noisy = (max(0, it.trim_count - exceeding) << MARGIN_BITS) + sum(it.margin_noise)
    has_passed, kept = noisy > it.threshold, accepted
    if has_passed:
        kept = sorted(accepted, key=lambda i: (norms[i], i))[: max(0, len(accepted) - it.trim_count)]
    noise = [0] * it.bound.dim
    if it.sum_noise is not None:
        noise = [int(a) + int(b) for a, b in zip(*(side[int(has_passed)] for side in it.sum_noise), strict=True)]
    return accepted, noisy, has_passed, [sum(vectors[i][j] for i in kept) + noise[j] for j in range(it.bound.dim)]


def changed(it: Round, **fields: Any) -> Round:
    return replace(it, **fields)
