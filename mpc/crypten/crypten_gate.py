"""CrypTen's carry circuit as the comparison gate. CrypTen's globals are left alone (`precad.mpc.crypten.lookups`).

The gate gives the carries of additions of which each server knows one summand. Several short summands lie in one word,
each with a zero above it. Server A enters its words as one binary-shared operand, B enters its own as the other.
CrypTen's set-propagate-kill adder (the circuit inside its A2B conversion and its comparison) adds them in 7 rounds.
Ours answer what it looks up in CrypTen's globals: the communicator works over `Channel`, the tuple provider has the
dealer's binary triples. Operands enter as (x_A, 0) and (0, x_B): a correct sharing that draws nothing from CrypTen's
generators. What hides an operand is the dealer's triple at the first AND.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from precad.mpc import ring
from precad.mpc.channel import Channel
from precad.mpc.crypten.answers import DealtTuples, Hidden, make_communicator, make_provider
from precad.mpc.crypten.lookups import Run, load_crypten
from precad.mpc.gate.top_bits import LowWords
from precad.mpc.ring import RingArray
from precad.mpc.tuples.correlations import AndBlock, Block, Correlations, Planes, plane_of_bits


class CryptenGate:
    """Raises GateUnavailableError when CrypTen, or what it imports, is not installed."""

    name = "crypten"

    def __init__(self) -> None:
        self._crypten = load_crypten()

    def blocks(self, groups: Sequence[tuple[int, int]]) -> tuple[Block, ...]:
        """See `Gate.blocks`: one AND of n words, then six levels with an AND of 2n, all from one pool."""
        return (AndBlock(13 * sum(-(-n_words // _fields_per_word(n_bits)) for n_words, n_bits in groups)),)

    def carries(self, groups: Sequence[LowWords], correlations: Correlations, channel: Channel) -> list[Planes]:
        """See `Gate.carries`: 7 rounds, 208 bytes per word of 64 bits and direction; two rows share one."""
        packed = [_pack(group) for group in groups]
        own = self._crypten.torch.from_numpy(np.concatenate(packed))
        zero = self._crypten.torch.zeros_like(own)
        operands = (own, zero) if channel.party == 0 else (zero, own)
        with self._crypten.answering(self._run(correlations, channel)):
            x, y = (self._crypten.binary.from_shares(operand, precision=0) for operand in operands)
            sums = np.asarray(x.add(y).share.numpy(), dtype=np.int64)
        starts = np.cumsum([len(words) for words in packed])[:-1]
        return [_carry_fields(part, group) for part, group in zip(np.split(sums, starts), groups, strict=True)]

    def _run(self, correlations: Correlations, channel: Channel) -> Run:
        steps = itertools.count(1)

        def opened(share: RingArray, is_xor: bool) -> RingArray:
            received = channel.exchange(f"gate/{next(steps)}", ring.to_bytes(share))
            return share ^ ring.from_bytes(received, n_words=share.size)

        hidden = Hidden()
        communicator = make_communicator(self._crypten, channel.party, opened, hidden)
        return Run(communicator, make_provider(self._crypten, DealtTuples(correlations), hidden))


def _fields_per_word(n_bits: int) -> int:
    return 64 // (n_bits + 1)


def _pack(group: LowWords) -> RingArray:
    """Several summands to a word, each n_bits + 1 bits wide, so that its carry has a place of its own. Fresh words."""
    per_word = _fields_per_word(group.n_bits)
    fields = np.zeros(-(-group.words.size // per_word) * per_word, dtype=np.int64)
    fields[: group.words.size] = group.words
    shifts = np.arange(per_word) * (group.n_bits + 1)
    packed: RingArray = np.bitwise_or.reduce(fields.reshape(-1, per_word) << shifts, axis=1)
    return packed


def _carry_fields(sums: RingArray, group: LowWords) -> Planes:
    """Return the bit above each summand, as a plane."""
    shifts = np.arange(_fields_per_word(group.n_bits)) * (group.n_bits + 1) + group.n_bits
    bits = (sums[:, np.newaxis] >> shifts) & 1
    return plane_of_bits(bits.reshape(-1)[: group.words.size].astype(np.uint8))
