"""A folder of another user, for tests that root runs too: the system refuses to look into it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest


def deny(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Let the system's `stat` and `open` refuse whatever is below the folder."""

    def of(call: Any) -> Any:
        def refused(path: Any, *arguments: Any, **named: Any) -> Any:
            if isinstance(path, str | os.PathLike) and folder in Path(path).parents:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return call(path, *arguments, **named)

        return refused

    patch.setattr(os, "stat", of(os.stat))
    patch.setattr(os, "open", of(os.open))
