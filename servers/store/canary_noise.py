"""Keep this server's noise at the canaries' coordinates, for an audit that its operator agreed to.

    {"task": digest, "role": ..}                                    the header
    {"round": .., "noise": words, "opened": words}                  for every committed round, (m,) each, in base64

Without its own noise a server cannot say what it sees of a canary: the opened sum minus that noise. Elsewhere nothing
is kept. Other records add nothing at these coordinates, so the file tells nothing of them, even beside the other
server's. Lines are sealed (`precad.dp.ledgers.sealed_file`); the file's mode is 0600.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import structlog

from precad.dp.errors import DpError
from precad.dp.ledgers.lines import replay, require_same
from precad.dp.ledgers.sealed_file import SealedFile
from precad.mpc.ring import RingArray
from precad.protos.task.task import Task
from precad.servers.errors import SetupError

log = structlog.get_logger(__name__)

FILE: Final = "canary-noise.jsonl"
WRITE_EVERY_S: Final = 1.0
"""Rounds of so long are written together: the disk that they would wait for is the rounds' own."""
_KIND: Final = "a file of canaries' noise"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Opened:
    """A committed round at the canaries' coordinates, as one server knows it."""

    noise: RingArray
    """(m,): this server's."""
    total: RingArray
    """(m,): the opened sum, with both servers' noise."""


class CanaryNoise:
    """The file, open at its server. Call from one thread at a time."""

    def __init__(self, state_dir: Path, task: Task, role: str) -> None:
        """Open the file, or begin it. Raises SetupError for another task's or server's, or one that was changed."""
        self._coordinates = task.canary_coordinates
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="canary-noise")  # no round waits for the disk
        self._drawn: RingArray | None = None
        self._waiting: dict[int, Opened] = {}
        self._lock, self._is_closing = threading.Lock(), threading.Event()
        path = state_dir / FILE
        try:
            self._file = SealedFile(path, header_of(task, role), _Rounds(task.n_canaries).take, _KIND)
            path.chmod(0o600)
        except (OSError, DpError) as error:
            raise SetupError(f"state_dir: expected {_KIND} to write to, found {path}: {error}") from None

    def drawing(self, source: Callable[[float, int], RingArray]) -> Callable[[float, int], RingArray]:
        """Return the source of noise, whose last draw is remembered at the canaries' coordinates."""

        def draw(std_on_grid: float, dim: int) -> RingArray:
            drawn = source(std_on_grid, dim)
            self._drawn = drawn[self._coordinates].copy()
            return drawn

        return draw

    def keep(self, number: int, noisy_sum: RingArray) -> None:
        """Have a committed round written down, (d,). One whose noise this process did not draw is left out.

        So is one that is not on disk when the process dies. A file that cannot be written is not written again: the
        audit loses rounds, and the task none.
        """
        drawn, self._drawn = self._drawn, None
        if drawn is None:
            return
        with self._lock:
            is_first = not self._waiting
            self._waiting[number] = Opened(drawn, noisy_sum[self._coordinates].copy())
        if is_first:
            self._thread.submit(self._write)

    def _write(self) -> None:
        self._is_closing.wait(WRITE_EVERY_S)
        with self._lock:
            rounds, self._waiting = self._waiting, {}
        if self._file.is_closed:
            return
        try:
            self._file.append(
                *({"round": n, "noise": _text(one.noise), "opened": _text(one.total)} for n, one in rounds.items())
            )
        except OSError as error:
            log.warning("canary_noise.lost", rounds=list(rounds), reason=error.strerror)

    def close(self) -> None:
        """Write what is left, and give the file back."""
        self._is_closing.set()
        self._thread.shutdown(wait=True)
        self._file.close()


class _Rounds:
    """Rounds of a file, by number, each checked as it is taken in."""

    def __init__(self, n_canaries: int) -> None:
        self._n, self.found = n_canaries, dict[int, Opened]()

    def take(self, fields: dict[str, Any]) -> None:
        """Take in one line after the header. Raises ValueError."""
        if list(fields) != ["round", "noise", "opened"] or type(fields["round"]) is not int:
            raise ValueError(f"expected a round, noise and an opened sum, found the fields {', '.join(fields)}")
        noise, total = (_words(fields[name], self._n) for name in ("noise", "opened"))
        self.found[fields["round"]] = Opened(noise, total)


def _text(words: RingArray) -> str:
    return base64.b64encode(words.astype("<i8").tobytes()).decode()


def _words(text: object, n: int) -> RingArray:
    """Return n words of a line. Raises ValueError."""
    found = np.frombuffer(base64.b64decode(str(text), validate=True), dtype="<i8")
    if len(found) != n:
        raise ValueError(f"expected {n} words, found {len(found)}")
    return found.astype(np.int64)


def header_of(task: Task, role: str) -> dict[str, Any]:
    """Return the first line's fields."""
    return {"task": task.digest().hex(), "role": role}


def read(state_dir: Path, task: Task, role: str) -> dict[int, Opened]:
    """Return the kept rounds by number, without changing anything. Raises SetupError."""
    path, rounds = state_dir / FILE, _Rounds(task.n_canaries)
    try:
        content = path.read_bytes()
        header = header_of(task, role)
        replay(path, content[: content.rfind(b"\n") + 1], lambda found: require_same(found, header), rounds.take)
    except (OSError, DpError) as error:
        raise SetupError(f"state_dir: expected {_KIND}, found {path}: {error}") from None
    return rounds.found
