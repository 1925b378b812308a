"""`precad pki token`, `precad pki serve` and `precad enrol`: certificates by one-time token."""

from __future__ import annotations

import asyncio
import datetime as dt
import re
from pathlib import Path
from typing import Annotated

import typer

from precad.deploy import errors
from precad.deploy.cli.common import exit_codes, tell
from precad.deploy.cli.pki import (
    AuthorityFolder,
    AuthorityPassphraseFile,
    ClientId,
    Days,
    PassphraseFile,
    RoleName,
    identity_of,
    passphrase_of,
    pki_app,
)
from precad.deploy.cli.roles import serve

_VALID = re.compile(r"([1-9][0-9]{0,4})([mhd])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}


@pki_app.command("token")
@exit_codes()
def pki_token(
    directory: AuthorityFolder,
    role: RoleName = "client",
    name: ClientId = None,
    valid: Annotated[str, typer.Option(help="Let the token expire after this time: 30m, 24h, 7d.")] = "24h",
    days: Days = 365,
) -> None:
    """Make a one-time token, on standard output, for one certificate of a holder."""
    from precad.deploy.authority.enrolment.tokens import Tokens

    match = _VALID.fullmatch(valid)
    if match is None:
        raise errors.ConfigError(f"--valid: expected minutes, hours or days like 24h, found {valid!r}")
    if not (directory / "ca.pem").is_file():
        raise errors.ConfigError(f"DIR: expected the authority's folder, found no ca.pem in {directory}")
    with Tokens(directory) as tokens:
        lifetime = dt.timedelta(**{_UNITS[match[2]]: int(match[1])})
        typer.echo(tokens.make(identity_of(role, name), valid=lifetime, days=days))


@pki_app.command("serve")
@exit_codes()
def pki_serve(
    directory: AuthorityFolder,
    listen: Annotated[str, typer.Option(help="Listen at this HOST:PORT.")] = "127.0.0.1:7005",
    authority_passphrase_file: AuthorityPassphraseFile = None,
) -> None:
    """Answer requests for certificates that come with a one-time token, until it is stopped."""
    from precad.deploy.authority import pki
    from precad.deploy.authority.enrolment.endpoint import Endpoint
    from precad.deploy.authority.enrolment.tokens import Tokens

    opens = passphrase_of(authority_passphrase_file)
    pki.require_authority(directory, opens)
    with Tokens(directory, authority_passphrase=opens) as tokens:
        serve(lambda: Endpoint(directory, tokens, listen, authority_passphrase=opens))


@exit_codes()
def enrol(
    url: Annotated[str, typer.Argument(metavar="URL", help="Ask https://HOST:PORT, where `precad pki serve` runs.")],
    authority_fingerprint: Annotated[
        str, typer.Option(help="Trust the authority with this SHA-256 of its certificate.")
    ],
    directory: Annotated[Path, typer.Option("--dir", help="Make <name>/key.pem, cert.pem and ca.pem in this folder.")],
    role: RoleName = "client",
    name: ClientId = None,
    token_file: Annotated[
        Path | None, typer.Option(help="Read the token from this file; without one, PRECAD_ENROLMENT_TOKEN has it.")
    ] = None,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Make a key, and get its certificate for a one-time token."""
    from precad.deploy.authority.enrolment import enrol as enrolling

    token = enrolling.read_token(token_file)
    holder = identity_of(role, name)
    made = asyncio.run(
        enrolling.enrol(url, directory, holder, token, authority_fingerprint, key_passphrase_file=passphrase_file)
    )
    tell(f"certificate: {made.certificate}\nkey: {made.key}")
