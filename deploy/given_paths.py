"""Paths as they enter: an argument of a command, or of a function of `import precad`.

A name that the system takes for no file would end in an error wherever somebody first asks for it.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

from precad.deploy.errors import ConfigError, refusing
from precad.protos.file_names import fault_of

_ABSENT: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""A path with nothing there may be the right one: whoever reads or makes it says so."""


def require_path(field: str, given: object) -> Path:
    """Return a path that the system can look up. Raise ConfigError for any other, which begins with `field`."""
    if not isinstance(given, str | os.PathLike) or not isinstance(os.fspath(given), str):
        raise ConfigError(f"{field}: expected a path, found a {type(given).__name__}")
    path = Path(given)
    expected = f"{field}: expected a path that the system takes, found"
    if (fault := fault_of(path)) is not None:  # which is not repeated: it may be a secret in its file's place
        raise ConfigError(f"{expected} {fault}")
    try:
        path.stat()
    except OSError as error:
        if error.errno not in _ABSENT:
            raise ConfigError(f"{expected} one of which it says: {error.strerror}") from None
    return path


def require_current_folder() -> None:
    """Refuse to start in a folder that was removed, which relative paths are taken from. Raises ConfigError."""
    with refusing(OSError, "expected a current folder that is there, found none"):
        os.getcwd()
