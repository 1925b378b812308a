"""Which tuples an aggregator has used up, on disk before a seed of theirs leaves or they enter a check.

Each use has one row: (task, round, slot, client, use). A slot's tuple belongs to one client, a client has one slot in a
round, and each use happens once. Whoever asks again, in whatever process, gets TupleReusedError. A row is there before
its use, so after a crash a burnt tuple may be one that nobody ever saw. It is wasted, and its round cannot be repeated
with the same batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from precad.mpc.tuples.burning import TupleUse, bound_otherwise, reused
from precad.servers.database.dialects import Dialect
from precad.servers.database.tables import BUSY_TIMEOUT_S, Backend, Database, Run


def migrations(sql: Dialect) -> Sequence[str]:
    """Return the migrations of this store's tables."""
    return (
        f"""
        CREATE TABLE burnt (
            task TEXT NOT NULL,
            round {sql.integer} NOT NULL,
            slot {sql.integer} NOT NULL,
            client TEXT NOT NULL,
            use TEXT NOT NULL,
            burnt_at TEXT NOT NULL DEFAULT {sql.now_default},
            PRIMARY KEY (task, round, slot, use)
        ){sql.keyed_table_end};
        CREATE UNIQUE INDEX burnt_client ON burnt (task, round, client, use)
        """,
    )


class TupleLedger(Database):
    """`precad.mpc.tuples.burning.Burns` on disk."""

    def __init__(self, place: Path | Backend, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> None:
        """Raises SetupError."""
        super().__init__(place, migrations, busy_timeout_s=busy_timeout_s)

    def burn(self, task: str, round: int, clients: Mapping[int, str], use: TupleUse) -> None:
        """See `Burns.burn`. Raises TupleReusedError, StoreError."""
        if not clients:
            return
        with self.transaction() as run:
            for slot, client in clients.items():
                _require_bound_alike(run, task, round, slot, client)
                burnt = run(
                    "INSERT INTO burnt (task, round, slot, client, use) VALUES (?, ?, ?, ?, ?) "
                    "ON CONFLICT DO NOTHING RETURNING slot",
                    (task, round, slot, client, use.value),
                ).fetchone()
                if burnt is None:
                    raise reused(round, slot, use)

    def burnt(self, task: str) -> list[tuple[int, int, str, TupleUse]]:
        """Return (round, slot, client, use) of every row of a task, in order."""
        rows = self.rows(
            "SELECT round, slot, client, use FROM burnt WHERE task = ? ORDER BY round, slot, use DESC", (task,)
        )
        return [(round, slot, client, TupleUse(use)) for round, slot, client, use in rows]


def _require_bound_alike(run: Run, task: str, round: int, slot: int, client: str) -> None:
    """Raises TupleReusedError when the slot belongs to another client, or the client to another slot."""
    other = run(
        "SELECT 1 FROM burnt WHERE task = ? AND round = ? AND slot = ? AND client <> ? "
        "UNION ALL SELECT 1 FROM burnt WHERE task = ? AND round = ? AND client = ? AND slot <> ?",  # by each index
        (task, round, slot, client, task, round, client, slot),
    ).fetchone()
    if other is not None:
        raise bound_otherwise(round, slot)
