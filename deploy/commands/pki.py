"""`precad pki`: a private authority."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deploy import errors
from deploy.commands.common import exit_codes, people
from protos.identity import Role

pki_app = typer.Typer(help="A private authority and the certificates that it issues.", no_args_is_help=True)


@pki_app.command("init")
def pki_init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="New or empty folder for the authority.")],
    days: Annotated[int, typer.Option(help="Validity of the authority's certificate.", min=1)] = 3650,
) -> None:
    """Create a private authority."""
    with exit_codes():
        from deploy import pki

        people.print(f"authority: {pki.create_authority(directory, days=days)}", soft_wrap=True)


@pki_app.command("issue")
def pki_issue(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The authority's folder.")],
    role: Annotated[str, typer.Option(help="aggregator-a, aggregator-b, dealer, client or operator.")],
    name: Annotated[str | None, typer.Option(help="The client's id.")] = None,
    days: Annotated[int, typer.Option(help="Validity of the certificate.", min=1)] = 365,
) -> None:
    """Issue a certificate and its key."""
    with exit_codes():
        from deploy import pki
        from protos.identity import Identity

        if role not in set(Role):
            raise errors.ConfigError(f"--role: expected one of {', '.join(Role)}, found {role!r}")
        if name is None and role == Role.CLIENT:
            raise errors.ConfigError("--name: expected the client's id, found none")
        files = pki.issue(directory, Identity(Role(role), name or role), days=days)
        people.print(f"certificate: {files.certificate}\nkey: {files.key}", soft_wrap=True)
