"""The public parameters of propose-test-release on shares, and the correlations that a round of it uses up."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from precad.mpc.errors import ParameterError
from precad.mpc.gate.top_bits import Gate
from precad.mpc.local.step import Words, require_length
from precad.mpc.norm_bound import NormBound
from precad.mpc.ring import RingArray
from precad.mpc.tuples.correlations import BitBlock, Block
from precad.mpc.tuples.held import ServerTuples

MARGIN_BITS = 20
"""Bits of the noisy margin behind the point: both servers' noise is in steps of 2^-20."""
MAX_CLIENTS = 1 << 12
"""Clients of a round at most: ranks take a word per pair of them."""


@dataclass(frozen=True)
class Proposal:
    """That the sum without its longest vectors has local sensitivity tau C.

    Raises ParameterError unless 0 < tau < 1 and tau C 2^f is at least one step of the grid. At tau = 1 nothing is to
    test.
    """

    bound: NormBound
    tau: float

    def __post_init__(self) -> None:
        if not 0 < self.tau < 1:
            raise ParameterError(f"tau: expected a number in (0, 1), a share of clip_norm, found {self.tau}")
        if self.threshold < 1:
            raise ParameterError(f"tau * clip_norm * 2^frac_bits: expected at least 1, found tau = {self.tau}")

    @cached_property
    def threshold(self) -> int:
        """Return floor((tau C 2^f)^2): a squared norm above it exceeds tau C."""
        return math.floor((self.bound.encoded_clip * Fraction(self.tau)) ** 2)

    @cached_property
    def norm_bits(self) -> int:
        """Return L with 2^L above every accepted squared norm, so that a difference of two has its sign in bit L."""
        return norm_bits(self.bound)


@dataclass(frozen=True, slots=True, repr=False)
class Accepted:
    """Hold what one server has of the clients that the check has accepted, alike at both, in the order of slots.

    No squared norm wraps: a vector that is longer than C has no good verdict.
    """

    clients: tuple[str, ...]
    opened: tuple[Words, ...]
    """b of each, (d,)."""
    squared_norms: RingArray
    """This server's shares of each ||X||^2, (m,)."""
    share_sum: RingArray
    """This server's share of the sum of all, (d,)."""

    @classmethod
    def of(
        cls,
        active: Sequence[str],
        verdicts: Sequence[bool],
        opened: Sequence[Words],
        squared_norms: RingArray,
        share_sum: RingArray,
    ) -> Accepted:
        """Take from what the check had, and said once verdicts were compared."""
        kept = [i for i, is_accepted in enumerate(verdicts) if is_accepted]
        return cls(tuple(active[i] for i in kept), tuple(opened[i] for i in kept), squared_norms[kept], share_sum)


@dataclass(frozen=True, slots=True, repr=False)
class TrimmedRound:
    """A round of propose-test-release at one server, behind its check. Raises ParameterError for an F below zero."""

    accepted: Accepted
    proposal: Proposal
    trim_count: int
    """F: how many of the longest are left out once the test has passed. Public."""
    tuples: ServerTuples
    gate: Gate

    def __post_init__(self) -> None:
        if self.trim_count < 0:
            raise ParameterError(f"trim_count: expected at least 0, found {self.trim_count}")
        require_length(self.accepted.opened, self.proposal.bound.dim)

    @property
    def n_accepted(self) -> int:
        """Return m."""
        return len(self.accepted.clients)

    @property
    def count_bits(self) -> int:
        """See `count_bits`, of the round's slots."""
        return count_bits(len(self.tuples.shape.clients))


def norm_bits(bound: NormBound) -> int:
    """Return L with 2^L above every accepted squared norm, so that a difference of two has its sign in bit L."""
    return bound.threshold.bit_length()


def require_few(n_clients: int) -> None:
    """Raise ParameterError for more clients than a round of ranked norms takes."""
    if not 0 <= n_clients <= MAX_CLIENTS:
        raise ParameterError(
            f"clients of a round: expected at most {MAX_CLIENTS} with a trimmed sum, found {n_clients}"
        )


def count_bits(n_clients: int) -> int:
    """Return L with 2^L above every number of clients of the round, 0 to n."""
    return max(1, n_clients.bit_length())


def blocks(gate: Gate, n_clients: int, proposal: Proposal) -> tuple[Block, ...]:
    """Return what a round of at most n_clients uses up, behind the blocks of its check.

    In the order of use: norms above tau C, the count above 1 .. n, pairs of norms, ranks below m - F. The number F
    that the round trims decides only how many of them are used, so a round may be dealt before F is known.
    """
    require_few(n_clients)
    return tuple(_blocks(gate, n_clients, proposal))


def _blocks(gate: Gate, n: int, proposal: Proposal) -> Iterator[Block]:
    of_count = count_bits(n)
    additive = ((n, proposal.norm_bits), (n, of_count), (n * (n - 1) // 2, proposal.norm_bits))
    for n_words, n_bits in additive:
        yield from gate.blocks([(n_words, n_bits)])
        yield BitBlock(n_words)
    yield from gate.blocks([(n, of_count)])
