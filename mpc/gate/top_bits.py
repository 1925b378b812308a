"""From additive shares of words to XOR shares of words that vanish exactly when the first ones' top bits do.

A word w = w_A + w_B is below 2^L exactly when its bits L..63 are zero. Modulo 2^(64-L), those bits are the sum of both
servers' own top bits and of the carry c out of the lowest L. So a comparison takes one shared bit of each word, not 64.
A gate gives XOR shares of c. One more opening, of c ^ r for a dealt random bit r, turns them into additive shares. The
servers then hold additive shares t_A + t_B of the top bits. Their sum t is zero exactly when A's t_A equals B's -t_B.
Those two are the XOR shares that `precad.mpc.gate.equality` compares.

Source: ours, docs/reference/protocol.md, section 11. The conversion of c is the usual one from a bit that is dealt in
both forms.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from precad.mpc.channel import Channel, exchange_alike
from precad.mpc.kernels import loading
from precad.mpc.ring import WORD_BITS, RingArray
from precad.mpc.tuples.correlations import BitBlock, Block, Correlations, Planes


@dataclass(frozen=True, slots=True, repr=False)
class LowWords:
    """One server's summands of additions of one length."""

    words: RingArray
    """(m,), each in [0, 2^n_bits)."""
    n_bits: int


class Gate(Protocol):
    """One way to get the carry of an addition of which each server knows one summand."""

    name: str

    def blocks(self, groups: Sequence[tuple[int, int]]) -> tuple[Block, ...]:
        """Return the correlations that groups of (words, n_bits) use up, in the order of their use."""

    def carries(self, groups: Sequence[LowWords], correlations: Correlations, channel: Channel) -> list[Planes]:
        """Return the XOR shares of bit n_bits of each sum, a plane per group. A number of rounds that depends on
        nothing."""


def blocks(gate: Gate, n_clients: int, low_bits: Sequence[int]) -> tuple[Block, ...]:
    """Return what `shares_of_zero` uses up for n_clients clients, whose j-th word counts from bit low_bits[j] on."""
    groups = [(n_clients * len(columns), n_bits) for n_bits, columns in _columns(tuple(low_bits))]
    return (*gate.blocks(groups), *(BitBlock(n_words) for n_words, _ in groups))


def shares_of_zero(
    words: RingArray, low_bits: Sequence[int], gate: Gate, correlations: Correlations, channel: Channel
) -> RingArray:
    """Return the XOR shares of words that are zero where bits low_bits[j].. of column j's word are. Run by both
    servers.

    Shapes: words (n, w), this server's additive shares; low_bits (w,), each in 1..63; result (n, w).
    Rounds: the gate's and one. Raises MalformedMessageError, TupleExhaustedError.
    """
    columns = _columns(tuple(low_bits))
    unsigned = np.ascontiguousarray(words).view(np.uint64)
    lows = [LowWords((words[:, index] & ((1 << n_bits) - 1)).reshape(-1), n_bits) for n_bits, index in columns]
    carries = gate.carries(lows, correlations, channel)
    bits = [correlations.bits(low.words.size) for low in lows]
    opened = _open(carries, [mask for mask, _ in bits], channel)
    result = np.empty(words.shape, dtype=np.uint64)
    for (n_bits, index), plane, (_, values) in zip(columns, opened, bits, strict=True):
        loading.gate().top_shares(
            unsigned,
            index,
            np.uint64(n_bits),
            plane,
            values.view(np.uint64),
            channel.party == 0,
            np.uint64((1 << (WORD_BITS - n_bits)) - 1),
            result,
        )
    return result.view(np.int64)


def _open(carries: Sequence[Planes], masks: Sequence[Planes], channel: Channel) -> list[Planes]:
    """c ^ r of every carry and its dealt bit, a plane per group. One round, one bit per word."""
    hidden: Planes = np.concatenate([carry ^ mask for carry, mask in zip(carries, masks, strict=True)])
    received = exchange_alike(channel, "gate/carries", hidden.tobytes())
    opened, start, planes = hidden ^ np.frombuffer(received, dtype=np.uint8), 0, []
    for carry in carries:
        planes.append(opened[start : start + carry.size])
        start += carry.size
    return planes


@functools.cache
def _columns(low_bits: tuple[int, ...]) -> tuple[tuple[int, NDArray[np.intp]], ...]:
    """Return the columns of each length, in order of appearance."""
    columns: dict[int, list[int]] = {}
    for column, n_bits in enumerate(low_bits):
        columns.setdefault(n_bits, []).append(column)
    return tuple((n_bits, np.array(index, dtype=np.intp)) for n_bits, index in columns.items())
