"""Open a server's state folder as the server will, and leave it as it is: the server's own code opens a copy.

Models are not copied, the copy has links to them: they may be gigabytes, and opening only reads them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from precad.dp.accountants.earlier_rounds import EarlierTask
from precad.dp.errors import DpError
from precad.protos.task.task import Task
from precad.protos.tls.identity import Role
from precad.servers.errors import SetupError, StoreError
from precad.servers.private_files import private_folder
from precad.servers.store.counted import MARK
from precad.servers.store.dealt_parts import DealLedger
from precad.servers.store.folder import ledger_path, require_folder, require_started_with, require_usable
from precad.servers.store.state import TaskState

COPIED = ("ledger.jsonl", MARK, "*.sqlite", "*.sqlite-wal")
LINKED = "checkpoints/*"
ATTEMPTS = 5
"""A server that works in the folder meanwhile may change a file between two copies."""


def require_aggregator_opens(
    state_dir: Path,
    task: Task,
    role: Role,
    initial: NDArray[np.float32],
    earlier: Sequence[EarlierTask] | None = None,
    *,
    has_database: bool = False,
) -> None:
    """Raise what an aggregator would at its start: SetupError, StoreError, DpError. initial: the model, (d,).

    earlier: as in `open_ledger`.
    has_database: whether the task's state is in a database elsewhere. The folder is then looked at, and not opened.
    """
    require_usable(state_dir, has_database=has_database)
    if has_database and earlier is not None:
        require_started_with(ledger_path(state_dir), earlier)
    if has_database or not state_dir.exists():
        return
    with _rehearsing(state_dir) as (stack, copy):
        TaskState.open(stack, copy, task, initial, earlier=earlier).store.require_role(role)


def require_dealer_opens(state_dir: Path, ledger_name: str, *, has_database: bool = False) -> None:
    """Raise what a dealer would at its start: SetupError, StoreError."""
    require_folder(state_dir)
    if has_database or not state_dir.exists():
        return
    with _rehearsing(state_dir) as (stack, copy):
        private_folder(copy)
        stack.enter_context(DealLedger(copy / ledger_name))


@contextmanager
def _rehearsing(state_dir: Path) -> Iterator[tuple[ExitStack, Path]]:
    """Yield a copy to open. Errors that it raises name the folder itself."""
    with tempfile.TemporaryDirectory(prefix="precad-check-") as scratch:
        copy, is_whole = Path(scratch) / "state", True
        try:
            is_whole = _copy(state_dir, copy)
            with ExitStack() as stack:
                yield stack, copy
        except OSError as error:
            raise SetupError(
                f"state_dir: expected files to read, found {error.filename or state_dir}: {error.strerror}"
            ) from None
        except (SetupError, StoreError, DpError) as error:
            if not is_whole:
                raise SetupError(
                    f"state_dir: expected files that stay as they are for a moment, found some that change in "
                    f"{state_dir}: its server works there"
                ) from None
            error.args = (str(error).replace(str(copy), str(state_dir)),)  # its kind stays, and with that the exit code
            raise


def _copy(state_dir: Path, copy: Path) -> bool:
    """Copy all files, and return whether nothing changed meanwhile. Raise OSError, also for a file that is never there,
    and SetupError for one that a server could not write."""
    missing: FileNotFoundError | None = None
    for _ in range(ATTEMPTS):
        shutil.rmtree(copy, ignore_errors=True)
        (copy / "checkpoints").mkdir(mode=0o700, parents=True)
        try:
            before = _stamps(state_dir)
            for path in before:
                _copy_one(path, copy / path.relative_to(state_dir))
            if _stamps(state_dir) == before:
                return True
            missing = None
        except FileNotFoundError as error:  # the server may have put another one in its place
            missing = error
    if missing is not None:
        raise missing
    return False


def _copy_one(path: Path, there: Path) -> None:
    if not os.access(path, os.R_OK | os.W_OK):
        path.stat()  # raises where it is gone
        raise SetupError(f"state_dir: expected files to read and to write, found {path}")
    if path.match(LINKED):
        there.symlink_to(path.absolute())
    else:
        shutil.copyfile(path, there)


def _stamps(state_dir: Path) -> dict[Path, tuple[int, int]]:
    """When each file was last changed, and its length."""
    paths = sorted(path for pattern in (*COPIED, LINKED) for path in state_dir.glob(pattern))
    return {path: (found.st_mtime_ns, found.st_size) for path in paths if (found := path.stat())}
