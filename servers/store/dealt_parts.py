"""Which parts of which batches the dealer has given away, on disk before they leave.

Each part has one row: (task, round, party), with the shape of the batch and the process that made it. A batch lives in
the memory of one process. When that is gone, the part that has not left yet is gone as well. The other server is told
so. It never gets a part of another batch of the same round, which would fit nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from precad.mpc.errors import PeerMismatchError
from precad.mpc.sharing import Party
from precad.mpc.tuples.held import BatchShape
from precad.protos.messages import convert
from precad.servers.database.dialects import Dialect
from precad.servers.database.tables import BUSY_TIMEOUT_S, Backend, Database
from precad.servers.errors import NotDealtError


def migrations(sql: Dialect) -> Sequence[str]:
    """Return the migrations of this store's tables."""
    return (
        f"""
        CREATE TABLE process (
            number {sql.counter},
            started_at TEXT NOT NULL DEFAULT {sql.now_default}
        ){sql.table_end};
        CREATE TABLE dealt (
            task TEXT NOT NULL,
            round {sql.integer} NOT NULL,
            party {sql.integer} NOT NULL CHECK (party IN (0, 1)),
            shape {sql.blob} NOT NULL,
            process {sql.integer} NOT NULL REFERENCES process (number),
            dealt_at TEXT NOT NULL DEFAULT {sql.now_default},
            PRIMARY KEY (task, round, party)
        ){sql.keyed_table_end}
        """,
    )


class DealLedger(Database):
    """The dealer's record."""

    def __init__(self, place: Path | Backend, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> None:
        """Raises SetupError, StoreError."""
        super().__init__(place, migrations, busy_timeout_s=busy_timeout_s)
        with self.transaction() as run:
            (self._process,) = run("INSERT INTO process DEFAULT VALUES RETURNING number").fetchone()

    def record(self, party: Party, shape: BatchShape) -> None:
        """Record that this part of this batch is about to leave. A server's rounds go forward only.

        Raises: NotDealtError when it has left before, or cannot fit what has left; PeerMismatchError when the other
        server has asked for another shape; StoreError.
        """
        digest = shape_digest(shape)
        with self.transaction() as run:
            (last,) = run("SELECT MAX(round) FROM dealt WHERE task = ? AND party = ?", (shape.task, party)).fetchone()
            if last is not None and shape.round <= last:
                raise NotDealtError(f"round {shape.round} was dealt to this server before")
            other = run(
                "SELECT shape, process FROM dealt WHERE task = ? AND round = ?", (shape.task, shape.round)
            ).fetchone()
            if other is not None and other[0] != digest:
                raise PeerMismatchError(
                    f"batch of round {shape.round}", ours="the other server's", peers="another shape"
                )
            if other is not None and other[1] != self._process:
                raise NotDealtError(f"the batch of round {shape.round} is gone with the dealer that made it")
            run(
                "INSERT INTO dealt (task, round, party, shape, process) VALUES (?, ?, ?, ?, ?)",
                (shape.task, shape.round, party, digest, self._process),
            )


def shape_digest(shape: BatchShape) -> bytes:
    """Return the SHA-256 of everything that two requests for one batch must have in common. For this machine's eyes
    only, so that protobuf's own serialization will do."""
    return convert.sha256(convert.batch_request(shape).SerializeToString(deterministic=True))
