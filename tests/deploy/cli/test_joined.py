"""Entry points that join the command line: other distributions' commands, and what is declared and not there."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from precad.deploy.cli.main import app
from precad.deploy.joined import AUDITS, COMMANDS, RUN_READERS, joined

DECLARED = """[precad.commands]
greet = greeter:greet
greetings = greeter:several
lost = a_module_that_is_not_there.anywhere:app
run = greeter:greet
"""
MODULE = '''
import typer


def greet(name: str) -> None:
    """Greet somebody."""
    print(f"good day, {name}")


several = typer.Typer(help="Greet in several ways.")
several.command("shortly")(greet)
several.command("at-length")(greet)
'''


@pytest.fixture
def greeter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed distribution with commands of its own."""
    info = tmp_path / "greeter-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: greeter\nVersion: 1\n")
    (info / "entry_points.txt").write_text(DECLARED)
    (tmp_path / "greeter.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("greeter")
def test_what_a_distribution_declares_joins_the_command_line() -> None:
    """A function as a command, an app as a group; both behave as if they had been added by name."""
    shown = CliRunner().invoke(app, ["--help"], terminal_width=120).stdout
    assert "greet          Greet somebody." in shown
    assert "greetings      Greet in several ways." in shown
    assert CliRunner().invoke(app, ["greet", "Ada"]).stdout == "good day, Ada\n"
    assert CliRunner().invoke(app, ["greetings", "shortly", "Ada"]).stdout == "good day, Ada\n"


@pytest.mark.usefixtures("greeter")
def test_a_declaration_without_its_module_is_passed_over_and_no_own_command_is_replaced() -> None:
    assert "lost" not in CliRunner().invoke(app, ["--help"]).stdout
    refused = CliRunner().invoke(app, ["lost"])
    assert (refused.exit_code, "No such command 'lost'" in refused.output) == (2, True)
    assert "Run a whole deployment" in CliRunner().invoke(app, ["run", "--help"]).stdout


@pytest.mark.usefixtures("greeter")
def test_a_package_that_misses_another_one_is_no_missing_laboratory(tmp_path: Path) -> None:
    """Its error names what it misses."""
    (tmp_path / "a_module_that_is_not_there").mkdir()
    (tmp_path / "a_module_that_is_not_there" / "__init__.py").write_text("import something_else_that_is_not_there\n")
    with pytest.raises(ModuleNotFoundError, match="something_else_that_is_not_there"):
        joined(COMMANDS)


def test_a_checkout_declares_the_laboratory_whatever_was_installed() -> None:
    """The names of this tree's pyproject.toml; each command can be loaded."""
    assert set(joined(COMMANDS)) == {"simulate", "bench", "experiment"}
    assert set(joined(RUN_READERS)) == {"simulation"}
    assert set(joined(AUDITS)) == {"privacy"}
    assert all(point.load() is not None for point in joined(COMMANDS).values())


def test_a_mistyped_name_of_a_joined_command_is_recognised() -> None:
    assert "Did you mean 'simulate'" in CliRunner().invoke(app, ["simulat"]).output
