"""Tell whether a run goes on, has ended, or was killed: by a lock that its process holds, and a word that it leaves."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Final

from precad.deploy.errors import InterruptedRunError

NAME: Final = "run-state"
"""The file's name in a run folder."""
INTERRUPTED_RUN: Final = "interrupted after"
"""How a summary begins to say why an interrupted run ended."""


class RunState(StrEnum):
    """Name what became of a run."""

    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    CRASHED = "crashed"
    """Its process is gone and said nothing: killed, or the machine was."""
    UNKNOWN = "not finished"
    """It has not begun, or a version began it that left no word."""


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Say that the run goes on while the block does, then what became of it.

    The lock is the kernel's: it is gone with the process, however that ends. Children do not inherit it.
    """
    with (folder / NAME).open("w", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        _say(file.fileno(), RunState.RUNNING)
        try:
            yield
        except InterruptedRunError:
            _say(file.fileno(), RunState.INTERRUPTED)
            raise
        except Exception:
            _say(file.fileno(), RunState.FAILED)
            raise
        _say(file.fileno(), RunState.FINISHED)


def _say(descriptor: int, state: RunState) -> None:
    """Write the word. A full disk loses it, and no run for that."""
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, state.encode(), 0)


def state_of(folder: Path) -> RunState:
    """Return what became of the run in this folder. Only `summary.json` says that one of before is finished."""
    otherwise = RunState.FINISHED if (folder / "summary.json").exists() else RunState.UNKNOWN
    try:
        with (folder / NAME).open(encoding="ascii", errors="replace") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return RunState.RUNNING
            said = file.read()
    except OSError:
        return otherwise
    if said == RunState.RUNNING:
        return RunState.CRASHED
    return RunState(said) if said in set(RunState) else otherwise
