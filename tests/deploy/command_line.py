"""Whether the command line takes a command that a document, a unit or a manifest shows, without running it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import typer

from deploy.cli import app


def require_accepted(arguments: Sequence[str]) -> None:
    """Of `precad ARGUMENTS`: command, options, types of values, number of arguments. Raises what click raises."""
    command, rest = typer.main.get_command(app), list(arguments)
    context = None
    while hasattr(command, "commands"):
        name = rest.pop(0)
        if name not in command.commands:
            raise KeyError(f"precad {shlex.join(arguments)}: no command {name!r}")
        command = command.commands[name]
    with command.make_context(command.name, rest, parent=context) as context:
        assert context.command is command
