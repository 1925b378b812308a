"""The comparison gates: additive shares of words in, XOR shares of the same words' bits out.

`crypten` runs CrypTen's circuit and is the default, the paper's choice. `native` is ours: stateless, without torch, two
thirds of the traffic. Their results are equal bit for bit, and what follows them is common to both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

from mpc.carry_tree import CarryTreeGate
from mpc.channel import Channel
from mpc.comparison import CryptenGate, require_crypten
from mpc.ring import RingArray
from mpc.tuples import AndBlock, BinaryTriples


class Gate(Protocol):
    """One way to turn shares of words into shares of bits. Seven rounds, for any number of words."""

    name: str

    def and_blocks(self, n_words: int) -> tuple[AndBlock, ...]:
        """The binary correlations that `n_words` input words use up, in the order of their use."""

    def to_binary(self, words: RingArray, triples: BinaryTriples, channel: Channel) -> RingArray:
        """XOR share of (words_A + words_B) mod 2^64. Run by both servers on arrays of one shape (m,)."""


GATES: Mapping[str, Callable[[], Gate]] = MappingProxyType(
    {CryptenGate.name: CryptenGate, CarryTreeGate.name: CarryTreeGate}
)


def require_gate(name: str) -> None:
    """Raises GateUnavailableError when something that the gate needs is not installed. Loads nothing."""
    if name == CryptenGate.name:
        require_crypten()


def make_gate(name: str) -> Gate:
    """The gate that a configuration names. Raises GateUnavailableError."""
    return GATES[name]()
