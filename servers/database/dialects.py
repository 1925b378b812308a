"""Words in which SQLite and PostgreSQL differ, for the few kinds of columns that there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialect:
    """SQL of one kind of database."""

    integer: str
    """64 bits."""
    real: str
    """A double."""
    blob: str
    counter: str
    """Type and constraints of a key that the database counts up, and never gives twice."""
    now_default: str
    """UTC, as text."""
    table_end: str
    """Behind a table's closing parenthesis."""
    keyed_table_end: str
    """Likewise, of a table whose rows are found by their primary key alone."""
    append_only: str
    """Statements by which a table's rows, {table}, are neither changed nor deleted."""


SQLITE: Final = Dialect(
    integer="INTEGER",
    real="REAL",
    blob="BLOB",
    counter="INTEGER PRIMARY KEY AUTOINCREMENT",
    now_default="CURRENT_TIMESTAMP",
    table_end=" STRICT",
    keyed_table_end=" STRICT, WITHOUT ROWID",
    append_only="""
    CREATE TRIGGER {table}_is_never_changed BEFORE UPDATE ON {table}
        BEGIN SELECT RAISE(ABORT, 'an audit entry cannot be changed'); END;
    CREATE TRIGGER {table}_is_never_deleted BEFORE DELETE ON {table}
        BEGIN SELECT RAISE(ABORT, 'an audit entry cannot be deleted'); END
    """,
)
POSTGRES: Final = Dialect(
    integer="BIGINT",
    real="DOUBLE PRECISION",
    blob="BYTEA",
    counter="BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    now_default="to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS')",
    table_end="",
    keyed_table_end="",
    append_only="""
    CREATE FUNCTION {table}_is_append_only() RETURNS trigger LANGUAGE plpgsql AS
        $$BEGIN RAISE EXCEPTION 'an audit entry cannot be changed or deleted'; END$$;
    CREATE TRIGGER {table}_is_never_changed BEFORE UPDATE OR DELETE OR TRUNCATE ON {table}
        EXECUTE FUNCTION {table}_is_append_only()
    """,
)

Migrations: TypeAlias = Callable[[Dialect], Sequence[str]]
"""Step i makes tables of version i ones of version i + 1; a statement ends with `;` and a new line."""
