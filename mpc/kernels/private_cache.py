"""Where machine code is kept when it cannot lie beside the source: in a folder that nobody else may write to.

The folder is `precad` in $XDG_CACHE_HOME, or in ~/.cache. What is in it is unpickled and run. So it is used only if it
and every file in it are ours, and it is closed to everybody else. Each folder above it must belong to us or to root,
and let nobody else rename what is in it. Otherwise nothing is kept, and every process compiles for itself.
"""

from __future__ import annotations

import functools
import hashlib
import os
import stat
from pathlib import Path
from typing import Any, Final

from numba.core.caching import InTreeCacheLocator

_OTHERS: Final = 0o077
_WRITING_OTHERS: Final = 0o022


@functools.cache
def stamp_of(folder: Path) -> str:
    """Return a digest of every source file in the folder, once per process."""
    return repr(sorted((path.name, hashlib.sha256(path.read_bytes()).hexdigest()) for path in folder.glob("*.py")))


class FolderCacheLocator(InTreeCacheLocator):  # type: ignore[misc]  # Numba has no types
    """Numba's locator beside the source, which takes machine code for the same source of all loops of the folder.

    A loop's machine code holds that of the loops it calls. Numba looks at the one file alone that defines it.
    """

    def get_source_stamp(self) -> str:
        """Return what must be equal for machine code to be taken."""
        return stamp_of(Path(self._py_file).parent)


class PrivateCacheLocator(FolderCacheLocator):
    """Numba's locator for such a folder. Numba goes on without a cache where `ensure_cache_path` raises OSError."""

    def __init__(self, py_func: Any, py_file: str) -> None:
        super().__init__(py_func, py_file)
        self._name = self.get_suitable_cache_subpath(py_file)

    def ensure_cache_path(self) -> None:
        """Make the folder where there is none. Raises OSError, also for one that others could have written to."""
        self._cache_path = str(cache_home() / self._name)
        make_private(Path(self._cache_path))
        super().ensure_cache_path()


def cache_home() -> Path:
    """Return the folder for what this user's processes keep, without symbolic links; it need not be there.

    Raises FileNotFoundError for a user without a home, as a container's may be, and for links in a circle.
    """
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        folder = named if named.is_absolute() else Path.home() / ".cache"
        return (folder / "precad").resolve()
    except RuntimeError as error:  # of pathlib
        raise FileNotFoundError(f"expected a home for what is kept, found: {error}") from None


def make_private(folder: Path) -> None:
    """Make the folder where there is none. Raises PermissionError unless nobody else can write to it."""
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    _require(folder, _is_closed(folder.lstat()))
    for above in folder.parents:
        _require(above, _is_safe_to_pass(above.lstat()))
    with os.scandir(folder) as entries:
        for entry in entries:
            _require(Path(entry.path), _is_own_file(entry.stat(follow_symlinks=False)))


def _require(path: Path, is_so: bool) -> None:
    if not is_so:
        raise PermissionError(f"{path}: expected what only this user may write, found another owner or mode")


def _is_closed(found: os.stat_result) -> bool:
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & _OTHERS


def _is_safe_to_pass(found: os.stat_result) -> bool:
    """Tell whether nobody else can replace what lies in it. A sticky folder as /tmp lets owners alone rename."""
    is_trusted = stat.S_ISDIR(found.st_mode) and found.st_uid in (0, os.geteuid())
    return is_trusted and (not found.st_mode & _WRITING_OTHERS or bool(found.st_mode & stat.S_ISVTX))


def _is_own_file(found: os.stat_result) -> bool:
    is_ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
    return is_ours and not found.st_mode & _WRITING_OTHERS
