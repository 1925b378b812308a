"""A declaration as a command: its fields are the flags, in order, and its errors end with an exit code."""

from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from precad.deploy.cli.declared import declared
from precad.deploy.errors import INVALID_INPUT, ConfigError, flag_of


@dataclass(frozen=True, kw_only=True)
class Last:
    """Shared."""

    shown: Annotated[bool, typer.Option("--shown", help="Show it.")] = False


@dataclass(frozen=True, kw_only=True)
class First(Last):
    """Count something."""

    name: Annotated[str, typer.Argument(metavar="NAME")]
    many: Annotated[list[int] | None, typer.Option("--many", "-m", help="How many.", min=1)] = None


def app(seen):
    """Return a command line with the command `count`."""
    made = typer.Typer(rich_markup_mode=None)

    @declared(First)
    def count(flags):
        seen.append(flags)
        if flags.name == "bad":
            raise ConfigError("NAME: expected a good one, found bad")

    made.command()(count)
    return made


def test_fields_become_flags():
    """Types and bounds hold, defaults fill in, and a base's fields close the help."""
    seen = []
    done = CliRunner().invoke(app(seen), ["one", "-m", "2", "--many", "3", "--shown"])
    shown = CliRunner().invoke(app([]), ["--help"]).stdout

    assert done.exit_code == 0
    assert seen == [First(name="one", many=[2, 3], shown=True)]
    assert "Count something." in shown
    assert shown.index("--many") < shown.index("--shown") < shown.index("--help")
    assert CliRunner().invoke(app(seen), ["one", "-m", "0"]).exit_code == INVALID_INPUT
    assert CliRunner().invoke(app(seen), []).exit_code == INVALID_INPUT
    assert len(seen) == 1


def test_an_error_is_an_exit_code():
    done = CliRunner().invoke(app([]), ["bad"])
    assert done.exit_code == INVALID_INPUT


def test_errors_name_flags_as_the_command_line_does():
    assert [flag_of(name) for name in ("q", "record_clip", "rounds")] == ["-q", "--record-clip", "--rounds"]
