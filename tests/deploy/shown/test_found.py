"""Values that an error repeats of a configuration: those that help, and none that may be a secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from precad.deploy.configuration import local
from precad.deploy.errors import ConfigError
from precad.deploy.oversight import status_sources
from precad.deploy.run_files.folder import RunFolder
from precad.deploy.shown.found import found_shown
from precad.lab.simulation import simulate
from precad.servers.errors import SetupError
from precad.servers.operations.access import load_token


@pytest.mark.parametrize(
    ("value", "field", "shown"),
    [
        ("blue", "colour", "'blue'"),
        (7, "key", "7"),
        ({}, "colour", "{}"),
        ({"a": 1}, "colour", "a section"),
        ("hunter2", "api_token", "a value that is not repeated here"),
        (["hunter2"], "passwords", "a value that is not repeated here"),
        ([{"pin": "hunter2"}], "dealer", "a list of sections"),
        ("x" * 100, "colour", f"'{'x' * 76}..."),
    ],
)
def test_a_value_is_shown_unless_it_may_be_a_secret(value: object, field: str, shown: str) -> None:
    assert found_shown(value, "task", field) == shown


def test_no_error_repeats_a_secret_that_stands_where_its_files_name_belongs(tmp_path: Path) -> None:
    """In a local run, in a simulation, in the token's field of a server, and behind --token."""
    task = {"name": "t", "clients": 2, "rounds": 1, "client_rate": 1.0, "record_rate": 1.0, "record_clip": 1.0}
    task |= {"client_clip": 2.0, "noise_multiplier": 8.0, "learning_rate": 1.0}

    def run(raw: dict[str, Any]) -> None:
        local.resolve(raw, RunFolder(tmp_path / "run"))

    for act, wrong in (
        (run, {"aggregator": {"a": {"key": "-----BEGIN PRIVATE KEY-----\nhunter2"}}}),
        (run, {"aggregator": {"a": {"state_dir": "postgresql://precad:hunter2@db/precad"}}}),
        (run, {"clinet": {"api": "hunter2"}}),
        (simulate.resolve, {"clinet": {"api": "hunter2"}}),
        (simulate.resolve, {"api_token": "hunter2"}),
    ):
        with pytest.raises(ConfigError) as caught:
            act({"task": dict(task), **wrong})
        assert "hunter2" not in str(caught.value)
    with pytest.raises(SetupError, match="operations_token: expected a readable file") as refused:
        load_token(tmp_path / "hunter2")
    assert "hunter2" not in str(refused.value)
    with pytest.raises(ConfigError, match="--token: expected the name of a readable file") as caught:
        status_sources._token(tmp_path / "hunter2")
    assert "hunter2" not in str(caught.value)
