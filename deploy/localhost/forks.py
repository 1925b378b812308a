"""The runner's side of the fork server: children that start in a tenth of the time of an interpreter of their own.

    runner     imports PyTorch, prepares the run            starts children                 stops them
    forks      imports every role's code (`fork_server`)    forks, says how children end    exits

Where the server cannot fork safely, is gone or hangs, a child is an interpreter of its own, as without it. Forked
children outlive the server: they watch the runner's lifeline, and the runner has a descriptor of each (pidfd).
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from precad.deploy.localhost.fork_server import MODULE, ROOM, SERVERS
from precad.deploy.localhost.processes import Child, Children, Lifeline, isolated_python

ANSWER_S = 180.0
"""How long the server may load or take to answer, compilation included, before it is killed and done without."""
GONE: Final = "the fork server ended"


class Forks:
    """A fork server. Starting it takes no time; it then loads the code beside us.

    It loads the gate once `choose_gate` has named one, and is not ready for servers before.
    """

    def __init__(self, gate: str | None = None) -> None:
        self._lifeline = Lifeline()
        self._socket, theirs = socket.socketpair()
        self._one_start = threading.Lock()
        self._changed = threading.Condition()
        self._stages: set[str] = set()
        self._started: list[int | None] = []
        self._codes: dict[int, int] = {}
        self._descriptors: dict[int, int] = {}
        self._is_gone = False
        self.refusal = ""
        """Why a child could not be forked, as far as any was asked for."""
        command = [*isolated_python(), "-m", MODULE, str(theirs.fileno()), "." * ROOM]
        with theirs:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=self._lifeline.environment(),
                pass_fds=(self._lifeline.read_end, theirs.fileno()),
                start_new_session=True,
            )
        self._listener = threading.Thread(target=self._listen, name="forks", daemon=True)
        self._listener.start()
        if gate is not None:
            self.choose_gate(gate)

    def choose_gate(self, name: str) -> None:
        """Name the gate that the servers will use, or `PROOFS`."""
        with self._changed:
            self._send({"gate": name})

    def wait_until_ready(self, stage: str) -> None:
        """Wait until a stage of the server's is loaded, or the server is gone."""
        with self._changed:
            self._await(lambda: stage in self._stages)

    def start(self, arguments: Sequence[str], log: Path) -> ForkedProcess | None:
        """Fork a process that runs `precad ARGUMENTS`. Return None where that cannot be."""
        with self._one_start, self._changed:
            self._send({"start": list(arguments), "log": str(log.absolute())})
            self._await(lambda: bool(self._started))
            pid = self._started.pop() if self._started else None
            if pid is None:
                self.refusal = self.refusal or GONE
                return None
            return ForkedProcess(self, pid)

    def code_of(self, pid: int, timeout: float | None = 0.0) -> int | None:
        """Return the exit code of a child; None if it still runs after so many seconds (None: wait for its end).

        Only the server can tell the code. Once it is gone, a child that has ended counts as killed.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        with self._changed:
            if not self._changed.wait_for(lambda: pid in self._codes or self._is_gone, timeout):
                return None
            if pid in self._codes:
                return self._codes[pid]
            descriptor = self._descriptors.get(pid)
        has_ended = descriptor is None or _is_readable(descriptor, deadline - time.monotonic())
        return -signal.SIGKILL if has_ended else None

    def send_signal(self, pid: int, number: int) -> None:
        """Send a signal to a child, unless it has ended."""
        with self._changed:
            if not self._is_gone:
                self._send({"signal": number, "pid": pid})
            if self._is_gone and pid not in self._codes and pid in self._descriptors:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._descriptors[pid], number)

    def end_loading(self) -> None:
        """Kill a server that is still loading. Whoever waits for it goes on without it."""
        with self._changed:
            if SERVERS not in self._stages:
                self._kill()

    def close(self) -> None:
        """End the server, and any child of it that still runs."""
        with self._changed:
            self._kill()
        self._process.wait()
        self._listener.join()
        self._socket.close()
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()
        self._lifeline.close()

    def _await(self, is_so: Callable[[], bool]) -> None:
        """Wait, with the lock released, until something is so or the server is gone. Kill a server that hangs."""
        if not self._changed.wait_for(lambda: is_so() or self._is_gone, ANSWER_S):
            self._kill()

    def _kill(self) -> None:
        """Kill the server, and wait until all that it has said is taken in."""
        self._process.kill()
        with suppress(OSError):  # it is gone already
            self._socket.shutdown(socket.SHUT_RDWR)  # a child has the other end for a moment
        self._changed.wait_for(lambda: self._is_gone)

    def _send(self, message: dict[str, Any]) -> None:
        if not self._is_gone:
            try:
                self._socket.sendall(json.dumps(message).encode() + b"\n")
            except OSError:
                self._changed.wait_for(lambda: self._is_gone)

    def _listen(self) -> None:
        """Take in what the server says, until it is gone."""
        try:
            with self._socket.makefile("rb") as lines, suppress(ConnectionError):
                for line in lines:
                    if line.endswith(b"\n"):  # else it was killed in the middle
                        self._note(json.loads(line))
        finally:
            with self._changed:
                self._is_gone = True
                self._changed.notify_all()

    def _note(self, message: dict[str, Any]) -> None:
        with self._changed:
            match message:
                case {"ready": stage}:
                    self._stages.add(stage)
                case {"started": None, "why": why}:
                    self.refusal = self.refusal or why
                    self._started.append(None)
                case {"started": pid}:
                    with suppress(OSError):  # it has ended already, or the kernel has no such descriptors
                        self._descriptors[pid] = os.pidfd_open(pid)
                    self._started.append(pid)
                case {"ended": pid, "code": code}:
                    self._codes[pid] = code
            self._changed.notify_all()


def _is_readable(descriptor: int, timeout: float) -> bool:
    """Wait so many seconds for a descriptor of any number, which `select` cannot."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if math.isinf(timeout) else max(0, math.ceil(timeout * 1000))))


@dataclass(frozen=True, slots=True)
class ForkedProcess:
    """A forked child, with the part of `subprocess.Popen` that `Children` uses."""

    forks: Forks
    pid: int

    def poll(self) -> int | None:
        """Return the exit code; None while the process runs."""
        return self.forks.code_of(self.pid)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, once there is one. Raises TimeoutExpired."""
        code = self.forks.code_of(self.pid, timeout)
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return code

    def send_signal(self, sig: int) -> None:
        """Send a signal, unless the process has ended."""
        self.forks.send_signal(self.pid, sig)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


class ForkedChildren(Children):
    """The processes of one run, forked where that is possible."""

    def __init__(self, logs: Path, forks: Forks) -> None:
        super().__init__(logs)
        self._forks = forks

    def prepare(self, stage: str) -> None:
        """Wait until children of that stage start at once."""
        self._forks.wait_until_ready(stage)

    def hurry(self) -> None:
        """Let nobody wait for code that is still being loaded."""
        self._forks.end_loading()

    @property
    def refusal(self) -> str:
        """Return why processes were not forked."""
        return self._forks.refusal

    def start(self, name: str, *arguments: str) -> Child:
        """Start `precad ARGUMENTS` as a process of its own."""
        log = self.log_of(name)
        process = self._forks.start(arguments, log)
        if process is None:
            return super().start(name, *arguments)
        child = Child(name, process, log)
        self.all.append(child)
        return child

    def close(self, first: Collection[str] = ()) -> None:
        """Stop everybody, see `stop`, end the fork server and cut the lifelines."""
        self.hurry()  # a server that loads answers nobody
        super().close(first)
        self._forks.close()
