"""A communicator over our channel and a provider of the dealer's tuples, as CrypTen asks for them.

An opening is one exchange: the peer's words, added or combined by XOR to ours. Each tuple that is taken allows one
opening of its size. Anything else is refused before a byte leaves. So a function that opens a shared value by mistake
ends the round instead.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from precad.mpc.crypten.lookups import Lookups
from precad.mpc.errors import FunctionRefusedError
from precad.mpc.ring import RingArray
from precad.mpc.sharing import Party
from precad.mpc.tuples.correlations import (
    AndBlock,
    BitBlock,
    Block,
    Correlations,
    ProductBlock,
    SquareBlock,
    bits_of_plane,
)

Opened = Callable[[RingArray, bool], RingArray]
"""(this server's words, whether they are shared by XOR) to the opened words, in one round."""


class Tuples(Protocol):
    """One server's side of the correlations that a run uses up. Shapes: (n_words,) each."""

    def triples(self, n_words: int) -> tuple[RingArray, RingArray, RingArray]:
        """Return shares by XOR of a, b, a & b."""

    def bits(self, n_words: int) -> tuple[RingArray, RingArray]:
        """Return shares by XOR, then additive shares, of bits."""

    def ring_triples(self, n_words: int) -> tuple[RingArray, RingArray, RingArray]:
        """Return additive shares of a, b, a * b."""

    def squares(self, n_words: int) -> tuple[RingArray, RingArray]:
        """Return additive shares of a, a * a."""


class DealtTuples:
    """The next correlations of a round, in the order in which they were dealt."""

    def __init__(self, correlations: Correlations) -> None:
        self._dealt = correlations
        self.triples, self.ring_triples, self.squares = (
            correlations.triples,
            correlations.ring_triples,
            correlations.squares,
        )

    def bits(self, n_words: int) -> tuple[RingArray, RingArray]:
        """See `Tuples.bits`."""
        plane, additive = self._dealt.bits(n_words)
        return bits_of_plane(plane, n_words), additive.copy()


class CountedTuples:
    """Zeros in the place of tuples, and the blocks that a dealer would have to deal for them."""

    def __init__(self) -> None:
        self._blocks: list[Block] = []

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Return what was asked for, in order. Binary triples that come in a row are one block."""
        return tuple(self._blocks)

    def triples(self, n_words: int) -> tuple[RingArray, RingArray, RingArray]:
        """See `Tuples.triples`."""
        if self._blocks and isinstance(last := self._blocks[-1], AndBlock):
            self._blocks[-1] = AndBlock(last.n_words + n_words)
        else:
            self._blocks.append(AndBlock(n_words))
        return _zeros(n_words), _zeros(n_words), _zeros(n_words)

    def bits(self, n_words: int) -> tuple[RingArray, RingArray]:
        """See `Tuples.bits`."""
        self._blocks.append(BitBlock(n_words))
        return _zeros(n_words), _zeros(n_words)

    def ring_triples(self, n_words: int) -> tuple[RingArray, RingArray, RingArray]:
        """See `Tuples.ring_triples`."""
        self._blocks.append(ProductBlock(n_words))
        return _zeros(n_words), _zeros(n_words), _zeros(n_words)

    def squares(self, n_words: int) -> tuple[RingArray, RingArray]:
        """See `Tuples.squares`."""
        self._blocks.append(SquareBlock(n_words))
        return _zeros(n_words), _zeros(n_words)


def _zeros(n_words: int) -> RingArray:
    return np.zeros(n_words, dtype=np.int64)


class Hidden:
    """How many words tuples hide that were taken and that nothing was opened with yet."""

    def __init__(self) -> None:
        self._n_words = 0

    def take(self, n_words: int) -> None:
        """Note a tuple that hides so many words."""
        self._n_words += n_words

    def spend(self, n_words: int) -> None:
        """Note an opening. Raises FunctionRefusedError unless it is of exactly what is hidden."""
        hidden, self._n_words = self._n_words, 0
        if n_words != hidden:
            raise FunctionRefusedError(
                f"a function of the sum opens {n_words} words: expected the {hidden} that tuples hide"
            )


def make_communicator(crypten: Lookups, party: Party, opened: Opened, hidden: Hidden) -> Any:
    """Return CrypTen's communicator for one run of one party of two."""
    return _communicator_class(crypten)(party, opened, hidden)


def make_provider(crypten: Lookups, tuples: Tuples, hidden: Hidden) -> Any:
    """Return CrypTen's provider for one run."""
    return _provider_class(crypten)(tuples, hidden)


@functools.cache
def _communicator_class(crypten: Lookups) -> Any:
    torch, base = crypten.torch, crypten.communicator
    xor, add = torch.distributed.ReduceOp.BXOR, torch.distributed.ReduceOp.SUM

    class ChannelCommunicator(base):  # type: ignore[misc, valid-type]
        """It has only what CrypTen's two-party protocols need; what is left in the base refuses."""

        def __init__(self, party: Party, opened: Opened, hidden: Hidden) -> None:
            self._party, self._opened, self._hidden = party, opened, hidden

        def get_rank(self) -> int:
            return self._party

        def get_world_size(self) -> int:
            return 2

        def all_reduce(self, input: Any, op: Any = add, async_op: bool = False, batched: bool = False) -> Any:  # noqa: A002
            if op not in (xor, add) or async_op:
                raise NotImplementedError("shares are opened by XOR or by addition")
            tensors = input if batched else [input]
            share = _flat(tensors)
            self._hidden.spend(share.size)
            opened = torch.from_numpy(self._opened(share, op == xor))
            parts = opened.split([t.numel() for t in tensors])
            result = [part.reshape(t.shape) for part, t in zip(parts, tensors, strict=True)]
            return result if batched else result[0]

    return ChannelCommunicator


def _flat(tensors: Sequence[Any]) -> RingArray:
    return np.concatenate([t.numpy().reshape(-1) for t in tensors]).astype(np.int64, copy=False)


@functools.cache
def _provider_class(crypten: Lookups) -> Any:
    torch, arithmetic, binary = crypten.torch, crypten.arithmetic, crypten.binary

    def shaped(tensor: Any, parts: Sequence[RingArray], size: Any) -> tuple[Any, ...]:
        return tuple(tensor.from_shares(torch.from_numpy(part).reshape(size), precision=0) for part in parts)

    def broadcast(size0: Any, size1: Any) -> Any:
        if size0 == size1:
            return size0
        return torch.Size(np.broadcast_shapes(size0, size1))  # torch's own imports SymPy: half a second

    class DealerProvider(crypten.provider):  # type: ignore[misc, name-defined]
        """Where two operands differ in shape, it deals for the shape that both have once they are broadcast."""

        NAME = "PRECAD"

        def __init__(self, tuples: Tuples, hidden: Hidden) -> None:
            super().__init__()
            self._tuples, self._hidden = tuples, hidden

        def generate_additive_triple(self, size0: Any, size1: Any, op: str, **kwargs: Any) -> Any:
            if op != "mul":
                raise FunctionRefusedError(f"a function of the sum asks for {op!r}: tuples are for 'mul' alone")
            size = broadcast(size0, size1)
            self._hidden.take(2 * size.numel())
            return shaped(arithmetic, self._tuples.ring_triples(size.numel()), size)

        def square(self, size: Any, device: Any = None) -> Any:
            self._hidden.take(size.numel())
            return shaped(arithmetic, self._tuples.squares(size.numel()), size)

        def generate_binary_triple(self, size0: Any, size1: Any, device: Any = None) -> Any:
            size = broadcast(size0, size1)
            self._hidden.take(2 * size.numel())
            return shaped(binary, self._tuples.triples(size.numel()), size)

        def B2A_rng(self, size: Any, device: Any = None) -> Any:  # noqa: N802
            self._hidden.take(size.numel())
            by_xor, additive = self._tuples.bits(size.numel())
            return *shaped(arithmetic, [additive], size), *shaped(binary, [by_xor], size)

        def wrap_rng(self, size: Any, device: Any = None) -> Any:
            raise FunctionRefusedError("a function of the sum asks for wraps: two parties need none")

    return DealerProvider
