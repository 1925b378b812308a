"""Files that nobody but the server's user can read: folders of mode 0700, files of mode 0600, whatever the umask."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from precad.mpc.errors import raised_as
from precad.servers.errors import SetupError

_OTHERS: Final = 0o077
"""Everybody but the owner."""


def require_unshared(folder: Path) -> None:
    """Require that nobody else can put files into it, or take some away. Raises SetupError; changes nothing."""
    with raised_as(SetupError, OSError, f"state_dir: expected a folder, found {folder}"):
        found = folder.stat()
    if found.st_mode & stat.S_ISVTX or (found.st_uid != os.geteuid() and found.st_mode & stat.S_IWOTH):
        mode = stat.S_IMODE(found.st_mode)
        raise SetupError(f"state_dir: expected a folder of this server alone, found {folder} of mode {mode:04o}")


def private_folder(folder: Path) -> None:
    """Make the folder where there is none, and take from everybody else what they may do to it and to what is in it.

    What belongs to another user stays as it is: the root of a volume that an orchestrator lends to our group.
    Raises SetupError.
    """
    with raised_as(SetupError, OSError, f"state_dir: expected a folder to write to, found {folder}"):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        require_unshared(folder)
        folder = folder.resolve()  # a link to it is how the operator names it, not another's
        for path in (folder, *folder.rglob("*")):
            _narrow(path)


def _narrow(path: Path) -> None:
    found = path.lstat()
    is_ours = found.st_uid == os.geteuid() and not stat.S_ISLNK(found.st_mode)
    if is_ours and found.st_mode & _OTHERS:
        path.chmod(stat.S_IMODE(found.st_mode) & ~_OTHERS)


def private(path: str, flags: int) -> int:
    """An `opener`: a file that this makes is of mode 0600 from its first instant."""
    return os.open(path, flags, 0o600)


def touch_private(path: Path) -> None:
    """Make an empty file where there is none. Raises OSError."""
    os.close(private(str(path), os.O_RDWR | os.O_CREAT))
