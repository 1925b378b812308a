"""Krum and multi-Krum: this server's share of the sum of the vectors that are closest to their neighbours.

A vector's score is the sum of its squared distances to the m - f - 2 nearest others, one at least. The vectors of least
score are added up, equal scores in the order of slots. Distances, which of them are near, scores, ranks and choice all
stay shared: what the servers open is masked by dealt words and bits.

Source: Blanchard, El Mhamdi, Guerraoui and Stainer, "Machine Learning with Adversaries: Byzantine Tolerant Gradient
Descent", NeurIPS '17. The protocol of two servers is ours, docs/reference/protocol-krum.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from precad.mpc import ring
from precad.mpc.channel import Channel, Prefixed
from precad.mpc.errors import ParameterError
from precad.mpc.gate.top_bits import Gate
from precad.mpc.local.engines import CPU
from precad.mpc.local.step import Masked, add_shares, require_length
from precad.mpc.norm_bound import NormBound
from precad.mpc.ring import RingArray
from precad.mpc.robust.distances import squared_distance_shares
from precad.mpc.robust.keeping import low_ranks, ranks, sum_of_low_ranks
from precad.mpc.robust.proposal import Accepted, count_bits
from precad.mpc.robust.shared_bits import chosen_words
from precad.mpc.tuples.correlations import BitBlock, Block, ChoiceBlock
from precad.mpc.tuples.held import MAX_OF_PAIRS, ServerTuples


@dataclass(frozen=True)
class Krum:
    """The public parameters. Raises ParameterError for f or a number of kept vectors that is too small."""

    bound: NormBound
    n_attackers: int
    """f: attackers among a round's vectors, at most. The guarantee of the paper needs m >= 2f + 3."""
    n_kept: int
    """How many vectors are added up, at most."""

    def __post_init__(self) -> None:
        if self.n_attackers < 0 or self.n_kept < 1:
            raise ParameterError(
                f"n_attackers, n_kept: expected at least 0 and at least 1, found {self.n_attackers} and {self.n_kept}"
            )

    @property
    def distance_bits(self) -> int:
        """Return L with 2^L above every squared distance, which is at most 4T."""
        return (4 * self.bound.threshold).bit_length()

    def score_bits(self, n_clients: int) -> int:
        """Return L with 2^L above every score of so many clients, 62 at most: 4T is below 2^55."""
        return (4 * self.bound.threshold * max(1, n_clients)).bit_length()

    def n_near(self, n_accepted: int) -> int:
        """Return how many distances a score adds up, m - f - 2 but for small m."""
        return min(max(1, n_accepted - self.n_attackers - 2), n_accepted - 1)


@dataclass(frozen=True, slots=True, repr=False)
class KrumRound:
    """A round at one server, behind its check."""

    accepted: Accepted
    krum: Krum
    tuples: ServerTuples
    gate: Gate

    def __post_init__(self) -> None:
        require_length(self.accepted.opened, self.krum.bound.dim)

    @property
    def n_accepted(self) -> int:
        """Return m."""
        return len(self.accepted.clients)


def blocks(gate: Gate, n_clients: int, krum: Krum) -> tuple[Block, ...]:
    """Return what a round of at most n_clients uses up, behind the blocks of its check. Raises ParameterError.

    In the order of use: pairs of distances from one vector, distances that are near, their choice, pairs of scores,
    ranks that are kept.
    """
    if not 0 <= n_clients <= MAX_OF_PAIRS:
        raise ParameterError(f"clients of a round: expected at most {MAX_OF_PAIRS} with Krum, found {n_clients}")
    return tuple(_blocks(gate, n_clients, krum))


def _blocks(gate: Gate, n: int, krum: Krum) -> Iterator[Block]:
    n_distances, of_count = n * max(0, n - 1), count_bits(n)
    n_of_pairs = n * math.comb(max(0, n - 1), 2)
    yield from gate.blocks([(n_of_pairs, krum.distance_bits)])
    yield BitBlock(n_of_pairs)
    yield from gate.blocks([(n_distances, of_count)])
    yield ChoiceBlock(n_distances)
    yield from gate.blocks([(math.comb(n, 2), krum.score_bits(n))])
    yield BitBlock(math.comb(n, 2))
    yield from gate.blocks([(n, of_count)])


def selected_share_sum(it: KrumRound, channel: Channel) -> RingArray:
    """Return this server's share of the sum of the n_kept vectors of least score, (d,). Run by both servers.

    Rounds: four times the gate's, and four; none where everybody is kept, or of two the first, which is public.
    Raises: MalformedMessageError, TupleExhaustedError, TupleReusedError, ParameterError.
    """
    accepted, gate, tuples = it.accepted, it.gate, it.tuples
    trims = tuples.trim_tuples(accepted.clients)
    if it.krum.n_kept >= it.n_accepted:
        return accepted.share_sum
    lane = Prefixed(channel, "robust/krum")
    if it.n_accepted == 2:
        return _first(it)
    scores = _scores(it, squared_distance_shares(accepted, tuples), lane)
    n_bits = it.krum.score_bits(len(tuples.shape.clients))
    (of_scores,) = ranks(scores[np.newaxis], n_bits, gate, tuples, Prefixed(lane, "scores"))
    return sum_of_low_ranks(accepted, of_scores, it.krum.n_kept, trims, gate, tuples, lane)


def _first(it: KrumRound) -> RingArray:
    """Return this server's share of the first vector: two have the same score."""
    total, (client, _) = np.zeros(it.krum.bound.dim, dtype=np.int64), it.accepted.clients
    add_shares(total, it.tuples.party, [Masked(it.accepted.opened[0], it.tuples.mask_share(client))], CPU)
    return total


def _scores(it: KrumRound, distances: RingArray, lane: Channel) -> RingArray:
    """Return shares of each vector's score, (m,), from those of the distances, (m, m)."""
    m, gate, tuples = it.n_accepted, it.gate, it.tuples
    of_others = distances[~np.eye(m, dtype=bool)].reshape(m, m - 1)
    of_distances = ranks(of_others, it.krum.distance_bits, gate, tuples, Prefixed(lane, "distances"))
    near = low_ranks(of_distances.reshape(-1), it.krum.n_near(m), gate, tuples, Prefixed(lane, "near"))
    chosen = chosen_words(near, of_others.reshape(-1), tuples, lane)
    scores: RingArray = chosen.reshape(m, m - 1).sum(axis=1)
    return scores


def least_scores(vectors: Sequence[RingArray], krum: Krum) -> list[int]:
    """Return which of these vectors the servers choose, the least score first, with all of them in the clear.

    In exact integers: no distance wraps, as no vector is longer than C. Equal scores are in the order given.
    """
    m = len(vectors)
    squared = np.zeros((m, m), dtype=np.int64)
    for i, j in itertools.combinations(range(m), 2):
        difference: RingArray = vectors[i] - vectors[j]
        squared[i, j] = squared[j, i] = ring.dot(difference, difference)
    of_others = squared[~np.eye(m, dtype=bool)].reshape(m, m - 1)
    scores = np.sort(of_others, axis=1)[:, : krum.n_near(m)].sum(axis=1)
    return [int(i) for i in np.argsort(scores, kind="stable")[: krum.n_kept]]
