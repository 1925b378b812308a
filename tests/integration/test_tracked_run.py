"""A real run, followed by `precad track` that is killed and started again: each committed round is there once.

Failure means that a tracker differs from what the run's own files say, or that following changes the run.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from precad.servers.store.record import from_line
from tests.deploy.tracking.test_spans import Collector
from tests.harness.tracked import in_tensorboard, in_wandb

pytest.importorskip("tensorboard")
pytestmark = pytest.mark.slow
PRECAD = [sys.executable, "-P", "-m", "precad.deploy.cli.main"]
ROUNDS = 12
WAIT_S = 200.0


def committed(state_dir: Path) -> list[int]:
    path = state_dir / "rounds.jsonl"
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [record.number for line in lines if (record := from_line(line)) is not None]


def wait_until(n_rounds: int, state_dir: Path) -> None:
    deadline = time.monotonic() + WAIT_S
    while len(committed(state_dir)) < n_rounds:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_follower_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    """The first follower is killed in the middle, after rounds; the second one begins later, and sees the end."""
    run, collector = tmp_path / "run", Collector()
    demo = [*PRECAD, "demo", "--clients", "3", "--rounds", str(ROUNDS), "--output", str(run), "--dashboard"]
    track = [*PRECAD, "track", str(run / "config.toml"), "--token", str(run / "operations-token")]
    track += ["--to", f"tensorboard:{tmp_path / 'events'}", "--to", f"otlp:{collector.url}"]
    track += ["--folder", str(tmp_path / "tracked")]
    running = subprocess.Popen(demo, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(1, run / "a")
        first = subprocess.Popen(track, stderr=subprocess.PIPE, text=True)
        assert first.stderr is not None
        assert first.stderr.readline().startswith("tracking ")
        first.send_signal(signal.SIGKILL)
        first.communicate()
        done = subprocess.run(track, capture_output=True, text=True, check=False, timeout=WAIT_S)
        _, said = running.communicate(timeout=WAIT_S)
        assert running.returncode == 0, said
        again = subprocess.run(
            [*PRECAD, "track", str(run / "a"), *track[6:]], capture_output=True, text=True, check=False, timeout=WAIT_S
        )
    finally:
        running.kill()
        running.wait()
        collector.close()
    assert (done.returncode, again.returncode) == (0, 0), done.stderr + again.stderr
    numbers = committed(run / "a")
    assert len(numbers) == ROUNDS
    (training,) = (tmp_path / "events").iterdir()
    values, counts = in_tensorboard(training)
    assert sorted(number for name, number in values if name == "uploads/accepted") == numbers
    assert set(counts.values()) == {1}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        metrics = json.loads(line)
        found = {name: value for (name, number), value in values.items() if number == metrics["round"]}
        assert found["uploads/accepted"] == len(metrics["accepted"])
        assert found["epsilon/one_server/no_draw_discarded"] == pytest.approx(metrics["epsilon_one_server"])
    rounds = [span for span in collector.spans if span["name"] == "round"]
    assert [int(span["attributes"][-1]["value"]["intValue"]) for span in rounds] == numbers


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_follower_that_is_stopped_loses_nothing(number: signal.Signals, tmp_path: Path) -> None:
    """What it took before the signal is in the files of an offline run, and the run goes on."""
    pytest.importorskip("wandb")
    run = tmp_path / "run"
    demo = [*PRECAD, "demo", "--clients", "3", "--rounds", str(ROUNDS), "--output", str(run)]
    track = [*PRECAD, "track", str(run), "--to", "wandb:p", "--offline", "--folder", str(tmp_path / "tracked")]
    running = subprocess.Popen(demo, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(1, run / "a")
        follower = subprocess.Popen(track, stderr=subprocess.PIPE, text=True)
        assert follower.stderr is not None
        assert follower.stderr.readline().startswith("tracking ")
        time.sleep(1.0)
        follower.send_signal(number)
        _, said = follower.communicate(timeout=WAIT_S)
        assert (follower.returncode, "the task goes on" in said) == (130, True), said
        assert running.wait(WAIT_S) == 0
    finally:
        running.kill()
        running.wait()
    assert subprocess.run(track, check=False, timeout=WAIT_S).returncode == 0
    values, counts = in_wandb(tmp_path / "tracked")
    assert sorted(number for name, number in values if name == "uploads/accepted") == committed(run / "a")
    assert set(counts.values()) == {1}
