"""Where a store's tables may be: a file of SQLite, or a real PostgreSQL where one is installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from precad.protos.tls.identity import Role
from precad.servers.database.tables import Backend
from tests.harness.postgres_server import postgres


class SqlitePlaces:
    """One file of SQLite."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def clear(self) -> None:
        """Nothing was ever stored."""
        for path in self.path.parent.glob(f"{self.path.name}*"):
            path.unlink()

    def __call__(self, store: str) -> Path | Backend:
        """For a process that has just started."""
        return self.path

    def close(self) -> None:
        """Nobody uses it any more."""


class PostgresPlaces:
    """A role's tables in PostgreSQL; every process has its own session, and the one before is gone."""

    def __init__(self, url: str) -> None:
        self._url, self._sessions = url, ExitStack()
        self.clear()

    def clear(self) -> None:
        """See `SqlitePlaces`."""
        import psycopg

        self._sessions.close()
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute("DROP SCHEMA IF EXISTS precad_aggregator_a CASCADE")

    def __call__(self, store: str) -> Path | Backend:
        """See `SqlitePlaces`."""
        from precad.servers.database.postgres import Session

        self._sessions.close()
        session = self._sessions.enter_context(Session(self._url, Role.AGGREGATOR_A))
        while not session.try_lead():
            pass  # the session before is closed, and PostgreSQL is about to notice
        return session.tables(store)

    def close(self) -> None:
        """See `SqlitePlaces`."""
        self.clear()


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """Yield the URL of a server for all tests of this folder. Skips where there is none."""
    with postgres() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Yield the places of stores, in both kinds of database."""
    if request.param == "sqlite":
        made: SqlitePlaces | PostgresPlaces = SqlitePlaces(tmp_path / "store.sqlite")
    else:
        made = PostgresPlaces(request.getfixturevalue("postgres_url"))
    yield made
    made.close()
