"""Child processes that cannot outlive their parent.

Every child holds the read end of a pipe whose write end only the parent has. When the parent is gone, however it went,
the pipe ends and the child exits (`watch_lifeline`). The parent stops its children with SIGTERM, then SIGKILL.

Children import nothing from the folder that they are started in. `python -m` would put it first, and a user's own
`clients.py` or `mpc/` there would run in the servers. A model of the user's own is still found
(`precad.clients.models.extension`), behind everything else, by clients and evaluation alone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

COMMAND_LINE = "precad.deploy.cli.main"
"""The module that is the command `precad`."""
LIFELINE_VARIABLE = "PRECAD_LIFELINE_FD"
SAFE_PATH = {"PYTHONSAFEPATH": "1"}
"""Environment of every child, and so of what it starts: no interpreter puts the current folder first."""
GRACE_S = 8.0


def isolated_python() -> list[str]:
    """Return the start of a command that runs this interpreter without the current folder on its path."""
    return [sys.executable, "-P"]


def open_log(path: Path) -> BinaryIO:
    """Open a process's log for its user alone: code of the user's own may print records."""
    return open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600))


class Process(Protocol):
    """A process that was started, by the part of `subprocess.Popen` that is used here."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...
    def kill(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Child:
    """One started process."""

    name: str
    process: Process
    log: Path

    @property
    def exit_code(self) -> int | None:
        """Return the exit code; None while the process runs."""
        return self.process.poll()

    def last_words(self) -> str:
        """Return the last line of its log."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else "(nothing in its log)"


class Lifeline:
    """A pipe that tells children when this process is gone. Only this process can write to it."""

    def __init__(self) -> None:
        self.read_end, self._write_end = os.pipe()

    def environment(self) -> dict[str, str]:
        """Return the environment of a child that watches the pipe, whose `read_end` it inherits."""
        return {**os.environ, **our_code(), LIFELINE_VARIABLE: str(self.read_end), **ONE_THREAD_EACH}

    def close(self) -> None:
        """Cut it: whoever watches exits."""
        os.close(self._write_end)
        os.close(self.read_end)


class Children:
    """The processes of one run."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._lifeline = Lifeline()
        self.all: list[Child] = []

    def log_of(self, name: str) -> Path:
        """Return the file that a child of that name writes to."""
        return self._logs / f"{name}.log"

    def prepare(self, stage: str) -> None:
        """Wait until children of that stage (`precad.deploy.localhost.fork_server`) start at once."""

    def hurry(self) -> None:
        """Let whoever waits for a child's start go on."""

    @property
    def refusal(self) -> str:
        """Return why processes were started in a slower way than asked for; empty where they were not."""
        return ""

    def start(self, name: str, *arguments: str) -> Child:
        """Start `precad ARGUMENTS` as a process of its own."""
        return self.start_program(name, *isolated_python(), "-m", COMMAND_LINE, *arguments)

    def start_program(self, name: str, *command: str) -> Child:
        """Start `command` as a process of its own, logging to <name>.log, shielded from the terminal's Ctrl-C."""
        log = self.log_of(name)
        with open_log(log) as file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=self._lifeline.environment(),
                pass_fds=(self._lifeline.read_end,),
                start_new_session=True,
            )
        child = Child(name, process, log)
        self.all.append(child)
        return child

    def stop(self, first: Collection[str] = ()) -> None:
        """End every process that still runs: SIGTERM, and SIGKILL for whoever is left after GRACE_S.

        first: names of those that have ended before anybody else is asked to.
        """
        for is_first in (True, False):
            _end([child for child in self.all if child.exit_code is None and (child.name in first) is is_first])

    def close(self, first: Collection[str] = ()) -> None:
        """Stop everybody, see `stop`, and cut the lifeline."""
        self.stop(first)
        self._lifeline.close()


def _end(running: Sequence[Child]) -> None:
    for child in running:
        child.process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    for child in running:
        try:
            child.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.process.kill()
            child.process.wait()


ONE_THREAD_EACH = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
)
"""A dozen processes on a laptop's cores: threads of their own would only wait for each other."""


def our_code() -> dict[str, str]:
    """Make a child import the code that this process runs, which need not be installed."""
    holds_precad = Path(__file__).absolute().parents[3]
    if holds_precad.name in ("site-packages", "dist-packages"):
        return SAFE_PATH
    already = os.environ.get("PYTHONPATH")
    return {**SAFE_PATH, "PYTHONPATH": os.pathsep.join([str(holds_precad), *([already] if already else [])])}


def watch_lifeline() -> None:
    """Make this process exit when the one that started it is gone. Does nothing when it was started by hand."""
    descriptor = os.environ.get(LIFELINE_VARIABLE, "")
    if not descriptor.isdigit():
        return

    def wait() -> None:
        os.read(int(descriptor), 1)
        os._exit(1)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()
