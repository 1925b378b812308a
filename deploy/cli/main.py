"""The command `precad`.

What a command was asked for goes to standard output: as text, or as one JSON object (`--json`). Progress, remarks and
errors go to standard error, and with `--json` all text does.

A command is imported when it is called, and imports its role's modules when it runs, so that the dealer never waits for
PyTorch. The commands are in `precad.deploy.cli.joined_commands`; the laboratory's join by entry points
(`precad.deploy.joined`).
"""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from typing import Annotated, NoReturn

import typer

from precad.deploy.cli.common import for_programs_alone
from precad.deploy.cli.joined_commands import JoinedGroup
from precad.deploy.cli.standard_output import checked
from precad.deploy.localhost.processes import SAFE_PATH

app = typer.Typer(
    name="precad",
    cls=JoinedGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"max_content_width": 120, "help_option_names": ["-h", "--help"]},
)


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        from importlib import metadata

        from precad.protos.task.proved_fields import PROTOCOL_VERSION as PROVED_VERSION
        from precad.protos.task.task import PROTOCOL_VERSION

        versions = f"protocols {PROTOCOL_VERSION} and {PROVED_VERSION}"
        typer.echo(f"precad {metadata.version('precad')}, {versions}")
        raise typer.Exit


@app.callback()
def precad(
    _version: Annotated[
        bool,
        typer.Option(
            "--version",
            is_eager=True,
            callback=_show_version,
            help="Show program and protocols, and exit.",
        ),
    ] = False,
) -> None:
    """PRECAD: federated learning that is private and robust, over two servers that need not be trusted alone."""


def main() -> NoReturn:
    """Run the command: every way out is a documented exit code."""
    os.environ.update(SAFE_PATH)  # workers of joblib and Ray, and the benchmarks' programs, inherit it
    with checked(), for_programs_alone() if "--json" in sys.argv[1:] else nullcontext():
        app(prog_name="precad")
    raise AssertionError("typer exits by itself")


if __name__ == "__main__":
    main()
