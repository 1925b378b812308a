"""SQLite as this package uses it: one file in a state dir, a schema with a version, every transaction on disk.

`synchronous=FULL` with a write-ahead log: a transaction that has returned survives a crash of the process, the system
or the power. A file that a newer version made is refused, and so is one that is no database.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from dp.ledger import sync_folder
from servers.errors import SetupError, StoreError
from servers.private_files import touch_private

BUSY_TIMEOUT_S = 5.0
"""How long a transaction waits for another process that holds the file."""


class Database:
    """One file. For several threads of one process: transactions take turns."""

    def __init__(self, path: Path, migrations: Sequence[str], *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> None:
        """migrations: step i makes a file of version i one of version i + 1; a statement ends with `;` and a new line.

        Raises SetupError."""
        self.path = path
        self._turn = threading.Lock()
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
            self._migrate(migrations)
            sync_folder(path.parent)
        except SetupError:
            self._connection.close()
            raise
        except (OSError, sqlite3.Error) as error:
            self._connection.close()
            raise SetupError(f"{path}: expected a database of this program: {error}") from None

    def _migrate(self, migrations: Sequence[str]) -> None:
        with self._turn, self._transaction() as run:
            (version,) = run("PRAGMA user_version").fetchone()
            if version > len(migrations):
                raise SetupError(f"{self.path}: expected version {len(migrations)} or older, found {version}")
            for migration in migrations[version:]:
                for statement in migration.split(";\n"):
                    run(statement)
            run(f"PRAGMA user_version={len(migrations)}")

    @contextmanager
    def transaction(self) -> Iterator[Callable[..., sqlite3.Cursor]]:
        """Statements that happen together or not at all; on disk when it ends.

        An error inside undoes them. Raises StoreError when the file cannot be read or written, or does not become
        free in time: then nothing was recorded, and whoever asked must not go on.
        """
        try:
            with self._turn, self._transaction() as run:
                yield run
        except sqlite3.Error as error:
            raise StoreError(f"{self.path.name}: nothing was recorded: {error}") from error

    @contextmanager
    def _transaction(self) -> Iterator[Callable[..., sqlite3.Cursor]]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield self._connection.execute
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def close(self) -> None:
        """Gives the file back."""
        with self._turn:
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
