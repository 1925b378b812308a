"""Whole rounds of Krum on shares, both servers in threads, and the same over Python's integers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from precad.mpc import prg, sharing, validation
from precad.mpc.channel import MemoryChannel, run_pair
from precad.mpc.gate import top_bits
from precad.mpc.gate.top_bits import Gate
from precad.mpc.norm_bound import NormBound
from precad.mpc.opening import open_in_place
from precad.mpc.parameters import Mode
from precad.mpc.robust.krum import Krum, KrumRound, blocks, selected_share_sum
from precad.mpc.robust.proposal import Accepted
from precad.mpc.tuples import held
from precad.mpc.tuples.dealt import deal
from precad.mpc.tuples.held import BatchShape, ServerTuples
from tests.mpc.recording import RecordingChannel


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
    dealt = deal(shape) if random_bytes is None else deal(shape, random_bytes)
    sides = (ServerTuples(0, shape, dealt[0]), ServerTuples(1, shape, dealt[1]))
    uploads = uploads_of(it, shape, sides, random_bytes)
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
        share = selected_share_sum(KrumRound(accepted, it.krum, tuples, gate), lane)
        open_in_place(share, "noisy sum", lane)
        own = [held.trim_bit(dealt[channel.party].key, shape.label(client)) for client in checked.accepted]
        return Outcome(checked.accepted, share, getattr(lane, "sent", []), own)

    return run_pair(party)


def uploads_of(it: Round, shape: BatchShape, sides: Any, random_bytes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what each server holds of the clients."""
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
