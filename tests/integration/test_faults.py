"""Processes of a deployment are killed, one at a time, with SIGKILL and so without a last word.

What counts as failure:
- a killed client ends, stops or delays anything but its own part in the rounds;
- a killed server or dealer leaves any other process running;
- such a process ends with another code than 4, without a clear line that says who is gone, or with a traceback;
- a process of a run is still there when its runner is gone, however it went (finished, failed, interrupted, killed);
- an interrupted run ends with another code than 130.
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from rich.console import Console

from precad.deploy.errors import INTERRUPTED, SUCCESS, UNREACHABLE
from precad.deploy.localhost.deployment import LocalRun
from precad.deploy.localhost.fork_server import SERVERS as SERVERS_LOADED
from precad.deploy.localhost.forks import ForkedChildren, Forks
from precad.deploy.localhost.processes import Child
from precad.deploy.run_files.state import RunState, state_of
from tests.harness.waiting import wait_for

PRECAD = [sys.executable, "-P", "-m", "precad.deploy.cli.main"]
SERVERS = ["aggregator-a", "aggregator-b", "dealer"]
START_S = 90.0
"""A dozen interpreters import PyTorch on a busy machine."""
END_S = 60.0
"""Far above what is needed: a broken link is seen at once, and the end of a task lingers for 10 s at most."""


def deployment(*, clients: int, rounds: int) -> dict[str, Any]:
    """Honest clients that are all in every round."""
    task = {
        "name": "faults",
        "clients": [f"client-{i}" for i in range(clients)],
        "rounds": rounds,
        "client_rate": 1.0,
        "record_rate": 0.1,
        "record_clip": 1.0,
        "client_clip": 16.0,
        "noise_multiplier": 4.6,
        "learning_rate": 1.0,
        "gate": "native",  # which starts sooner
    }
    return {"task": task}


def grouped(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration with all clients in one process, which starts sooner."""
    return {**raw, "localhost": {"clients_per_process": len(raw["task"]["clients"])}}


ENDLESS = deployment(clients=2, rounds=100_000)


def exit_codes(children: list[Child]) -> dict[str, int | None]:
    """Return the codes that processes end with by themselves; None for those that do not."""
    with suppress(AssertionError):
        wait_for("all ended", lambda: all(child.exit_code is not None for child in children), within_s=END_S)
    return {child.name: child.exit_code for child in children}


def n_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def processes_of(folder: Path) -> dict[int, list[str]]:
    """Command lines, by pid, of the running processes that name a run's folder."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except (NotADirectoryError, FileNotFoundError, ProcessLookupError):
            continue  # not a process, or one that ended meanwhile; a zombie's command line is empty
        if any(part.startswith(str(folder)) for part in command):
            found[int(entry.name)] = command
    return found


# -- roles started one by one, so that the exit code of each can be seen -----------------------------------------------


@pytest.fixture
def roles(tmp_path: Path) -> Iterator[dict[str, Child]]:
    """A dealer, both aggregators and two clients, after their first round. Nobody runs over them."""
    run = LocalRun(ENDLESS, tmp_path / "run", Console(file=io.StringIO()))
    config, forks = str(run.folder.config), Forks("native")
    children = ForkedChildren(run.folder.logs, forks)
    try:
        forks.wait_until_ready(SERVERS_LOADED)  # else each server loads for itself what is loaded here once
        children.start("dealer", "serve", "dealer", config)
        for letter in "ab":
            children.start(f"aggregator-{letter}", "serve", "aggregator", config, "--role", letter)
        for client in run.deployment.task.clients:
            children.start(client, "client", config, "--id", client)
        rounds = run.folder.state_dir("a") / "rounds.jsonl"
        wait_for("the first rounds", lambda: n_lines(rounds) > 1, within_s=START_S)
        yield {child.name: child for child in children.all}
    finally:
        children.close()


def test_a_client_is_killed_then_a_server_is_stopped(roles: dict[str, Child]) -> None:
    """Rounds go on without the client. The server's operator reads that it was stopped; everybody else ends with code
    4 and says who is gone, and nothing looks like a crash.
    """
    client = roles.pop("client-1")
    client.process.kill()
    assert exit_codes([client]) == {client.name: -signal.SIGKILL}
    require_rounds_without(client)
    require_a_stopped_server_says_so(roles, "dealer")


@pytest.mark.slow
@pytest.mark.parametrize("victim", SERVERS)
def test_without_a_server_every_other_process_ends_with_code_4_and_a_reason(
    roles: dict[str, Child], victim: str
) -> None:
    """Nobody waits for ever, and the last line of each log says who is gone or who ended the task."""
    roles[victim].process.kill()
    others = [child for name, child in roles.items() if name != victim]
    assert exit_codes(others) == {child.name: UNREACHABLE for child in others}
    for child in others:
        assert child.last_words().startswith("precad: "), child.last_words()
        assert re.search("aggregator|dealer", child.last_words()), child.last_words()
        assert "Traceback" not in child.log.read_text(), child.log.read_text()


@pytest.mark.slow
def test_a_stopped_client_leaves_in_peace(roles: dict[str, Child]) -> None:
    """SIGTERM to a client is its operator's wish: code 0, and the others go on without it."""
    client = roles["client-0"]
    client.process.send_signal(signal.SIGTERM)
    assert exit_codes([client]) == {client.name: SUCCESS}
    require_rounds_without(client)
    assert "Traceback" not in client.log.read_text(), client.log.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("stopped", SERVERS)
def test_a_stopped_server_says_so_and_the_others_pass_it_on(roles: dict[str, Child], stopped: str) -> None:
    """SIGTERM to a server is its operator's wish: code 0 there, 4 elsewhere, and nothing looks like a crash."""
    require_a_stopped_server_says_so(roles, stopped)


def require_rounds_without(client: Child) -> None:
    """Wait for rounds that name the client as missing."""
    rounds = client.log.parent.parent / "a" / "rounds.jsonl"
    n_seen = n_lines(rounds)
    wait_for(f"rounds without {client.name}", lambda: n_lines(rounds) > n_seen + 2, within_s=END_S)
    assert json.loads(rounds.read_bytes().splitlines()[-1]).get("missing") == [client.name]


def require_a_stopped_server_says_so(roles: dict[str, Child], stopped: str) -> None:
    """Stop the server; compare every process's exit code and last words."""
    roles[stopped].process.send_signal(signal.SIGTERM)
    expected = {name: SUCCESS if name == stopped else UNREACHABLE for name in roles}
    assert exit_codes(list(roles.values())) == expected
    assert roles[stopped].last_words().endswith(f"{stopped} was stopped by its operator")
    for name, child in roles.items():
        assert not re.search("Traceback|never retrieved", child.log.read_text()), child.log.read_text()
        if name != stopped:
            assert re.search("^precad: .*(aggregator|dealer)", child.last_words()), child.last_words()


# -- under the runner --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Runner:
    """A `precad run` in progress."""

    process: subprocess.Popen[bytes]
    folder: Path

    @property
    def metrics(self) -> list[dict[str, Any]]:
        path = self.folder / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def pid_of(self, *arguments: str) -> int:
        """Return the id of the one child process with these arguments beside one another."""
        wanted = " ".join(arguments)
        (pid,) = (pid for pid, command in processes_of(self.folder).items() if wanted in " ".join(command))
        return pid

    def end(self) -> tuple[int, str]:
        """Exit code and standard error, given that it ends by itself and leaves no process behind."""
        _, stderr = self.process.communicate(timeout=END_S)
        wait_for("no process left", lambda: not processes_of(self.folder), within_s=30.0)
        return self.process.returncode, stderr.decode()


Start = Callable[[dict[str, Any]], Runner]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts `precad run` on a configuration."""
    runners = []

    def started(raw: dict[str, Any]) -> Runner:
        config, folder = tmp_path / "deployment.toml", tmp_path / "run"
        config.write_text(tomli_w.dumps(raw))
        process = subprocess.Popen(
            [*PRECAD, "run", str(config), "--output", str(folder), "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        runners.append(Runner(process, folder))
        return runners[-1]

    yield started
    for runner in runners:
        runner.process.kill()
        runner.process.communicate()
        for pid in processes_of(runner.folder):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def wait_for_rounds(runner: Runner, n_rounds: int) -> None:
    wait_for(f"{n_rounds} rounds", lambda: len(runner.metrics) >= n_rounds, within_s=START_S)


@pytest.mark.slow
def test_a_killed_client_is_missing_and_the_run_goes_on(start: Start) -> None:
    """The round in progress finishes without it, so do all later ones, and the run ends well."""
    n_rounds = 100  # a run of few is over before a busy machine has looked
    runner = start(deployment(clients=3, rounds=n_rounds))
    wait_for_rounds(runner, 3)
    n_before = len(runner.metrics)
    os.kill(runner.pid_of("client", str(runner.folder / "config.toml"), "--id", "client-1"), signal.SIGKILL)
    code, stderr = runner.end()
    assert code == SUCCESS, stderr
    assert "client-1 ended with code -9" in " ".join(stderr.split())
    metrics = runner.metrics
    assert [m["round"] for m in metrics] == list(range(n_rounds))
    is_missing = [m["missing"] == ["client-1"] for m in metrics]
    first = is_missing.index(True)
    assert n_before <= first + 1
    assert is_missing == [t >= first for t in range(n_rounds)]
    assert all(m["missing"] == [] for m in metrics[:first])
    assert all(m["accepted"] == ["client-0", "client-2"] for m in metrics[first:])
    assert all(m["rejected"] == [] for m in metrics)
    assert max(m["seconds_total"] for m in metrics[first:]) < 10  # the deadline of a round is 60 s: nobody waits for it


@pytest.mark.slow
@pytest.mark.parametrize("victim", SERVERS)
def test_without_a_server_the_runner_ends_with_code_4_and_takes_everybody_along(start: Start, victim: str) -> None:
    """One line says which process was killed; nothing keeps running, and no summary claims success."""
    runner = start(grouped(ENDLESS))
    wait_for_rounds(runner, 2)
    role, _, letter = victim.partition("-")
    flags = ["--role", letter] if letter else []
    os.kill(runner.pid_of("serve", role, str(runner.folder / "config.toml"), *flags), signal.SIGKILL)
    code, stderr = runner.end()
    assert code == UNREACHABLE, stderr
    assert "Traceback" not in stderr, stderr
    assert re.search(f"^precad: .*{victim}", stderr, re.MULTILINE), stderr
    assert not (runner.folder / "summary.json").exists()


@pytest.mark.slow
def test_children_do_not_outlive_a_killed_runner(start: Start) -> None:
    """SIGKILL lets the runner do nothing more; its end of the lifeline closes all the same.

    By default, tests/deploy/localhost/test_forks.py kills a runner with one child.
    """
    runner = start(grouped(ENDLESS))
    wait_for_rounds(runner, 1)
    children = processes_of(runner.folder).keys() - {runner.process.pid}
    assert len(children) == 4
    runner.process.kill()
    wait_for("no process left", lambda: not processes_of(runner.folder), within_s=30.0)


def test_ctrl_c_in_a_round_ends_the_run_with_code_130(start: Start) -> None:
    """Every process is stopped, and one line says so. Model, summary and report are of the rounds that there were."""
    runner = start(grouped(ENDLESS))
    assert state_of(runner.folder) in {RunState.UNKNOWN, RunState.RUNNING}
    wait_for_rounds(runner, 3)  # a runner that comes late has the first rounds without their models
    assert state_of(runner.folder) is RunState.RUNNING
    runner.process.send_signal(signal.SIGINT)
    code, stderr = runner.end()
    assert code == INTERRUPTED, stderr
    assert re.match(
        r"precad: interrupted; every process was stopped; \d+ of \d+ rounds are kept in ", stderr.splitlines()[-1]
    )
    assert state_of(runner.folder) is RunState.INTERRUPTED
    summary = json.loads((runner.folder / "summary.json").read_text())
    assert summary["rounds"] == len((runner.folder / "metrics.jsonl").read_text().splitlines()) >= 1
    assert summary["ended"].startswith(f"interrupted after {summary['rounds']} of ")
    assert (runner.folder / "model.pt").is_file()
    assert "interrupted after" in (runner.folder / "report.html").read_text()
    assert "Traceback" not in stderr, stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
def test_an_interrupt_while_processes_start_leaves_none(start: Start, number: signal.Signals) -> None:
    """End cleanly before anybody listens, too. tests/precad/test_front_door.py has a run in its own process."""
    runner = start(grouped(ENDLESS))

    def is_one_up() -> bool:
        """Beside the runner: a process that it has just forked shows the runner's command until it has its own."""
        return len({tuple(command) for command in processes_of(runner.folder).values()}) > 1

    wait_for("the first process", is_one_up, within_s=START_S)
    runner.process.send_signal(number)
    code, stderr = runner.end()
    assert code == INTERRUPTED, stderr
    assert "Traceback" not in stderr, stderr


@pytest.mark.slow
def test_a_runner_that_falls_behind_still_ends_well(start: Start) -> None:
    """The servers are done before the runner has looked at every round; it gets the last model all the same.

    The runner is suspended for as long as the task takes, which makes certain what otherwise is a matter of luck.
    """
    runner = start(grouped(deployment(clients=2, rounds=40)))
    wait_for_rounds(runner, 1)
    runner.process.send_signal(signal.SIGSTOP)
    wait_for("the last round", lambda: n_lines(runner.folder / "a" / "rounds.jsonl") == 40, within_s=END_S)
    time.sleep(3.0)  # as long as servers take to leave when nobody is there
    runner.process.send_signal(signal.SIGCONT)
    code, stderr = runner.end()
    assert code == SUCCESS, stderr
    assert len(runner.metrics) == 40
    assert (runner.folder / "model.pt").exists()
