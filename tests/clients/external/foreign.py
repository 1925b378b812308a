"""Foreign trainers, well-behaved and hostile, as an operator may find them on the net. None of them imports precad."""

import ctypes
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np


def add_one(arrays, config):
    """Add 1 to every number."""
    return {name: values + np.float32(1) for name, values in arrays.items()}


def as_a_list(arrays, config):
    """Add 1, and answer in the arrays' order without their names."""
    return [values + np.float32(1) for values in arrays.values()]


def told(arrays, config):
    """Answer with what it is told: the round, and a number of the operator's."""
    return {name: np.full_like(values, config["round"] * config["scale"]) for name, values in arrays.items()}


def told_unless_second(arrays, config):
    """Answer with the round, and die in the second."""
    if config["round"] == 2:
        os._exit(0)
    return {name: np.full_like(values, config["round"]) for name, values in arrays.items()}


def hang(arrays, config):
    """Hang in every second round, with a child that hangs too."""
    if config["round"] % 2:
        return add_one(arrays, config)
    subprocess.Popen([sys.executable, "-c", "import os, time; os.setsid(); time.sleep(600)", config["marker"]])
    while True:
        time.sleep(1)


def crash(arrays, config):
    """Die of a fault of memory."""
    ctypes.string_at(0)


def leave(arrays, config):
    """End the interpreter at once."""
    os._exit(0)


def raise_secret(arrays, config):
    """Print a record, and raise it, in an exception that is named by it."""
    print("record of patient 4711")
    print("record of patient 4711", file=sys.stderr)
    raise type("Patient4711", (ValueError,), {})("record of patient 4711")


def nan(arrays, config):
    """Return no number."""
    return {name: np.full_like(values, np.nan) for name, values in arrays.items()}


def wrong_shape(arrays, config):
    """Return one array short of a row."""
    name = next(iter(arrays))
    return {**arrays, name: arrays[name][1:]}


def ten_gigabytes(arrays, config):
    """Take ten gigabytes, and send them."""
    return {name: np.ones(2_500_000_000, np.float32) for name in arrays}


def _pipes():
    """Return the worker's own pipes, which foreign code can find: the one to the client is what it may write to."""
    return [int(name) for name in os.listdir("/proc/self/fd") if name not in "012" and _is_pipe(name)]


def _is_pipe(name):
    try:
        return os.readlink(f"/proc/self/fd/{name}").startswith("pipe:")
    except OSError:
        return False


def raw_ten_gigabytes(arrays, config):
    """Announce ten gigabytes of parameters in a frame of its own."""
    for descriptor in _pipes():
        try:
            os.write(descriptor, b"PCT1" + bytes([6]) + (10**10).to_bytes(8, "little"))
        except OSError:
            continue
    time.sleep(600)


def raw_garbage(arrays, config):
    """Write a frame that is none."""
    for descriptor in _pipes():
        try:
            os.write(descriptor, b"garbage" * 1000)
        except OSError:
            continue
    time.sleep(600)


def _found(arrays, bits):
    """Answer with a bit for each question, in the first numbers."""
    flat = np.zeros(sum(values.size for values in arrays.values()), np.float32)
    flat[: len(bits)] = bits
    found, start = {}, 0
    for name, values in arrays.items():
        found[name] = flat[start : start + values.size].reshape(values.shape)
        start += values.size
    return found


def _can(action):
    try:
        return bool(action())
    except (OSError, subprocess.SubprocessError):
        return False


def _connects(address):
    with socket.create_connection(address, timeout=2):
        return True


def _connects_by_name(path):
    with socket.socket(socket.AF_UNIX) as ours:
        ours.connect(path)
    return True


def _writes(path):
    path.write_text("found")
    return True


def spy(arrays, config):
    """Look for our key, environment, process, servers that listen, by address and by name, files to write, a home."""
    key, us, port, folder = Path(config["key"]), config["pid"], config["port"], Path(config["elsewhere"])
    subprocess.run(["umount", str(key.parent.parent)], check=False, capture_output=True)
    environment = b"".join(
        Path("/proc", name, "environ").read_bytes()
        for name in os.listdir("/proc")
        if name.isdigit() and _can(lambda name=name: Path("/proc", name, "environ").read_bytes())
    )
    return _found(
        arrays,
        [
            _can(key.read_bytes),
            _can(lambda: list(key.parent.iterdir())),
            "PRECAD_SECRET" in os.environ or b"PRECAD_SECRET" in environment,
            _can(
                lambda: Path(f"/proc/{us}/maps").read_bytes() and Path(f"/proc/{us}/comm").read_text() == config["comm"]
            ),
            _can(lambda: _connects(("127.0.0.1", port))) + 2 * _can(lambda: _connects_by_name(config["socket"])),
            _can(lambda: _writes(folder / "planted.py")),
            any(
                int(name) > 4 and not _is_pipe(name) and _can(lambda n=name: os.stat(f"/proc/self/fd/{n}"))
                for name in os.listdir("/proc/self/fd")
            ),
            not _can(lambda: _writes(Path(os.environ["HOME"]) / "scratch")),
        ],
    )


class Ward:
    """Train as `add_one` does, and count held-out records as the operator says."""

    def __call__(self, arrays, config):
        """Add 1 to every number."""
        return add_one(arrays, config)

    def evaluate(self, arrays, config):
        """Return correct, total and the sum of losses; or misbehave."""
        answer = config["answer"]
        if answer == "first number":
            n = float(next(iter(arrays.values())).reshape(-1)[0])
            return n, 2 * n, 0.5 * n
        if answer == "raise":
            raise ValueError("patient 4711")
        if answer == "leave":
            os._exit(1)
        return tuple(float(each) for each in answer.split())


ward = Ward()
