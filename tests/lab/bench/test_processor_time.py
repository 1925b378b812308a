"""Processor time of real processes: as much as each says of itself, by round and by kind of thread."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
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
while sys.stdin.readline():
    other = threading.Thread(target=spend, args=(float(sys.argv[3]),))
    other.start()
    spend(float(sys.argv[2]))
    other.join()
    with open(sys.argv[1], "a") as rounds:
        print(file=rounds)
"""
BY_THREADS = f"""{SPEND}
is_spent = threading.Event()
threading.Thread(target=lambda: (spend(0.2), is_spent.set(), time.sleep(60)), daemon=True).start()
spend(0.1)
ended = threading.Thread(target=spend, args=(0.1,))
ended.start()
ended.join()
is_spent.wait()
time.sleep(0.1)
print(time.thread_time(), time.process_time(), flush=True)
sys.stdin.read()
"""
ROUNDS = 6


@contextmanager
def spending(path: Path, of_first: float, of_other: float) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process whose first thread spends so many seconds a round, and another thread so many.

    A round begins with a line to the process, and ends with one in the file.
    """
    command = [sys.executable, "-c", IN_ROUNDS, str(path), str(of_first), str(of_other)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        yield process


def go_on(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """Let each begin a round."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()


def test_a_round_has_what_each_process_spends_in_it(tmp_path: Path) -> None:
    """0.04 s of the server's first thread and 0.02 of its other one, 0.01 of each of two clients.

    None begins a round before the last one was seen and all have ended it, whichever of them a busy machine holds up.
    """
    rounds, ends = tmp_path / "rounds", (tmp_path / "one", tmp_path / "two")
    with (
        spending(rounds, 0.04, 0.02) as server,
        spending(ends[0], 0.01, 0.0) as one,
        spending(ends[1], 0.01, 0.0) as two,
    ):
        pids = {"server": server.pid, "one": one.pid, "two": two.pid}
        with processor_time.Watch(lambda: processor_time.n_lines(rounds), lambda: pids, {"server"}) as watch:
            for n in range(1, ROUNDS + 1):
                go_on((server, one, two))
                while n not in watch.seen or any(processor_time.n_lines(path) < n for path in ends):
                    time.sleep(0.02)
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
        of_first, of_process = map(float, process.stdout.readline().split())
        found = processor_time.read({"server": process.pid}, {"server"})
    assert of_process >= 0.4
    assert found.threads["event loop"] == pytest.approx(of_first, abs=0.05)
    assert found.threads["others"] == pytest.approx(0.2, abs=0.05)
    assert found.threads["gRPC"] == 0
    assert found.servers["server"] == pytest.approx(of_process, abs=0.05)


def test_a_process_that_is_gone_spends_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    assert processor_time.of_process(process.pid) == 0
    assert processor_time.read({"server": process.pid}, {"server"}).threads["event loop"] == 0
