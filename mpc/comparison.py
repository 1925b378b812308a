"""CrypTen's carry circuit as the comparison gate. The only module that imports CrypTen; its global state ends here.

The gate gives the carries of additions of which each server knows one summand: several short summands lie in one word,
each with a zero above it, server A enters its words as one binary-shared operand, B enters its own as the other, and
CrypTen's set-propagate-kill adder (the circuit inside its A2B conversion and its comparison) adds them in 7 rounds.
What it reaches through CrypTen's globals is replaced: the communicator by ours over `Channel`, the tuple provider by
the dealer's binary triples. Operands enter as (x_A, 0) and (0, x_B): a correct sharing that draws nothing from
CrypTen's generators, whose zero-sharings come, with two parties, from mt19937 streams known to both sides and would
hide nothing. What hides an operand is the dealer's triple at the first AND.

CrypTen keeps one communicator and one provider per process. Ours look up the channel and the triples of the calling
thread, so a server runs the gate in its one MPC thread and a test runs two parties in two threads.
"""

from __future__ import annotations

import importlib
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import numpy as np

from mpc import ring
from mpc.channel import Channel
from mpc.correlations import AndBlock, Block, Correlations, Planes, plane_of_bits
from mpc.errors import GateUnavailableError
from mpc.ring import RingArray
from mpc.top_bits import LowWords

INSTALL_HINT = "pip install 'precad[crypten-runtime]' && pip install --no-deps crypten==0.4.1"


class _Party(threading.local):
    """The protocol run of the calling thread."""

    channel: Channel | None = None
    correlations: Correlations | None = None
    step = 0


_party = _Party()


class CryptenGate:
    """Raises GateUnavailableError when CrypTen, or what it imports, is not installed."""

    name = "crypten"

    def __init__(self) -> None:
        self._torch, self._binary_tensor = _load_crypten()

    def blocks(self, groups: Sequence[tuple[int, int]]) -> tuple[Block, ...]:
        """See `Gate.blocks`: one AND of n words, then six levels with an AND of 2n, all from one pool."""
        return (AndBlock(13 * sum(-(-n_words // _fields_per_word(n_bits)) for n_words, n_bits in groups)),)

    def carries(self, groups: Sequence[LowWords], correlations: Correlations, channel: Channel) -> list[Planes]:
        """See `Gate.carries`: 7 rounds, 208 bytes per word of 64 bits and direction; two rows share one."""
        packed = [_pack(group) for group in groups]
        own = self._torch.from_numpy(np.concatenate(packed))
        zero = self._torch.zeros_like(own)
        operands = (own, zero) if channel.party == 0 else (zero, own)
        with _running(channel, correlations):
            x, y = (self._binary_tensor.from_shares(operand, precision=0) for operand in operands)
            sums = np.asarray(x.add(y).share.numpy(), dtype=np.int64)
        starts = np.cumsum([len(words) for words in packed])[:-1]
        return [_carry_fields(part, group) for part, group in zip(np.split(sums, starts), groups, strict=True)]


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
    """The bit above each summand, as a plane."""
    shifts = np.arange(_fields_per_word(group.n_bits)) * (group.n_bits + 1) + group.n_bits
    bits = (sums[:, np.newaxis] >> shifts) & 1
    return plane_of_bits(bits.reshape(-1)[: group.words.size].astype(np.uint8))


@contextmanager
def _running(channel: Channel, correlations: Correlations) -> Iterator[None]:
    _party.channel, _party.correlations, _party.step = channel, correlations, 0
    try:
        yield
    finally:
        _party.channel, _party.correlations = None, None


def require_crypten() -> None:
    """Raises GateUnavailableError when CrypTen, or what it imports, is not installed. Loads nothing."""
    missing = [name for name in ("torch", "onnx", "omegaconf", "yaml", "crypten") if find_spec(name) is None]
    if missing:
        raise GateUnavailableError(f"gate 'crypten' needs {', '.join(missing)}: {INSTALL_HINT}")


def _load_crypten() -> tuple[Any, Any]:
    """(torch, CrypTen's BinarySharedTensor), with our communicator and provider in place. Idempotent."""
    try:
        torch = importlib.import_module("torch")
        _alias_moved_onnx_registry()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            crypten = importlib.import_module("crypten")
            provider_module = importlib.import_module("crypten.mpc.provider.provider")
            binary = importlib.import_module("crypten.mpc.primitives.binary")
    except ImportError as error:
        raise GateUnavailableError(f"gate 'crypten' cannot load {error.name}: {INSTALL_HINT}") from error
    package = importlib.import_module("crypten.communicator")
    vars(package)["DistributedCommunicator"] = _communicator_class(vars(package)["DistributedCommunicator"], torch)
    vars(crypten.mpc)["__SUPPORTED_PROVIDERS"]["PRECAD"] = _provider_class(
        provider_module.TupleProvider, binary.BinarySharedTensor, torch
    )()
    crypten.cfg.mpc.provider = "PRECAD"
    return torch, binary.BinarySharedTensor


def _alias_moved_onnx_registry() -> None:
    """CrypTen 0.4.1 imports torch.onnx._internal.registration, which moved in torch 2.9."""
    old = "torch.onnx._internal.registration"
    try:
        importlib.import_module(old)
    except ImportError:
        sys.modules[old] = importlib.import_module("torch.onnx._internal.torchscript_exporter.registration")


def _communicator_class(base: Any, torch: Any) -> Any:
    """CrypTen's communicator over the calling thread's Channel; only what the carry circuit needs."""
    if base.__name__ == "ChannelCommunicator":
        return base

    class ChannelCommunicator(base):  # type: ignore[misc]
        """One reveal is one exchange: XOR of both parties' words, several tensors in one message."""

        def __init__(self) -> None:
            self.reset_communication_stats()

        @classmethod
        def is_initialized(cls) -> bool:
            return _party.channel is not None

        @classmethod
        def get(cls) -> Any:
            cls.instance = cls.instance or cls()
            return cls.instance

        def get_rank(self) -> int:
            assert _party.channel is not None  # is_initialized() was asked first
            return _party.channel.party

        def get_world_size(self) -> int:
            return 2

        def all_reduce(self, input: Any, op: Any = None, async_op: bool = False, batched: bool = False) -> Any:  # noqa: A002
            if op != torch.distributed.ReduceOp.BXOR or async_op:
                raise NotImplementedError("the comparison gate opens XOR shares only")
            tensors = input if batched else [input]
            opened = _open_xor(np.concatenate([t.numpy().reshape(-1) for t in tensors]))
            split = np.split(opened, np.cumsum([t.numel() for t in tensors])[:-1])
            result = [torch.from_numpy(part).reshape(t.shape) for part, t in zip(split, tensors, strict=True)]
            return result if batched else result[0]

    ChannelCommunicator.instance = None
    return ChannelCommunicator


def _open_xor(share: RingArray) -> RingArray:
    assert _party.channel is not None  # set by _running for as long as the circuit runs
    _party.step += 1
    received = _party.channel.exchange(f"gate/{_party.step}", ring.to_bytes(share))
    return share ^ ring.from_bytes(received, n_words=share.size)


def _provider_class(base: Any, binary_tensor: Any, torch: Any) -> Any:
    """CrypTen's tuple provider that hands out the dealer's binary triples."""

    class DealerProvider(base):  # type: ignore[misc]
        NAME = "PRECAD"

        def generate_binary_triple(self, size0: Any, size1: Any, device: Any = None) -> Any:
            if size0 != size1 or _party.correlations is None:
                raise NotImplementedError("the carry circuit asks for triples of one shape, inside the gate")
            a, b, c = _party.correlations.triples(size0.numel())
            return tuple(
                binary_tensor.from_shares(torch.from_numpy(part).reshape(size0), precision=0) for part in (a, b, c)
            )

    return DealerProvider
