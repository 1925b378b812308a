"""A foreign trainer in its own process: what it gets, what it cannot reach, and what its failures cost."""

from __future__ import annotations

import ctypes
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import structlog
from numpy.testing import assert_array_equal
from torch import nn

from precad.clients.errors import TrainerError
from precad.clients.external.arrays import ModelArrays
from precad.clients.external.program import Program
from precad.clients.external.sandbox import doors
from precad.clients.external.trainer import ExternalTrainer

HERE = Path(__file__).parent
START = np.arange(8, dtype=np.float32)
MARKER = "precad-test-straggler"
THREADED = """#!/bin/sh
exec {python} -I -B -c '
import runpy, sys, threading, time
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")' "$3" "$4" "$5" "$6"
"""
"""An interpreter with two threads: the kernel gives such a process no namespace of users."""
WITHOUT_LANDLOCK = """#!/bin/sh
exec {python} -I -B -c '
import ctypes, runpy, struct, sys
libc = ctypes.CDLL(None)
steps = [(32, 0, 0, 0), (53, 0, 2, 444), (37, 1, 0, 446), (6, 0, 0, 0x50026), (6, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *step) for step in steps))
libc.prctl(38, 1, 0, 0, 0)
assert libc.prctl(22, 2, struct.pack("<H6xQ", len(steps), ctypes.addressof(code))) == 0
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")' "$3" "$4" "$5" "$6"
"""
"""An interpreter to whom the kernel says ENOSYS for Landlock's three calls, by a filter of seccomp."""


def model():
    """8 numbers that are trained: 6 of weights and 2 of biases."""
    return nn.Sequential(nn.Linear(3, 2))


@pytest.fixture
def trainer(tmp_path):
    """Make a trainer of `foreign.py`; all are closed at the end."""
    made = []

    def make(name, **changes):
        fields = {"kind": "callable", "path": f"foreign:{name}", "folder": HERE, "timeout_s": 20.0, **changes}
        made.append(ExternalTrainer(Program(**fields), ModelArrays.of(model()), "alice"))
        return made[-1]

    yield make
    for one in made:
        one.close()


def outcome(ours):
    """Train once. Return (parameters or None, the log's reasons)."""
    with structlog.testing.capture_logs() as lines:
        found = ours.train(START)
    return found, [line["reason"] for line in lines if line["event"] == "client.trainer_failed"]


@pytest.mark.parametrize("name", ["add_one", "as_a_list"])
def test_new_parameters_come_back_exactly(trainer, name):
    ours = trainer(name)
    ours.start()
    for _ in range(2):
        assert_array_equal(ours.train(START), START.astype(np.float64) + 1)


def test_a_trainer_is_told_what_its_operator_says(trainer):
    ours = trainer("told", config={"scale": 2.5})
    assert_array_equal(ours.train(START), np.full(8, 2.5))
    assert_array_equal(ours.train(START), np.full(8, 5.0))


def test_one_that_is_started_again_goes_on_counting_rounds(trainer):
    """A schedule by the round does not begin anew because one round failed."""
    ours = trainer("told_unless_second", is_isolation_required=False)
    ours.start()
    assert_array_equal(ours.train(START), np.full(8, 1))
    assert outcome(ours) == (None, ["its process ended"])
    assert_array_equal(ours.train(START), np.full(8, 3))


def test_constants_and_shared_arrays_are_named_too():
    """A frozen array, an integer one, and one array under two names: the flat vector has what is trained, once."""
    whole = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False), nn.BatchNorm1d(2))
    whole[1].weight = whole[0].weight
    whole[2].weight.requires_grad_(False)
    arrays = ModelArrays.of(whole)
    from precad.clients.external.child import Arrays

    described = [{name: getattr(entry, name) for name in entry.__slots__} for entry in arrays.entries]
    theirs = Arrays(described, arrays.constants)
    named = theirs.named(np.arange(arrays.n_trained, dtype="<f4").tobytes())
    assert list(named) == list(whole.state_dict())
    assert_array_equal(named["0.weight"], named["1.weight"])
    assert_array_equal(named["2.running_var"], [1, 1])
    assert named["2.num_batches_tracked"].dtype == np.int64
    assert arrays.n_trained == sum(parameter.numel() for parameter in whole.parameters())


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("crash", "its process ended"),
        ("leave", "its process ended"),
        ("raise_secret", "it raised ValueError"),
        ("wrong_shape", "it raised ValueError"),
        ("raw_ten_gigabytes", "it sent more or fewer numbers than were asked for"),
        ("raw_garbage", "it sent something that is no frame"),
    ],
)
def test_a_failure_costs_its_round_alone(trainer, name, reason, capfd):
    """The next round is trained by the same program again, and fails for the same reason; nothing else is said."""
    ours = trainer(name, is_isolation_required=False)
    ours.start()
    for _ in range(2):
        assert outcome(ours) == (None, [reason])
    captured = capfd.readouterr()
    assert "4711" not in captured.out + captured.err


def test_memory_is_bounded(trainer):
    ours = trainer("ten_gigabytes", memory_bytes=1 << 30, is_isolation_required=False)
    assert outcome(ours) == (None, ["it raised MemoryError"])


def stragglers():
    """Processes of anybody that have the marker among their arguments."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path("/proc", name, "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        found += [int(name)] if MARKER.encode() in words else []
    return found


def test_a_hanging_round_ends_at_its_deadline_with_all_that_it_started(trainer, namespaces):
    """A child of its own that has left the session ends too, since its namespace's first process does."""
    ours = trainer("hang", timeout_s=6.0, config={"marker": MARKER})
    assert outcome(ours)[0] is not None
    begun = time.monotonic()
    assert outcome(ours) == (None, ["it took longer than client.trainer_timeout_s"])
    assert time.monotonic() - begun < 20
    assert stragglers() == []
    assert outcome(ours)[0] is not None  # the next round: a new process, whose first round it is


@pytest.mark.slow
def test_a_trainer_ends_with_the_client_that_is_killed(namespaces, tmp_path):
    """Nobody closes anything: the kernel closes the lifeline of a process that is gone."""
    code = f"""
import numpy as np
from pathlib import Path
from torch import nn
from precad.clients.external.arrays import ModelArrays
from precad.clients.external.program import Program
from precad.clients.external.trainer import ExternalTrainer

program = Program(kind="callable", path="foreign:hang", folder=Path({str(HERE)!r}), config={{"marker": {MARKER!r}}})
ours = ExternalTrainer(program, ModelArrays.of(nn.Sequential(nn.Linear(3, 2))), "alice")
for _ in range(2):
    ours.train(np.zeros(8, np.float32))
"""
    client = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(tmp_path)})
    try:
        assert _comes_true(lambda: len(stragglers()) == 1)
    finally:
        client.kill()
        client.wait()
    assert _comes_true(lambda: stragglers() == [])


def _comes_true(condition):
    """Wait for it, half a minute at most."""
    deadline = time.monotonic() + 30
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def test_closing_ends_a_training_at_once(trainer):
    ours = trainer("hang", timeout_s=60.0, config={"marker": MARKER}, is_isolation_required=False)
    ours.train(START)
    waiting = threading.Thread(target=ours.train, args=(START,))
    waiting.start()
    time.sleep(0.3)
    begun = time.monotonic()
    ours.close()
    waiting.join(20)
    assert not waiting.is_alive()
    assert time.monotonic() - begun < 20
    assert ours.train(START) is None


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("absent:train", "no module 'absent', looked in "),
        ("foreign:absent", "its module has no such name"),
        ("foreign:MISSING.train", "its module has no such name"),
        ("foreign:np.pi", "it cannot be called"),
        ("foreign:_pipes", "it does not take"),
    ],
)
def test_a_trainer_that_does_not_load_is_refused_at_the_start(trainer, path, why):
    with pytest.raises(TrainerError, match=f"client.trainer: expected .*found '{path}': loading: {why}"):
        trainer("", path=path).start()


@pytest.mark.parametrize("python", ["/absent/python", "/bin/true"])
def test_an_interpreter_that_is_none_is_refused(trainer, python):
    with pytest.raises(TrainerError, match=f"client.trainer_python: expected an interpreter .*found '{python}'"):
        trainer("add_one", python=Path(python)).start()


SOURCE = """import {wanted}
def train(arrays, config): return arrays
"""
RAISED = """raise ModuleNotFoundError("patient 4711", name="patient4711")
"""


@pytest.mark.parametrize(
    ("source", "changes", "why"),
    [
        (
            SOURCE.format(wanted="pandaz"),
            {},
            "no module 'pandaz', which .* lacks: install it there",
        ),
        (SOURCE.format(wanted="absent"), {"path": "absent.app:app"}, "no module 'absent', looked in "),
        (
            SOURCE.format(wanted="flwr"),
            {"kind": "flower"},
            "no module 'flwr', .* or --flower-python",
        ),
        (RAISED, {}, "it raised ModuleNotFoundError$"),
    ],
)
def test_a_module_that_is_missing_is_named_and_no_other_word_of_foreign_code(trainer, tmp_path, source, changes, why):
    """By what the configuration or an import names: a name that the code made up may be a record's."""
    (tmp_path / "own.py").write_text(source)
    made = trainer("", **{"path": "own:train", "folder": tmp_path, **changes})
    with pytest.raises(TrainerError, match=why) as refused:
        made.try_out()
    assert made._program.name in str(refused.value)
    assert "4711" not in str(refused.value)


@pytest.fixture
def namespaces(trainer):
    """Skip where the kernel grants none."""
    ours = trainer("add_one", is_isolation_required=False)
    with structlog.testing.capture_logs() as lines:
        ours.start()
    (line,) = [line for line in lines if line["event"] == "client.trainer_isolated"]
    if set(line["shut_off"]) < {"network", "other processes", "keys", "writing to files"}:
        pytest.skip(f"the kernel does not shut a process off from: {', '.join(line['not_shut_off'])}")


def spied(trainer, folder, **changes):
    """Return what `foreign.spy` says of a key in `folder`, this process, and servers that listen: 8 numbers."""
    (folder / "pki" / "alice").mkdir(parents=True)
    key = folder / "pki" / "alice" / "key.pem"
    key.write_text("a key")
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket(socket.AF_UNIX) as named:
        named.bind(str(folder / "named socket"))
        named.listen()
        about = {
            "socket": str(folder / "named socket"),
            "key": str(key),
            "pid": os.getpid(),
            "port": listening.getsockname()[1],
            "elsewhere": str(folder),
        }
        found = trainer("spy", config=about, hidden=(folder / "pki",), **changes).train(START)
    assert key.read_text() == "a key"
    return found


def test_a_trainer_reaches_nothing_of_ours(trainer, namespaces, tmp_path, monkeypatch):
    """Keys, environment, memory, network, other files, descriptors: one question each, answered from inside."""
    monkeypatch.setenv("PRECAD_SECRET", "hunter2")
    assert_array_equal(spied(trainer, tmp_path), [0] * 8)


def test_without_namespaces_environment_and_memory_stay_ours(tmp_path, trainer, monkeypatch):
    """Ask again outside: a key, its folder, the network and a file to write are found, so the zeros above say much."""
    monkeypatch.setenv("PRECAD_SECRET", "hunter2")
    found = spied(trainer, tmp_path, python=threaded_python(tmp_path), is_isolation_required=False)
    assert_array_equal(found, [1, 1, 0, 0, 1 + 2, 1, 0, 0])


def test_pipes_and_sockets_of_a_runtime_folder_are_doors_and_files_are_none(tmp_path):
    """Whatever /proc names is among them too: a server that listens elsewhere."""
    runtime, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    (runtime / "service").mkdir(parents=True)
    os.mkfifo(runtime / "service" / "pipe")
    (runtime / "service" / "pid").write_text("1")
    with socket.socket(socket.AF_UNIX) as named:
        named.bind(str(elsewhere))
        found = {path for path in doors([str(runtime)]) if path.startswith(str(tmp_path))}
    assert found == {str(runtime / "service" / "pipe"), str(elsewhere)}


def test_what_it_prints_is_kept_on_request_alone(trainer, tmp_path):
    output = tmp_path / "printed"
    ours = trainer("raise_secret", output=output, is_isolation_required=False)
    assert ours.train(START) is None
    ours.close()
    assert "4711" in output.read_text()
    assert stat.S_IMODE(output.stat().st_mode) == 0o600


def threaded_python(folder):
    """Return an interpreter to whom the kernel gives no namespaces."""
    program = folder / "python"
    program.write_text(THREADED.format(python=sys.executable))
    program.chmod(0o755)
    return program


def test_without_namespaces_it_does_not_start_unless_told_so(trainer, tmp_path):
    python = threaded_python(tmp_path)
    with pytest.raises(TrainerError, match=r"the kernel grants no namespaces.*client\.trainer_isolation"):
        trainer("add_one", python=python).start()
    ours = trainer("add_one", python=python, is_isolation_required=False)
    with structlog.testing.capture_logs() as lines:
        assert_array_equal(ours.train(START), START + 1)
    (line,) = [line for line in lines if line["event"] == "client.trainer_isolated"]
    assert line["shut_off"] == []
    assert line["not_shut_off"][:4] == ["network", "other processes", "keys", "writing to files"]
    assert line["not_shut_off"][4:] == ["writing to named pipes", "sockets that others make later"]
    assert line["log_level"] == "warning"
    with structlog.testing.capture_logs() as lines:
        assert ours.train(START) is not None
        ours._discard()
        assert ours.train(START) is not None
    assert not lines  # a process that starts again has the same walls: said once


def test_a_wall_that_landlock_alone_gives_is_said_to_be_missing(trainer, namespaces, tmp_path):
    """On a kernel without it the trainer starts, and the client's log names what stays open; `precad check` too."""
    python = tmp_path / "python"
    python.write_text(WITHOUT_LANDLOCK.format(python=sys.executable))
    python.chmod(0o755)
    for given, walls in ((python, []), (Path(sys.executable), landlock_walls())):
        ours = trainer("add_one", python=given)
        with structlog.testing.capture_logs() as lines:
            ours.start()
        (line,) = [line for line in lines if line["event"] == "client.trainer_isolated"]
        assert line["shut_off"] == ["network", "other processes", "keys", "writing to files", *walls]
        assert line["log_level"] == ("info" if len(walls) == 2 else "warning")
        with structlog.testing.capture_logs() as lines:
            found = trainer("add_one", python=given).try_out()
        assert not lines  # a trial says what it found to whoever asked
        assert (found.standing, found.missing) == (line["shut_off"], line["not_shut_off"])
        assert ("NOT from" in str(found)) is bool(found.missing)


def landlock_walls():
    """Return what this kernel's own answer promises."""
    names = ["writing to named pipes", "sockets that others make later"]
    version = int(ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), 1))
    return names[: (version >= 1) + (version >= 9)]
