"""The engines: where a server computes the part of the check that grows with d. Their results are equal, bit for bit.

`cpu` is compiled by Numba, for one core unless it is given more; it is the default. `cuda` is PyTorch on a GPU, for
servers that have one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from precad.mpc.local.cpu_engine import CpuEngine
from precad.mpc.local.step import Engine
from precad.mpc.local.torch_engine import TorchEngine

ENGINES: Mapping[str, Callable[[int], Engine]] = {CpuEngine.name: CpuEngine, TorchEngine.name: lambda _: TorchEngine()}

CPU: Engine = CpuEngine()
"""Costs nothing to have: Numba is imported, and its loops compiled, at the first use or by `warm_up`."""


def make_engine(name: str, *, n_threads: int = 1) -> Engine:
    """Return the engine that a configuration names. n_threads: of the CPU. Raises EngineUnavailableError."""
    return ENGINES[name](n_threads)
