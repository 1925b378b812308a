"""A real run, followed by `precad track` that is killed and started again: each committed round is there once.

Failure means that a tracker differs from what the run's own files say, or that following changes the run.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from precad.deploy.errors import UNREACHABLE
from precad.servers.store.record import from_line
from tests.deploy.tracking.test_spans import Collector
from tests.harness.tracked import in_tensorboard, in_wandb

pytest.importorskip("tensorboard")
pytestmark = pytest.mark.slow
PRECAD = [sys.executable, "-P", "-m", "precad.deploy.cli.main"]
ROUNDS = 3000
"""More than a run has here: it is interrupted once it was followed for long enough."""
WAIT_S = 200.0


def committed(state_dir: Path) -> list[int]:
    path = state_dir / "rounds.jsonl"
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [record.number for line in lines if (record := from_line(line)) is not None]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def started(command: list[str]) -> subprocess.Popen[str]:
    """Start a follower, and wait until its sinks are open."""
    follower = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert follower.stderr is not None
    assert follower.stderr.readline().startswith("tracking ")
    return follower


@contextmanager
def running(folder: Path, *flags: str) -> Iterator[Callable[[], None]]:
    """Run until the block calls what it is given, or ends."""
    demo = [*PRECAD, "demo", "--clients", "3", "--rounds", str(ROUNDS), "--output", str(folder), *flags]
    process = subprocess.Popen(demo, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def interrupt() -> None:
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 130

    try:
        wait_until(lambda: len(committed(folder / "a")) > 0)
        yield interrupt
    finally:
        process.kill()
        process.wait()


def test_a_follower_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    """The first one is killed after rounds, the second one begins later. A third one reads what is left on disk.

    A kill between a collector's answer and the journal has spans sent again: the same ones, by their ids.
    """
    run, collector = tmp_path / "run", Collector()
    sinks = ["--to", f"tensorboard:{tmp_path / 'events'}", "--to", f"otlp:{collector.url}"]
    sinks += ["--folder", str(tmp_path / "tracked")]
    track = [*PRECAD, "track", str(run / "config.toml"), "--token", str(run / "operations-token"), *sinks]
    try:
        with running(run, "--dashboard") as interrupt:
            first = started(track)
            wait_until(lambda: len(collector.bodies) > 0)
            first.kill()
            first.communicate()
            n_before_the_kill = len([span for span in collector.spans if span["name"] == "round"])
            second = started(track)
            n_before = len(collector.bodies)
            wait_until(lambda: len(collector.bodies) > n_before + 5)
            interrupt()
            second.communicate(timeout=WAIT_S)
            assert second.returncode in {0, UNREACHABLE}
        last = subprocess.run([*PRECAD, "track", str(run / "a"), *sinks], check=False, timeout=WAIT_S)
    finally:
        collector.close()
    assert last.returncode in {0, UNREACHABLE}
    numbers = committed(run / "a")
    (training,) = (tmp_path / "events").iterdir()
    values, counts = in_tensorboard(training)
    assert sorted(number for name, number in values if name == "uploads/accepted") == numbers
    assert set(counts.values()) == {1}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        metrics = json.loads(line)
        found = {name: value for (name, number), value in values.items() if number == metrics["round"]}
        assert found["uploads/accepted"] == len(metrics["accepted"])
        assert found["epsilon/one_server/no_draw_discarded"] == pytest.approx(metrics["epsilon_one_server"])
    spans = [span for span in collector.spans if span["name"] == "round"]
    by_id = {span["spanId"]: int(span["attributes"][-1]["value"]["intValue"]) for span in spans}
    assert sorted(by_id.values()) == numbers
    assert len(spans) - len(numbers) <= n_before_the_kill


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_follower_that_is_stopped_loses_nothing(number: signal.Signals, tmp_path: Path) -> None:
    """All that it took before the signal is in the files of an offline run, and the run goes on."""
    pytest.importorskip("wandb")
    run = tmp_path / "run"
    track = [*PRECAD, "track", str(run), "--to", "wandb:p", "--offline", "--folder", str(tmp_path / "tracked")]
    with running(run) as interrupt:
        follower = started(track)
        follower.send_signal(number)
        _, said = follower.communicate(timeout=WAIT_S)
        assert (follower.returncode, "the task goes on" in said) == (130, True), said
        interrupt()
    assert subprocess.run(track, check=False, timeout=WAIT_S).returncode == UNREACHABLE
    values, counts = in_wandb(tmp_path / "tracked")
    rounds = [json.loads(line)["round"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert sorted(number for name, number in values if name == "uploads/accepted") == rounds
    assert set(counts.values()) == {1}
