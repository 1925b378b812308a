"""Child processes and their lifeline, with trivial commands in the place of `precad`."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from precad.deploy.localhost import processes
from precad.deploy.localhost.processes import LIFELINE_VARIABLE, Children, isolated_python, watch_lifeline
from tests.harness.hostile_folder import executed, hostile_folder
from tests.harness.waiting import is_running, wait_for

ON_THE_LIFELINE = """
import time
from precad.deploy.localhost.processes import watch_lifeline
watch_lifeline()
print("watching", flush=True)
time.sleep(200)
"""
AS_A_ROLE = """
import os, resource
from precad.deploy.cli.roles import serve

class Crashes:
    def stop(self): ...
    async def run(self):
        os.abort()

_, most = resource.getrlimit(resource.RLIMIT_CORE)
resource.setrlimit(resource.RLIMIT_CORE, (most, most))
serve(Crashes)
"""
AS_A_ROLE_OF_A_SERVICE = """
import ctypes, os, subprocess, sys
from precad.clients.external import sandbox
from precad.deploy.cli import process_logs
from precad.deploy.cli.roles import serve

def found_by_code():
    return subprocess.run(["/bin/sh", "-c", "cat /proc/$PPID/environ"], capture_output=True).stdout

class StartsCode:
    def stop(self): ...
    async def run(self):
        sys.stdout.buffer.write(found_by_code())

if os.geteuid() == 0:  # who may read everything
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE, as it is where a service was started as its user
print(len(found_by_code()), flush=True)
serve(StartsCode)
"""
STUBBORN = 'trap "" TERM; echo deaf; while :; do sleep 0.1; done'


@pytest.fixture
def anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`Children.start(name, *command)` runs the command itself rather than `precad COMMAND`."""
    script = tmp_path / "anything"
    script.write_text('#!/bin/sh\nshift 3  # -P -m precad.deploy.cli.main\nexec "$@"\n')
    script.chmod(0o700)
    monkeypatch.setattr(processes.sys, "executable", str(script))


@pytest.fixture
def children(tmp_path: Path, anything: None) -> Iterator[Children]:
    logs = tmp_path / "logs"
    logs.mkdir()
    started = Children(logs)
    yield started
    started.close()


def test_a_child_logs_both_streams_and_ends_with_its_own_code(children: Children) -> None:
    child = children.start("talker", "sh", "-c", "echo first; echo last >&2; exit 4")
    child.process.wait(60)
    assert (child.name, child.exit_code, child.last_words()) == ("talker", 4, "last")
    assert child.log.name == "talker.log"
    assert child.log.read_text() == "first\nlast\n"
    assert stat.S_IMODE(child.log.stat().st_mode) == 0o600  # code of a user's own may print records


def test_a_child_runs_no_module_of_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither itself nor an interpreter that it starts, whose flags are its own."""
    here = hostile_folder(tmp_path / "here")
    monkeypatch.chdir(here)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    children = Children(tmp_path)
    try:
        version = children.start("version", "--version")
        grandchild = (
            f"import subprocess; subprocess.run([{sys.executable!r}, '-c', 'import joblib, precad.clients.encoding'])"
        )
        starter = children.start_program("starter", *isolated_python(), "-c", grandchild)
        for child in (version, starter):
            assert child.process.wait(60) == 0, child.last_words()
    finally:
        children.close()
    assert executed(here) == []
    assert starter.last_words() == "(nothing in its log)"


def test_a_silent_child_has_no_last_words(children: Children) -> None:
    child = children.start("silent", "true")
    child.process.wait(60)
    assert child.last_words() == "(nothing in its log)"


def test_a_child_has_no_input_no_terminal_and_one_thread_a_library(children: Children) -> None:
    """Ctrl-C reaches the runner alone, which then stops its children in order."""
    child = children.start("asker", "sh", "-c", "cat; echo threads: $OMP_NUM_THREADS; sleep 60")
    wait_for("its input has ended", lambda: child.last_words() == "threads: 1")
    assert os.getsid(child.process.pid) == child.process.pid != os.getsid(0)


def test_stop_ends_whoever_runs_and_leaves_the_others_codes(children: Children) -> None:
    done, running = children.start("done", "sh", "-c", "exit 3"), children.start("running", "sleep", "60")
    done.process.wait(60)
    assert running.exit_code is None
    children.stop()
    assert (done.exit_code, running.exit_code) == (3, -signal.SIGTERM)
    children.stop()  # nothing is left to stop


def test_a_child_that_ignores_sigterm_is_killed(children: Children, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the grace period, and all of them within one such period: three would take 12 s."""
    monkeypatch.setattr(processes, "GRACE_S", 4.0)
    deaf = [children.start(f"deaf-{i}", "sh", "-c", STUBBORN) for i in range(3)]
    wait_for("all are deaf", lambda: all(child.log.read_text() == "deaf\n" for child in deaf))
    start = time.monotonic()
    children.stop()
    assert 4 <= time.monotonic() - start < 11
    assert [child.exit_code for child in deaf] == [-signal.SIGKILL] * 3


def test_closing_stops_everybody_and_gives_the_pipe_back(tmp_path: Path, anything: None) -> None:
    before = set(os.listdir("/proc/self/fd"))
    children = Children(tmp_path)
    running = children.start("running", "sleep", "60")
    children.close()
    assert running.exit_code == -signal.SIGTERM
    assert set(os.listdir("/proc/self/fd")) <= before  # another test's may be closed meanwhile


def test_children_exit_when_the_parent_is_killed(tmp_path: Path) -> None:
    """SIGKILL leaves the parent no time to stop anybody, and no child holds up the end of the pipe for another."""
    parent = f"""
import time
from pathlib import Path
from precad.deploy.localhost import processes
script = Path({str(tmp_path)!r}) / "python"
script.write_text('#!/bin/sh\\nshift 3\\nexec {sys.executable} "$@"\\n')
script.chmod(0o700)
processes.sys.executable = str(script)
children = processes.Children(Path({str(tmp_path)!r}))
for name in ("one", "two"):
    print(children.start(name, "-c", {ON_THE_LIFELINE!r}).process.pid, flush=True)
time.sleep(200)
"""
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pids = [int(process.stdout.readline()) for _ in range(2)]
        logs = [tmp_path / "one.log", tmp_path / "two.log"]
        try:
            wait_for("both watch", lambda: all(log.exists() and log.read_text() == "watching\n" for log in logs))
            assert all(map(is_running, pids))
        finally:
            process.kill()
    wait_for("both gone", lambda: not any(map(is_running, pids)), within_s=30.0)


def test_a_role_that_crashes_leaves_no_core_dump(tmp_path: Path) -> None:
    """However many bytes of one its user may leave: the kernel says in the status whether it wrote one."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    process = subprocess.Popen(
        [sys.executable, "-c", AS_A_ROLE], cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL
    )
    _, status = os.waitpid(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert os.WTERMSIG(status) == signal.SIGABRT
    assert not os.WCOREDUMP(status)


def test_code_that_a_role_starts_does_not_find_its_environment(tmp_path: Path) -> None:
    """A passphrase may be there, or a token: programs for measuring models get none, and run as the same user."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3]), "PRECAD_KEY_PASSPHRASE": "horse"}
    found = subprocess.run(
        [sys.executable, "-c", AS_A_ROLE_OF_A_SERVICE], cwd=tmp_path, env=environment, capture_output=True, check=True
    )
    before, _, after = found.stdout.partition(b"\n")
    assert int(before) > len(b"PRECAD_KEY_PASSPHRASE=horse")
    assert after == b""


@pytest.mark.parametrize("value", [None, "", "none"])
def test_a_process_started_by_hand_has_no_lifeline(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing watches, and nothing ends this process."""
    monkeypatch.delenv(LIFELINE_VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(LIFELINE_VARIABLE, value)
    threads = set(threading.enumerate())
    watch_lifeline()
    assert set(threading.enumerate()) <= threads  # another test's may end meanwhile


def test_who_is_stopped_first_has_ended_before_others_are_asked(children: Children, tmp_path: Path) -> None:
    """Even one that takes its time: a server that saw its clients leave would commit a round of nobody."""
    slow = 'trap "sleep 0.5; date +%s%N; exit 0" TERM; echo here; while :; do sleep 0.02; done'
    quick = 'trap "date +%s%N; exit 0" TERM; echo here; while :; do sleep 0.02; done'
    for name, command in (("client-1", quick), ("server", slow), ("client-2", quick)):
        children.start(name, "sh", "-c", command)
    wait_for("all are here", lambda: all(child.last_words() == "here" for child in children.all))
    children.stop(first=["server"])
    ended = {child.name: int(child.last_words()) for child in children.all}
    assert ended["server"] < min(ended["client-1"], ended["client-2"])
    assert [child.exit_code for child in children.all] == [0, 0, 0]
