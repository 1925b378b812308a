"""Two deployments by turns: only one moves at a time, and the interval of their ratio holds as often as it says."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from precad.lab.bench import turns

COUNTS = """
import sys, time
with open(sys.argv[1], "w", buffering=1) as rounds:
    for _ in range(int(sys.argv[2])):
        sys.stdin.readline()
        time.sleep(0.01)
        rounds.write(f"{time.monotonic()}\\n")
"""
ROUNDS = 24


class Counting:
    """A run of one process, whose rounds are lines with their times.

    It begins a round once the last one was seen: else it did them all while a busy machine stalls whoever looks.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.deployment = path, SimpleNamespace(task=SimpleNamespace(rounds=ROUNDS))
        path.touch()
        command = [sys.executable, "-c", COUNTS, str(path), str(ROUNDS)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0)
        self._n_begun, self._one_look = 0, threading.Lock()

    async def run(self) -> None:
        while self._process.poll() is None:
            assert self.n_done <= ROUNDS
            await asyncio.sleep(0.01)
        assert self._process.returncode == 0

    def ends(self) -> int:
        """Let it do what is left. Return its exit code."""
        with suppress(BrokenPipeError):
            self._process.communicate(timeout=60)
        return self._process.wait(60)

    def processes(self) -> list[subprocess.Popen[bytes]]:
        return [self._process] if self._process.poll() is None else []

    def servers_cpu_s(self) -> dict[str, float]:
        return {"aggregator-a": self.n_done / 4, "aggregator-b": 3 * self.n_done / 4}

    @property
    def times(self) -> list[float]:
        return [float(line) for line in self.path.read_text().split("\n")[:-1]]

    @property
    def n_done(self) -> int:
        with self._one_look, suppress(BrokenPipeError):
            if (n := len(self.times)) == self._n_begun:
                self._n_begun += 1
                assert self._process.stdin is not None
                self._process.stdin.write(b"\n")
        return n

    @property
    def seconds(self) -> list[dict[str, float]]:
        return [{"at": at} for at in self.times]


def test_no_round_of_one_is_in_a_turn_of_the_other(tmp_path: Path) -> None:
    """By the times that the processes themselves write down. Turns change their order from pair to pair."""
    runs: list[Any] = [Counting(tmp_path / name) for name in ("first", "second")]
    taken = turns._Turns(runs, warm_up=4)
    asyncio.run(taken.run())
    pairs = taken.pairs()
    assert len(pairs) >= 3
    for i, pair in enumerate(pairs):
        (first, second) = ([one["at"] for one in turn.phases] for turn in pair)
        assert min(len(first), len(second)) >= turns.ROUNDS_OF_A_TURN
        before, after = (first, second) if i % 2 == 0 else (second, first)
        assert max(before) < min(after)
        assert [turn.servers_cpu_s for turn in pair] == pytest.approx([1.0, 1.0], abs=0.51)  # a line after the count
    assert all(run.n_done == ROUNDS for run in runs)  # whoever was stopped goes on


def test_a_run_that_fails_ends_the_turns_and_stops_nobody_for_good(tmp_path: Path) -> None:
    runs: list[Any] = [Counting(tmp_path / name) for name in ("first", "second")]
    runs[0].processes()[0].kill()
    began = time.monotonic()
    with pytest.raises(AssertionError):
        asyncio.run(turns._Turns(runs, warm_up=ROUNDS).run())
    assert time.monotonic() - began < 20
    assert runs[1].ends() == 0


@pytest.mark.parametrize("true", [1.0, 1.02])
def test_the_interval_holds_the_ratio_in_nineteen_runs_of_twenty(true: float) -> None:
    """2,000 runs of 60 pairs, whose moments vary by a fifth for both and by a twentieth for each.

    More than 6.5 % of misses, or fewer than 3.5 %, have a chance below 1 in 400 (3 standard deviations).
    """
    random = np.random.default_rng(7)
    misses = 0
    for _ in range(2000):
        moment = random.lognormal(0.0, 0.2, 60)
        both = moment[:, None] * random.normal([1.0, true], 0.05, (60, 2))
        _, low, high = turns.ratio([tuple(pair) for pair in both])
        misses += not low <= true <= high
    assert 0.035 * 2000 < misses < 0.065 * 2000


def test_what_is_rare_counts_in_full() -> None:
    """A write in one turn of ten, which no median shows."""
    pairs = [(1.0, 1.0 + 0.2 * (i % 10 == 0)) for i in range(100)]
    found, low, high = turns.ratio(pairs)
    assert found == pytest.approx(1.02)
    assert low < 1.02 < high


@pytest.mark.parametrize("unit", [1.0, 1000.0])
def test_the_interval_is_in_the_ratios_units_and_not_in_the_pairs(unit: float) -> None:
    """By hand, in seconds and in milliseconds: three pairs with a mean of 5, and their residuals 1, 0 and -1 from 2.

    The standard error is 1 / (5 sqrt(3)), and Student's quantile of two degrees of freedom is 4.30265.
    Failure means that the printed interval is as many times too wide, or too narrow, as a turn has seconds.
    """
    pairs = [(4 * unit, 9 * unit), (5 * unit, 10 * unit), (6 * unit, 11 * unit)]
    half = 4.30265 / (5 * 3**0.5)
    assert turns.ratio(pairs) == pytest.approx((2.0, 2.0 - half, 2.0 + half), rel=1e-6)
