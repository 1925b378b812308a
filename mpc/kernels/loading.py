"""The check's compiled loops beside the local step's: imported when they are first needed, so that nobody else waits.

Loading them takes a second of one core where they are compiled for the first time (`precad.mpc.kernels.machine_code`).
The dealer and the clients never do.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any


@functools.cache
def local() -> Any:
    """`precad.mpc.kernels.local`."""
    return importlib.import_module("precad.mpc.kernels.local")


@functools.cache
def gate() -> Any:
    """`precad.mpc.kernels.gate`."""
    return importlib.import_module("precad.mpc.kernels.gate")


@functools.cache
def field() -> Any:
    """`precad.mpc.kernels.field`."""
    return importlib.import_module("precad.mpc.kernels.field")


@functools.cache
def prime_field() -> Any:
    """`precad.mpc.kernels.prime_field`."""
    return importlib.import_module("precad.mpc.kernels.prime_field")


@functools.cache
def proofs() -> Any:
    """`precad.mpc.kernels.proofs`."""
    return importlib.import_module("precad.mpc.kernels.proofs")


def warm_up() -> None:
    """Compiles what the first check would otherwise wait for."""
    gate()
    field()
