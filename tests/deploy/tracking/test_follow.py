"""`precad track` from a run's folder, a state_dir and an operations port: every round once, and none that must not be.

Failure means one of these:
- a round that is missing because it is old, or was there before anybody followed;
- counts, times or epsilons of a task whose figure of hidden draws they would refute, without being asked for;
- a task that ended early and an exit code that hides it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest
from rich.console import Console

from precad.deploy.cli import main as cli
from precad.deploy.configuration.demo import demo_config
from precad.deploy.localhost.deployment import LocalRun
from precad.deploy.oversight.run_status import read_run
from precad.deploy.run_files.state import NAME
from precad.protos.task.task import Task
from precad.protos.tls.identity import Role
from precad.servers.operations.access import Token
from precad.servers.operations.port import OperationsPort
from precad.servers.operations.snapshot import summary_of
from precad.servers.store.folder import open_ledger, open_task_store, write_round
from precad.servers.store.record import to_line
from precad.servers.store.rounds import CommittedRound
from precad.servers.telemetry.events import Telemetry
from tests.deploy.oversight.test_operations_commands import TOKEN, append
from tests.harness.command_line import CliRunner
from tests.harness.harness import small_task
from tests.harness.tracked import a_status, in_tensorboard

pytest.importorskip("tensorboard")


def record(number):
    return CommittedRound(
        number=number,
        chosen=("alice", "bob"),
        accepted=("alice",),
        rejected=("bob",),
        model_digest=number.to_bytes(32, "big"),
        epsilon_one_server=0.1 * (number + 1),
        epsilon_clients_only=0.05 * (number + 1),
        seconds={"collect": 0.5},
        bytes_by_link={},
    )


def tracked(target, folder, *flags):
    command = ["track", str(target), "--to", f"tensorboard:{folder / 'events'}", "--folder", str(folder), *flags]
    return CliRunner().invoke(cli.app, command, terminal_width=200)


def rounds_in(folder, name="uploads/accepted"):
    (training,) = (folder / "events").iterdir()
    values, counts = in_tensorboard(training)
    assert set(counts.values()) == {1}
    return sorted(number for tag, number in values if tag == name)


@contextmanager
def serving(state_dir, status):
    """Serve a status and the files of a state_dir, in a thread of its own; give its URL."""
    started, found = threading.Event(), {}

    async def serve():
        found["stop"], found["loop"] = asyncio.Event(), asyncio.get_running_loop()
        port = OperationsPort(Token(TOKEN), Telemetry(Role.AGGREGATOR_A), lambda: status, state_dir, is_tls=False)
        async with port.listening("127.0.0.1:0", None) as number:
            found["url"] = f"http://127.0.0.1:{number}"
            started.set()
            await found["stop"].wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert started.wait(60)
    try:
        yield found["url"]
    finally:
        found["loop"].call_soon_threadsafe(found["stop"].set)
        thread.join()


def test_rounds_that_a_status_no_longer_has_come_from_the_records(tmp_path, monkeypatch):
    monkeypatch.setenv("PRECAD_OPERATIONS_TOKEN", TOKEN)
    (tmp_path / "rounds.jsonl").write_text("".join(to_line(record(number)) for number in range(7)))
    kept = [summary_of(record(number)) for number in range(4, 7)]
    status = a_status(*kept, rounds_done=7, ended="all rounds done", is_finished=True)
    with serving(tmp_path, status) as url:
        for _ in range(2):
            done = tracked(url, tmp_path)
            assert done.exit_code == 0, done.stderr
    assert rounds_in(tmp_path) == list(range(7))


@pytest.fixture
def run(tmp_path):
    """The folder of a run that goes on."""
    return LocalRun(demo_config(), tmp_path / "run", Console(quiet=True)).folder.root


def grow(run, events):
    """Commit a round, a second one once the first was seen, and end the run."""
    append(run, round=0)
    while not events.exists():
        time.sleep(0.02)
    append(run, round=1)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"round": 2, ')
    (run / "summary.json").write_text("{}")


def test_a_run_is_followed_until_it_ends(run, tmp_path):
    """A line that is half written is no round."""
    thread = threading.Thread(target=grow, args=(run, tmp_path / "events"), daemon=True)
    thread.start()
    done = tracked(run, tmp_path)
    thread.join()
    assert done.exit_code == 0, done.stderr
    assert rounds_in(tmp_path) == [0, 1]
    assert rounds_in(tmp_path, "quality/accuracy") == [0, 1]


def test_a_run_that_failed_is_shown_and_said(run, tmp_path):
    append(run)
    (run / NAME).write_text("failed")
    done = tracked(run, tmp_path)
    assert done.exit_code == 4
    assert "the task ended early" in done.stderr
    assert rounds_in(tmp_path) == [0]


def test_the_dealer_has_no_rounds(tmp_path, monkeypatch):
    monkeypatch.setenv("PRECAD_OPERATIONS_TOKEN", TOKEN)
    with serving(None, a_status(role="dealer")) as url:
        done = tracked(url, tmp_path)
    assert done.exit_code == 2
    assert "found the dealer, which has no rounds" in done.stderr


# -- hidden draws ------------------------------------------------------------------------------------------------------

HIDES = {"mode": "proved", "submit_timeout_s": 2.0, "proof_timeout_s": 1.0, "round_period_s": 4.0}


def state_dir_of(task, folder):
    folder.mkdir()
    with open_ledger(folder, task), open_task_store(folder, task, b"model") as store:
        store.begin("small-0123456789abcdef", Role.AGGREGATOR_A)
        write_round(folder, record(0), np.zeros(task.dim, np.float32))
        store.finished("done")
    return folder


def hidden(kind, folder):
    """Return what to track of a task that hides draws, as each of the three sources says it."""
    task = Task.model_validate({**small_task().model_dump(exclude_unset=True), **HIDES})
    if kind == "state_dir":
        return state_dir_of(task, folder / "a")
    raw = demo_config(mode="proved")
    raw["task"] |= HIDES
    root = LocalRun(raw, folder / "run", Console(quiet=True)).folder.root
    append(root)
    (root / "summary.json").write_text("{}")
    return root


@pytest.mark.parametrize("kind", ["state_dir", "run"])
def test_a_task_that_hides_draws_is_tracked_only_when_told_so(kind, tmp_path):
    target = hidden(kind, tmp_path)
    done = tracked(target, tmp_path)
    assert done.exit_code == 2
    assert "expected a task that hides no draws" in done.stderr
    assert not (tmp_path / "events").exists()
    done = tracked(target, tmp_path, "--tell-draws")
    assert done.exit_code == 0, done.stderr
    assert rounds_in(tmp_path) == [0]


def test_other_tasks_hide_none(tmp_path):
    assert not read_run(state_dir_of(small_task(), tmp_path / "a")).hides_draws
    assert tracked(tmp_path / "a", tmp_path).exit_code == 0
    assert not read_run(LocalRun(demo_config(), tmp_path / "run", Console(quiet=True)).folder.root).hides_draws
