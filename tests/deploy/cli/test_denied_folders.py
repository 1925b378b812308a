"""A folder that the user may not look into ends a command with code 2 and one line, and no traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from precad.deploy.cli.common import exit_codes
from precad.deploy.cli.main import app
from precad.deploy.errors import INVALID_INPUT
from precad.servers.store.folder import open_ledger, open_task_store
from tests.harness.command_line import CliRunner
from tests.harness.denied import deny
from tests.harness.harness import small_task


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the state_dir of another user's server."""
    folder, task = tmp_path / "state", small_task()
    with open_ledger(folder, task), open_task_store(folder, task, b"model"):
        pass
    deny(folder, monkeypatch)
    return folder


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("status {}", "{}: expected a folder that this user can read, found: Permission denied"),
        ("watch {}", "{}: expected a folder that this user can read, found: Permission denied"),
        ("track {} --to otlp:http://127.0.0.1:9", "{}: expected a folder that this user can read, found"),
        ("audit log {}", "{}/task.sqlite: expected a file that this user can read, found: Permission denied"),
        ("audit events {}", "{}/ledger.jsonl: expected one that this user may open, found: Permission denied"),
    ],
)
def test_a_state_dir_of_another_user_is_refused(command: str, said: str, folder: Path) -> None:
    result = CliRunner().invoke(app, command.format(folder).split(), terminal_width=400, prog_name="precad")
    assert (result.exit_code, f"precad: {said.format(folder)}" in result.output) == (INVALID_INPUT, True), result.output


@pytest.mark.parametrize(("explains", "expected"), [(True, typer.Exit), (False, PermissionError)])
def test_a_process_at_work_that_meets_a_denied_file_shows_where(explains: bool, expected: type[Exception]) -> None:
    """One that a supervisor starts again must not end as if its configuration were wrong."""
    with pytest.raises(expected), exit_codes(explains_denied=explains):
        raise PermissionError(13, "Permission denied", "/somewhere/ledger.jsonl")
