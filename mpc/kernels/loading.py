"""The check's compiled loops: imported when they are first needed, so that nobody else waits.

Loading takes a second of one core, compiling for the first time up to seven (`precad.mpc.kernels.machine_code`).
The dealer never does, and clients do in mode `proved` alone.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any


def _later(name: str) -> Callable[[], Any]:
    """Return what imports a module of this folder at its first call."""
    return functools.cache(lambda: importlib.import_module(f"precad.mpc.kernels.{name}"))


local, gate, field, prime_field, packing, proofs, wires = map(
    _later, ("local", "gate", "field", "prime_field", "packing", "proofs", "wires")
)


def warm_up() -> None:
    """Compile what the first check with tuples would otherwise wait for."""
    gate()
    field()


def warm_up_proofs() -> None:
    """Compile what the first proof, or the first check of one, would otherwise wait for."""
    prime_field()
    packing()
    proofs()
    wires()
