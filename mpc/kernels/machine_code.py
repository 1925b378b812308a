"""How Numba compiles this package's loops, and where their machine code is kept for the next process.

Compiling the loops of mode `proved` takes 7 s of one core, reading what was kept 0.5. Numba keeps it where Python keeps
its bytecode, in `__pycache__` beside the source, and under the same trust. Whoever can write there can already make a
process run anything. It is taken again only for the same source of all loops, version of Numba and processor. Where
nothing can be written there, as in a read-only image, it is kept in a folder that this user alone may write to
(`precad.mpc.kernels.private_cache`). Without such a folder, every process compiles for itself.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, TypeVar

from numba import config, njit, types

F = TypeVar("F", bound=Callable[..., Any])

_LOCATORS = ("FolderCacheLocator", "PrivateCacheLocator")
config.CACHE_LOCATOR_CLASSES = ",".join(f"precad.mpc.kernels.private_cache.{name}" for name in _LOCATORS)
"""Places of the machine code: beside the source, or a folder that was found closed to others. Numba's own choice would
be the user's cache folder unseen, which $HOME or $XDG_CACHE_HOME may put under /tmp. Whoever is first there would have
us run what they left."""

READ = types.Array(types.uint64, 1, "C", readonly=True)
READ_2D = types.Array(types.uint64, 2, "C", readonly=True)
READ_3D = types.Array(types.uint64, 3, "C", readonly=True)
READ_SIGNED = types.Array(types.int64, 1, "C", readonly=True)
WRITE = types.Array(types.uint64, 1, "C")
WRITE_2D = types.Array(types.uint64, 2, "C")
"""Arrays of words that a loop reads, or writes too."""

_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}


def compiled(signature: Any) -> Callable[[F], F]:
    """Decorator: the function as machine code for arguments of these Numba types, without the GIL."""

    def compile_or_read(function: F) -> F:
        try:
            loop: F = njit(signature, cache=True, **_OPTIONS)(function)
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError):
            loop = njit(signature, **_OPTIONS)(function)  # nowhere to keep it, or what was kept cannot be read
        return loop

    return compile_or_read
