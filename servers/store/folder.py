"""Files that an aggregator keeps on disk, and the model that it starts from.

    ledger.jsonl      the privacy ledger                                        `precad.dp.ledgers.ledger`
    task.sqlite       how far the task came, and the audit log                  `precad.servers.store.rounds`
    tuples.sqlite     which tuples are used up                                  `precad.servers.store.burnt_tuples`
    checkpoints/      the last models, with the sums that made them             `precad.servers.store.checkpoints`
    quality.jsonl     how good its models are, where that is measured          `precad.servers.telemetry.quality`
    rounds.jsonl      a record of every committed round, with its timings       for people and programs; made again from
    model.npy         the last model                                            the others when a crash cost one of them
    audit.json        what an attack showed, by `precad audit privacy`          `precad.servers.telemetry.audit_figures`
    canary-noise.jsonl  own noise where an audit reads it                       `precad.servers.store.canary_noise`
    counted-by.jsonl  later ledgers that count this one                         `precad.servers.store.counted`
    uploads.spool     uploads that memory has no room for; gone with the process

A server that is started again in its folder goes on with the task (`precad.servers.store.standing`). The folder and
what is in it are its user's alone (`precad.servers.private_files`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from tokenize import TokenError
from typing import Final

import numpy as np
from numpy.typing import NDArray

from precad.dp.accountants.earlier_rounds import EarlierTask
from precad.dp.errors import MostRoundsError
from precad.dp.ledgers.earlier import counted_in, described, earlier_tasks
from precad.dp.ledgers.ledger import Ledger
from precad.dp.ledgers.sealed_file import is_open
from precad.dp.task_privacy import budgets_of, task_privacy
from precad.mpc.errors import raised_as
from precad.protos.messages import convert
from precad.protos.task.model_update import moments_shape
from precad.protos.task.task import Task
from precad.protos.tls.identity import Role
from precad.servers.config import AggregatorConfig, EarlierLedger
from precad.servers.database.tables import Backend
from precad.servers.errors import SetupError, StoreError
from precad.servers.private_files import private, require_unshared
from precad.servers.store.burnt_tuples import TupleLedger
from precad.servers.store.checkpoints import Checkpoints
from precad.servers.store.record import from_line, to_line
from precad.servers.store.rounds import CommittedRound, TaskStore

_OF_A_HEAD: Final = (MemoryError, OverflowError, TokenError, SyntaxError)
"""Errors of NumPy for the head of a file that states too much, or is no Python."""


def require_usable(state_dir: Path, *, has_database: bool = False) -> None:
    """Raises SetupError when the folder cannot be made or written, or holds a ledger and not what belongs to it.

    has_database: whether what is known of the task is in a database elsewhere.

    Changes nothing. A second task on the same records has to be accounted together with the first: that is for the
    operator to decide.
    """
    require_folder(state_dir)
    ledger, store = ledger_path(state_dir), store_path(state_dir)
    if ledger.exists() and not store.exists() and not has_database:
        raise SetupError(f"state_dir: expected {store.name} beside the ledger of an earlier task, found {ledger} alone")
    if has_database and store.exists():
        raise SetupError(f"state_dir: expected the task in the database alone, found {store} as well")


def require_folder(state_dir: Path) -> None:
    """Raise SetupError when the folder cannot be made or written, or others may write to it. Changes nothing."""
    with raised_as(SetupError, OSError, f"state_dir: expected a folder to write to, found {state_dir}"):
        existing = next(folder for folder in (state_dir, *state_dir.absolute().parents) if folder.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise SetupError(f"state_dir: expected a folder to write to, found {existing}")
    if existing == state_dir:
        require_unshared(state_dir)


def store_path(state_dir: Path) -> Path:
    """Return the path of what is known of the task in this folder."""
    return state_dir / "task.sqlite"


def open_task_store(state_dir: Path, task: Task, initial_model: bytes, backend: Backend | None = None) -> TaskStore:
    """Open what is known of the task. Raises SetupError when the folder is of another task.

    - initial_model: as bytes
    - backend: where the store is not in the folder
    """
    return TaskStore(
        backend or store_path(state_dir),
        config_digest=task.digest(),
        initial_model_digest=convert.sha256(initial_model),
        digest_before=task.digest_before,
        rests_on={view.value: why for view, why in task_privacy(task).said.items() if why},
    )


def open_checkpoints(state_dir: Path, task: Task) -> Checkpoints:
    """Return the last models. Raises SetupError."""
    return Checkpoints(state_dir / "checkpoints", task.dim, moments_shape(task))


def ledger_path(state_dir: Path) -> Path:
    """Return the path of the ledger of the task in this folder."""
    return state_dir / "ledger.jsonl"


def open_ledger(
    state_dir: Path, task: Task, earlier: Sequence[EarlierTask] | None = None, *, only_reads: bool = False
) -> Ledger:
    """Return the task's ledger, for both views and every level, in a folder that is made where there is none.

    - earlier: finished tasks that it counts as well; None: those that it counts already
    - only_reads: a ledger that is there, which may lie where nothing can be written

    Raises SetupError when it cannot be read, cannot be written or counts others, DpError when it is another task's.
    """
    privacy = task_privacy(task)
    path = ledger_path(state_dir)
    if earlier is not None:
        require_started_with(path, earlier)
    try:
        if not only_reads:
            state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Ledger(
            path,
            events=privacy.events,
            delta=task.delta,
            budgets=budgets_of(task),
            every_round=privacy.every_round,
            unit=privacy.unit,
            steps_per_round=privacy.steps_per_round,
            slack=privacy.slack,
            most_rounds=task.most_draws,
            separation=task.min_separation,
            earlier=counted_in(path) if earlier is None else earlier,
            evaluations=privacy.evaluations,
            rests_on={view: why for view, why in privacy.said.items() if why},
            only_reads=only_reads,
        )
    except ValueError as error:
        raise SetupError(f"earlier_ledgers: {error}") from None
    except OSError as error:
        use = "read" if only_reads else "write to"
        raise SetupError(f"state_dir: expected a ledger to {use}, found {path}: {error.strerror or error}") from None


def require_ledger_of(task_id: str, state_dir: Path) -> None:
    """Require the ledger of a task that both servers have begun, which every server opens before. Raises SetupError.

    A new one would say that nothing was spent. task_id: empty where none was begun.
    """
    if not task_id:
        return
    path = ledger_path(state_dir)
    with raised_as(SetupError, OSError, f"state_dir: expected a ledger to read, found {path}"):
        is_there = path.exists() and _has_first_line(path)
    if not is_there:
        raise SetupError(f"state_dir: expected the ledger of task {task_id!r}, which was begun, in {path}, found none")


def _has_first_line(ledger: Path) -> bool:
    """Tell whether a ledger has begun. Raises OSError."""
    with ledger.open("rb") as file:
        return file.readline().endswith(b"\n")


def require_started_with(ledger: Path, earlier: Sequence[EarlierTask]) -> None:
    """Require that a ledger, if it is there, counts these earlier tasks. Raises SetupError; DpError for a damaged one.

    They are told apart by what is not the same in every group of records. One whose first line a crash cut off has not
    begun.
    """
    if not ledger.exists():
        return
    with raised_as(SetupError, OSError, f"state_dir: expected a ledger to read, found {ledger}"):
        if not _has_first_line(ledger):
            return
        counted = counted_in(ledger)
    ours, theirs = ([(one.chain, one.rounds, one.most_rounds) for one in tasks] for tasks in (earlier, counted))
    if ours != theirs:
        raise SetupError(
            f"earlier_ledgers: expected those that {ledger} was started with, {described(counted)}; "
            f"found {described(earlier)}"
        )


def read_earlier(config: AggregatorConfig, role: Role) -> tuple[EarlierTask, ...] | None:
    """Return the finished tasks that the ledger is to count as well; None where none are named.

    Raises as `tasks_named`. Raises SetupError for a ledger that a task still charges, before ours is begun: what it
    charges later would count nowhere.
    """
    if not config.earlier_ledgers:
        return None
    field = f"aggregator.{role.value[-1]}.earlier_ledgers"
    found = tasks_named(config.earlier_ledgers, field)
    in_use = [i for i, one in enumerate(config.earlier_ledgers) if is_open(one.path)]
    if in_use and not ledger_path(config.state_dir).exists():
        path = config.earlier_ledgers[in_use[0]].path
        raise SetupError(f"{field}.{in_use[0]}.path: expected the ledger of a finished task, found {path}, in use")
    return found


def tasks_named(named: Sequence[EarlierLedger], field: str) -> tuple[EarlierTask, ...]:
    """Return the tasks of earlier ledgers that a configuration names. field: their field, as errors name it.

    Raises SetupError for a file that cannot be read and for too small a bound, DpError for one that is no ledger.
    """
    try:
        return earlier_tasks([(one.path, one.most_rounds) for one in named])
    except MostRoundsError as error:
        i = max(i for i, one in enumerate(named) if one.path == error.path)
        raise SetupError(f"{field}.{i}.{error}") from None
    except OSError as error:
        raise SetupError(f"{field}: expected ledgers to read, found {error.filename}: {error.strerror}") from None


def open_tuple_ledger(state_dir: Path, backend: Backend | None = None) -> TupleLedger:
    """Return the record of burnt tuples, of every task that this folder has seen. Raises SetupError."""
    return TupleLedger(backend or state_dir / "tuples.sqlite")


def spool_path(state_dir: Path) -> Path:
    """Return the path of the uploads that memory has no room for."""
    return state_dir / "uploads.spool"


def load_initial_model(path: Path, task: Task) -> NDArray[np.float32]:
    """Return a flat float32 vector, (d,), which is 0 beyond the model's parameters. Raises SetupError naming what was
    expected."""
    vector = _load_model("initial_model", path, task.dim)
    if vector[task.n_parameters :].any():
        raise SetupError(
            f"initial_model: expected 0 beyond the model's {task.n_parameters} parameters, found another in {path}"
        )
    return vector


def load_final_model(state_dir: Path, dim: int) -> NDArray[np.float32]:
    """Return the model after the last committed round, (dim,). Raises SetupError naming what was expected."""
    return _load_model("state_dir", state_dir / "model.npy", dim)


def _load_model(field: str, path: Path, dim: int) -> NDArray[np.float32]:
    try:
        parameters = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError, *_OF_A_HEAD) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise SetupError(f"{field}: expected a .npy file, found {path}: {why}") from None
    if (
        not isinstance(parameters, np.ndarray)
        or parameters.dtype != np.float32
        or parameters.shape != (dim,)
        or not np.isfinite(parameters).all()
    ):
        raise SetupError(f"{field}: expected {dim} finite float32 values, found something else in {path}")
    return parameters


def write_round(state_dir: Path, record: CommittedRound, parameters: NDArray[np.float32]) -> None:
    """Append the record to rounds.jsonl and replace model.npy as a whole: for people and programs.

    Raises StoreError; the round is committed all the same, and the next start writes both.
    """
    try:
        _write_model(state_dir, parameters)
        with open(state_dir / "rounds.jsonl", "a", opener=private) as lines:
            lines.write(to_line(record))
    except OSError as error:
        raise StoreError(
            f"record of round {record.number}, which is committed: not written: {error.strerror}"
        ) from error


def restore_records(
    state_dir: Path, committed: Sequence[CommittedRound], parameters: NDArray[np.float32]
) -> list[CommittedRound]:
    """Return the records of all committed rounds; rounds.jsonl is made to hold exactly these, and model.npy the last
    model.

    A record that a crash kept from being written has no timings and no bytes. Raises SetupError.
    """
    with raised_as(SetupError, OSError, f"state_dir: expected a folder to write to, found {state_dir}"):
        return _restore_records(state_dir, committed, parameters)


def _restore_records(
    state_dir: Path, committed: Sequence[CommittedRound], parameters: NDArray[np.float32]
) -> list[CommittedRound]:
    if committed:
        _write_model(state_dir, parameters)
    path = state_dir / "rounds.jsonl"
    written = path.read_bytes() if path.exists() else b""
    known = {record.number: record for line in written.splitlines() if (record := from_line(line)) is not None}
    records = [known.get(round.number, round) for round in committed]
    if written != "".join(map(to_line, records)).encode():
        temporary = path.with_suffix(".tmp")
        with open(temporary, "w", opener=private) as lines:
            lines.writelines(map(to_line, records))
        temporary.replace(path)
    return records


def _write_model(state_dir: Path, parameters: NDArray[np.float32]) -> None:
    temporary = state_dir / "model.npy.tmp"
    with open(temporary, "wb", opener=private) as file:
        np.save(file, parameters)
    temporary.replace(state_dir / "model.npy")
