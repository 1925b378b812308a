"""Tell whether a run goes on, has ended, or was killed: by a lock that its process holds, and a word that it leaves.

One process at a time holds a run's folder, also when it continues a run that was interrupted.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Final

from precad.deploy.errors import ConfigError, InterruptedRunError

NAME: Final = "run-state"
"""The file's name in a run folder."""
INTERRUPTED_RUN: Final = "interrupted after"
"""How a summary begins to say why an interrupted run ended."""
_ATTEMPTS, _PAUSE_S = 10, 0.02
"""How often, and with what pauses, a run tries to lock its folder."""


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


_LENGTH: Final = max(map(len, RunState))
RESUMABLE: Final = {
    RunState.INTERRUPTED: "an interrupted run",
    RunState.FAILED: "a run that failed",
    RunState.CRASHED: "a run that crashed",
}
"""Runs that can be continued, as messages call them."""


@contextmanager
def held(folder: Path, *, resumes: bool = False) -> Iterator[None]:
    """Say that the run goes on while the block does, then what became of it.

    The lock is the kernel's: it is gone with the process, however that ends. Children do not inherit it. `resumes`:
    whether the run was there before. Raises ConfigError, with nothing changed, where another process holds the folder,
    or has finished the run meanwhile.
    """
    descriptor = os.open(folder / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    with os.fdopen(descriptor, "r+", encoding="ascii", errors="replace") as file:
        if not _takes_lock(file.fileno()):
            raise ConfigError(f"--output: expected a folder that no run uses, found a run in progress in {folder}")
        if resumes and file.read().rstrip() == RunState.FINISHED:
            raise ConfigError(f"--output: expected a run that can be continued, found a finished run in {folder}")
        with _said_in_the_end(file.fileno()):
            yield


def _takes_lock(descriptor: int) -> bool:
    """Lock the file, and tell whether that went. Whoever asks for the run's state holds it for an instant."""
    for _ in range(_ATTEMPTS):
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(_PAUSE_S)
    return False


@contextmanager
def _said_in_the_end(descriptor: int) -> Iterator[None]:
    _say(descriptor, RunState.RUNNING)
    try:
        yield
    except InterruptedRunError:
        _say(descriptor, RunState.INTERRUPTED)
        raise
    except Exception:
        _say(descriptor, RunState.FAILED)
        raise
    _say(descriptor, RunState.FINISHED)


def _say(descriptor: int, state: RunState) -> None:
    """Write the word over the one before, in one piece of the same length. A full disk loses it, and no run for that.

    So no kill leaves half of a word, nor none, beside the summary of a run that was interrupted.
    """
    with suppress(OSError):
        os.pwrite(descriptor, f"{state:<{_LENGTH}}\n".encode(), 0)


def state_of(folder: Path) -> RunState:
    """Return what became of the run in this folder. Only `summary.json` says that one of before is finished."""
    otherwise = RunState.FINISHED if (folder / "summary.json").exists() else RunState.UNKNOWN
    try:
        with (folder / NAME).open(encoding="ascii", errors="replace") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return RunState.RUNNING
            said = file.read().rstrip()
    except OSError:
        return otherwise
    if said == RunState.RUNNING or (not said and otherwise is RunState.FINISHED):
        return RunState.CRASHED
    return RunState(said) if said in set(RunState) else otherwise
