"""Whole rounds of propose-test-release on shares, both servers in threads, and the same in the clear."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from precad.mpc.gate import top_bits
from precad.mpc.gate.top_bits import Gate
from precad.mpc.norm_bound import NormBound
from precad.mpc.parameters import Mode
from precad.mpc.robust import trimming
from precad.mpc.robust.margin import open_noisy_margin
from precad.mpc.robust.proposal import MARGIN_BITS, Proposal, TrimmedRound, blocks
from precad.mpc.robust.trimming import trimmed_share_sum
from precad.mpc.tuples.held import BatchShape
from tests.mpc.recording import RecordingChannel
from tests.mpc.robust.rounds import Server, run_round


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

    def end(server: Server) -> Outcome:
        ours = TrimmedRound(server.held, it.proposal, it.trim_count, server.tuples, gate)
        margin = open_noisy_margin(ours, it.margin_noise[server.party], server.lane)
        has_passed = margin > it.threshold
        share = trimmed_share_sum(ours, server.lane) if has_passed else server.held.share_sum
        if it.sum_noise is not None:
            share = share + it.sum_noise[server.party][int(has_passed)]
        return Outcome(server.accepted, margin, has_passed, server.opened(share), server.sent, server.own_bits)

    return run_round(it, shape, gate, end, random_bytes, wrap)


def trim(it: Round, gate: Gate, random_bytes: Any = None, wrap: Any = RecordingChannel) -> tuple[Outcome, Outcome]:
    """The round without its test, in which the longest stay out always. Its noise is that after a passed test."""
    shape = shape_of(len(it.vectors) + it.n_silent, it.bound, gate, it.proposal)
    of_check = top_bits.blocks(gate, len(shape.clients), it.bound.low_bits)
    shape = replace(shape, blocks=(*of_check, *trimming.blocks(gate, len(shape.clients), it.bound)))

    def end(server: Server) -> Outcome:
        share = trimming.share_sum_of_shortest(server.held, it.bound, it.trim_count, server.tuples, gate, server.lane)
        if it.sum_noise is not None:
            share = share + it.sum_noise[server.party][1]
        return Outcome(server.accepted, 0, True, server.opened(share), server.sent, server.own_bits)

    return run_round(it, shape, gate, end, random_bytes, wrap)


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
