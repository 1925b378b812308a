"""Shares as CrypTen tensors and back, and a CrypTen function of the shared sum. Run by both servers.

A share is a CrypTen share as it is: both are words modulo 2^64, with 16 fractional bits. A function takes an encrypted
vector of d numbers and returns one, in CrypTen's own words, such as `lambda x: x.hardtanh(-1, 1)`.

A dry run finds what a function uses up. It is on zeros, with zeros for tuples, so that a server's own words are all
there is to open. Both servers make it, and ask the dealer for the same blocks. The steps of a function depend on public
shapes alone, so a round asks for exactly these.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from precad.mpc import ring
from precad.mpc.channel import Channel
from precad.mpc.crypten.answers import CountedTuples, DealtTuples, Hidden, Tuples, make_communicator, make_provider
from precad.mpc.crypten.lookups import Run, load_crypten
from precad.mpc.errors import FunctionRefusedError, MpcError
from precad.mpc.opening import pieces, pieces_of_sum
from precad.mpc.ring import RingArray
from precad.mpc.sharing import Party
from precad.mpc.tuples.correlations import Block, Correlations

FRAC_BITS = 16
"""Bits behind the point in CrypTen's encoder, unless its user says otherwise."""
CryptenFunction = Callable[..., Any]
"""An encrypted vector, and public arguments by name, to an encrypted vector of as many numbers."""


def to_crypten(share: RingArray) -> Any:
    """Return a share as an `MPCTensor` of 16 fractional bits, of any shape. Its words stay where they are.

    CrypTen works in place: hand it a copy where the share is needed afterwards. Raises GateUnavailableError.
    """
    crypten = load_crypten()
    tensor = crypten.crypten.mpc.MPCTensor.__new__(crypten.crypten.mpc.MPCTensor)
    crypten.crypten.CrypTensor.__init__(tensor, requires_grad=False)
    tensor._tensor = crypten.arithmetic.from_shares(crypten.torch.from_numpy(share), precision=FRAC_BITS)
    tensor.ptype = crypten.crypten.mpc.ptype.arithmetic
    return tensor


def from_crypten(tensor: Any) -> RingArray:
    """Return the share in an `MPCTensor`, with its words where they are. Invert `to_crypten`.

    Words keep the tensor's strides, whichever they are. Raises FunctionRefusedError unless it is additive, has 16
    fractional bits, and its words are int64.
    """
    crypten = load_crypten()
    found = getattr(tensor, "_tensor", None)
    if not isinstance(found, crypten.arithmetic):
        raise FunctionRefusedError(f"expected an MPCTensor that is shared additively, found {type(tensor).__name__}")
    if found.encoder.scale != 1 << FRAC_BITS:
        raise FunctionRefusedError(f"expected a tensor of scale 2^{FRAC_BITS}, found {found.encoder.scale}")
    if found.share.dtype != crypten.torch.int64:
        raise FunctionRefusedError(f"expected a share of torch.int64, found {found.share.dtype}")
    words: RingArray = found.share.numpy()
    return words


@dataclass(frozen=True, slots=True)
class DryRun:
    """Hold what a function does on zeros, which no secret decides."""

    blocks: tuple[Block, ...]
    """Correlations that it uses up, in the order of their use."""
    is_exact: bool
    """Whether no step truncates by `div_`, which CrypTen's own steps do. CrypTen truncates each share by itself: the
    result depends on how a sum is shared. Code that divides a share's words by other means passes unseen."""
    keeps_zero: bool
    """Whether zero goes to zero."""


class SumFunction:
    """A CrypTen function of vectors of one length. Raises GateUnavailableError, FunctionRefusedError."""

    def __init__(self, name: str, function: CryptenFunction, arguments: Mapping[str, Any], dim: int) -> None:
        """name: for messages. function: of the vector, and of these arguments by name."""
        self.name, self._dim = name, dim
        self._function, self._arguments, self._crypten = function, dict(arguments), load_crypten()
        self.dry_run = self._dry_run()

    def in_the_clear(self, total: RingArray) -> RingArray:
        """Return the function of a vector that one process knows, (d,): by CrypTen, with nobody to share with."""
        return self._alone(total, CountedTuples())[0]

    def share_of(self, share: RingArray, correlations: Correlations, channel: Channel) -> RingArray:
        """Return this server's share of the function of the shared vector, (d,). Run by both servers.

        correlations: of the blocks of the dry run, next in turn. Raises FunctionRefusedError, MalformedMessageError,
        PeerMismatchError, TupleExhaustedError.
        """
        return self._run(share, channel.party, DealtTuples(correlations), partial(_open, channel, itertools.count(1)))[
            0
        ]

    def _dry_run(self) -> DryRun:
        counted = CountedTuples()
        at_zero, run = self._alone(np.zeros(self._dim, dtype=np.int64), counted)
        return DryRun(counted.blocks, run.n_truncations == 0, not at_zero.any())

    def _alone(self, total: RingArray, counted: CountedTuples) -> tuple[RingArray, Run]:
        return self._run(total, 0, counted, lambda own, is_xor: own.copy())

    def _run(
        self, share: RingArray, party: Party, tuples: Tuples, opened: Callable[[RingArray, bool], RingArray]
    ) -> tuple[RingArray, Run]:
        hidden, crypten = Hidden(), self._crypten
        run = Run(
            make_communicator(crypten, party, opened, hidden),
            make_provider(crypten, tuples, hidden),
            crypten.fresh_config(),
        )
        with crypten.answering(run):
            try:
                result = from_crypten(self._function(to_crypten(share.copy()), **self._arguments))
            except MpcError:
                raise
            except Exception as error:
                raise FunctionRefusedError(f"sum_function {self.name} raised {type(error).__name__}") from error
        if result.shape != (self._dim,):
            raise FunctionRefusedError(
                f"sum_function {self.name}: expected a vector of {self._dim} numbers, found the shape {result.shape}"
            )
        return np.ascontiguousarray(result), run


def _open(channel: Channel, steps: itertools.count[int], own: RingArray, is_xor: bool) -> RingArray:
    """Open words, piece by piece: one round."""
    label, result = f"function/{next(steps)}", np.empty_like(own)
    swapped = channel.exchange_pieces(label, pieces_of_sum(own))
    for piece, received in zip(pieces(own.size), swapped, strict=True):
        theirs = ring.from_bytes(received, n_words=piece.stop - piece.start)
        result[piece] = own[piece] ^ theirs if is_xor else own[piece] + theirs
    return result
