"""Whether the command line takes a command that a document, a unit or a manifest shows, without running it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import typer

from precad.deploy.cli.main import app

USAGE_ERROR = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "UsageError")
"""Click's, which typer does not export by name."""


class CommandRefusedError(Exception):
    """The command line would not take it."""


def require_accepted(arguments: Sequence[str], *, may_be_named_only: bool = False) -> None:
    """Check command, options, types of values and number of arguments of `precad ARGUMENTS`. Raises
    CommandRefusedError.

    may_be_named_only: a command without any argument is one that is talked about, and needs only to exist.
    """
    command, rest = typer.main.get_command(app), list(arguments)
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
