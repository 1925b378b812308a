"""States of foreign trainers between their processes: whole, of their own task, and for this client alone."""

from __future__ import annotations

import os
import resource
import stat

import pytest
import structlog

from precad.clients.errors import StateFileError
from precad.clients.external.kept_state import KeptState, most_bytes


def events(lines):
    """Return the names of a log's lines."""
    return [line["event"] for line in lines]


def test_a_state_is_found_again_by_its_own_task_alone(tmp_path):
    file = tmp_path / "alice.trainer-state"
    assert KeptState(file, b"task").load(10) == b""
    KeptState(file, b"task").store(b"state")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert KeptState(file, b"task").load(10) == b"state"
    with structlog.testing.capture_logs() as lines:
        assert KeptState(file, b"another").load(10) == b""
    assert events(lines) == ["client.trainer_state_left_out"]
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


@pytest.mark.parametrize("change", [lambda content: content[:-1], lambda content: content + b"x", lambda _: b""])
def test_a_damaged_state_is_none(tmp_path, change):
    file = tmp_path / "alice.trainer-state"
    KeptState(file, b"task").store(b"state")
    file.write_bytes(change(file.read_bytes()))
    with structlog.testing.capture_logs() as lines:
        assert KeptState(file, b"task").load(10) == b""
    assert events(lines) == ["client.trainer_state_left_out"]


def test_a_longer_state_than_is_taken_is_none(tmp_path):
    file = tmp_path / "alice.trainer-state"
    KeptState(file, b"task").store(bytes(11))
    assert KeptState(file, b"task").load(10) == b""
    assert KeptState(file, b"task").load(11) == bytes(11)
    assert (most_bytes(1), most_bytes(1 << 24)) == (64 << 20, 256 << 20)


def test_somebody_else_s_file_is_neither_read_nor_written(tmp_path):
    """A link in the place of the file leads to another's; the state then lasts as long as the client."""
    file, elsewhere = tmp_path / "alice.trainer-state", tmp_path / "elsewhere"
    elsewhere.write_text("another's")
    file.symlink_to(elsewhere)
    with pytest.raises(StateFileError, match=r"alice\.trainer-state: expected a file that can be read, found"):
        KeptState(file, b"task").load(10)
    file.unlink()
    os.symlink(elsewhere, tmp_path / "alice.trainer-state.new")
    KeptState(file, b"task").store(b"state")
    assert elsewhere.read_text() == "another's"
    assert KeptState(file, b"task").load(10) == b"state"


def test_a_disk_that_takes_half_of_a_state_keeps_the_last_one_and_no_half(tmp_path):
    """A state may hold records: nothing of one lies where nobody looks for it."""
    file = tmp_path / "alice.trainer-state"
    KeptState(file, b"task").store(b"state")
    before, most = file.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, most[1]))
    try:
        KeptState(file, b"task").store(bytes(2000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
    assert file.read_bytes() == before


def test_a_disk_that_takes_nothing_costs_what_would_be_kept_alone(tmp_path):
    kept = KeptState(tmp_path / "absent" / "alice.trainer-state", b"task")
    with structlog.testing.capture_logs() as lines:
        kept.store(b"state")
    assert events(lines) == ["client.trainer_state_not_kept"]
    assert kept.load(10) == b"state"
