"""The one door to durable tables: a schema with a version, every transaction whole and on disk when it returns.

Behind it is a file of SQLite in the state dir (`precad.servers.database.sqlite_file`), or PostgreSQL
(`precad.servers.database.postgres`), where several replicas of a server take turns. What a newer version made is
refused, and so is what is not ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol, Self, TypeAlias

from precad.servers.database.dialects import Dialect, Migrations
from precad.servers.database.sqlite_file import SqliteFile
from precad.servers.errors import SetupError, StoreError, one_line

BUSY_TIMEOUT_S = 5.0
"""How long a transaction waits for another process that holds the file."""


class Rows(Protocol):
    """Result of a statement, as the drivers of Python's database interface give it (PEP 249)."""

    @property
    def description(self) -> Any: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...


Run: TypeAlias = Callable[..., Rows]
"""Executes one statement of a transaction: its text, with ? for values, and the values."""


class Backend(Protocol):
    """Where a store's tables are."""

    dialect: Dialect
    errors: tuple[type[Exception], ...]
    """Errors that its driver raises."""
    where: str
    """For messages."""

    def transaction(self) -> AbstractContextManager[Run]:
        """Open a transaction: statements happen together or not at all, and are on disk when it ends."""

    def version(self, run: Run) -> int:
        """Return the version of this store's tables; 0 when there are none."""

    def set_version(self, run: Run, version: int) -> None:
        """Note it, within the transaction."""

    def close(self) -> None:
        """Close it: nobody uses it any more."""


class Database:
    """The tables of one store."""

    def __init__(
        self,
        place: Path | Backend,
        migrations: Migrations,
        *,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        require: Callable[[Run], None] = lambda run: None,
    ) -> None:
        """place: the file of SQLite, or another backend. require: raises SetupError, before anything is changed, where
        tables that exist are not the caller's. Raises SetupError."""
        self._backend = SqliteFile(place, busy_timeout_s=busy_timeout_s) if isinstance(place, Path) else place
        self.where = self._backend.where
        try:
            self._migrate(migrations(self._backend.dialect), require)
        except SetupError:
            self.close()
            raise
        except self._backend.errors as error:
            self.close()
            raise SetupError(f"{self.where}: expected a database of this program: {one_line(error)}") from None

    def _migrate(self, migrations: Sequence[str], require: Callable[[Run], None]) -> None:
        with self._backend.transaction() as run:
            version = self._backend.version(run)
            if version > len(migrations):
                raise SetupError(f"{self.where}: expected version {len(migrations)} or older, found {version}")
            if version > 0:
                require(run)
            for migration in migrations[version:]:
                for statement in migration.split(";\n"):
                    run(statement)
            self._backend.set_version(run, len(migrations))

    @contextmanager
    def transaction(self) -> Iterator[Run]:
        """Run statements that happen together or not at all; they are on disk when it ends.

        An error inside undoes them. Raises StoreError when the database cannot be read or written, does not become free
        in time, or is another replica's by now. Then nothing was recorded, or a LeadLostError leaves that open. Whoever
        asked must not go on.
        """
        try:
            with self._backend.transaction() as run:
                yield run
        except self._backend.errors as error:
            raise StoreError(f"{Path(self.where).name}: nothing was recorded: {one_line(error)}") from error

    def rows(self, statement: str, values: tuple[Any, ...] = ()) -> list[Any]:
        """Return what one statement finds. Raises StoreError, as `transaction`."""
        with self.transaction() as run:
            return run(statement, values).fetchall()

    def close(self) -> None:
        """Give it back."""
        self._backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
