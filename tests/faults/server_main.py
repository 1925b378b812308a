"""One server of a deployment that is killed and started again, as a process of its own.

The folder holds deployment.json and initial.npy. The former has the task, the addresses, where the certificates
are, and what is not usual in the aggregators' configurations. Noise is zero, so that the final model says exactly which
updates are in it, and how often.

With a point, something happens to the process there. `before-` or `after-` a call of the tables below kills it with
SIGKILL. `full-` lets its files grow no more from that call on, or from the `start`, as a full disk does. It ends with
the exit code that the command line would give.

The processes are forked by `multiprocessing`'s fork server. It has imported everything, compiled the check's loops and
done nothing, so that hundreds of restarts are a matter of minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import typer

from precad.deploy.cli.common import exit_codes
from precad.dp.ledgers.ledger import Ledger
from precad.mpc import joint_coin, validation
from precad.mpc.kernels import (
    field as field_kernels,  # noqa: F401 - compiled here, once
)
from precad.mpc.kernels import (
    gate as gate_kernels,  # noqa: F401
)
from precad.mpc.kernels import (
    local as local_kernels,  # noqa: F401
)
from precad.mpc.proved import validation as proved_validation
from precad.mpc.proved.check import ProofCheck
from precad.mpc.proved.submission import ShareSeeds
from precad.mpc.robust import release as release_module
from precad.protos.task.task import Task
from precad.protos.tls.identity import Role
from precad.servers.aggregator import Aggregator
from precad.servers.dealer import Dealer
from precad.servers.rounds import dealt_form as dealt_module
from precad.servers.rounds import proved_form as proved_module
from precad.servers.rounds.equipment import Randomness
from precad.servers.rounds.proved_form import ProvedForm
from precad.servers.rounds.proved_intake import SlotIntake
from precad.servers.store.burnt_tuples import TupleLedger
from precad.servers.store.checkpoints import Checkpoints
from precad.servers.store.dealt_parts import DealLedger
from precad.servers.store.rounds import TaskStore
from precad.servers.task import run as task_run_module
from tests.faults import witness
from tests.harness.forked import log_to
from tests.harness.pki import AGGREGATORS, Pki

RECONNECT_S = 60.0
AGGREGATOR_POINTS: Final[dict[str, tuple[Any, str, int]]] = {
    "begin": (TaskStore, "begin", 1),
    "joined": (TaskStore, "joined", 1),
    "reserve": (TaskStore, "reserve", 2),
    "burn-mask": (TupleLedger, "burn", 1),
    "burn-check": (TupleLedger, "burn", 2),
    "lock": (dealt_module, "lock_list", 2),
    "checking": (TaskStore, "checking", 2),
    "charge": (Ledger, "charge", 2),
    "challenge": (validation, "reveal", 2),
    "verdicts": (validation, "compare_verdicts", 2),
    "validated": (TaskStore, "validated", 2),
    "open": (dealt_module, "open_in_place", 2),
    "checkpoint": (Checkpoints, "save", 2),
    "commit": (TaskStore, "commit", 2),
    "record": (task_run_module, "write_round", 2),
    "last-checkpoint": (Checkpoints, "save", 4),
    "last-commit": (TaskStore, "commit", 4),
    "finished": (TaskStore, "finished", 1),
}
"""Each point's wrapped function, and at which of its calls the process dies."""
PROVED_POINTS: Final[dict[str, tuple[Any, str, int]]] = {
    **{name: at for name, at in AGGREGATOR_POINTS.items() if not name.startswith("burn-")},
    "seed": (ShareSeeds, "give", 2),
    "lock": (proved_module, "lock_list", 2),
    "challenge": (joint_coin, "reveal", 4),
    "told": (ProvedForm, "_send_challenge", 2),
    "relay": (SlotIntake, "relay", 2),
    "proof": (ProofCheck, "take_proof", 2),
    "proofs": (ProofCheck, "close", 2),
    "opened": (ProofCheck, "open", 2),
    "verdicts": (proved_validation, "_compare", 2),
    "open": (ProvedForm, "open", 2),
}
"""Those of mode `proved`, which has no tuples; every second coin is a round's challenge."""
TESTED_POINTS: Final[dict[str, tuple[Any, str, int]]] = {
    "margin": (release_module, "open_noisy_margin", 2),
    "trim": (release_module, "trimmed_share_sum", 1),
}
"""Those of rounds that test a margin, beside the first."""
SELECTED_POINTS: Final[dict[str, tuple[Any, str, int]]] = {"select": (dealt_module, "selected_sum", 2)}
"""Those of rounds that add up some of the updates, beside the first."""
DEALER_POINTS: Final[dict[str, tuple[Any, str, int]]] = {"deal": (DealLedger, "record", 3)}
POINTS: Final = [f"{when}-{name}" for name in AGGREGATOR_POINTS for when in ("before", "after")]
POINTS_OF_TESTED: Final = [f"{when}-{name}" for name in TESTED_POINTS for when in ("before", "after")]
POINTS_OF_SELECTED: Final = [f"{when}-{name}" for name in SELECTED_POINTS for when in ("before", "after")]
POINTS_OF_PROVED: Final = [f"{when}-{name}" for name in PROVED_POINTS for when in ("before", "after")]


def main(folder: Path, role: Role, point: str | None) -> None:
    """Runs the server until its task is over, or until the point. Its output is appended to a log in the folder."""
    log_to(folder / f"{role}.log")
    deployment = json.loads((folder / "deployment.json").read_text())
    task, pki, addresses = Task(**deployment["task"]), Pki(Path(deployment["pki"])), deployment["addresses"]
    if task.is_proved:
        witness.watch(folder / f"{role}.once")
    if point is not None:
        if point.startswith("full-"):
            _log_through_a_pipe()
        of_a_dealer = {**AGGREGATOR_POINTS, **DEALER_POINTS, **TESTED_POINTS, **SELECTED_POINTS}
        _arm(point, PROVED_POINTS if task.is_proved else of_a_dealer)
    marks = Marks(folder / f"{role}.marks")
    marks.write("started")
    database = {"database_url": url} if (url := deployment["database_url"]) else {}
    server: Dealer | Aggregator
    if role is Role.DEALER:
        server = Dealer(
            task=task,
            config=pki.dealer(listen=addresses[role], folder=folder, reconnect_timeout_s=RECONNECT_S, **database),
        )
    else:
        server = Aggregator(
            party=AGGREGATORS.index(role),
            task=task,
            config=pki.aggregator(
                AGGREGATORS.index(role),
                listen=addresses[role],
                folder=folder,
                **{"reconnect_timeout_s": RECONNECT_S, **deployment["changes"], **deployment["own"].get(role, {})},
                **database,
                **({"dealer_certificate": None} if task.is_proved else {}),
            ),
            addresses=(addresses[Role.AGGREGATOR_B], addresses.get(Role.DEALER)),
            randomness=Randomness(noise=lambda std, dim: np.zeros(dim, dtype=np.int64), margin_noise=lambda scale: 0),
            on_state=lambda state: marks.write("in a round"),
        )
    try:
        with exit_codes():
            asyncio.run(server.run())
        marks.write("over")
    except typer.Exit as error:
        sys.exit(error.exit_code)


class Marks:
    """When a process first was where, for whoever started it: a line `NAME SECONDS` each, by the system's clock."""

    def __init__(self, path: Path) -> None:
        self._path, self._written = path, set[str]()

    def write(self, name: str) -> None:
        """The first time that it happens in this process. A full disk has no room for it, and that is fine."""
        if name not in self._written:
            self._written.add(name)
            with contextlib.suppress(OSError), self._path.open("a") as file:
                file.write(f"{name} {time.time()}\n")


def _log_through_a_pipe() -> None:
    """To a process whose files may grow."""
    pipe = subprocess.Popen(["cat"], stdin=subprocess.PIPE).stdin
    assert pipe is not None  # it was asked for
    for stream in (1, 2):
        os.dup2(pipe.fileno(), stream)


def _arm(point: str, points: Mapping[str, tuple[Any, str, int]]) -> None:
    when, _, name = point.partition("-")
    if name == "start":
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        return
    owner, function, call = points[name]
    original: Callable[..., Any] = getattr(owner, function)
    calls = itertools.count(1)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        n_calls = next(calls)  # of this call: others may begin in other threads before it ends
        if when == "before" and n_calls == call:
            os.kill(os.getpid(), signal.SIGKILL)
        if when == "full" and n_calls == call:
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        result = original(*args, **kwargs)
        if when == "after" and n_calls == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, function, wrapped)
