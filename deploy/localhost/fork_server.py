"""A process that has imported every role's code once, and forks the processes of one local run.

Importing PyTorch, Numba and SciPy costs seconds of a core, and a run has a dozen processes. The runner starts this
program beside its own imports (`precad.deploy.localhost.forks.Forks`) and asks it for each process. A forked
process then runs the command line as a new interpreter would, with its own session, log and arguments.

Forking is safe as long as there is one thread, because no lock can then be held by a thread that the child lacks. So
this process opens no connection and computes nothing, and it refuses to fork if the kernel counts a second thread.
Every secret is drawn from the operating system after the fork. Global generators, which a user's model may use, are
seeded anew. Roles share nothing but code that was loaded before any key, record or share was read. In a deployment each
role is started by itself.

What clients need is loaded first, so that they start while the rest is loaded. Messages are JSON, a line each. The
runner sends {"gate": name} once, {"start": arguments, "log": path} and {"signal": number, "pid": pid}. It gets
{"ready": stage} for each stage that is loaded and {"ended": pid, "code": code}. A start is answered by
{"started": pid}, or by null and "why". The gate may be named late: the runner may start this process before it knows
the configuration. In mode `proved`, which has none, its name is `PROOFS`.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

from precad.deploy.localhost.processes import COMMAND_LINE, open_log

CLIENTS, SERVERS = "clients", "servers"
"""The stages of loading."""
PROOFS: Final = "proofs"
"""Named by the runner in place of a gate in mode `proved`, which has none."""
ROOM: Final = 4096
"""Bytes of this process's arguments that a child may write its own command line into."""
MODULE: Final = "precad.deploy.localhost.fork_server"


class ForkServer:
    """Fork processes on request and report how they end, until the runner hangs up."""

    def __init__(self, runner: socket.socket) -> None:
        self._runner = runner
        self._received = b""
        self._children: set[int] = set()
        self._failure, self._gate = "", ""
        self._woken, self._wake = os.pipe()
        for descriptor in (self._woken, self._wake):
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake)

    def arguments_of_child(self) -> list[str]:
        """Load the code and serve the runner. Return in each child, with its arguments. Raises SystemExit when the
        runner is gone."""
        for load in self._steps():
            if load is not None:
                self._load(load)
            if (arguments := self._serve(None if load is None else 0.0)) is not None:
                return arguments
        raise AssertionError("there is always a next request to wait for")

    def _steps(self) -> Iterator[Callable[[], object] | None]:
        """Yield what to load next. None: there is nothing to do until the runner sends something."""
        yield from _of_clients()
        if self._gate == PROOFS:  # named by now, unless the runner is slow: then each client loads its own
            yield _load_proofs
        self._send({"ready": CLIENTS})
        yield from _of_servers()
        while not self._gate:
            yield None
        yield _load_proofs if self._gate == PROOFS else partial(_load_gate, self._gate)
        self._send({"ready": SERVERS})
        while True:
            yield None

    def _load(self, load: Callable[[], object]) -> None:
        try:
            load()
        except Exception as error:  # noqa: BLE001 - whatever it is, a process started by itself meets it again
            self._failure = f"loading failed: {type(error).__name__}: {error}"

    def _serve(self, timeout: float | None) -> list[str] | None:
        """Answer what comes within so many seconds. Return the arguments in a child, None in this process."""
        asked = self._runner.fileno()
        ready, _, _ = select.select((asked, self._woken), (), (), timeout)
        if self._woken in ready:
            os.read(self._woken, 4096)
            self._report_ended()
        for request in self._requests() if asked in ready else ():
            if "gate" in request:
                self._gate = request["gate"]
            elif "start" in request:
                if self._fork(Path(request["log"])) == 0:
                    return list(request["start"])
            elif request["pid"] in self._children:  # not reaped, so the number is still the child's
                os.kill(request["pid"], request["signal"])
        return None

    def _requests(self) -> list[dict[str, Any]]:
        data = self._runner.recv(1 << 16)
        if not data:
            raise SystemExit
        *lines, self._received = (self._received + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def _fork(self, log: Path) -> int | None:
        """Return 0 in the child. Return None where nothing may be forked, or the system refuses."""
        if self._failure or n_threads() > 1:
            self._refuse(self._failure or f"the fork server has {n_threads()} threads")
            return None
        with ExitStack() as stack:
            try:
                file = stack.enter_context(open_log(log))
                pid = os.fork()
            except OSError as error:
                self._refuse(str(error))
                return None
            if pid == 0:
                self._become_child(file.fileno())
                return 0
        self._children.add(pid)
        self._send({"started": pid})
        return pid

    def _refuse(self, why: str) -> None:
        self._send({"started": None, "why": why})

    def _become_child(self, log: int) -> None:
        """Leave everything of this process behind but its code: session, signals, descriptors, input and output."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()  # the terminal's Ctrl-C is the runner's
        self._runner.close()
        os.close(self._woken)
        os.close(self._wake)
        for stream in (1, 2):
            os.dup2(log, stream)

    def _report_ended(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self._children.discard(pid)
            self._send({"ended": pid, "code": os.waitstatus_to_exitcode(status)})

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._runner.sendall(json.dumps(message).encode() + b"\n")
        except OSError:  # the runner is gone, and its children go by their lifeline
            raise SystemExit from None


def _of_clients() -> Iterator[Callable[[], object]]:
    """Yield the steps that load what a client runs, beside the command line and the configuration."""
    for name in ("torch", COMMAND_LINE, "precad.deploy.cli.roles", "precad.clients.process", "precad.deploy.conducts"):
        yield partial(importlib.import_module, name)
    yield _build_configuration


def _build_configuration() -> None:
    """Build the validators, which every child would otherwise build for itself."""
    from precad.deploy.configuration.sections import Deployment
    from precad.protos.task.task import Task

    Deployment.model_rebuild()
    Task.model_rebuild()


_LARGE: Final = (
    *("grpc", "scipy.special", "scipy.optimize", "scipy.fft", "scipy.interpolate", "scipy.ndimage", "scipy.stats"),
    *("scipy.signal", "dp_accounting", "llvmlite.binding", "numba"),
)
"""Packages of the servers, one by one in the order in which they need one another: clients start in between."""


def _of_servers() -> Iterator[Callable[[], object]]:
    """Yield the steps that load what the other roles run, the compiled loops too."""
    for name in (*_LARGE, "precad.servers.dealer", "precad.servers.aggregator"):
        yield partial(importlib.import_module, name)
    from precad.dp.accountants import pld
    from precad.mpc.local.engines import CPU

    yield from (CPU.warm_up, pld.warm_up)


def _load_gate(name: str) -> None:
    from precad.mpc.gate_names import make_gate
    from precad.mpc.kernels import loading

    loading.warm_up()
    make_gate(name)


def _load_proofs() -> None:
    """Load the loops that clients and servers of mode `proved` need, and no gate, which that mode has not."""
    from precad.mpc.kernels import loading

    loading.warm_up_proofs()


def n_threads() -> int:
    """Count this process's threads, those of libraries included."""
    return len(os.listdir("/proc/self/task"))


def seed_anew() -> None:
    """Seed from the operating system what a fork copies: the global generators of NumPy and PyTorch, where loaded.

    Python's own does so by itself. Ours draw from none of them, but a model of the user's own may.
    """
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed()
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.seed()


def begin_as(command: Sequence[str]) -> None:
    """Become the child with this command line: shown under it, and with random numbers of its own."""
    show_as(command)
    seed_anew()


def show_as(command: Sequence[str]) -> None:
    """Let `ps` show this process under another command line, as long as there is room."""
    sys.orig_argv = list(command)
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end of proc(5)
    if start:
        shown = b"\0".join(os.fsencode(part) for part in command)[: end - start - 1]
        ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)


def main() -> NoReturn:
    """Run as `python -P -m precad.deploy.localhost.fork_server DESCRIPTOR ROOM`."""
    python, descriptor = sys.orig_argv[0], int(sys.argv[1])
    show_as([python, "-P", "-m", MODULE])
    gc.disable()  # nothing that is loaded becomes garbage
    arguments = ForkServer(socket.socket(fileno=descriptor)).arguments_of_child()
    gc.freeze()  # pages that no collection writes to stay shared with the other children
    gc.enable()
    begin_as([python, "-P", "-m", COMMAND_LINE, *arguments])
    sys.argv[1:] = arguments
    importlib.import_module(COMMAND_LINE).main()
    raise AssertionError("the command line exits by itself")


if __name__ == "__main__":
    main()
