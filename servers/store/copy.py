"""Copy of what a server keeps in PostgreSQL, as the files that it would keep in its folder without: for auditors.

The copy is of one moment, also while the server runs. Nothing goes on from it: it is old as soon as it is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

from precad.protos.tls.identity import Role
from precad.servers.database.dialects import Migrations
from precad.servers.database.postgres import Session
from precad.servers.database.tables import Database, Run
from precad.servers.errors import SetupError
from precad.servers.store import burnt_tuples, dealt_parts
from precad.servers.store import rounds as round_store

_Tables = tuple[Migrations, tuple[str, ...]]
_AGGREGATOR: Final[Mapping[str, _Tables]] = {
    "task.sqlite": (round_store.migrations, ("task", "round", "audit")),
    "tuples.sqlite": (burnt_tuples.migrations, ("burnt",)),
}
_DEALER: Final[Mapping[str, _Tables]] = {"dealt.sqlite": (dealt_parts.migrations, ("process", "dealt"))}


def copy_database(url: str, role: Role, folder: Path) -> list[Path]:
    """Write the files, which must not be there. Raises SetupError, StoreError."""
    stores = _DEALER if role is Role.DEALER else _AGGREGATOR
    paths = [folder / name for name in stores]
    for path in paths:
        if path.exists():
            raise SetupError(f"{path}: expected no such file, found one")
    with Session(url, role) as session, session.snapshot() as read:
        for path, (migrations, tables) in zip(paths, stores.values(), strict=True):
            with closing(Database(path, migrations)) as copy, copy.transaction() as write:
                for table in tables:
                    _copy(table, read, write)
    return paths


def _copy(table: str, read: Run, write: Run) -> None:
    rows = read(f"SELECT * FROM {table}")  # noqa: S608 - a name of ours
    names = [column[0] for column in rows.description]
    marks = ", ".join("?" * len(names))
    for row in rows.fetchall():
        write(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks})", tuple(row))  # noqa: S608
