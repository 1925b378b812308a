"""Forked children: the same log, exit code, session, command line and end as an interpreter of their own.

Failure means: two processes share randomness, a process outlives its runner, or Ctrl-C reaches a server.
"""

from __future__ import annotations

import ctypes
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from precad.deploy.authority import pki
from precad.deploy.localhost import fork_server, forks
from precad.deploy.localhost.forks import GONE, ForkedChildren, ForkedProcess, Forks
from precad.deploy.localhost.processes import Child
from tests.harness.hostile_folder import executed, hostile_folder
from tests.harness.waiting import is_running, wait_for

KILLED_RUNNER = """
import sys, time
from pathlib import Path
from precad.deploy.localhost.forks import ForkedChildren, Forks
children = ForkedChildren(Path(sys.argv[1]), Forks("native"))
child = children.start("authority", "pki", "serve", sys.argv[2], "--listen", "127.0.0.1:0")
print(children._forks._process.pid, child.process.pid, type(child.process).__name__, flush=True)
time.sleep(200)
"""
TWO_THREADS = """
import json, os, signal, socket, sys, threading
from precad.deploy.localhost.fork_server import ForkServer, n_threads
ours, theirs = socket.socketpair()
server, over = ForkServer(theirs), threading.Event()
thread = threading.Thread(target=over.wait)
thread.start()
print(n_threads(), "threads", flush=True)
ours.sendall(json.dumps({"start": ["--version"], "log": sys.argv[1] + "/log"}).encode() + b"\\n")
assert server._serve(5.0) is None
print(ours.recv(100).decode(), end="")
over.set()
thread.join()
server._load(lambda: {}["loops"])
assert server._fork(None) is None
print(ours.recv(100).decode(), end="")
"""
LATE_GATE = """
import json, socket
from functools import partial
from precad.deploy.localhost import fork_server
ours, theirs = socket.socketpair()
fork_server._of_clients = fork_server._of_servers = lambda: iter(())
server = fork_server.ForkServer(theirs)
steps = server._steps()
assert next(steps) is next(steps) is None
print(ours.recv(100).decode(), end="")
ours.sendall(json.dumps({"gate": "native"}).encode() + b"\\n")
assert server._serve(5.0) is None
step = next(steps)
print(step.func.__name__, *step.args)
assert next(steps) is None
print(ours.recv(100).decode(), end="")
"""
PROOFS = """
import json, socket, sys
from precad.deploy.localhost import fork_server
ours, theirs = socket.socketpair()
fork_server._of_clients = fork_server._of_servers = lambda: iter(())
server = fork_server.ForkServer(theirs)
ours.sendall(json.dumps({"gate": fork_server.PROOFS}).encode() + b"\\n")
assert server._serve(5.0) is None
steps = server._steps()
print(next(steps).__name__)
step = next(steps)
print(ours.recv(100).decode(), end="")
print(step.__name__)
step()
loaded = {name.rpartition(".")[2] for name in sys.modules if name.startswith("precad.mpc.kernels.")}
print(*sorted(loaded & {"gate", "field", "prime_field", "proofs"}), sep=", ")
assert next(steps) is None
print(ours.recv(100).decode(), end="")
"""
TWO_DRAWS = """
import json, os, socket, sys
import numpy.random
from precad.deploy.localhost.fork_server import ForkServer, begin_as
ours, theirs = socket.socketpair()
server = ForkServer(theirs)
for log in sys.argv[1:]:
    ours.sendall(json.dumps({"start": [], "log": log}).encode() + b"\\n")
    if server._serve(5.0) is not None:
        begin_as([sys.executable])
        print(numpy.random.random(), flush=True)
        os._exit(0)
while server._children:
    server._serve(5.0)
"""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose modules have the names of ours and of libraries; the fork server is started in it."""
    return hostile_folder(tmp_path_factory.mktemp("here"))


@pytest.fixture(scope="module")
def children(here: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedChildren]:
    """One fork server for all tests: it takes seconds to load."""
    before = Path.cwd()
    os.chdir(here)
    try:
        loading = Forks("native")
    finally:
        os.chdir(before)
    started = ForkedChildren(tmp_path_factory.mktemp("logs"), loading)
    started.prepare(fork_server.SERVERS)
    yield started
    started.close()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("authority")
    pki.create_authority(folder)
    return folder


@pytest.fixture
def orphans_are_ours() -> Iterator[None]:
    """Make this process the parent of processes below it that lose theirs, so that it can wait for them."""
    prctl, set_child_subreaper = ctypes.CDLL(None).prctl, 36
    assert prctl(set_child_subreaper, 1, 0, 0, 0) == 0
    yield
    prctl(set_child_subreaper, 0, 0, 0, 0)


def test_a_fork_logs_both_streams_and_ends_with_its_own_code(children: ForkedChildren, tmp_path: Path) -> None:
    version = children.start("version", "--version")
    refused = children.start("refused", "check", str(tmp_path / "none.toml"))
    assert (version.process.wait(60), refused.process.wait(60)) == (0, 2)
    assert isinstance(version.process, ForkedProcess)
    assert version.last_words().startswith("precad ")
    assert stat.S_IMODE(version.log.stat().st_mode) == 0o600  # code of a user's own may print records
    assert refused.last_words().startswith("precad: ")
    assert refused.last_words().endswith("No such file or directory")


def test_a_fork_is_a_process_like_any_other(children: ForkedChildren, authority: Path) -> None:
    """Its own session, out of the terminal's reach; its own command line; nothing of the runner's but the lifeline."""
    child = children.start("serving", "pki", "serve", str(authority), "--listen", "127.0.0.1:0")
    of = Path(f"/proc/{child.process.pid}")
    wait_for("it listens", lambda: "listening" in child.log.read_text())
    assert os.getsid(child.process.pid) == child.process.pid != os.getsid(0)
    arguments = (of / "cmdline").read_bytes().rstrip(b"\0").decode().split("\0")
    assert arguments[1:] == [
        *("-P", "-m", "precad.deploy.cli.main"),
        *("pki", "serve", str(authority), "--listen", "127.0.0.1:0"),
    ]
    assert child.exit_code is None
    with pytest.raises(subprocess.TimeoutExpired):
        child.process.wait(0.05)
    assert child.process.send_signal(signal.SIGTERM) is None
    assert child.process.wait(60) == 0
    child.process.kill()  # of what has ended, nothing
    assert child.exit_code == 0


def test_forks_draw_different_keys(children: ForkedChildren, tmp_path: Path) -> None:
    """A generator whose state was copied would give both the same."""
    made = [children.start(f"authority-{i}", "pki", "init", str(tmp_path / str(i))) for i in range(2)]
    assert [child.process.wait(60) for child in made] == [0, 0], [child.last_words() for child in made]
    keys = [(tmp_path / str(i) / "ca.key").read_bytes() for i in range(2)]
    serials = [(tmp_path / str(i) / "ca.pem").read_bytes() for i in range(2)]
    assert keys[0] != keys[1]
    assert serials[0] != serials[1]


def test_the_fork_server_runs_nothing_of_the_folder_that_it_starts_in(children: ForkedChildren, here: Path) -> None:
    assert children.start("again", "--version").process.wait(60) == 0
    assert executed(here) == []


def test_stop_ends_forks_with_sigterm(children: ForkedChildren, authority: Path) -> None:
    child = children.start("stopped", "pki", "serve", str(authority), "--listen", "127.0.0.1:0")
    wait_for("it listens", lambda: "listening" in child.log.read_text())
    children.stop()
    assert child.exit_code == 0  # SIGTERM is its operator's wish


def test_forks_and_their_server_do_not_outlive_a_killed_runner(tmp_path: Path, authority: Path) -> None:
    """SIGKILL leaves the runner no time to stop anybody. The server notices when it has loaded what it is loading."""
    command = [sys.executable, "-c", KILLED_RUNNER, str(tmp_path), str(authority)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as runner:
        assert runner.stdout is not None
        server, child, kind = runner.stdout.readline().split()
        assert kind == "ForkedProcess"
        try:
            log = tmp_path / "authority.log"
            wait_for("it listens", lambda: "listening" in log.read_text())
            assert is_running(int(server))
            assert is_running(int(child))
        finally:
            runner.kill()
    wait_for("both gone", lambda: not is_running(int(server)) and not is_running(int(child)), within_s=30.0)


def test_servers_wait_for_their_gate_and_clients_for_nothing() -> None:
    """The runner starts the fork server before it knows the configuration, and so which gate the servers need."""
    done = subprocess.run([sys.executable, "-c", LATE_GATE], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == ['{"ready": "clients"}', "_load_gate native", '{"ready": "servers"}']


def test_in_mode_proved_clients_and_servers_start_with_the_loops_of_proofs() -> None:
    """And without a gate's. Each of them would otherwise load them for itself, in its first round."""
    done = subprocess.run([sys.executable, "-c", PROOFS], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == [
        "_load_proofs",
        '{"ready": "clients"}',
        "_load_proofs",
        "prime_field, proofs",
        '{"ready": "servers"}',
    ]


def test_without_a_fork_server_a_child_is_an_interpreter_of_its_own(tmp_path: Path) -> None:
    """It may be killed for memory before the first child; the run does not depend on it."""
    gone = Forks("native")
    gone._process.kill()
    children = ForkedChildren(tmp_path, gone)
    try:
        children.prepare(fork_server.SERVERS)
        child = children.start("version", "--version")
        assert isinstance(child.process, subprocess.Popen)
        assert child.process.wait(60) == 0
        assert children.refusal == GONE
    finally:
        children.close()


def test_a_second_thread_and_a_failed_load_forbid_forking(tmp_path: Path) -> None:
    """A lock that a thread holds would stay locked in the child for ever. The runner hears why nothing was started."""
    done = subprocess.run(
        [sys.executable, "-c", TWO_THREADS, str(tmp_path)], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines() == [
        "2 threads",
        '{"started": null, "why": "the fork server has 2 threads"}',
        """{"started": null, "why": "loading failed: KeyError: 'loops'"}""",
    ]


def test_forks_outlive_their_server_and_are_stopped_in_order(
    tmp_path: Path, authority: Path, orphans_are_ours: None
) -> None:
    """It may be killed for memory. What runs goes on, is not reported as failed, and still gets SIGTERM at the end."""
    children = ForkedChildren(tmp_path, Forks("native"))
    try:
        child = children.start("authority", "pki", "serve", str(authority), "--listen", "127.0.0.1:0")
        assert isinstance(child.process, ForkedProcess)
        wait_for("it listens", lambda: "listening" in child.log.read_text())
        children._forks._process.kill()
        children.prepare(fork_server.SERVERS)  # returns as soon as the server is gone
        assert child.exit_code is None
        with pytest.raises(subprocess.TimeoutExpired):
            child.process.wait(0.05)
        children.stop()
        assert child.exit_code == -signal.SIGKILL  # the server alone could tell
        assert os.waitpid(child.process.pid, 0) == (child.process.pid, 0)  # SIGTERM is its operator's wish
    finally:
        children.close()


def test_whoever_waits_for_a_loading_server_goes_on_when_the_run_ends(tmp_path: Path) -> None:
    """Ctrl-C while the code loads. Here the server is stopped, so that it never gets ready."""
    children = ForkedChildren(tmp_path, Forks("native"))
    os.kill(children._forks._process.pid, signal.SIGSTOP)
    children.all.append(Child("forked", ForkedProcess(children._forks, pid=1 << 22), tmp_path / "log"))
    preparing = threading.Thread(target=children.prepare, args=(fork_server.SERVERS,), daemon=True)
    starting = threading.Thread(target=children._forks.start, args=((), tmp_path / "log"), daemon=True)
    closing = threading.Thread(target=children.close, daemon=True)
    for thread in (preparing, starting, closing):
        thread.start()
    for thread in (preparing, starting, closing):
        thread.join(60)
    assert not any(thread.is_alive() for thread in (preparing, starting, closing))


def test_a_server_that_hangs_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "ANSWER_S", 0.2)
    hung = Forks("native")
    os.kill(hung._process.pid, signal.SIGSTOP)
    try:
        assert hung.start(["--version"], tmp_path / "log") is None
        assert hung._process.wait(60) == -signal.SIGKILL
    finally:
        hung.close()


def test_a_system_that_refuses_a_fork_says_why(children: ForkedChildren, tmp_path: Path) -> None:
    """The server lives on, and so do its other children."""
    before = children._forks.refusal
    assert children._forks.start(["--version"], tmp_path / "none" / "log") is None
    try:
        assert "No such file or directory" in children.refusal
        assert isinstance(children.start("after", "--version").process, ForkedProcess)
    finally:
        children._forks.refusal = before


def test_forks_draw_different_numbers_from_the_global_generators(tmp_path: Path) -> None:
    """NumPy's older functions draw from a state of the whole process, which a fork copies."""
    logs = [tmp_path / "one", tmp_path / "two"]
    subprocess.run(
        [sys.executable, "-c", TWO_DRAWS, *map(str, logs)],
        check=True,
        timeout=60,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    drawn = [float(log.read_text()) for log in logs]
    assert drawn[0] != drawn[1]


def test_seeding_anew_forgets_the_copied_state() -> None:
    """PyTorch's generator too."""
    drawn: set[float] = set()
    numbers, state = np.random.get_state(), torch.default_generator.get_state()
    for _ in range(2):
        np.random.set_state(numbers)
        torch.default_generator.set_state(state)
        fork_server.seed_anew()
        drawn |= {np.random.random(), torch.rand(1, dtype=torch.float64).item()}
    assert len(drawn) == 4


def test_closing_gives_every_descriptor_back(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    ForkedChildren(tmp_path, Forks("native")).close()
    assert set(os.listdir("/proc/self/fd")) <= before  # another test's may be closed meanwhile
