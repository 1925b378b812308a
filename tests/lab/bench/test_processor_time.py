"""Processor time of real processes: as much as each says of itself, by round and by kind of thread."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from precad.lab.bench import processor_time

SPEND = """
import sys, threading, time
def spend(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
"""
IN_ROUNDS = f"""{SPEND}
for _ in range(int(sys.argv[2])):
    other = threading.Thread(target=spend, args=(float(sys.argv[4]),))
    other.start()
    spend(float(sys.argv[3]))
    other.join()
    with open(sys.argv[1], "a") as rounds:
        print(file=rounds)
    time.sleep(0.1)
sys.stdin.read()
"""
BY_THREADS = f"""{SPEND}
threading.Thread(target=lambda: (spend(0.2), time.sleep(60)), daemon=True).start()
spend(0.1)
ended = threading.Thread(target=spend, args=(0.1,))
ended.start()
ended.join()
time.sleep(0.5)
print("done", flush=True)
sys.stdin.read()
"""
ROUNDS = 6


@contextmanager
def spending(
    path: Path, of_first: float, of_other: float, *, rounds: int = ROUNDS
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process whose first thread spends so many seconds a round, and another thread so many."""
    command = [sys.executable, "-c", IN_ROUNDS, str(path), str(rounds), str(of_first), str(of_other)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        yield process


def test_a_round_has_what_each_process_spends_in_it(tmp_path: Path) -> None:
    """0.04 s of the server's first thread and 0.02 of its other one, 0.01 of each of two clients."""
    rounds = tmp_path / "rounds"
    with (
        spending(rounds, 0.04, 0.02) as server,
        spending(tmp_path / "one", 0.01, 0.0, rounds=40) as one,
        spending(tmp_path / "two", 0.01, 0.0, rounds=40) as two,
    ):
        pids = {"server": server.pid, "one": one.pid, "two": two.pid}
        with processor_time.Watch(lambda: processor_time.n_lines(rounds), lambda: pids, {"server"}) as watch:
            while processor_time.n_lines(rounds) < ROUNDS:
                time.sleep(0.01)
    spent = watch.per_round(warm_up=1, rounds=ROUNDS)
    assert spent is not None
    assert spent.servers == {"server": pytest.approx(0.06, rel=0.5)}
    assert 0 < spent.clients < 0.06
    assert 0 < spent.runner < 0.06  # it waits
    assert watch.per_round(warm_up=ROUNDS, rounds=ROUNDS) is None


def test_threads_are_counted_by_kind() -> None:
    """The first thread is the event loop; one that ends is counted in its process alone."""
    command = [sys.executable, "-c", BY_THREADS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = processor_time.read({"server": process.pid}, {"server"})
    assert found.threads["event loop"] == pytest.approx(0.1, abs=0.05)
    assert found.threads["others"] == pytest.approx(0.2, abs=0.05)
    assert found.threads["gRPC"] == 0
    assert found.servers["server"] == pytest.approx(0.4, abs=0.1)


def test_a_process_that_is_gone_spends_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    assert processor_time.of_process(process.pid) == 0
    assert processor_time.read({"server": process.pid}, {"server"}).threads["event loop"] == 0
