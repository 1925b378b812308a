"""The check's compiled loops beside the local step's: imported when they are first needed, so that nobody else waits.

Loading them takes a second of one core where they are compiled for the first time (`precad.mpc.kernels.machine_code`).
The dealer and the clients never do.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any


def _later(name: str) -> Callable[[], Any]:
    """Return what imports a module of this folder at its first call."""
    return functools.cache(lambda: importlib.import_module(f"precad.mpc.kernels.{name}"))


local, gate, field, prime_field, proofs = map(_later, ("local", "gate", "field", "prime_field", "proofs"))


def warm_up() -> None:
    """Compiles what the first check would otherwise wait for."""
    gate()
    field()
