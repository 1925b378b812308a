"""CrypTen's carry circuit as the comparison gate. The only module that imports CrypTen, whose globals it leaves alone.

The gate gives the carries of additions of which each server knows one summand. Several short summands lie in one word,
each with a zero above it. Server A enters its words as one binary-shared operand, B enters its own as the other.
CrypTen's set-propagate-kill adder (the circuit inside its A2B conversion and its comparison) adds them in 7 rounds.
Ours answer what it looks up in CrypTen's globals: the communicator works over `Channel`, the tuple provider has the
dealer's binary triples. Operands enter as (x_A, 0) and (0, x_B): a correct sharing that draws nothing from CrypTen's
generators. With two parties, zero-sharings of those generators come from mt19937 streams known to both sides and would
hide nothing. What hides an operand is the dealer's triple at the first AND.

CrypTen keeps one communicator and one provider per process. Ours answer the threads that run the gate, each with its
own channel and triples, and no other thread. When no gate runs, CrypTen's own lookups are in place. So a CrypTen
program in the same process gets its own communicator and provider, before the gate, after it and beside it.
"""

from __future__ import annotations

import functools
import importlib
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import numpy as np

from precad.mpc import ring
from precad.mpc.channel import Channel
from precad.mpc.errors import GateUnavailableError
from precad.mpc.gate.top_bits import LowWords
from precad.mpc.ring import RingArray
from precad.mpc.tuples.correlations import AndBlock, Block, Correlations, Planes, plane_of_bits

_loading = threading.Lock()
INSTALL_HINT = "pip install 'precad[crypten-runtime]' && pip install --no-deps crypten==0.4.1"


class _Party(threading.local):
    """The protocol run of the calling thread."""

    channel: Channel | None = None
    correlations: Correlations | None = None
    step = 0


_party = _Party()


class _Lookups:
    """CrypTen's two global lookups, answered for threads that run the gate, as long as there is one."""

    def __init__(self, crypten: Any, communicator: Any, provider: Any) -> None:
        self._ours = ((crypten.communicator, "get", communicator), (crypten.mpc, "get_default_provider", provider))
        self._theirs: list[Callable[[], Any]] = []
        self._n_running = 0
        self._lock = threading.Lock()

    def enter(self) -> None:
        with self._lock:
            if self._n_running == 0:
                self._theirs = [getattr(module, name) for module, name, _ in self._ours]
                for (module, name, ours), theirs in zip(self._ours, self._theirs, strict=True):
                    setattr(module, name, _of_thread(ours, theirs))
            self._n_running += 1

    def leave(self) -> None:
        with self._lock:
            self._n_running -= 1
            if self._n_running == 0:
                for (module, name, _), theirs in zip(self._ours, self._theirs, strict=True):
                    setattr(module, name, theirs)


def _of_thread(ours: Any, theirs: Callable[[], Any]) -> Callable[[], Any]:
    """Return a lookup that gives `ours` to a thread which runs the gate, and what CrypTen gives to any other."""
    return lambda: theirs() if _party.channel is None else ours


class CryptenGate:
    """Raises GateUnavailableError when CrypTen, or what it imports, is not installed."""

    name = "crypten"

    def __init__(self) -> None:
        self._torch, self._binary_tensor, self._lookups = _load_crypten()

    def blocks(self, groups: Sequence[tuple[int, int]]) -> tuple[Block, ...]:
        """See `Gate.blocks`: one AND of n words, then six levels with an AND of 2n, all from one pool."""
        return (AndBlock(13 * sum(-(-n_words // _fields_per_word(n_bits)) for n_words, n_bits in groups)),)

    def carries(self, groups: Sequence[LowWords], correlations: Correlations, channel: Channel) -> list[Planes]:
        """See `Gate.carries`: 7 rounds, 208 bytes per word of 64 bits and direction; two rows share one."""
        packed = [_pack(group) for group in groups]
        own = self._torch.from_numpy(np.concatenate(packed))
        zero = self._torch.zeros_like(own)
        operands = (own, zero) if channel.party == 0 else (zero, own)
        with self._running(channel, correlations):
            x, y = (self._binary_tensor.from_shares(operand, precision=0) for operand in operands)
            sums = np.asarray(x.add(y).share.numpy(), dtype=np.int64)
        starts = np.cumsum([len(words) for words in packed])[:-1]
        return [_carry_fields(part, group) for part, group in zip(np.split(sums, starts), groups, strict=True)]

    @contextmanager
    def _running(self, channel: Channel, correlations: Correlations) -> Iterator[None]:
        _party.channel, _party.correlations, _party.step = channel, correlations, 0
        self._lookups.enter()
        try:
            yield
        finally:
            self._lookups.leave()
            _party.channel, _party.correlations = None, None


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


def require_crypten() -> None:
    """Raises GateUnavailableError when CrypTen, or what it imports, is not installed. Loads nothing."""
    missing = [name for name in ("torch", "onnx", "omegaconf", "yaml", "crypten") if find_spec(name) is None]
    if missing:
        raise GateUnavailableError(f"gate 'crypten' needs {', '.join(missing)}: {INSTALL_HINT}")


def _load_crypten() -> tuple[Any, Any, _Lookups]:
    """Return torch, CrypTen's BinarySharedTensor, and the lookups, which all gates of the process share."""
    with _loading:
        return _loaded()


@functools.cache
def _loaded() -> tuple[Any, Any, _Lookups]:
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
    communicator = _communicator_class(crypten.communicator.Communicator, torch)()
    provider = _provider_class(provider_module.TupleProvider, binary.BinarySharedTensor, torch)()
    return torch, binary.BinarySharedTensor, _Lookups(crypten, communicator, provider)


def _alias_moved_onnx_registry() -> None:
    """CrypTen 0.4.1 imports torch.onnx._internal.registration, which moved in torch 2.9."""
    old = "torch.onnx._internal.registration"
    try:
        importlib.import_module(old)
    except ImportError:
        sys.modules[old] = importlib.import_module("torch.onnx._internal.torchscript_exporter.registration")


def _communicator_class(base: Any, torch: Any) -> Any:
    """Return CrypTen's communicator over the calling thread's Channel; it has only what the carry circuit needs."""

    class ChannelCommunicator(base):  # type: ignore[misc]
        """One reveal is one exchange: XOR of both parties' words, several tensors in one message."""

        def get_rank(self) -> int:
            assert _party.channel is not None  # only threads that run the gate get this object
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
