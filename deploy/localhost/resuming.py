"""Continue a run that was interrupted, failed or crashed: what its folder must hold, and what is known of it.

The servers go on in their own folders as they do after a crash (`precad.servers.store.standing`): charges stay, a round
in flight is lost. What the runner adds is one account of all rounds, from before and after.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from precad.clients.config import ClientConfig
from precad.clients.upload_limit import EVALUATIONS, UPLOADS, rounds_seen
from precad.deploy.configuration import sections as configuration
from precad.deploy.configuration.sections import Deployment, section
from precad.deploy.errors import REFUSED, ConfigError, RunFailedError
from precad.deploy.run_files.folder import RunFolder
from precad.deploy.run_files.state import RunState, state_of
from precad.dp.ledgers.sealed_file import is_open
from precad.protos.task.task import Task
from precad.protos.task.task_fields import first_difference
from precad.protos.tls.identity import AGGREGATORS, Role
from precad.servers.store.folder import ledger_path, load_initial_model, restore_records, store_path
from precad.servers.store.rounds import CommittedRound
from precad.servers.store.state import TaskState

CLOSING_S: Final = 30.0
"""How long servers that end, or were killed with their run, may still hold their ledgers."""
_MAY_CHANGE: Final = frozenset({"device", "memory_mb", "connect_timeout_s", "reconnect_timeout_s"})
"""Fields of `[client]` that say where and when a client computes, and not what it uploads."""
_POLL_S: Final = 0.1


def require_resumable(root: Path) -> None:
    """Refuse a folder whose run cannot be continued. Changes nothing. Raises ConfigError.

    A run that never began has no state, but everything else that it needs.
    """
    folder = RunFolder(root.absolute())
    if not folder.config.is_file():
        raise ConfigError(f"--resume: expected the folder of a run, found no {folder.config.name} in {root}")
    match state_of(folder.root):
        case RunState.RUNNING:
            raise ConfigError(f"--resume: expected a run that ended early, found one in progress in {root}")
        case RunState.FINISHED:
            raise ConfigError(f"--resume: expected a run that ended early, found a finished one in {root}")
    for path in _needed(folder, configuration.load(folder.config)):
        if not path.is_file():
            raise ConfigError(
                f"--resume: expected a run that began, found no {path.relative_to(folder.root)} in {root}"
            )
    wait_until_closed(folder)


def _needed(folder: RunFolder, deployment: Deployment) -> list[Path]:
    """Return the files that a run writes before its configuration, which comes last."""
    servers = ["aggregator-a", "aggregator-b", *([] if deployment.dealer is None else ["dealer"])]
    holders = [*servers, "operator", *deployment.task.clients]
    pairs = (folder.pki / holder / name for holder in holders for name in ("cert.pem", "key.pem"))
    return [folder.initial_model, folder.pki / "ca.pem", *pairs]


def wait_until_closed(folder: RunFolder) -> None:
    """Return once no server holds a ledger of the run. Raises ConfigError."""
    deadline = time.monotonic() + CLOSING_S
    for path in map(ledger_path, folder.state_dirs):
        while path.exists() and is_open(path):
            if time.monotonic() > deadline:
                raise ConfigError(f"--output: expected servers that have ended, found one that holds {path}")
            time.sleep(_POLL_S)


def require_same(ours: Deployment, folder: RunFolder) -> None:
    """Refuse a configuration of another training than the folder's. Raises ConfigError naming the first difference."""
    theirs = configuration.load(folder.config)
    where = f"as in {folder.config}"
    if ours.task.digest() != theirs.task.digest():
        found = first_difference(ours.task, theirs.task.carried_fields)
        if found is None:
            raise ConfigError(f"task: expected the task of the run, {where}, found another")
        raise ConfigError(f"{found.field}: expected {found.theirs}, {where}, found {found.ours}")
    our_start, their_start = (one.localhost.initial_model_sha256 for one in (ours, theirs))
    if our_start != their_start:
        raise ConfigError(f"localhost.initial_model: expected SHA-256 {their_start}, {where}, found {our_start}")
    our_client, their_client = section(ours.client, "client"), section(theirs.client, "client")
    for name in (name for name in ClientConfig.model_fields if name not in _MAY_CHANGE):
        wanted, given = getattr(their_client, name), getattr(our_client, name)
        if given != wanted:
            raise ConfigError(f"client.{name}: expected {wanted!r:.60}, {where}, found {given!r:.60}")


@dataclass(frozen=True, slots=True)
class Before:
    """Hold what a run's folder knows of the run so far."""

    lines: list[dict[str, Any]]
    """Rounds that the runner wrote down."""
    further: list[tuple[CommittedRound, CommittedRound]]
    """Rounds after them that both servers committed, as A and as B have it."""
    parameters: NDArray[np.float32] | None
    """The model after all of these, (d,); None before the first, or where the servers' files are elsewhere."""
    task_id: str
    ended: str
    """Why the task is over; empty where it is not, or one of the servers does not know it yet."""
    seconds: float
    """Seconds that the run took so far: at least those of its rounds."""


@dataclass(frozen=True, slots=True)
class _Server:
    records: list[CommittedRound]
    parameters: NDArray[np.float32]
    task_id: str
    ended: str


def read_before(folder: RunFolder, deployment: Deployment) -> Before:
    """Read the lines of the runner and the files of both servers, which nobody else has open.

    Raises ConfigError for lines that are none, RunFailedError where lines and servers' files do not belong together,
    SetupError, StoreError, DpError.
    """
    lines = _lines(folder)
    seconds = _seconds(folder, lines)
    if not all(store_path(state_dir).is_file() for state_dir in folder.state_dirs):
        _require_no_rollback(folder, deployment, 0)
        return Before(lines, [], None, "", "", seconds)
    states = zip(folder.state_dirs, AGGREGATORS, strict=True)
    a, b = (_server(folder, deployment, state_dir, role) for state_dir, role in states)
    n_rounds = min(len(a.records), len(b.records))
    _require_agreement(folder, lines, a.records[:n_rounds])
    _require_no_rollback(folder, deployment, n_rounds)
    model = (a if len(a.records) == n_rounds else b).parameters
    is_over = len(a.records) == len(b.records) and bool(a.ended and b.ended)
    return Before(
        lines=lines,
        further=list(zip(a.records[len(lines) : n_rounds], b.records[len(lines) : n_rounds], strict=True)),
        parameters=model if n_rounds else None,
        task_id=a.task_id,
        ended=a.ended if is_over else "",
        seconds=seconds,
    )


def _lines(folder: RunFolder) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl, without what a crash left of a last one. Raises ConfigError."""
    if not folder.metrics.exists():
        return []
    try:
        found = [json.loads(line) for line in folder.metrics.read_bytes().split(b"\n")[:-1]]
        if all(isinstance(line["round"], int) and isinstance(line["model_digest"], str) for line in found):
            return found
    except (ValueError, KeyError, TypeError):
        pass
    raise ConfigError(f"{folder.metrics}: expected a round per line, found something else")


def _seconds(folder: RunFolder, lines: Sequence[dict[str, Any]]) -> float:
    of_rounds = sum(float(line["seconds_total"]) for line in lines)
    try:
        return max(of_rounds, float(json.loads(folder.summary.read_bytes())["seconds_total"]))
    except (OSError, ValueError, KeyError, TypeError):
        return of_rounds  # it was killed, and wrote no summary


def _server(folder: RunFolder, deployment: Deployment, state_dir: Path, role: Role) -> _Server:
    """Open a server's files as its next process will."""
    task: Task = deployment.task
    with ExitStack() as stack:
        state = TaskState.open(stack, state_dir, task, load_initial_model(folder.initial_model, task))
        state.store.require_role(role)
        parameters = state.model.parameters
        records = restore_records(state_dir, state.committed, parameters)
        ended = state.why_over if state.store.is_finished else None
        return _Server(records, parameters, state.store.task_id, ended or "")


def _require_agreement(folder: RunFolder, lines: list[dict[str, Any]], records: list[CommittedRound]) -> None:
    """Raise RunFailedError unless the servers hold every round that has a line, with the model that the line names."""
    for number, line in enumerate(lines):
        record = records[number] if number < len(records) else None
        if record is None or (record.number, record.model_digest.hex()) != (line["round"], line["model_digest"]):
            raise RunFailedError(
                f"{folder.metrics}: expected rounds that both servers committed, found another in line {number + 1}: "
                "was a server given back an old state_dir?",
                exit_code=REFUSED,
            )


def _require_no_rollback(folder: RunFolder, deployment: Deployment, n_rounds: int) -> None:
    """Raise RunFailedError where clients uploaded after more rounds than both servers hold.

    Charges of these rounds are then gone from both ledgers, and every epsilon would be too small. Raises
    StateFileError.
    """
    client, digest = section(deployment.client, "client"), deployment.task.digest()
    for name in deployment.task.clients:
        files = (client.state_dir / f"{name}{kind}" for kind in (UPLOADS, EVALUATIONS))
        if (seen := max(rounds_seen(file, digest) for file in files)) > n_rounds:
            raise RunFailedError(
                f"{folder.root}: expected servers that hold the {seen} rounds that client {name!r} uploaded after, "
                f"found {n_rounds}: were both given back an old state_dir?",
                exit_code=REFUSED,
            )
