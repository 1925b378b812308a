"""The page of every command, from the command line itself: what `--help` prints."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from docs.generate.markdown import page

INTRODUCTION: Final = """\
Each block is what `precad COMMAND --help` prints. Results go to standard output, as text or as JSON; everything else
goes to standard error."""
_EXIT_CODES: Final = re.compile(r"^Exit codes:\n\n(.*?)\n*\Z", re.MULTILINE | re.DOTALL)
_WIDTH: Final = 78
"""Columns that the help takes of a terminal of 80."""


def commands_page() -> str:
    """Return the page. Loads every command, the laboratory's too."""
    from typer.main import get_group

    from precad.deploy import errors
    from precad.deploy.cli.main import app

    codes = _EXIT_CODES.search(errors.__doc__ or "")
    assert codes is not None, "precad.deploy.errors: expected the exit codes at the docstring's end"
    parts = ["## Exit codes", f"```text\n{codes[1]}\n```"]
    group = get_group(app)
    inherited = {"help_option_names": group.context_settings["help_option_names"], "terminal_width": _WIDTH}
    for name, command in _walk(group, "precad"):
        parts += [f"## {name}", f"```text\n{_help(command, name, inherited)}\n```"]
    return page("Commands", INTRODUCTION, *parts)


def _walk(group: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield every command that does something, by its whole name, in the help's order."""
    for child in group.commands:
        command = group.commands[child]
        if hasattr(command, "commands"):
            yield from _walk(command, f"{name} {child}")
        elif not command.hidden:
            yield f"{name} {child}", command


def _help(command: Any, name: str, inherited: Mapping[str, Any]) -> str:
    """Return what a command's `--help` prints on a terminal of 80 columns. inherited: what `precad` gives each one."""
    with command.make_context(name, [], resilient_parsing=True, **inherited) as context:
        text: str = command.get_help(context)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())
