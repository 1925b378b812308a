"""Wait until something is so, such as that a process has ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def wait_for(what: str, is_so: Callable[[], bool], *, within_s: float = 60.0) -> None:
    """Return once it is so. Raises AssertionError, which says what was waited for."""
    deadline = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    """Tell whether the process is there, and not merely unburied."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
