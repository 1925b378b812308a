"""Starts a client where it may run already."""

from __future__ import annotations

import fcntl
import re
from pathlib import Path

import pytest

from precad.clients.errors import StateFileError
from precad.clients.one_process import one_process

TASK, OTHER = bytes(32), bytes([1]) * 32


def test_a_client_of_a_task_is_one_process(tmp_path: Path) -> None:
    """Other clients and other tasks may share the folder, and whoever comes after the end finds room."""
    folder = tmp_path / "a" / "state"
    with one_process(folder, "alice", TASK):
        with one_process(folder, "bob", TASK), one_process(folder, "alice", OTHER):
            pass
        expected = "client.state_dir: expected no other process of client alice in this task, found one that holds "
        with pytest.raises(StateFileError, match=f"^{re.escape(expected)}.*alice-0000000000000000.lock"):
            one_process(folder, "alice", TASK).__enter__()
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not list(folder.iterdir())
    with one_process(folder, "alice", TASK):
        pass


def test_a_file_that_was_removed_meanwhile_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever opened it before its holder ended holds the new one, which all others find."""
    first, flock = one_process(tmp_path, "alice", TASK), fcntl.flock

    def ending(*of: int) -> None:
        monkeypatch.undo()
        first.__exit__(None, None, None)
        flock(*of)

    first.__enter__()
    monkeypatch.setattr(fcntl, "flock", ending)
    with one_process(tmp_path, "alice", TASK), pytest.raises(StateFileError, match="no other process of client alice"):
        one_process(tmp_path, "alice", TASK).__enter__()


def test_a_folder_that_is_none_is_told(tmp_path: Path) -> None:
    """A file in its place, and a link where the client's file would be."""
    (tmp_path / "file").touch()
    with pytest.raises(StateFileError, match=r"client\.state_dir: expected a folder to write to, found .*file"):
        one_process(tmp_path / "file", "alice", TASK).__enter__()
    (tmp_path / f"alice-{TASK.hex()[:16]}.lock").symlink_to(tmp_path / "file")
    with pytest.raises(StateFileError, match=r"client\.state_dir: expected a folder to write to"):
        one_process(tmp_path, "alice", TASK).__enter__()
