"""Record what a measurement was made on: facts without which its numbers mean nothing."""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from precad.mpc.sharing import Party

PACKAGES = ("numpy", "torch", "grpcio", "cryptography", "numba", "crypten")


def facts() -> dict[str, Any]:
    """Return CPU, cores that this process may use, memory, load at the start, versions. None where a fact cannot be
    had."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "ram_gb": _ram_gb(),
        "load_1min": os.getloadavg()[0],
        "kernel": platform.release(),
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
    }


@contextmanager
def torch_threads(n: int) -> Iterator[None]:
    """Have PyTorch compute on so many threads, and then on as many as before."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def take_own_core(party: Party) -> None:
    """Bind the calling thread to a core that the other server's thread leaves alone, as on two machines.

    On one core two threads that ask for each other's messages wait for the scheduler, half a millisecond at a time.
    Where there is one core only, nothing changes.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        os.sched_setaffinity(0, {cores[party]})


def reset_peak_rss() -> None:
    """Make the kernel forget this process's peak of resident memory; a kernel that will not is left alone."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_rss() -> int:
    """Return bytes at the peak since this program began, or since `reset_peak_rss`.

    Where Linux does not tell, getrusage's, which a process inherits from the one that started it.
    """
    for line in _lines("/proc/self/status"):
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _cpu_model() -> str | None:
    for line in _lines("/proc/cpuinfo"):
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or None


def _ram_gb() -> float | None:
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemTotal:"):
            return round(int(line.split()[1]) * 1024 / 1e9, 1)
    return None


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
