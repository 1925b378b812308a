"""Answer what CrypTen looks up in its globals, for threads that run our steps, and for no other thread.

CrypTen keeps one communicator, one provider, one configuration, one set of generators and one switch of autograd per
process. A thread that runs a gate or a function of the sum has a `Run`, which answers in their place. When no thread
has one, every attribute of CrypTen is the one that its user left. So a CrypTen program in the same process gets its own
before a run, after it and beside it.

Sharings of zero are zeros here, and draw nothing. Those of CrypTen come from mt19937 streams that both of two parties
know, and hide nothing. What hides an operand is the dealer's triple at the first opening.
"""

from __future__ import annotations

import functools
import importlib
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple

from precad.mpc.errors import FunctionRefusedError, GateUnavailableError

INSTALL_HINT = (
    "install 'precad[crypten-runtime]' from where precad came from, then pip install --no-deps crypten==0.4.1"
)
_loading = threading.Lock()


@dataclass(slots=True)
class Run:
    """Hold what answers CrypTen in one thread."""

    communicator: Any
    provider: Any
    config: Any = None
    """A configuration of the run's own; None in a gate, which reads none."""
    n_truncations: int = 0
    """Divisions of shared words so far. Each is wrong by a step of the grid, and now and then by far more."""


class _Here(threading.local):
    """The run of the calling thread."""

    run: Run | None = None


_here = _Here()


class _Answer(NamedTuple):
    """One attribute of CrypTen, and what stands there while somebody runs, made from what stood there before."""

    owner: Any
    name: str
    made_of: Callable[[Any], Any]


class _Answers:
    """Attributes that are replaced while at least one thread runs. Each gives threads without a run their own."""

    def __init__(self, *answers: _Answer) -> None:
        self._answers = answers
        self._theirs: list[Any] = []
        self._n_running = 0
        self._lock = threading.Lock()

    @contextmanager
    def in_place(self) -> Iterator[None]:
        with self._lock:
            if self._n_running == 0:
                self._theirs = [vars(owner)[name] for owner, name, _ in self._answers]
                for (owner, name, made_of), theirs in zip(self._answers, self._theirs, strict=True):
                    setattr(owner, name, made_of(theirs))
            self._n_running += 1
        try:
            yield
        finally:
            with self._lock:
                self._n_running -= 1
                if self._n_running == 0:
                    for (owner, name, _), theirs in zip(self._answers, self._theirs, strict=True):
                        setattr(owner, name, theirs)


class Lookups:
    """CrypTen as it is loaded, once per process."""

    def __init__(self, torch: Any, crypten: Any) -> None:
        self.torch, self.crypten = torch, crypten
        self.arithmetic = importlib.import_module("crypten.mpc.primitives.arithmetic").ArithmeticSharedTensor
        self.binary = importlib.import_module("crypten.mpc.primitives.binary").BinarySharedTensor
        self.communicator, self.provider = (
            crypten.communicator.Communicator,
            crypten.mpc.provider.provider.TupleProvider,
        )
        self._of_config = type(crypten.cfg)
        self._of_gates = _Answers(
            _Answer(crypten.communicator, "get", _either(lambda run: run.communicator)),
            _Answer(crypten.mpc, "get_default_provider", _either(lambda run: run.provider)),
        )
        self._of_functions = _Answers(*_globals_of_functions(self))

    def fresh_config(self) -> Any:
        """Return CrypTen's configuration as it is installed, whatever the process's user has set."""
        return self._of_config()

    @contextmanager
    def answering(self, run: Run) -> Iterator[None]:
        """Give the calling thread this run within it."""
        with ExitStack() as stack:
            stack.enter_context(self._of_gates.in_place())
            if run.config is not None:
                stack.enter_context(self._of_functions.in_place())
            earlier, _here.run = _here.run, run
            try:
                yield
            finally:
                _here.run = earlier


def _globals_of_functions(of: Lookups) -> Iterator[_Answer]:
    """Yield what functions read beside a gate's lookups: sharings of zero, generators, settings and the switch."""
    for tensor in (of.arithmetic, of.binary):
        yield _Answer(tensor, "PRZS", functools.partial(_no_sharing, tensor, of.torch))
    yield _Answer(of.arithmetic, "div_", _counted)
    yield _Answer(of.crypten, "generators", _Generators)
    yield _Answer(of.crypten, "set_grad_enabled", _either(lambda run, mode: None))
    cryptensor = of.crypten.CrypTensor
    yield _Answer(cryptensor, "set_grad_enabled", _switch)
    yield _Answer(type(cryptensor), "__getattribute__", _without_autograd)
    for name in ("__getattribute__", "__setattr__"):
        yield _Answer(type(of.crypten.cfg), name, functools.partial(_of_own_config, name))


def _either(ours: Callable[..., Any]) -> Callable[[Any], Any]:
    """Return a maker of functions that answer a thread with a run from it, and any other as CrypTen does."""

    def made_of(theirs: Any) -> Any:
        return lambda *args, **kwargs: (
            theirs(*args, **kwargs) if _here.run is None else ours(_here.run, *args, **kwargs)
        )

    return made_of


def _switch(theirs: Any) -> Any:
    """CrypTen's autograd is one switch per process; a run has none, and leaves it alone."""
    return staticmethod(_either(lambda run, mode: None)(theirs.__func__))


def _without_autograd(theirs: Any) -> Any:
    def attribute(cls: Any, name: str) -> Any:
        return False if name == "AUTOGRAD_ENABLED" and _here.run is not None else theirs(cls, name)

    return attribute


def _of_own_config(name: str, theirs: Any) -> Any:
    def accessed(config: Any, *args: Any) -> Any:
        run = _here.run
        if run is None or run.config is None or config is run.config:
            return theirs(config, *args)
        return theirs(run.config, *args)

    accessed.__name__ = name
    return accessed


def _no_sharing(tensor: Any, torch: Any, theirs: Any) -> Any:
    """Return a maker of shares of zero that are zero, in a run."""

    def zeros(run: Run, *size: Any, device: Any = None) -> Any:
        return tensor.from_shares(torch.zeros(*size, dtype=torch.long), precision=0)

    return staticmethod(_either(zeros)(theirs.__func__))


def _counted(theirs: Any) -> Any:
    def divided(tensor: Any, by: Any) -> Any:
        if _here.run is not None:
            _here.run.n_truncations += 1
        return theirs(tensor, by)

    return divided


class _Generators(MutableMapping[str, Any]):
    """CrypTen's generators, of which a run draws nothing: servers would draw differently, and its user's move on."""

    def __init__(self, theirs: Any) -> None:
        self._theirs = theirs

    def __getitem__(self, name: str) -> Any:
        if _here.run is not None:
            raise FunctionRefusedError("a function of the sum draws at random: expected a deterministic function")
        return self._theirs[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._theirs[name] = value

    def __delitem__(self, name: str) -> None:
        del self._theirs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._theirs)

    def __len__(self) -> int:
        return len(self._theirs)


def require_crypten() -> None:
    """Raises GateUnavailableError when CrypTen, or what it imports, is not installed. Loads nothing."""
    missing = [name for name in ("torch", "onnx", "omegaconf", "yaml", "crypten") if find_spec(name) is None]
    if missing:
        raise GateUnavailableError(f"gate 'crypten' needs {', '.join(missing)}: {INSTALL_HINT}")


def load_crypten() -> Lookups:
    """Return CrypTen with its lookups, which the whole process shares. Raises GateUnavailableError."""
    with _loading:
        return _loaded()


@functools.cache
def _loaded() -> Lookups:
    try:
        torch = importlib.import_module("torch")
        _alias_moved_onnx_registry()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            crypten = importlib.import_module("crypten")
            importlib.import_module("crypten.mpc.provider.provider")
    except ImportError as error:
        raise GateUnavailableError(f"gate 'crypten' cannot load {error.name}: {INSTALL_HINT}") from error
    return Lookups(torch, crypten)


def _alias_moved_onnx_registry() -> None:
    """CrypTen 0.4.1 imports torch.onnx._internal.registration, which moved in torch 2.9."""
    old = "torch.onnx._internal.registration"
    try:
        importlib.import_module(old)
    except ImportError:
        sys.modules[old] = importlib.import_module("torch.onnx._internal.torchscript_exporter.registration")
