"""Whole rounds of Krum on shares, both servers in threads, and the same over Python's integers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from precad.mpc.gate import top_bits
from precad.mpc.gate.top_bits import Gate
from precad.mpc.norm_bound import NormBound
from precad.mpc.parameters import Mode
from precad.mpc.robust.krum import Krum, KrumRound, blocks, selected_share_sum
from precad.mpc.tuples.held import BatchShape
from tests.mpc.recording import RecordingChannel
from tests.mpc.robust.rounds import Server, run_round


@dataclass(frozen=True)
class Round:
    """Hold what both servers have agreed on."""

    vectors: Any
    krum: Krum
    mode: Mode = Mode.MASKED
    n_silent: int = 0
    """Chosen clients behind the others whose upload did not arrive."""

    @property
    def bound(self) -> NormBound:
        return self.krum.bound


@dataclass(frozen=True)
class Outcome:
    """Hold what one server ends with, and what it sent."""

    accepted: tuple[str, ...]
    total: Any
    sent: list[tuple[str, bytes]]
    own_bits: list[int]
    """Its shares of the dealer's bits u, which it knows beside what it sees."""


def shape_of(chosen: int, krum: Krum, gate: Gate) -> BatchShape:
    clients = tuple(f"c{i:03d}" for i in range(chosen))
    of_check = top_bits.blocks(gate, chosen, krum.bound.low_bits)
    of_krum = blocks(gate, chosen, krum)
    return BatchShape("t", 1, clients, krum.bound.dim, (*of_check, *of_krum), trims=True, pairs=True)


def run(it: Round, gate: Gate, random_bytes: Any = None, wrap: Any = RecordingChannel) -> tuple[Outcome, Outcome]:
    """The round by both servers. wrap: what stands between each of them and the channel."""
    shape = shape_of(len(it.vectors) + it.n_silent, it.krum, gate)

    def end(server: Server) -> Outcome:
        share = selected_share_sum(KrumRound(server.held, it.krum, server.tuples, gate), server.lane)
        return Outcome(server.accepted, server.opened(share), server.sent, server.own_bits)

    return run_round(it, shape, gate, end, random_bytes, wrap)


def in_the_clear(it: Round) -> tuple[list[int], list[int], list[int]]:
    """(accepted, kept, sum) over Python's integers: the ideal functionality, in words."""
    vectors = [list(map(int, x)) for x in it.vectors]
    accepted = [i for i, x in enumerate(vectors) if sum(v * v for v in x) <= it.bound.threshold]
    m, scores = len(accepted), {}
    for i in accepted:
        others = [sum((v - w) ** 2 for v, w in zip(vectors[i], vectors[j], strict=True)) for j in accepted if j != i]
        scores[i] = sum(sorted(others)[: max(1, m - it.krum.n_attackers - 2)])
    kept = sorted(accepted, key=lambda i: (scores[i], i))[: it.krum.n_kept]
    return accepted, kept, [sum(vectors[i][j] for i in kept) for j in range(it.bound.dim)]
