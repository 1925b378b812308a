"""`precad run --resume` over real processes: killed and interrupted in the middle, then continued to the end.

What counts as failure:
- the model is not that of a run that nobody interrupted, where nothing is drawn;
- a charge, a round number or a tuple serves twice, or an epsilon is not what the ledgers say;
- metrics, summary, report or certificate leave out rounds from before or after;
- dashboards of a run that is over are gone before Enter on a terminal, or keep a program waiting elsewhere.
"""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import time
import tty
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch

from precad.deploy.configuration import sections as configuration
from precad.deploy.errors import INTERRUPTED, SUCCESS
from precad.deploy.guarantees.run_evidence import read_runs
from precad.deploy.localhost.resuming import read_before
from precad.deploy.reporting.run_folder import read_deployed
from precad.deploy.run_files.folder import RunFolder
from precad.deploy.run_files.state import RunState, state_of
from precad.dp.accountants.balls_in_bins import BallsInBins
from precad.dp.accountants.pld import Conduct, View
from precad.dp.task_privacy import task_privacy
from precad.protos.tls.identity import Role
from precad.servers.store import audit_log
from precad.servers.store.folder import open_ledger, open_tuple_ledger, store_path
from tests.integration.test_faults import END_S, PRECAD, START_S, deployment, n_lines, processes_of, wait_for

pytestmark = pytest.mark.slow
ROUNDS = 160
BINS = 45


@dataclass(slots=True)
class Command:
    """`precad run` on one configuration, again and again in one folder."""

    config: Path
    folder: RunFolder
    process: subprocess.Popen[bytes] | None = None

    def start(self, *flags: str) -> None:
        command = [*PRECAD, "run", str(self.config), "--output", str(self.folder.root), *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def stop_after(self, n_rounds: int, number: int) -> tuple[int, str]:
        """Send a signal once so many rounds are written down. Return the exit code and standard error."""
        assert self.process is not None
        wait_for(f"{n_rounds} rounds", lambda: n_lines(self.folder.metrics) >= n_rounds, within_s=START_S)
        self.process.send_signal(number)
        return self.end()

    def end(self) -> tuple[int, str]:
        assert self.process is not None
        _, stderr = self.process.communicate(timeout=START_S + END_S)
        wait_for("no process left", lambda: not processes_of(self.folder.root), within_s=30.0)
        return self.process.returncode, stderr.decode()


@pytest.fixture(params=[None])
def command(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Command]:
    """request: with a number, records are in so many bins."""
    raw = deployment(clients=3, rounds=ROUNDS)
    if request.param is not None:
        del raw["task"]["record_rate"]
        raw["task"]["record_bins"] = request.param
    raw["localhost"] = {"clients_per_process": 3}
    made = Command(tmp_path / "run.toml", RunFolder(tmp_path / "run"))
    made.config.write_text(tomli_w.dumps(raw))
    yield made
    if made.process is not None:
        made.process.kill()
        made.process.communicate()
    for pid in processes_of(made.folder.root):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def killed_then_interrupted_then_finished(command: Command) -> dict[str, Any]:
    """Kill the runner in the middle, press Ctrl-C later, and continue twice. Return the summary."""
    command.start()
    code, _ = command.stop_after(3, signal.SIGKILL)
    assert (code, state_of(command.folder.root)) == (-signal.SIGKILL, RunState.CRASHED)
    before = read_before(command.folder, configuration.load(command.folder.config))
    n_before = len(before.lines) + len(before.further)  # the next run writes these down as it starts
    assert n_before < ROUNDS - 10, "the machine is too fast for this test"
    command.start("--resume")
    code, stderr = command.stop_after(n_before + 4, signal.SIGINT)
    assert code == INTERRUPTED, stderr
    assert f"--output {command.folder.root} --resume` continues" in stderr
    partial = json.loads(command.folder.summary.read_text())
    assert partial["rounds"] == n_lines(command.folder.metrics) > n_before
    assert (partial["resumed"], partial["ended"].startswith("interrupted after")) == (1, True)
    command.start("--resume")
    code, stderr = command.end()
    assert code == SUCCESS, stderr
    assert "Traceback" not in stderr
    summary: dict[str, Any] = json.loads(command.folder.summary.read_text())
    return summary


@pytest.mark.parametrize("command", [BINS], indirect=True)
def test_bins_outlive_a_kill_in_the_middle_of_an_epoch(command: Command) -> None:
    """Each client has one key, and rising numbers, in which all rounds are that took its upload. Epochs count whole, by
    the numbers of rounds that were charged."""
    summary = killed_then_interrupted_then_finished(command)
    folder, task = command.folder, configuration.load(command.folder.config).task
    metrics = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    for client in task.clients:
        first, *lines = (folder.root / "clients" / f"{client}.bins").read_text().splitlines()
        assert first.startswith("key ")
        assert len({line.split()[1] for line in lines}) == 1
        numbers = [int(line.split()[2]) for line in lines]
        assert numbers == sorted(set(numbers))
        assert {line["round"] for line in metrics if client in line["accepted"]} <= set(numbers)
        assert len(numbers) >= ROUNDS
    with open_ledger(folder.state_dir("a"), task) as ledger:
        epochs = {number // BINS for number in ledger.rounds}
    assert summary["rounds_of_a_client"] == BINS * len(epochs)
    event = task_privacy(task).events[View.ONE_SERVER]
    assert event is not None
    one = BallsInBins(bins=BINS, noise_multiplier=event.noise_multiplier)
    assert summary["realised_epsilon_one_server"] == one.epsilon(BINS * len(epochs), task.delta)
    assert len(read_deployed(folder.root).trainings[0].rounds) == ROUNDS


def test_a_run_that_was_killed_and_interrupted_has_one_account(command: Command) -> None:
    """Ledgers, metrics, summary, report and certificate tell one story of all rounds, with every charge in it."""
    summary = killed_then_interrupted_then_finished(command)
    folder, task = command.folder, configuration.load(command.folder.config).task
    metrics = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    numbers = [line["round"] for line in metrics]
    assert len(metrics) == summary["rounds"] == ROUNDS
    assert numbers == sorted(set(numbers))
    assert summary["resumed"] == 2
    assert summary["accepted"] == sum(len(line["accepted"]) for line in metrics)
    lost = set(range(numbers[-1] + 1)) - set(numbers)
    for letter in "ab":
        with open_ledger(folder.state_dir(letter), task) as ledger:
            assert set(numbers) <= ledger.rounds <= set(numbers) | lost
            assert summary["rounds_of_a_client"] == max(ledger.participation.values())
            for view in View:
                assert summary[f"realised_epsilon_{view}"] == ledger.statement(view).epsilon
                assert summary[f"epsilon_{view}"] == ledger.statement(view, conduct=Conduct.MAY_DISCARD).epsilon
        with open_tuple_ledger(folder.state_dir(letter)) as burns:
            uses = Counter((number, slot, use) for number, slot, _, use in burns.burnt(summary["task"]))
        assert max(uses.values()) == 1
    logs = [audit_log.read(store_path(folder.state_dir(letter))) for letter in "ab"]
    assert audit_log.compare(*logs) == ROUNDS
    uploads = {path.stem: n_lines(path) for path in (folder.root / "clients").iterdir()}
    taken = Counter(client for line in metrics for client in line["accepted"])
    assert all(taken[name] <= n <= taken[name] + len(lost) + 2 for name, n in uploads.items())
    run = read_deployed(folder.root)
    assert [one.n_done for one in run.trainings[0].rounds] == list(range(1, ROUNDS + 1))
    assert read_runs([folder.root]).n_runs == 1
    assert folder.report.stat().st_mtime >= folder.summary.stat().st_mtime
    assert {path.name for path in folder.root.glob("logs*")} == {"logs", "logs-1", "logs-2"}


def test_where_nothing_is_drawn_the_model_is_that_of_an_uninterrupted_run(command: Command, tmp_path: Path) -> None:
    """No noise, all clients, all records: each round is a function of the model, so that a lost one leaves no trace."""
    raw = deployment(clients=3, rounds=ROUNDS)
    raw["task"] |= {"algorithm": "non-private", "noise_multiplier": 0.0, "record_rate": 1.0}
    raw["localhost"] = {"clients_per_process": 3}
    command.config.write_text(tomli_w.dumps(raw))
    killed_then_interrupted_then_finished(command)
    whole = Command(command.config, RunFolder(tmp_path / "whole"))
    whole.start()
    code, stderr = whole.end()
    assert code == SUCCESS, stderr
    ours, theirs = (torch.load(one.folder.model, weights_only=True) for one in (command, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    digests = [
        [json.loads(line)["model_digest"] for line in one.folder.metrics.read_text().splitlines()]
        for one in (command, whole)
    ]
    assert digests[0] == digests[1]
    np.testing.assert_array_equal(*(np.load(one.folder.state_dir("a") / "model.npy") for one in (command, whole)))


# -- dashboards --------------------------------------------------------------------------------------------------------

STAYS = "its dashboards stay until Enter"


def on_a_terminal(arguments: list[str]) -> tuple[subprocess.Popen[bytes], int]:
    """Start a command whose input and standard error are a terminal. Return it with the other end."""
    ours, theirs = pty.openpty()
    tty.setraw(ours)
    process = subprocess.Popen(arguments, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, start_new_session=True)
    os.close(theirs)
    return process, ours


def read_until(terminal: int, text: str) -> str:
    """Return what the terminal shows up to a text."""
    shown, deadline = "", time.monotonic() + START_S
    os.set_blocking(terminal, False)
    while text not in shown:
        assert time.monotonic() < deadline, shown
        with suppress(BlockingIOError):
            shown += os.read(terminal, 1 << 16).decode(errors="replace")
        time.sleep(0.05)
    return shown


def test_dashboards_stay_until_enter_on_a_terminal(tmp_path: Path) -> None:
    """The summary is written and shown before. The pages say how the task ended; no link of the servers is open."""
    folder = RunFolder(tmp_path / "run")
    demo = [*PRECAD, "demo", "--clients", "3", "--rounds", "2", "--output", str(folder.root), "--dashboard", "--json"]
    process, terminal = on_a_terminal(demo)
    try:
        shown = read_until(terminal, STAYS)
        assert "report.html" in shown
        assert len(re.findall(r"opens once within ten minutes:\s+http://127\.0\.0\.1:[0-9]+/login\?once=", shown)) == 3
        assert json.loads(folder.summary.read_text())["rounds"] == 2
        assert state_of(folder.root) is RunState.FINISHED
        status = [*PRECAD, "status", str(folder.config), "--json"]
        found = json.loads(subprocess.run(status, capture_output=True, check=True, timeout=60).stdout)["servers"]
        assert sorted(found) == [Role.AGGREGATOR_A, Role.AGGREGATOR_B, Role.DEALER]
        assert all(server["is_finished"] or server["state"] == "ended" for server in found.values())
        network = configuration.load(folder.config).network
        for address in (network.aggregator_a, network.aggregator_b, network.dealer):
            assert address is not None
            assert not is_listening(address)
        os.write(terminal, b"\n")
        output, _ = process.communicate(timeout=END_S)
        assert process.returncode == SUCCESS
        assert json.loads(output) == json.loads(folder.summary.read_text())
        wait_for("no process left", lambda: not processes_of(folder.root), within_s=30.0)
    finally:
        process.kill()
        process.communicate()
        os.close(terminal)


def is_listening(address: str) -> bool:
    """Tell whether a socket listens at the port of HOST:PORT, by the kernel's table."""
    port = f":{int(address.rpartition(':')[2]):04X}"
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return any(row[1].endswith(port) and row[3] == "0A" for row in rows)


def test_elsewhere_a_run_with_dashboards_ends_by_itself(tmp_path: Path) -> None:
    demo = [*PRECAD, "demo", "--clients", "3", "--rounds", "2", "--output", str(tmp_path / "run"), "--dashboard"]
    done = subprocess.run(demo, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=START_S, check=False)
    assert done.returncode == SUCCESS, done.stderr
    assert STAYS not in done.stderr
    assert "login?once=" not in done.stderr
