"""A server's database file: what a transaction wrote is on disk when it returns, so that it may be told to others."""

from __future__ import annotations

from pathlib import Path

from precad.servers.database.sqlite_file import SqliteFile


def test_each_commit_is_synced_to_disk(tmp_path: Path) -> None:
    """SQLite says so itself. With a write-ahead log and `synchronous=NORMAL` a power cut would take the last rounds."""
    file = SqliteFile(tmp_path / "task.sqlite", busy_timeout_s=1.0)
    try:
        with file.transaction() as run:
            assert run("PRAGMA journal_mode").fetchone() == ("wal",)
            assert run("PRAGMA synchronous").fetchone() == (2,)  # FULL
    finally:
        file.close()
