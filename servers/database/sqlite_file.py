"""SQLite as this package uses it: one file in a state dir, every transaction on disk.

`synchronous=FULL` with a write-ahead log: a transaction that has returned survives a crash of the process, the system
or the power.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from precad.dp.ledgers.sealed_file import sync_folder
from precad.servers.database.dialects import SQLITE, Dialect
from precad.servers.errors import SetupError
from precad.servers.private_files import touch_private


class SqliteFile:
    """`precad.servers.database.tables.Backend` in one file. For several threads of one process: transactions take
    turns."""

    dialect: Dialect = SQLITE
    errors: tuple[type[Exception], ...] = (sqlite3.Error,)

    def __init__(self, path: Path, *, busy_timeout_s: float) -> None:
        """Raises SetupError."""
        self.where, self._turn = str(path), threading.Lock()
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            touch_private(path)  # SQLite makes its other files with the mode of this one
            self._connection = sqlite3.connect(
                path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False
            )
        except (OSError, sqlite3.Error) as error:
            raise SetupError(f"{path}: expected a database to write to: {error}") from None
        try:
            self._connection.execute("PRAGMA journal_mode=WAL").fetchall()
            self._connection.execute("PRAGMA synchronous=FULL")
            sync_folder(path.parent)
        except (OSError, sqlite3.Error) as error:
            self._connection.close()
            raise SetupError(f"{path}: expected a database of this program: {error}") from None

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """See `Backend`."""
        with self._turn:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection.execute
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def version(self, run: Any) -> int:
        """See `Backend`."""
        (version,) = run("PRAGMA user_version").fetchone()
        return int(version)

    def set_version(self, run: Any, version: int) -> None:
        """See `Backend`."""
        run(f"PRAGMA user_version={version}")

    def close(self) -> None:
        """Give the file back."""
        with self._turn:
            self._connection.close()
