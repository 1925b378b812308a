"""Sockets and pipes with names, made before and after a process was shut off: asked from inside, by a real process."""

from __future__ import annotations

import ctypes
import json
import os
import pty
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from precad.clients.external import sandbox

INSIDE = """
import importlib.util, json, os, socket, sys
spec = importlib.util.spec_from_file_location("sandbox", sys.argv[1])
sandbox = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sandbox)
home, runtime = sys.argv[2:4]
bits = sandbox.shut_off([], home, 1 << 26, needed=sys.argv[4:], runtime=[runtime])
if os.fork():
    os.wait()
    sys.exit()
if bits == sandbox.ALL:
    sandbox.confine(bits, home, 1 << 30)
print(bits, flush=True)

def answer(way, path):
    try:
        if way == "connect":
            with socket.socket(socket.AF_UNIX) as ours:
                ours.connect(path)
        elif way == "own socket":
            with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as ours:
                listening.bind(path)
                listening.listen()
                ours.connect(path)
        elif way == "family":
            socket.socket(int(path), socket.SOCK_STREAM).close()
        else:
            os.close(os.open(path, {"write": os.O_WRONLY, "read": os.O_RDONLY}[way] | os.O_NONBLOCK | os.O_NOCTTY))
    except OSError:
        return False
    return True

for line in sys.stdin:
    print(json.dumps(answer(*json.loads(line))), flush=True)
"""


def landlock_version() -> int:
    """Return the kernel's ABI of Landlock; 0 or less where there is none."""
    return int(ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), 1))


class Inside:
    """A process that is shut off, and answers what it can open."""

    def __init__(self, folder: Path, needed: tuple[Path, ...] = ()) -> None:
        """folder: holds `run`, the folder of other programs' sockets. Skips where the kernel grants no namespaces."""
        (folder / "home").mkdir()
        places = (sandbox.__file__, folder / "home", folder / "run", *needed)
        command = [sys.executable, "-I", "-c", INSIDE, *map(str, places)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        assert self.process.stdout is not None
        if int(self.process.stdout.readline()) != sandbox.ALL:
            self.close()
            pytest.skip("the kernel grants no namespaces")

    def can(self, way: str, path: Path | int) -> bool:
        """Ask whether it can connect to this, read it or write to it, or make a socket of this family."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([way, str(path)]) + "\n")
        return bool(json.loads(self.process.stdout.readline()))

    def close(self) -> None:
        """End it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()


def listening(stack: ExitStack, path: Path) -> Path:
    """Listen at a name until the stack is closed; a socket that was there is gone, as when a daemon starts again."""
    path.unlink(missing_ok=True)
    found = stack.enter_context(socket.socket(socket.AF_UNIX))
    found.bind(str(path))
    found.listen()
    return path


def pipe(stack: ExitStack, path: Path) -> Path:
    """Make a pipe that somebody reads until the stack is closed."""
    os.mkfifo(path)
    stack.callback(os.close, os.open(path, os.O_RDWR))
    return path


@pytest.fixture
def outside(tmp_path):
    """Give a folder `run` as /run is: a daemon's socket, folders with and without one, files and links."""
    run = tmp_path / "run"
    for name in ("with", "without", "needed"):
        (run / name).mkdir(parents=True)
        (run / name / "file").write_text("1")
    (run / "pid").write_text("1")
    (run / "link").symlink_to("pid")
    with ExitStack() as stack:
        for name in ("daemon", "with/daemon", "needed/daemon"):
            listening(stack, run / name)
        pipe(stack, run / "pipe")
        yield stack, run


def test_a_runtime_folder_keeps_what_leads_nowhere(outside, tmp_path):
    """Files, links and folders stay, and so does what is needed, without its sockets."""
    stack, run = outside
    inside = Inside(tmp_path, needed=(run / "needed",))
    stack.callback(inside.close)
    stays = [run / name for name in ("pid", "link", "without/file", "needed/file")]
    assert [inside.can("read", path) for path in stays] == [True] * 4
    gone = [run / name for name in ("daemon", "with/daemon", "needed/daemon")]
    assert [inside.can("connect", path) for path in gone] == [False] * 3
    assert not inside.can("read", run / "with" / "file")
    assert not inside.can("write", run / "pipe")
    assert (run / "with" / "file").read_text() == "1"


def test_a_daemon_that_starts_again_is_not_reached(outside, tmp_path):
    """A mount over a socket goes with its name; what is made later below /run is not there at all."""
    stack, run = outside
    inside = Inside(tmp_path)
    stack.callback(inside.close)
    for name in ("daemon", "with/daemon", "new"):
        again = listening(stack, run / name)
        with socket.socket(socket.AF_UNIX) as ours:
            ours.connect(str(again))
        assert not inside.can("connect", again)
    assert inside.can("own socket", tmp_path / "home" / "socket")


def test_a_pipe_is_written_to_by_nobody_inside(outside, tmp_path):
    """Wherever it lies, and whenever it was made; memory, devices and its own files are."""
    if landlock_version() < 1:
        pytest.skip("the kernel has no Landlock")
    stack, run = outside
    before = pipe(stack, tmp_path / "before")
    inside = Inside(tmp_path)
    stack.callback(inside.close)
    for path in (before, pipe(stack, tmp_path / "later"), pipe(stack, run / "without" / "later")):
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        assert not inside.can("write", path)
        assert inside.can("read", path)
    own = tmp_path / "home" / "scratch"
    assert not inside.can("write", own)  # there is none yet
    assert inside.can("own socket", tmp_path / "home" / "socket")
    assert inside.can("write", Path("/dev/null"))
    assert inside.can("write", Path("/dev/stdout"))


def test_a_socket_that_is_made_later_elsewhere_is_not_reached_where_the_kernel_knows_sockets(outside, tmp_path):
    """Older kernels leave it open, as the module says: this holds the sentence, too."""
    stack, _ = outside
    inside = Inside(tmp_path)
    stack.callback(inside.close)
    is_closed = landlock_version() >= 9
    assert inside.can("connect", listening(stack, tmp_path / "later")) is not is_closed


def test_an_operators_terminal_is_not_reached(tmp_path):
    """It is a file of the same user's: what is typed could be read, and commands could be typed for it."""
    ours, theirs = pty.openpty()
    try:
        terminal, inside = Path(os.ttyname(theirs)), Inside(tmp_path)
        assert not inside.can("read", terminal)
        assert not inside.can("write", terminal)
        assert all(inside.can("write", Path("/dev", name)) for name in ("null", "zero"))
        assert all(inside.can("read", Path("/dev", name)) for name in ("null", "urandom"))
        inside.close()
    finally:
        os.close(ours)
        os.close(theirs)


def test_the_kernel_s_settings_are_not_written(tmp_path):
    """Root's trainer would name the program that the kernel runs, as root, for whatever ends with a core dump."""
    inside = Inside(tmp_path)
    for name in ("sys/kernel/core_pattern", "sys/vm/swappiness", "self/comm"):
        assert inside.can("read", Path("/proc", name))
        assert not inside.can("write", Path("/proc", name))
    inside.close()


def test_only_sockets_that_namespaces_hold_can_be_made(tmp_path):
    """Those between virtual machines reach the host of a machine, whatever the network's namespace."""
    inside = Inside(tmp_path)
    held = {socket.AF_UNIX, socket.AF_INET, socket.AF_INET6}
    assert {family for family in range(64) if inside.can("family", family)} == {
        int(family) for family in held if can_make(family)
    }
    inside.close()


def can_make(family: int) -> bool:
    """Tell whether this kernel makes such a socket at all."""
    try:
        socket.socket(family, socket.SOCK_STREAM).close()
    except OSError:
        return False
    return True
