"""The command `precad`.

Figures for programs go to standard output (`--json`), everything for people to standard error. A command imports its
role's modules when it runs, so that the dealer never waits for PyTorch. The laboratory's commands join by entry points
(`precad.deploy.joined`).
"""

from __future__ import annotations

import os
from importlib import metadata
from typing import Annotated, NoReturn

import typer

from precad.deploy.cli import enrolment, local, operations, roles, setup
from precad.deploy.cli.account import account
from precad.deploy.cli.audit import audit_app
from precad.deploy.cli.certify import certify
from precad.deploy.cli.export import export, verify_export
from precad.deploy.cli.joined_commands import JoinedGroup
from precad.deploy.cli.pki import pki_app
from precad.deploy.cli.report import report
from precad.deploy.cli.standard_output import checked
from precad.deploy.localhost.processes import SAFE_PATH
from precad.protos.task.task import PROTOCOL_VERSION

app = typer.Typer(
    name="precad",
    cls=JoinedGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"max_content_width": 120},
)


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"precad {metadata.version('precad')}, protocol {PROTOCOL_VERSION}")
        raise typer.Exit


@app.callback()
def precad(
    _version: Annotated[
        bool,
        typer.Option(
            "--version",
            is_eager=True,
            callback=_show_version,
            help="Show program and protocol, and exit.",
        ),
    ] = False,
) -> None:
    """PRECAD: federated learning that is private and robust, over two servers that need not be trusted alone."""


for command in (
    *(local.demo, local.run, roles.client, operations.status, operations.watch),
    *(setup.check, setup.initial_model, enrolment.enrol, account, certify, report),
    *(export, verify_export),
):
    app.command()(command)
app.add_typer(roles.serve_app, name="serve")
app.add_typer(pki_app, name="pki")
app.add_typer(audit_app, name="audit")


def main() -> NoReturn:
    """Run the command: every way out is a documented exit code."""
    os.environ.update(SAFE_PATH)  # workers of joblib and Ray, and the benchmarks' programs, inherit it
    with checked():
        app(prog_name="precad")
    raise AssertionError("typer exits by itself")


if __name__ == "__main__":
    main()
