"""PostgreSQL as this package uses it: one session per process, which leads, or waits until it does.

Several replicas of a server may run on one database. The one whose session holds the role's advisory lock leads; the
others wait for it. PostgreSQL frees the lock when the session ends, however it does. The process dies, or its machine
does and keepalives notice, or an operator ends it. A session that is lost is never opened again, so a replica that was
cut off can write nothing more. And whoever begins to lead takes the next epoch. Every transaction locks the epoch's row
and finds its own epoch there, or undoes itself (a fencing token; M. Kleppmann, "How to do distributed locking", 2016).
So a transaction that has returned was the leader's, also behind a pooler that mixes sessions up.

What is written here is as durable as the database: with `synchronous_commit = on` (required), and a standby that may
take over only if it is synchronous. A database that forgets is a restored backup (docs/guides/runbook.md).
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Self

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from precad.protos.tls.identity import Role
from precad.servers.database.dialects import POSTGRES, Dialect
from precad.servers.errors import LeadLostError, PeerUnreachableError, SetupError, StoreError, one_line

PATIENCE_S: Final = 10
"""How long a statement, or a connection whose other end is silent, is waited for."""

_CLIENT_KEEPALIVE: Final[dict[str, str]] = {
    "connect_timeout": str(PATIENCE_S),
    "keepalives_idle": "4",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": str(1000 * PATIENCE_S),
}
_LIMITS: Final = ("statement_timeout", "idle_in_transaction_session_timeout")
_SETTINGS: Final[dict[str, str]] = {
    "synchronous_commit": "on",
    **dict.fromkeys(_LIMITS, f"{PATIENCE_S}s"),
    "tcp_keepalives_idle": "4",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": f"{PATIENCE_S}s",
}
"""The last four: how soon the server notices that our machine is gone, and frees the lock."""


class Session:
    """Session of one replica of `role`. Several stores share it; transactions take turns."""

    def __init__(self, url: str, role: Role) -> None:
        """Connects. url: postgresql://..., with a password or without.

        Raises SetupError, or PeerUnreachableError when PostgreSQL is not there or does not take us; neither quotes it.
        """
        self._schema = f"precad_{role.replace('-', '_')}"
        self._key = int.from_bytes(hashlib.sha256(self._schema.encode()).digest()[:8], "big", signed=True)
        self._turn = threading.RLock()
        self._epoch: int | None = None
        given = settings_of(url)
        try:
            self._connection = psycopg.connect(make_conninfo(**{**_CLIENT_KEEPALIVE, **given}), autocommit=True)
        except psycopg.OperationalError as error:
            raise PeerUnreachableError(f"database_url: expected a database that takes us: {one_line(error)}") from None
        except psycopg.Error:
            raise SetupError("database_url: expected a URL of PostgreSQL, found another setting in it") from None
        self.where = f"{self._connection.info.dbname} at {self._connection.info.host}, schema {self._schema}"
        try:
            for name, value in _SETTINGS.items():
                self._connection.execute("SELECT set_config(%s, %s, false)", (name, value))
            for name in ("search_path", "application_name"):
                self._connection.execute("SELECT set_config(%s, %s, false)", (name, self._schema))
        except psycopg.Error as error:
            self.close()
            raise SetupError(f"database_url: expected a database that takes us: {one_line(error)}") from None

    def try_lead(self) -> bool:
        """Return whether this replica leads now, and so until its session ends. Raises LeadLostError when that has
        ended, SetupError when it may not make our tables."""
        try:
            with self._turn, self._connection.transaction():
                is_ours = bool(self._only("SELECT pg_try_advisory_lock(?)", (self._key,)))
                if is_ours:
                    self._epoch = self._next_epoch()
                return is_ours
        except psycopg.Error as error:
            if self._connection.closed:
                raise LeadLostError(f"{self.where}: the session is lost: {one_line(error)}") from None
            raise SetupError(f"{self.where}: expected a database that we can lead on: {one_line(error)}") from None

    def _next_epoch(self) -> int:
        """Wait for a transaction of an earlier leader, and make it the last one."""
        self._run(f"CREATE SCHEMA IF NOT EXISTS {self._schema}")
        self._run("CREATE TABLE IF NOT EXISTS store (name TEXT PRIMARY KEY, version BIGINT NOT NULL)")
        self._run("CREATE TABLE IF NOT EXISTS leader (one BIGINT PRIMARY KEY CHECK (one = 1), epoch BIGINT NOT NULL)")
        return int(
            self._only(
                "INSERT INTO leader (one, epoch) VALUES (1, 1) ON CONFLICT (one) DO UPDATE "
                "SET epoch = leader.epoch + 1 RETURNING epoch"
            )
        )

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """Run a transaction of the leader. Raises LeadLostError when another replica may lead by now.

        Nothing was recorded then, or it is not known whether it was, and nobody of this process will ask again.
        """
        try:
            with self._turn, self._connection.transaction():
                found = self._run("SELECT epoch FROM leader FOR SHARE").fetchone()
                if self._epoch is None or found != (self._epoch,):
                    raise LeadLostError(f"{self.where}: nothing was recorded: another replica leads")
                yield self._run
        except psycopg.Error as error:
            if self._connection.closed:
                raise LeadLostError(f"{self.where}: the session is lost: {one_line(error)}") from error
            raise

    def _run(self, statement: str, values: tuple[Any, ...] = ()) -> psycopg.Cursor[Any]:
        if not values:
            return self._connection.execute(statement.encode())
        return self._connection.execute(statement.replace("?", "%s").encode(), values)

    def _only(self, statement: str, values: tuple[Any, ...] = ()) -> Any:
        """Return the one value of a statement that always gives one."""
        row = self._run(statement, values).fetchone()
        assert row is not None  # by the statement
        return row[0]

    def require_lead(self) -> None:
        """Raises LeadLostError, StoreError."""
        try:
            with self.transaction():
                pass
        except psycopg.Error as error:
            raise StoreError(f"{self.where}: the lead cannot be confirmed: {one_line(error)}") from error

    @contextmanager
    def snapshot(self) -> Iterator[Any]:
        """Open one moment's state for reading, leading or not. Raises SetupError when there is none."""
        try:
            with self._turn, self._connection.transaction():
                self._run("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                for limit in _LIMITS:  # a long task takes a reader longer, and nobody waits for it
                    self._run(f"SET LOCAL {limit} = 0")
                yield self._run
        except psycopg.Error as error:
            raise SetupError(f"{self.where}: expected tables of this role: {one_line(error)}") from None

    def tables(self, store: str) -> PostgresTables:
        """Return the tables of one store."""
        return PostgresTables(self, store)

    def close(self) -> None:
        """End the session, and with it the lead."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def settings_of(url: str) -> dict[str, Any]:
    """Return what a URL says, by names of settings. Connects to nothing. Raises SetupError, which does not quote it."""
    try:
        given: dict[str, Any] = conninfo_to_dict(url)
    except psycopg.Error:
        raise SetupError("database_url: expected a URL of PostgreSQL, found something else") from None
    _require_whole_password(given)
    return given


def _require_whole_password(given: Mapping[str, Any]) -> None:
    """Refuse a password with a bare @ or /: it ends early, and messages would show its rest as a host or database.

    Raises SetupError.
    """
    ports = str(given.get("port", "")).replace(",", "")
    if any("@" in str(given.get(part, "")) for part in ("host", "dbname")) or not (ports.isdecimal() or not ports):
        raise SetupError("database_url: expected %40 for @ and %2F for / within the password, found a URL cut by them")


class PostgresTables:
    """`precad.servers.database.tables.Backend`: the tables of one store, among those of its role."""

    dialect: Dialect = POSTGRES
    errors: tuple[type[Exception], ...] = (psycopg.Error,)

    def __init__(self, session: Session, store: str) -> None:
        self._session, self._store = session, store
        self.where = session.where

    def transaction(self) -> Any:
        """See `Backend`. Raises LeadLostError, too."""
        return self._session.transaction()

    def version(self, run: Any) -> int:
        """See `Backend`."""
        found = run("SELECT version FROM store WHERE name = ?", (self._store,)).fetchone()
        return 0 if found is None else int(found[0])

    def set_version(self, run: Any, version: int) -> None:
        """See `Backend`."""
        run(
            "INSERT INTO store (name, version) VALUES (?, ?) "
            "ON CONFLICT (name) DO UPDATE SET version = excluded.version",
            (self._store, version),
        )

    def close(self) -> None:
        """Leave the session to whoever opened it."""
