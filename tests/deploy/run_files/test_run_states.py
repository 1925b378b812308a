"""Running, finished, interrupted, failed and crashed are told apart: of a local run, and of a server's state_dir.

Failure means that an operator waits for a dead process, or starts a second one beside a living.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from rich.console import Console

from precad.deploy.configuration import sections as configuration
from precad.deploy.errors import ConfigError, InterruptedRunError, RunFailedError
from precad.deploy.oversight import state_dirs
from precad.deploy.oversight.run_status import read_run
from precad.deploy.oversight.status_shown import show_rounds
from precad.deploy.oversight.status_sources import as_it_goes
from precad.deploy.run_files import state
from precad.deploy.run_files.folder import RunFolder
from precad.deploy.run_files.state import RunState, state_of
from precad.dp.accountants.pld import View
from precad.dp.accountants.task_cost import Charged
from precad.dp.errors import LedgerInUseError
from precad.dp.task_privacy import task_cost
from precad.protos.task.task import Task
from precad.protos.tls.identity import Role
from precad.servers.store.folder import ledger_path, open_ledger, open_task_store, write_round
from precad.servers.store.rounds import CommittedRound
from precad.servers.telemetry.status import epsilons_of
from tests.harness.command_line import precad
from tests.harness.harness import small_task
from tests.harness.run_folders import deployed

TASK = small_task()


def ending(folder: Path, error: Exception | None = None) -> None:
    with state.held(folder):
        assert state_of(folder) is RunState.RUNNING
        if error is not None:
            raise error


def test_a_run_s_end_is_told_by_its_own_word(tmp_path: Path) -> None:
    assert state_of(tmp_path) is RunState.UNKNOWN
    ending(tmp_path)
    assert state_of(tmp_path) is RunState.FINISHED
    with pytest.raises(InterruptedRunError):
        ending(tmp_path, InterruptedRunError("ctrl-c"))
    assert state_of(tmp_path) is RunState.INTERRUPTED
    with pytest.raises(RunFailedError):
        ending(tmp_path, RunFailedError("a server died", exit_code=4))
    assert state_of(tmp_path) is RunState.FAILED
    (tmp_path / state.NAME).write_text("nonsense")
    assert state_of(tmp_path) is RunState.UNKNOWN
    (tmp_path / "summary.json").write_text("{}")
    assert state_of(tmp_path) is RunState.FINISHED


def test_a_full_disk_leaves_no_interrupted_run_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last word is lost, and the one before says that it crashed: it can be continued."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def interrupted() -> None:
        with state.held(tmp_path):
            monkeypatch.setattr(os, "pwrite", full)
            raise InterruptedRunError("ctrl-c")

    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(InterruptedRunError):
        interrupted()
    assert state_of(tmp_path) is RunState.CRASHED
    (tmp_path / state.NAME).write_text("")  # as a version before may have left it
    assert state_of(tmp_path) is RunState.CRASHED


def test_a_word_takes_the_place_of_another_in_one_piece(tmp_path: Path) -> None:
    """Whichever were there before, of any length: no kill comes between two changes of the file."""
    lengths = set[int]()
    for error in (None, InterruptedRunError("ctrl-c"), RunFailedError("a server died", exit_code=4), None):
        with contextlib.suppress(InterruptedRunError, RunFailedError):
            ending(tmp_path, error)
        lengths.add((tmp_path / state.NAME).stat().st_size)
    assert len(lengths) == 1
    assert state_of(tmp_path) is RunState.FINISHED
    with pytest.raises(ConfigError, match="found a finished run"), state.held(tmp_path, resumes=True):
        pass


HOLD = """
import sys, subprocess, time
from pathlib import Path
from precad.deploy.run_files import state
with state.held(Path(sys.argv[1])):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    print(child.pid, flush=True)
    time.sleep(60)
"""


def test_a_killed_run_has_crashed_although_its_child_lives(tmp_path: Path) -> None:
    """The lock is the process's own: nobody who outlives it holds it."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        assert state_of(tmp_path) is RunState.RUNNING
        process.kill()
        process.wait()
        assert state_of(tmp_path) is RunState.CRASHED
    finally:
        process.stdout.close()
        os.kill(child, signal.SIGKILL)


def test_status_and_watch_say_what_became_of_a_run(tmp_path: Path) -> None:
    """A run of three rounds; `watch` ends where the run has, and its code says that it was early."""
    run = deployed(tmp_path / "run")
    assert "finished" in precad("status", run).stdout
    (run / state.NAME).write_text(RunState.RUNNING)
    status = read_run(run)
    assert (status.state, status.is_finished) == (RunState.CRASHED, False)
    assert status.ended.startswith("its process is gone, and said nothing; 3 of ")
    assert status.ended.endswith("; precad run RUN/config.toml --output RUN --resume continues")
    assert "crashed" in precad("status", run).stdout

    async def watched() -> int:
        return len([status async for status in as_it_goes(run, None)])

    assert asyncio.run(asyncio.wait_for(watched(), 30)) == 1
    (run / "metrics.jsonl").unlink()
    shown = precad("watch", run)
    assert (shown.exit_code, "ended early: its process is gone" in shown.stderr) == (4, True)
    with state.held(run):
        status = read_run(run)
        assert (status.state, status.is_ready, status.ended) == (RunState.RUNNING, True, "")


def test_the_status_of_a_run_shows_attackers_success_and_that_nothing_is_enforced(tmp_path: Path) -> None:
    run = deployed(tmp_path / "run")
    assert read_run(run).checks_norms
    assert "attack_success" not in precad("status", run).stdout
    lines = [json.loads(line) | {"attack_success": 0.25} for line in (run / "metrics.jsonl").read_text().splitlines()]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = tomllib.loads((run / "config.toml").read_text())
    config["task"]["validation"] = "none"
    (run / "config.toml").write_text(tomli_w.dumps(config))
    shown = precad("status", run).stdout
    assert "attack_success 0.25" in shown
    assert "no norm is checked, and nothing is enforced" in shown


def committed(number: int) -> CommittedRound:
    return CommittedRound(
        number=number,
        chosen=("alice", "bob", "carol"),
        accepted=("alice",),
        rejected=("bob",),
        model_digest=bytes(32),
        epsilon_one_server=0.5,
        epsilon_clients_only=0.25,
        seconds={"collect": 1.0},
    )


def test_a_state_dir_says_how_far_its_server_is(tmp_path: Path) -> None:
    """While the server has its ledger open, it runs. Then it has stopped or crashed, and may go on."""
    with open_ledger(tmp_path, TASK), open_task_store(tmp_path, TASK, b"model") as store:
        store.begin("small-0123456789abcdef", Role.AGGREGATOR_A)
        write_round(tmp_path, committed(0), np.zeros(TASK.dim, np.float32))
        status = read_run(tmp_path)
        assert (status.state, status.task, status.role) == ("running", "small-0123456789abcdef", "aggregator-a")
        assert (status.rounds_done, status.uploads) == (1, {"accepted": 1, "rejected": 1, "missing": 1})
        assert {epsilon.view: epsilon.spent for epsilon in status.epsilons} == dict(zip(View, (0.5, 0.25), strict=True))
        shown = precad("status", tmp_path)
        assert shown.exit_code == 0, shown.output
        assert "1 accepted, 1 rejected, 1 missing" in shown.stdout
    status = read_run(tmp_path)
    assert status.state == "not running"
    assert status.ended.endswith("start it again in this folder to go on")
    with open_task_store(tmp_path, TASK, b"model") as store:
        store.interrupted(1, "lost aggregator-b")
    assert read_run(tmp_path).ended.startswith("interrupted: lost aggregator-b")
    with open_task_store(tmp_path, TASK, b"model") as store:
        store.finished("3 rounds done")
    status = read_run(tmp_path)
    assert (status.state, status.is_finished, status.ended) == ("finished", True, "3 rounds done")


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"ended": "3 rounds done"}, ""),
        ({"ended": "the privacy budget is spent after 3 rounds"}, "; the privacy budget is spent after 3 rounds"),
        ({"ended": "3 rounds done", "model_is_finite": False}, "; the training diverged"),
        ({"ended": ["of", "another", "program"]}, "; ['of', 'another', 'program']"),
        ({}, ""),
    ],
)
def test_a_run_that_is_over_says_what_ended_it(tmp_path: Path, written: dict[str, Any], said: str) -> None:
    """Without the reason, a spent budget looks like a stop, and a diverged model like a good one."""
    folder = RunFolder(deployed(tmp_path / "run"))
    folder.write_summary(written)
    assert read_run(folder.root).ended == f"3 of 3 rounds done{said}"


def in_json(folder: Path) -> dict[str, Any]:
    """Return the one status that the command prints."""
    (found,) = json.loads(precad("status", folder, "--json").stdout)["servers"].values()
    return dict(found)


def test_a_state_dir_says_which_rounds_were_lost(tmp_path: Path) -> None:
    """One was given up before its check, one after: its verdicts are unknown. One ended in its check."""
    with open_ledger(tmp_path, TASK) as ledger, open_task_store(tmp_path, TASK, b"model") as store:
        store.begin("small-0123456789abcdef", Role.AGGREGATOR_A)
        for number in range(3):
            store.reserve(number)
        for number in (1, 2):
            store.checking(number, chosen=("alice", "bob"), active=("alice", "bob")[:number])
            ledger.charge(number, ("alice", "bob"))
            if number == 1:
                store.settle({1})
        running = in_json(tmp_path)
    found = in_json(tmp_path)
    assert (running["rounds_lost"], running["verdicts_unknown"]) == (None, {"alice": 1})
    assert (found["rounds_lost"], found["verdicts_unknown"]) == (3, {"alice": 2, "bob": 1})
    assert re.search(r"lost +3 rounds *\n", precad("status", tmp_path).stdout)


def test_what_a_state_dir_does_not_say_is_null(tmp_path: Path) -> None:
    """No zero that would be taken for a fact: the folder has no task."""
    with open_ledger(tmp_path, TASK), open_task_store(tmp_path, TASK, b"model"):
        pass
    found = in_json(tmp_path)
    unsaid = ("rounds_planned", "n_enrolled", "n_connected", "rounds_lost_at_most", "checks_norms", "evaluation")
    assert [found[name] for name in unsaid] == [None] * len(unsaid)
    assert (found["rounds_done"], found["rounds_lost"], found["verdicts_unknown"]) == (0, 0, {})


def test_a_copy_for_the_other_operator_counts_the_rounds_of_its_log(tmp_path: Path) -> None:
    """It holds the log and the ledger alone: not even a zero stands for what the records say."""
    with open_ledger(tmp_path, TASK) as ledger, open_task_store(tmp_path, TASK, b"model") as store:
        store.begin("small-0123456789abcdef", Role.AGGREGATOR_B)
        for number in range(2):
            store.reserve(number)
            store.checking(number, chosen=("alice", "bob", "carol"), active=("alice", "bob"))
            ledger.charge(number, ("alice", "bob", "carol"))
            store.validated(number, accepted=("alice",), rejected=("bob",))
            store.commit(committed(number), noisy_sum_digest=bytes(32), ledger_chain=ledger.chain)
    found = in_json(tmp_path)
    assert (found["rounds_done"], found["uploads"], found["bytes"]) == (2, None, None)
    shown = precad("status", tmp_path).stdout
    assert re.search(r"rounds +2 *\n", shown)
    assert "uploads" not in shown
    assert "small-0123456789abcdef: not running; 2 rounds" in precad("watch", tmp_path).output


def test_a_folder_of_neither_kind_is_named(tmp_path: Path) -> None:
    for command in ("status", "watch"):
        said = "expected a folder of `precad run` or an aggregator's state_dir, found neither"
        refused = precad(command, tmp_path)
        assert (refused.exit_code, refused.stderr) == (2, f"precad: {tmp_path}: {said} config.toml nor task.sqlite\n")


def test_where_clients_evaluate_a_state_dir_does_not_count_lost_rounds(tmp_path: Path) -> None:
    """A number without a commit may be an evaluation's."""
    task = small_task(evaluation="clients", evaluation_every=1, evaluation_noise=5.0)
    with open_ledger(tmp_path, task), open_task_store(tmp_path, task, b"model") as store:
        store.begin("small-0123456789abcdef", Role.AGGREGATOR_A)
        store.reserve(0)
    assert in_json(tmp_path)["rounds_lost"] is None


def test_a_ruined_record_is_no_round_less(tmp_path: Path) -> None:
    """Only the last line may be what a crash left of one. Another line is damage, and no round less."""
    with open_ledger(tmp_path, TASK), open_task_store(tmp_path, TASK, b"model"):
        write_round(tmp_path, committed(0), np.zeros(TASK.dim, np.float32))
        records = tmp_path / "rounds.jsonl"
        whole = records.read_bytes()
        records.write_bytes(whole + whole[:20])
        assert read_run(tmp_path).rounds_done == 1
        for ruined in (b"\xff\n", b"round 1\n"):
            records.write_bytes(whole + ruined)
            for command in ("status", "watch"):
                found = precad(command, tmp_path)
                assert (found.exit_code, found.stdout) == (2, "")
                assert "rounds.jsonl, line 2: expected a round, found something else" in found.stderr


def lost(folder: Path, task: Task, n_rounds: int) -> dict[View, float]:
    """Charge rounds of one client without a record, as where they are lost after the charge. Return the ledger's
    epsilons."""
    folder.mkdir(exist_ok=True)
    client = min(task.clients)
    with open_ledger(folder, task) as ledger:
        first = max(ledger.rounds, default=-1) + 1
        for number in range(first, first + n_rounds):
            ledger.charge(number, [client])
        return {view: ledger.statement(view).epsilon for view in View}


def test_a_state_dir_states_what_its_ledger_charged(tmp_path: Path) -> None:
    """Five rounds were charged, and one committed: the figure is of five."""
    expected = lost(tmp_path, TASK, 5)
    with open_task_store(tmp_path, TASK, b"model"):
        assert {one.view: one.spent for one in read_run(tmp_path).epsilons} == expected
        write_round(tmp_path, replace(committed(0), epsilon_one_server=1e-3), np.zeros(TASK.dim, np.float32))
    found = {one.view: one.spent for one in read_run(tmp_path).epsilons}
    assert found[View.ONE_SERVER] == expected[View.ONE_SERVER] > 1e-3
    assert all(found[view] >= expected[view] for view in View)


FUNCTION = {
    "sum_function": "own:halve",
    "sum_function_sha256": "0" * 64,
    "sum_function_factor": 3.0,
    "frac_bits": 16,
}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (FUNCTION, "if own:halve moves at most 3 times as far as the sum does, as operators say"),
        ({"algorithm": "distributed-dp", "client_clip": 64.0}, "rests on"),
        ({}, ""),
    ],
)
def test_a_state_dir_says_what_its_figures_rest_on(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    """Without its server or its configuration, in the words of the server itself; of tasks that need no word, none."""
    task = small_task(**changes)
    lost(tmp_path, task, 2)
    with open_task_store(tmp_path, task, b"model") as store:
        store.begin("small-0123456789abcdef", Role.AGGREGATOR_A)
    found = {one.view: one.rests_on for one in read_run(tmp_path).epsilons}
    assert found == {one.view: one.rests_on for one in epsilons_of(task, dict.fromkeys(View, 0.0))}
    shown = " ".join(precad("status", tmp_path).stdout.split())
    assert ("rests on" in shown, said in shown) == (bool(said), True)


@pytest.mark.parametrize("letter", ["a", "b"])
def test_a_run_states_what_its_servers_charged(letter: str, tmp_path: Path) -> None:
    """Servers may outlive a runner that was killed, and charge rounds that have no line."""
    run = RunFolder(deployed(tmp_path / "run"))
    before = {one.name: one.spent for one in read_run(run.root).epsilons}
    expected = lost(run.state_dir(letter), configuration.load(run.config).task, 9)
    found = {one.name: one for one in read_run(run.root).epsilons}
    assert {view: found[view].spent for view in View} == expected
    assert all(found[view].spent > before[view] for view in View)
    with ledger_path(run.state_dir(letter)).open("r+b") as file:
        file.write(b"{}")
    shown = precad("status", run.root)
    assert (shown.exit_code, "expected ledgers as servers write them" in shown.stderr) == (2, True)


def test_a_server_states_the_rounds_that_it_lost_after_their_charge() -> None:
    """Its page, metrics and `watch`: a last record of less, and five charged rounds."""
    cost = task_cost(TASK)
    found = epsilons_of(TASK, dict.fromkeys(View, 0.001), Charged(6, 5, 5))
    assert {one.view: one.spent for one in found} == {view: cost.of_view(view, 5) for view in View}


ASK = """
import os, sys
from pathlib import Path
from precad.deploy.oversight.state_dirs import read_state_dir
from precad.servers.store.folder import ledger_path
folder = Path(sys.argv[1])
is_listed = f":{ledger_path(folder).stat().st_ino} " in Path("/proc/locks").read_text()
print(os.getpid(), is_listed, read_state_dir(folder).state)
"""
NAMESPACE = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc")


def asked_elsewhere(folder: Path) -> list[str]:
    """Return what a process of another PID namespace says: its number there, whether it sees the lock, the state."""
    if subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this system allows no PID namespaces")
    command = [*NAMESPACE, sys.executable, "-c", ASK, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def test_a_server_of_another_pid_namespace_runs_or_has_crashed(tmp_path: Path) -> None:
    """As of another container: its process has no number here, so that its lock is in no list that can be read."""
    with open_ledger(tmp_path, TASK), open_task_store(tmp_path, TASK, b"model"):
        assert asked_elsewhere(tmp_path) == ["1", "False", "running"]
    assert asked_elsewhere(tmp_path)[2:] == ["not", "running"]


def test_a_server_that_starts_while_somebody_asks_gets_its_ledger(tmp_path: Path) -> None:
    """The question is over at once; a lock that stays is another server's."""
    with open_ledger(tmp_path, TASK):
        pass
    with ledger_path(tmp_path).open("rb") as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)
        threading.Timer(0.03, fcntl.flock, (asking, fcntl.LOCK_UN)).start()
        with open_ledger(tmp_path, TASK), pytest.raises(LedgerInUseError):
            open_ledger(tmp_path, TASK)


def test_a_run_begins_while_somebody_asks_for_its_state(tmp_path: Path) -> None:
    """`precad watch` asks twice a second. A lock that stays is another run's."""
    with state.held(tmp_path):
        pass
    with (tmp_path / state.NAME).open("rb") as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)
        threading.Timer(0.03, fcntl.flock, (asking, fcntl.LOCK_UN)).start()
        with (
            state.held(tmp_path),
            pytest.raises(ConfigError, match="found a run in progress"),
            state.held(tmp_path),
        ):
            pytest.fail("two runs hold one folder")


def test_a_damaged_state_dir_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "task.sqlite").write_bytes(b"no database")
    shown = precad("status", tmp_path)
    assert (shown.exit_code, "expected an aggregator's state_dir" in shown.stderr) == (2, True)
    assert state_dirs.is_state_dir(tmp_path)


@pytest.mark.parametrize(
    "header",
    [
        "null",
        '{"delta": "x"}',
        '{"delta": 1e-5, "unit": "x"}',
        '{"delta": 1e-5, "events": {"one_server": 7}}',
        "[" * 100_000,
    ],
)
def test_fields_of_another_kind_are_refused_in_one_line(header: str, tmp_path: Path) -> None:
    with open_ledger(tmp_path, TASK), open_task_store(tmp_path, TASK, b"model"):
        write_round(tmp_path, committed(0), np.zeros(TASK.dim, np.float32))
    ledger_path(tmp_path).write_text(header + "\n")
    shown = precad("status", tmp_path)
    assert (shown.exit_code, shown.stderr.count("\n")) == (2, 1), shown.stderr[:500]
    assert "expected an aggregator's state_dir" in shown.stderr


def test_a_folder_s_words_are_shown_and_not_obeyed(tmp_path: Path) -> None:
    """Neither a reason nor a folder's name reaches the terminal as a command or as markup."""
    odd = tmp_path / "[x\x1b[2J]"
    odd.mkdir()
    with open_ledger(odd, TASK), open_task_store(odd, TASK, b"model") as store:
        store.begin("small-0123456789abcdef", Role.AGGREGATOR_A)
        store.finished("done\x1b]0;title\x07 [red]now[/red]")
    shown = precad("status", odd)
    assert shown.exit_code == 0, shown.output
    assert "\x1b" not in shown.stdout
    assert "done?]0;title? [red]now[/red]" in shown.stdout
    assert "[x?[2J]" in shown.stdout
    statuses = as_it_goes(odd, None)
    screen = io.StringIO()
    asyncio.run(show_rounds(statuses, Console(file=screen), title=""))
    assert "\x1b" not in screen.getvalue()
