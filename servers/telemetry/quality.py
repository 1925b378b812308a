"""Quality of committed models on public records, measured by a program of the operator's beside the server.

    server -> program   the opening, one line; then for each model a line {"round": t, "bytes": n}, and n bytes
    program -> server   {"ready": n_records} or {"refused": why}; then {"round": t, "figures": {name: number}}

The program runs the operator's own code, so it is a process of its own. It holds no key and no share, and starts with
the environment that it is given alone. Models are public. Whatever the program does costs figures: it is killed and
started again for a later model, and no round waits for it. While it is at work on a model, the latest one waits and
those between have no figure.

A figure costs no privacy: it is a function of a model that is public already and of records that are nobody's secret.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import numpy as np
import structlog
from numpy.typing import NDArray

from precad.protos.messages.spoken import LONGEST_REASON, shown
from precad.servers.errors import MeasuringFault, SetupError
from precad.servers.store.rounds import CommittedRound
from precad.servers.telemetry.evaluations import write_figures
from precad.servers.telemetry.events import Telemetry
from precad.servers.telemetry.model_figures import FILE, FaultyProgramError, figures_of, parsed, restored

log = structlog.get_logger(__name__)

MOST_FAULTS: Final = 3
"""So many faults in a row, and the program is not started again by this process."""
_HANG_UP_S: Final = 5.0
"""How long the program may take to end once its server hung up: it ends what it has started first."""
_LONGEST_LINE: Final = 1 << 16
_PIECE: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """How to start it."""

    command: Sequence[str]
    environment: Mapping[str, str]
    """All of it."""
    opening: bytes
    """The first message to it: one line, with its end."""
    timeout_s: float
    """How long it may take over its opening, and over a model."""


class Quality:
    """Measures the latest model whenever the program is free. For the event loop."""

    def __init__(self, program: Program, state_dir: Path, telemetry: Telemetry) -> None:
        self._program, self._path = program, state_dir / FILE
        self._telemetry = telemetry
        self._child: _Child | None = None
        self._waiting: tuple[CommittedRound, NDArray[np.float32]] | None = None
        self._wakes, self._idle = asyncio.Event(), asyncio.Event()
        self._idle.set()
        self._n_faults = 0
        self.last_figure_s = 2 * program.timeout_s
        """How long a task that is over waits: for a model that is at work, and for the last one."""
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Start the program. Raises SetupError where it refuses what it is to do; any other fault costs figures."""
        try:
            self._child = await _Child.start(self._program)
        except FaultyProgramError as error:
            self._faulty(error.fault, None)

    def begin(self) -> None:
        """Begin to measure: first the last model of an earlier process that has no figure."""
        digests = {record.number: record.model_digest.hex() for record in self._telemetry.records}
        self._telemetry.quality.update(restored(self._path, digests))
        records, parameters = self._telemetry.records, self._telemetry.parameters
        if records and parameters is not None and records[-1].number not in self._telemetry.quality:
            self.offer(records[-1], parameters)
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Kill the program, whatever it is at."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self._kill()

    def offer(self, record: CommittedRound, parameters: NDArray[np.float32]) -> None:
        """Take the model of a round, (d,), in the place of one that still waits. Never waits itself."""
        if self._n_faults < MOST_FAULTS:
            self._waiting = (record, parameters)
            self._wakes.set()
            self._idle.clear()

    async def settled(self, timeout_s: float | None = None) -> None:
        """Wait until no model waits for its figure, so long at most: `last_figure_s`, unless told otherwise."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.last_figure_s if timeout_s is None else timeout_s):
                await self._idle.wait()

    async def _run(self) -> None:
        while True:
            await self._wakes.wait()
            self._wakes.clear()
            if self._waiting is not None:
                (record, parameters), self._waiting = self._waiting, None
                await self._measure(record, parameters)
            if self._waiting is None:
                self._idle.set()

    async def _measure(self, record: CommittedRound, parameters: NDArray[np.float32]) -> None:
        try:
            if self._child is None:
                self._child = await _Child.start(self._program)
            figures = await self._child.measured(record.number, parameters)
        except (FaultyProgramError, SetupError) as error:
            await self._kill()
            self._faulty(error.fault if isinstance(error, FaultyProgramError) else MeasuringFault.REFUSED, record)
            return
        self._n_faults = 0
        self._telemetry.measured(record.number, figures)
        await asyncio.to_thread(write_figures, self._path, record, figures)
        log.info("quality.measured", round=record.number, **{name: round(x, 6) for name, x in figures.items()})

    def _faulty(self, fault: MeasuringFault, record: CommittedRound | None) -> None:
        self._n_faults += 1
        self._telemetry.not_measured(fault)
        is_over = self._n_faults >= MOST_FAULTS
        if is_over:
            self._waiting = None
        number = None if record is None else record.number
        log.warning("quality.no_figure", round=number, reason=fault.value, gives_up=is_over)

    async def _kill(self) -> None:
        if self._child is not None:
            await self._child.kill()
            self._child = None


class _Child:
    """The program while it runs."""

    def __init__(self, process: asyncio.subprocess.Process, timeout_s: float) -> None:
        self._process, self._timeout_s = process, timeout_s

    @classmethod
    async def start(cls, program: Program) -> Self:
        """Start the program and wait until it is ready. Raises FaultyProgramError; SetupError where it refuses."""
        try:
            process = await asyncio.create_subprocess_exec(
                *program.command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,  # it may print records
                env=dict(program.environment),
                cwd="/",
                start_new_session=True,
                limit=_LONGEST_LINE,
            )
        except OSError:
            raise FaultyProgramError(MeasuringFault.CRASHED) from None
        child = cls(process, program.timeout_s)
        try:
            answer = await child._asked([program.opening])
            if isinstance(why := answer.get("refused"), str):
                raise SetupError(f"evaluation_records: {shown(why, LONGEST_REASON)}")
            if not isinstance(answer.get("ready"), int):
                raise FaultyProgramError(MeasuringFault.WRONG_OUTPUT)
        except BaseException:
            await child.kill()
            raise
        return child

    async def measured(self, round: int, parameters: NDArray[np.float32]) -> dict[str, float]:
        """Return the figures of a model, (d,). Raises FaultyProgramError."""
        content = np.ascontiguousarray(parameters, dtype="<f4").data.cast("B")
        header = json.dumps({"round": round, "bytes": content.nbytes}).encode() + b"\n"
        pieces = (content[start : start + _PIECE] for start in range(0, content.nbytes, _PIECE))
        return figures_of(await self._asked(itertools.chain([header], pieces)), round)

    async def _asked(self, pieces: Iterable[bytes | memoryview]) -> dict[str, object]:
        """Return the answer to a message. Raises FaultyProgramError."""
        assert self._process.stdin is not None  # it was started with pipes
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(self._timeout_s):
                for piece in pieces:
                    self._process.stdin.write(piece)
                    await self._process.stdin.drain()
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise FaultyProgramError(MeasuringFault.TIMED_OUT) from None
        except (OSError, RuntimeError):
            raise FaultyProgramError(MeasuringFault.CRASHED) from None
        except ValueError:  # a line without end
            raise FaultyProgramError(MeasuringFault.WRONG_OUTPUT) from None
        if not line.endswith(b"\n"):
            raise FaultyProgramError(MeasuringFault.CRASHED)
        return parsed(line)

    async def kill(self) -> None:
        """End it: hang up, for it to end what it has started, wherever that went; then kill what is left."""
        assert self._process.stdin is not None  # it was started with pipes
        if not self._process.stdin.is_closing():
            self._process.stdin.transport.abort()  # not `close`, which waits until what was written is read
        with suppress(TimeoutError):
            async with asyncio.timeout(_HANG_UP_S):
                await self._process.wait()
        if self._process.returncode is None or self._process.returncode < 0:  # else its number may be another's by now
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)  # it leads its session
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):  # one that the kernel does not let go of is init's
                await self._process.wait()
