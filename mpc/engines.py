"""The engines: where a server computes the part of the check that grows with d. Their results are equal, bit for bit.

`cpu` is compiled by Numba for one core; it is the default. `cuda` is PyTorch on a GPU, for servers that have one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from mpc.cpu_engine import CpuEngine
from mpc.local_step import Engine
from mpc.torch_engine import TorchEngine

ENGINES: Mapping[str, Callable[[], Engine]] = MappingProxyType(
    {CpuEngine.name: CpuEngine, TorchEngine.name: TorchEngine}
)

CPU: Engine = CpuEngine()
"""Costs nothing to have: Numba is imported, and its loops compiled, at the first use or by `warm_up`."""


def make_engine(name: str) -> Engine:
    """The engine that a configuration names. Raises EngineUnavailableError."""
    return ENGINES[name]()


def require_engine(name: str) -> None:
    """Raises EngineUnavailableError when this machine cannot run the engine."""
    make_engine(name)
