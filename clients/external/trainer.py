"""Train by foreign code in a process of its own: the model goes in, new parameters come back, or nothing does.

The process gets a pipe each way, no other descriptor, an environment of a few names and an empty home. Limits hold for
it, and the namespaces that the kernel grants (`precad.clients.external.sandbox`). A training that hangs, crashes, or
sends anything but n numbers costs its round alone. What fails beyond repair is started again for the next round. An
evaluation is asked for alike: counts of held-out records come back.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import structlog
from numpy.typing import NDArray

from precad.clients.external import counts, frames, sandbox
from precad.clients.external.arrays import ModelArrays
from precad.clients.external.counts import Counts
from precad.clients.external.kept_state import KeptState, most_bytes
from precad.clients.external.program import Program
from precad.clients.external.reasons import in_words, refusal, spoken
from precad.clients.external.walls import Walls

START_S: Final = 180.0
"""How long a trainer may take to load, the first time. Afterwards its round's deadline counts."""
_END_S: Final = 5.0
_CHILD: Final = Path(__file__).with_name("child.py")
_THREADS: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
Vector = NDArray[np.float64]
log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Tally:
    """How a client's trainings ended, in this process."""

    trained: int = 0
    clipped: int = 0
    """How many of those trained returned more than the bound."""
    failed: int = 0
    evaluated: int = 0
    """How many evaluations it answered with counts."""
    evaluations_failed: int = 0


class ExternalTrainer:
    """One client's foreign trainer. `close` may be called by another thread, and ends a training at once."""

    def __init__(self, program: Program, arrays: ModelArrays, client: str) -> None:
        """Start nothing yet."""
        self._program, self._arrays, self._client = program, arrays, client
        self._most_state_bytes = most_bytes(arrays.n_trained)
        self.may_evaluate = False
        """Whether what is loaded has code that evaluates a model, or can only be asked to find out."""
        self._n_done = 0
        """Trainings so far, failed ones too: one that is started again goes on counting."""
        self._process: _Process | None = None
        self._told_walls: Walls | None = None
        self._one_training = threading.Lock()
        self._closed = threading.Event()
        self._log = log.bind(client=client)

    def start(self) -> None:
        """Start the process, and wait until it has loaded its code. Raises TrainerError."""
        with self._one_training:
            try:
                self._ready(time.monotonic() + START_S)
            except frames.FrameError as error:
                self._discard()
                raise refusal(self._program, error.reason) from None

    def try_out(self) -> Walls:
        """Load its code in a process that then ends, and return its walls. Nothing is logged or kept.

        Raises TrainerError.
        """
        trial = replace(self._program, output=None, state=KeptState())
        with self._one_training:
            try:
                self._process = _Process(trial)
                deadline = time.monotonic() + START_S
                walls = self._isolate(self._process, deadline)
                self._load(self._process, walls, b"", deadline)
            except frames.FrameError as error:
                raise refusal(self._program, error.reason) from None
            finally:
                self._discard()
        return walls

    def train(self, parameters: NDArray[np.float32]) -> Vector | None:
        """Return new parameters (n,), finite or not; None where the training failed, which the log says.

        parameters: the round's (n,).
        """
        try:
            found = self._asked(frames.MODEL, {frames.TRAINED: 4 * len(parameters)}, parameters)
        finally:
            self._n_done += 1
        return None if found is None else np.frombuffer(found, "<f4").astype(np.float64)

    def evaluate(self, parameters: NDArray[np.float32]) -> Counts | None:
        """Return counts of its held-out records with these parameters (n,), sound or not; None where that failed."""
        found = self._asked(frames.EVALUATE, {frames.EVALUATED: counts.SIZE}, parameters)
        return None if found is None else counts.unpacked(found)

    def _asked(self, kind: int, expected: dict[int, int], parameters: NDArray[np.float32]) -> bytes | None:
        """Return its answer to a model; None, with the reason in the log. expected: the answer's kind and size."""
        deadline = time.monotonic() + self._program.timeout_s
        with self._one_training:
            try:
                return self._answer(kind, expected, parameters, deadline)
            except _OwnError as error:
                reason = str(error)  # the process is still there
            except frames.FrameError as error:
                self._discard()
                reason = in_words(error.reason)
        self._log.warning("client.trainer_failed", reason=reason)
        return None

    def _answer(self, asked: int, expected: dict[int, int], parameters: NDArray[np.float32], deadline: float) -> bytes:
        process = self._ready(deadline)
        body = np.ascontiguousarray(parameters, dtype="<f4").tobytes()
        frames.send(process.inward, asked, body, deadline=deadline)
        longest = {**expected, frames.FAILED: frames.LONGEST_REASON}
        state = None
        most = {**longest, frames.STATE: self._most_state_bytes}
        kind, found = frames.receive(process.outward, most, deadline=deadline)
        if kind == frames.STATE:
            state = found
            kind, found = frames.receive(process.outward, longest, deadline=deadline)
        if kind == frames.FAILED:
            raise _OwnError(spoken(self._program, found))
        if len(found) != expected[kind]:
            raise frames.FrameError("length")
        if state is not None:
            self._program.state.store(state)
        return found

    def _ready(self, deadline: float) -> _Process:
        """Return the process, with its code loaded. Raises FrameError."""
        if self._process is None:
            if self._closed.is_set():
                raise frames.FrameError("ended")
            self._process = _Process(self._program)
            if self._closed.is_set():  # by another thread, in between
                self._process.kill()
            walls = self._isolate(self._process, deadline)
            self._tell(walls)
            self._load(self._process, walls, self._program.state.load(self._most_state_bytes), deadline)
        return self._process

    def _tell(self, walls: Walls) -> None:
        if walls != self._told_walls:
            tell = self._log.warning if walls.missing else self._log.info
            tell("client.trainer_isolated", shut_off=walls.standing, not_shut_off=walls.missing)
            self._told_walls = walls

    def _load(self, process: _Process, walls: Walls, state: bytes, deadline: float) -> None:
        """Let the process load its code, with what an earlier one left. Raises FrameError."""
        if not walls.granted & sandbox.PROCESSES:
            sandbox.hide_this_process()
        frames.send(process.inward, frames.CONSTANTS, self._arrays.constants, deadline=deadline)
        frames.send(process.inward, frames.STATE, state, deadline=deadline)
        longest = {frames.LOADED: 1, frames.FAILED: frames.LONGEST_REASON}
        kind, found = frames.receive(process.outward, longest, deadline=deadline)
        if kind == frames.FAILED:
            raise frames.FrameError(f"loading: {spoken(self._program, found)}")
        self.may_evaluate = found == b"\x01"

    def _isolate(self, process: _Process, deadline: float) -> Walls:
        """Wait until it has shut itself off, which comes before any foreign code. Raises FrameError."""
        try:
            frames.send(process.inward, frames.HELLO, self._hello(process.home), deadline=deadline)
            granted = _bits(process, frames.SHUT_OFF, deadline)
        except frames.FrameError as error:
            raise frames.FrameError("python" if error.reason == "ended" else error.reason) from None
        if self._program.is_isolation_required and sandbox.ALL & ~granted:
            raise frames.FrameError("isolation")
        return Walls(granted | _bits(process, frames.CONFINED, deadline))

    def _hello(self, home: Path) -> bytes:
        own = self._program
        return json.dumps(
            {
                **{name: getattr(own, name) for name in ("kind", "path", "memory_bytes", "has_accuracy")},
                **{name: dict(getattr(own, name)) for name in ("config", "node", "message")},
                "n_done": self._n_done,
                "folder": str(own.folder.absolute()),
                "home": str(home),
                "hidden": [str(path.absolute()) for path in own.hidden],
                "required": sandbox.ALL if own.is_isolation_required else 0,
                "arrays": [asdict(entry) for entry in self._arrays.entries],
                "constant_bytes": len(self._arrays.constants),
                "most_state_bytes": self._most_state_bytes,
            }
        ).encode()

    def _discard(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None

    def close(self) -> None:
        """End the process. A training that runs fails at once, and no other starts."""
        self._closed.set()
        if (process := self._process) is not None:
            process.kill()
        with self._one_training:
            self._discard()


class _OwnError(Exception):
    """The trainer says itself that this round's training failed."""


class _Process:
    """A started process, its two pipes and its lifeline."""

    def __init__(self, program: Program) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="precad-trainer-"))
        theirs_in, self.inward = os.pipe()
        self.outward, theirs_out = os.pipe()
        theirs_life, self._lifeline = os.pipe()
        os.set_blocking(self.inward, False)
        os.set_blocking(self.outward, False)
        self._one_end = threading.Lock()
        self._is_alive = True
        given = (theirs_in, theirs_out, theirs_life)
        try:
            self._child = _start(program, self.home, given)
        except OSError as error:
            os.close(self._lifeline)
            self._close()
            raise frames.FrameError("output" if _is_of_output(error, program) else "python") from None
        finally:
            for descriptor in given:
                os.close(descriptor)

    def kill(self) -> None:
        """Kill it and all that it started. Whoever waits for its answer finds the end of the pipe."""
        with self._one_end:
            if not self._is_alive:
                return
            self._is_alive = False
            os.close(self._lifeline)  # its wrapper kills the worker
            try:
                self._child.wait(_END_S)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(self._child.pid, signal.SIGKILL)
                self._child.wait()

    def end(self) -> None:
        """Kill it, close the pipes and remove its home. Nobody else may use the pipes."""
        self.kill()
        self._close()

    def _close(self) -> None:
        os.close(self.inward)
        os.close(self.outward)
        shutil.rmtree(self.home, ignore_errors=True)


def _is_of_output(error: OSError, program: Program) -> bool:
    """Tell whether a process could not be started because of the file that gets what it prints."""
    return program.output is not None and error.filename == os.fspath(program.output)


def _start(program: Program, home: Path, given: tuple[int, int, int]) -> subprocess.Popen[bytes]:
    """Start the wrapper, which inherits the `given` descriptors alone, and none of our environment. Raises OSError."""
    environment = {
        "PATH": os.defpath,
        "HOME": str(home),
        "TMPDIR": str(home),
        "LANG": "C.UTF-8",
        **dict.fromkeys(_THREADS, str(program.threads)),
    }
    output = os.devnull if program.output is None else program.output
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return subprocess.Popen(
            [str(program.python), "-I", "-B", str(_CHILD), *map(str, given)],
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            cwd="/",
            env=environment,
            pass_fds=given,
            start_new_session=True,
        )
    finally:
        os.close(descriptor)


def _bits(process: _Process, kind: int, deadline: float) -> int:
    """Receive what a process says of its walls. Raises FrameError."""
    _, bits = frames.receive(process.outward, {kind: 1}, deadline=deadline)
    return bits[0] if bits else 0
