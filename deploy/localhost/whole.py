"""A local deployment from its configuration to its summary: what `precad run` and `precad.run` do.

A script or a command has no event loop, and the run gets its main thread. A notebook has one that runs already. There,
and in any other thread, the run gets a thread and a loop of its own.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from precad.deploy.configuration.local import draft
from precad.deploy.configuration.local_servers import is_proved, with_operations
from precad.deploy.configuration.sections import Deployment
from precad.deploy.errors import ConfigError, UnfulfilledError
from precad.deploy.localhost.fork_server import PROOFS
from precad.deploy.localhost.forks import Forks
from precad.deploy.localhost.grouping import client_groups
from precad.deploy.run_files.folder import RunFolder, default_output, require_new
from precad.deploy.run_files.state import RESUMABLE, state_of

if TYPE_CHECKING:
    from precad.deploy.configuration.query import Question
    from precad.deploy.localhost.deployment import LocalRun
    from precad.deploy.localhost.query import QueryRun
FIRST_ROUND_S, FIRST_ROUND_S_EACH = 6.2, 0.23
"""Seconds to the first round on two idle cores, and those that each process adds.

Estimated: 0.63 of what was measured idle before, the ratio found under load (docs/results/performance.md)."""


def folder_of(raw: Mapping[str, Any]) -> Path:
    """Return a new folder below `runs/`, by the name of the task."""
    task = raw.get("task")
    return default_output(str(task.get("name", "task")) if isinstance(task, Mapping) else "task")


def prepare(
    raw: Mapping[str, Any],
    folder: Path | None,
    console: Console,
    *,
    dashboard: bool = False,
    stays: bool = False,
    resumes: bool = False,
    forks: Forks | None = None,
    measured_every: int = 1,
) -> LocalRun:
    """Return a validated run that has not begun, in a new folder below `runs/` if none is given. Raises as LocalRun.

    `stays`: dashboards stay open after the run, until it is closed. `resumes`: continue the run in the folder.
    `forks` is a fork server that loads already, which the run closes in the end, and its caller if there is no run.
    `measured_every`: see LocalRun.
    """
    if folder is None:
        if resumes:
            raise ConfigError("--resume: expected the folder of a run, found none")
        folder = folder_of(raw)
    wished = with_operations(raw, stays=stays) if dashboard else raw
    found = draft(wished, RunFolder(folder.absolute()))
    from precad.mpc.gate_names import require_gate, usual_gate  # NumPy, for which a faulty configuration does not wait

    gate: str | None = None  # in mode `proved`
    if not is_proved(raw):
        gate = usual_gate() if found is None or "gate" not in raw["task"] else found.task.gate
        require_gate(gate)
    if resumes:
        from precad.deploy.localhost.resuming import require_resumable

        require_resumable(folder)
    else:
        _require_new(folder)
    if found is not None:
        for line in _announced(found, gate):
            console.print(line, highlight=False, markup=False)
    with ExitStack() as unless_prepared:
        if forks is None:
            forks = Forks()  # loads the children's code while we load ours
            unless_prepared.callback(forks.close)
        forks.choose_gate(gate or PROOFS)
        from precad.deploy.localhost.deployment import LocalRun

        local = LocalRun(wished, folder, console, forks=forks, resumes=resumes, measured_every=measured_every)
        unless_prepared.pop_all()
        return local


def _require_new(folder: Path) -> None:
    """Raise ConfigError unless the folder is new or empty. Say so if it holds a run that can be continued."""
    if (found := RESUMABLE.get(state_of(folder))) is not None:
        raise ConfigError(
            f"--output: expected a new or empty folder, found {found} in {folder}: add --resume to continue it"
        )
    require_new(folder)


def prepare_query(
    raw: Mapping[str, Any], question: Question, folder: Path | None, console: Console, *, level: float
) -> QueryRun:
    """Return a validated query that has not begun, in a new folder below `runs/` if none is given.

    level: of its error bars. Raises as QueryRun.
    """
    if folder is None:
        folder = default_output(f"query-{question.query['kind']}")
    require_new(folder)
    with ExitStack() as unless_prepared:
        forks = Forks()
        unless_prepared.callback(forks.close)
        from precad.deploy.localhost.query import QueryRun

        local = QueryRun(raw, question, folder, console, level=level, forks=forks)
        forks.choose_gate(PROOFS if local.deployment.task.is_proved else local.deployment.task.gate)
        unless_prepared.pop_all()
        return local


def _announced(deployment: Deployment, gate: str | None) -> list[str]:
    """Return what is started, how long it takes, and which gate it takes for want of another."""
    n_clients = len(deployment.task.clients)
    servers, n_servers = ("two aggregators", 2) if gate is None else ("a dealer, two aggregators", 3)
    n_processes = n_servers + len(client_groups(deployment))
    seconds = FIRST_ROUND_S + n_processes * FIRST_ROUND_S_EACH
    lines = [
        f"starting {servers} and {n_clients} clients in {n_processes} processes: "
        f"about {seconds:.0f} s to the first round"
    ]
    if gate is not None and gate != deployment.task.gate:
        lines.append(f"gate: {gate}, as CrypTen is not installed; `task.gate` chooses one for good")
    return lines


def complete(local: LocalRun, *, stays: bool = False) -> dict[str, Any]:
    """Run the deployment to its end, and return its summary. Raises RunFailedError, InterruptedRunError.

    Ctrl-C stops every process. Below a running event loop it is a KeyboardInterrupt, as ever in a notebook. `stays`:
    leave the processes of a run that has ended well to `local.close`.
    """
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        with _signals_as_they_were():
            return asyncio.run(local.run(stays=stays))
    with ThreadPoolExecutor(1, thread_name_prefix="precad-run") as thread:
        running = thread.submit(lambda: asyncio.run(local.run(stays=stays)))
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


def require_fulfilled(summary: Mapping[str, Any]) -> None:
    """Raise UnfulfilledError where the training left the finite numbers, or no foreign trainer trained."""
    if not summary["model_is_finite"]:
        raise UnfulfilledError("the training diverged: the model, its outputs or its loss are not finite")
    trainer = summary.get("trainer", {})
    if trainer.get("failed") and not trainer["trained"]:
        found = f"{trainer['failed']} that failed; {summary['output']}/logs say why"
        raise UnfulfilledError(f"{trainer['name']}: expected trainings, found {found}")
