"""A local deployment from its configuration to its summary: what `precad run` and `precad.run` do.

A script or a command has no event loop, and the run gets its main thread. A notebook has one that runs already. There,
and in any other thread, the run gets a thread and a loop of its own.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from precad.deploy.configuration.local import with_operations
from precad.deploy.errors import UnfulfilledError
from precad.deploy.localhost.deployment import LocalRun, default_output


def prepare(raw: Mapping[str, Any], folder: Path | None, console: Console, *, dashboard: bool = False) -> LocalRun:
    """Return a validated run that has not begun, in a new folder below `runs/` if none is given. Raises as LocalRun."""
    if folder is None:
        task = raw.get("task")
        folder = default_output(str(task.get("name", "task")) if isinstance(task, Mapping) else "task")
    return LocalRun(with_operations(raw) if dashboard else raw, folder, console)


def complete(local: LocalRun) -> dict[str, Any]:
    """Run the deployment to its end, and return its summary. Raises RunFailedError, InterruptedRunError.

    Ctrl-C stops every process. Below a running event loop it is a KeyboardInterrupt, as ever in a notebook.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        with _signals_as_they_were():
            return asyncio.run(local.run())
    with ThreadPoolExecutor(1, thread_name_prefix="precad-run") as thread:
        running = thread.submit(lambda: asyncio.run(local.run()))
        try:
            return running.result()
        except KeyboardInterrupt:
            local.interrupt()
            raise


@contextmanager
def _signals_as_they_were() -> Iterator[None]:
    """Give the caller's own handlers back after the run, which has others."""
    is_main = threading.current_thread() is threading.main_thread()
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)} if is_main else {}
    try:
        yield
    finally:
        for number, handler in kept.items():
            if handler is not None:  # None: not set from Python, which cannot set it again
                signal.signal(number, handler)


def require_finite(summary: Mapping[str, Any]) -> None:
    """Raise UnfulfilledError where the training left the finite numbers."""
    if not summary["model_is_finite"]:
        raise UnfulfilledError("the training diverged: the model is not finite")
