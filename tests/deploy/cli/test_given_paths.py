"""A path that the system takes for no file is refused by every command, before anything is done with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from precad.deploy.cli.joined_commands import path_parameters
from precad.deploy.cli.main import app
from precad.deploy.errors import ConfigError
from precad.deploy.given_paths import require_path
from tests.harness.command_line import CliRunner, command_of

LONG = "a" * 300


def commands_below(command: Any) -> Iterator[Any]:
    """Yield the commands that have no commands below them."""
    below = getattr(command, "commands", {})
    for name in below:
        yield from commands_below(below[name])
    if not below:
        yield command


def test_every_path_of_every_command_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    """Each by its name in the help, with exit code 2 and one line."""
    seen = set[str]()
    for command in commands_below(command_of(app)):
        for name, field in path_parameters(command).items():
            with pytest.raises(typer.Exit) as ended:
                command.callback(**{name: LONG})
            assert ended.value.exit_code == 2
            said = f"precad: {field}: expected a path that the system takes, found a name of 300 bytes, above 255\n"
            assert capsys.readouterr().err == said
            seen.add(f"{command.name} {field}")
    assert seen > {"run CONFIG", "demo --output", "log DIR", "precad-mnist --output", "certify --run"}
    assert len(seen) > 40


@pytest.mark.parametrize("command", ["status", "watch"])
def test_a_target_is_a_path_unless_it_is_an_address(command: str) -> None:
    found = CliRunner().invoke(app, [command, LONG])
    assert found.exit_code == 2
    assert found.stderr.startswith("precad: CONFIG|URL|FOLDER: expected a path that the system takes, found a")


def test_a_removed_folder_is_no_place_to_start_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    found = CliRunner().invoke(app, ["check", "x.toml"])
    assert found.exit_code == 2
    assert found.stderr == "precad: expected a current folder that is there, found none: No such file or directory\n"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("a\0b", "found a NUL, which no file name has"),
        ("a\ud800", "found a character that no file name has"),
        ("b/" * 4000, "found one of which it says: File name too long"),
        (3, "expected a path, found a int"),
        (b"a", "expected a path, found a bytes"),
    ],
)
def test_what_is_no_path_is_named(given: object, why: str) -> None:
    with pytest.raises(ConfigError, match=f"^folder: .*{why}$"):
        require_path("folder", given)


def test_a_path_with_nothing_there_may_be_the_right_one(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "none", tmp_path / "loop", tmp_path / "file" / "below", Path("b" * 255)):
        assert require_path("folder", path) == path
