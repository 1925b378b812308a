"""The program: measures the models that a server hands over, a line of figures for each.

Run as `python -P -m precad.deploy.measuring.child`; the messages are those of `precad.servers.telemetry.quality`. What
it imports may be the operator's own code. So nothing of it is printed: the pipe's own descriptors are put away first,
and an answer holds a number or the fault's kind.

A keeper, which runs none of that code, starts the worker, which does. When the worker ends or the server hangs up, the
keeper kills what the worker has started. That holds in other sessions too: orphans become the keeper's children.
"""

from __future__ import annotations

import ctypes
import json
import os
import queue
import resource
import select
import signal
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

_NICENESS: Final = 10
_FIRST_TO_GO: Final = "1000"
_SET_CHILD_SUBREAPER: Final = 36
"""The number of PR_SET_CHILD_SUBREAPER in prctl(2)."""
_NO_TORCH: Final = "expected PyTorch and precad.clients, which measure models, found none installed here"


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """A model to measure."""

    round: int
    parameters: NDArray[np.float32]
    """(d,)."""


def main() -> None:
    """Answer until the server hangs up."""
    _step_back()
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if worker := os.fork():
        _keep(worker)
    else:
        _work()


def _keep(worker: int) -> None:
    """Wait until the worker ends or the server hangs up, then kill all that is left below this process."""
    ends = select.poll()
    ends.register(0, 0)  # nothing is read: the other end's being closed is told in any case
    ends.register(os.pidfd_open(worker), select.POLLIN)
    ends.poll()
    with suppress(ChildProcessError):
        while True:
            for child in _children():
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(child, signal.SIGKILL)
            os.waitpid(-1, 0)  # what it leaves behind is ours, and in the next list


def _children() -> list[int]:
    """Return the processes whose parent is this one."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):  # it has ended meanwhile
                parent = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
                if int(parent) == os.getpid():
                    found.append(int(entry.name))
    return found


def _work() -> None:
    """Measure, in a process that may run the operator's code."""
    asks, answers = _taken(0, "rb"), _taken(1, "wb")
    _taken(2, "wb")
    opening = json.loads(asks.readline())
    models: queue.SimpleQueue[Asked] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(asks, models), daemon=True).start()
    measure = _opened(opening, answers)
    if measure is None:
        return
    while True:
        _answer(answers, _measured(measure, models.get()))


def _step_back() -> None:
    """Let the server have processor and memory first, and leave no core dump. A sandbox may forbid some of it."""
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):
        os.nice(_NICENESS)
    with suppress(OSError):  # where memory runs out, the kernel ends this process and not its server
        Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_GO)


def _taken(descriptor: int, mode: str) -> IO[bytes]:
    """Return a standard stream as a file of ours alone, and leave nothing in its place."""
    own = os.fdopen(os.dup(descriptor), mode)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, descriptor)
    os.close(nothing)
    return own


def _listen(asks: IO[bytes], models: queue.SimpleQueue[Asked]) -> None:
    """Take models until the server is gone, and then end the process, whatever it is at."""
    try:
        while line := asks.readline():
            header = json.loads(line)
            content = asks.read(header["bytes"])
            if len(content) < header["bytes"]:
                break
            models.put(Asked(header["round"], np.frombuffer(content, dtype="<f4").astype(np.float32)))
    finally:
        os._exit(0)


def _opened(opening: Mapping[str, Any], answers: IO[bytes]) -> Callable[[Asked], Mapping[str, float]] | None:
    """Read the records and say whether that went well. Return what measures a model; None where it did not."""
    try:
        import torch

        from precad.clients.errors import ClientError
        from precad.deploy.configuration import public_records
        from precad.deploy.errors import ConfigError
        from precad.protos.task.task import Task
    except ImportError:
        _answer(answers, {"refused": _NO_TORCH})
        return None
    torch.set_num_threads(1)
    try:
        task = Task.model_validate_json(json.dumps(opening["task"]))
        measure = public_records.load(task, public_records.PublicRecords.model_validate(opening["public"]))
    except (ClientError, ConfigError) as error:
        _answer(answers, {"refused": str(error)})
        return None
    _answer(answers, {"ready": len(measure.records)})
    return lambda asked: measure.of(asked.parameters[: task.n_parameters])


def _measured(measure: Callable[[Asked], Mapping[str, float]], asked: Asked) -> dict[str, object]:
    from precad.clients.errors import ClientError
    from precad.clients.gradients.probe import EXHAUSTED

    try:
        return {"round": asked.round, "figures": dict(measure(asked))}
    except (ClientError, *EXHAUSTED):  # every error of the operator's code has become one of these
        return {"round": asked.round, "fault": "raised"}


def _answer(answers: IO[bytes], message: Mapping[str, object]) -> None:
    answers.write(json.dumps(message).encode() + b"\n")
    answers.flush()


if __name__ == "__main__":
    main()
