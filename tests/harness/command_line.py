"""The command line: run it in a process of its own or in the test's, or ask whether it takes a command."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import typer
from typer import testing

from precad.deploy.cli.common import for_programs_alone
from precad.deploy.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
USAGE_ERROR = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "UsageError")
"""Click's, which typer does not export by name."""


def in_a_process(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `precad ARGUMENTS` in a folder, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "precad.deploy.cli.main", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


class CliRunner(testing.CliRunner):
    """Run an app of typer as its own runner does, but make its command once in a process.

    Making it reads the signatures of all commands anew, which takes longer than most commands that a test runs.
    """

    def invoke(self, made: typer.Typer, args: Sequence[str] = (), **how: Any) -> testing.Result:
        """Run the command. See `typer.testing.CliRunner.invoke`. With `--json`, standard output is that object's alone,
        as `precad.deploy.cli.main.main` has it."""
        command = _JsonAlone(command_of(made)) if "--json" in args else command_of(made)
        with mock.patch.object(testing, "_get_command", return_value=command):
            return super().invoke(made, args, **how)


def precad(*arguments: object) -> testing.Result:
    """Run `precad ARGUMENTS` in this process, at a width that breaks no line."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments], terminal_width=200, prog_name="precad")


class _JsonAlone:
    """A command whose text goes to standard error."""

    def __init__(self, command: Any) -> None:
        self.name, self._command = command.name, command

    def main(self, *arguments: Any, **how: Any) -> Any:
        with for_programs_alone():
            return self._command.main(*arguments, **how)


@cache
def command_of(made: typer.Typer) -> Any:
    """Return the command that an app of typer is, made once."""
    return typer.main.get_command(made)


class CommandRefusedError(Exception):
    """The command line would not take it."""


def require_accepted(arguments: Sequence[str], *, may_be_named_only: bool = False) -> None:
    """Check command, options, types of values and number of arguments of `precad ARGUMENTS`. Raises
    CommandRefusedError.

    may_be_named_only: a command without any argument is one that is talked about, and needs only to exist.
    """
    command, rest = command_of(app), list(arguments)
    while hasattr(command, "commands") and rest:
        if (name := rest.pop(0)) not in command.commands:
            raise CommandRefusedError(f"precad {shlex.join(arguments)}: no command {name!r}")
        command = command.commands[name]
    if may_be_named_only and not rest:
        return
    try:
        with command.make_context(command.name, rest):
            return
    except USAGE_ERROR as error:
        raise CommandRefusedError(f"precad {shlex.join(arguments)}: {error}") from error
