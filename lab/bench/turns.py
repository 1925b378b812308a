"""Run two deployments at once, by turns: while one does a few rounds, all processes of the other are stopped.

So both have the machine of the same moments, and processes and files of the same age. Pairs of turns follow one another
as AB, BA, AB, ... Clocks go on while a deployment is stopped, in the first phase in which it waits for clients.

A stopped server answers no ping of a link, so a turn has to be over in eight seconds.
"""

from __future__ import annotations

import asyncio
import math
import signal
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from scipy.stats import t as student

from precad.lab.bench.measured_run import MeasuredRun

ROUNDS_OF_A_TURN: Final = 2
_POLL_S: Final = 0.001
_LEVEL: Final = 0.975


@dataclass(frozen=True, slots=True)
class Turn:
    """Hold what a deployment did in its turn."""

    phases: list[dict[str, float]]
    """Seconds of each phase at server A, by round."""
    servers_cpu_s: float
    """Processor seconds of both aggregators and the dealer, a round."""


Pairs = list[tuple[Turn, Turn]]
"""A turn of the first deployment and the neighbouring one of the second."""


def run(first: Mapping[str, Any], second: Mapping[str, Any], *, warm_up: int) -> Pairs:
    """Run both to their end, and return the turns after the warm-up. Raises RunFailedError."""
    with tempfile.TemporaryDirectory(prefix="precad-turns-") as folder:
        runs = [MeasuredRun(one, Path(folder) / str(i)) for i, one in enumerate((first, second))]
        turns = _Turns(runs, warm_up)
        asyncio.run(turns.run())
        return turns.pairs()


class _Turns:
    """Stops and continues the processes of both deployments, from a thread of its own."""

    def __init__(self, runs: Sequence[MeasuredRun], warm_up: int) -> None:
        self._runs, self._warm_up = runs, warm_up
        self._seen: list[list[tuple[int, int, float]]] = [[], []]
        """By deployment: rounds before and after each turn, and processor seconds in it."""
        self._is_over = threading.Event()

    async def run(self) -> None:
        """Run both deployments. Raises RunFailedError; then whoever is left is stopped."""
        thread = threading.Thread(target=self._take_turns, daemon=True)
        thread.start()
        try:
            await asyncio.gather(*(one.run() for one in self._runs))
        finally:
            self._is_over.set()
            await asyncio.to_thread(thread.join)

    def pairs(self) -> Pairs:
        """Return the turns of both, in pairs."""
        found = [
            [Turn(one.seconds[before:after], cpu_s / (after - before)) for before, after, cpu_s in seen]
            for one, seen in zip(self._runs, self._seen, strict=True)
        ]
        return list(zip(*found, strict=False))

    def _take_turns(self) -> None:
        try:
            for i in (0, 1):
                self._wait_for(i, self._warm_up)
                self._send(i, signal.SIGSTOP)
            pair = 0
            while self._has_room():
                for i in (0, 1) if pair % 2 == 0 else (1, 0):
                    self._turn(i)
                pair += 1
        finally:
            for i in (0, 1):
                self._send(i, signal.SIGCONT)

    def _turn(self, i: int) -> None:
        """Let a deployment do its rounds, and note them."""
        one = self._runs[i]
        before, cpu_s = one.n_done, sum(one.servers_cpu_s().values())
        self._send(i, signal.SIGCONT)
        self._wait_for(i, before + ROUNDS_OF_A_TURN)
        self._send(i, signal.SIGSTOP)
        if not self._is_over.is_set():
            self._seen[i].append((before, one.n_done, sum(one.servers_cpu_s().values()) - cpu_s))

    def _has_room(self) -> bool:
        """Tell whether both have rounds for one more turn. The last round has the task's end, and does not count."""
        left = min(one.deployment.task.rounds - one.n_done for one in self._runs)
        return left > ROUNDS_OF_A_TURN + 1 and not self._is_over.is_set()

    def _wait_for(self, i: int, n_rounds: int) -> None:
        while self._runs[i].n_done < n_rounds and not self._is_over.is_set():
            time.sleep(_POLL_S)

    def _send(self, i: int, number: int) -> None:
        for process in self._runs[i].processes():
            with suppress(ProcessLookupError):
                process.send_signal(number)


def ratio(pairs: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """Return how many times as large the second of each pair is, in all: the ratio of the sums, and its 95 % interval.

    What is rare counts as it does in the sums. The interval is Student's, of the pairs' residuals from that ratio; at
    least two pairs make one.
    """
    first, second = np.array(pairs, dtype=np.float64).T
    found = float(second.sum() / first.sum())
    spread = float(np.std(second - found * first, ddof=1)) / (float(first.mean()) * math.sqrt(len(first)))
    half = float(student.ppf(_LEVEL, len(first) - 1)) * spread
    return found, found - half, found + half
