"""Servers as processes of their own, forked from one that has loaded their code: nobody else waits for imports.

A test's own process has threads and open connections, so it is not forked itself.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Final

from precad.protos.tls.identity import Role
from tests.harness.pki import AGGREGATORS

FORK_SERVER: Final = multiprocessing.get_context("forkserver")
FORK_SERVER.set_forkserver_preload(["tests.harness.warm_servers"])


def log_to(path: Path) -> None:
    """Append this process's output to a file from now on."""
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for stream in (1, 2):
        os.dup2(log, stream)


def exit_codes(processes: dict[Role, ForkServerProcess], *, limit_s: float = 60.0) -> dict[Role, int | None]:
    """Wait for the end of each process. Return its exit code; None if it still runs after the limit."""
    for process in processes.values():
        process.join(limit_s)
    return {role: process.exitcode for role, process in processes.items()}


@contextlib.contextmanager
def servers(
    folder: Path, main: Callable[..., None], own: tuple[Callable[..., None], str] | None = None
) -> Iterator[dict[Role, ForkServerProcess]]:
    """Run `main(folder, role)` for the dealer and both aggregators; kill what still runs when the test ends.

    own: what server A runs in its place, with a third argument.
    """
    processes: dict[Role, ForkServerProcess] = {}
    try:
        for role in (Role.DEALER, *AGGREGATORS):
            run, *extra = own if own and role is Role.AGGREGATOR_A else (main,)
            processes[role] = FORK_SERVER.Process(target=_logged, args=(run, folder, role, *extra))
            processes[role].start()
        yield processes
    finally:
        for process in processes.values():
            process.kill()
            process.join()


def _logged(run: Callable[..., None], folder: Path, role: Role, *extra: Any) -> None:
    log_to(folder / f"{role}.log")
    run(folder, role, *extra)
