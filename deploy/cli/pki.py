"""`precad pki`: a private authority."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from precad.deploy import errors
from precad.deploy.authority import pki
from precad.deploy.cli.common import exit_codes, tell
from precad.protos.tls.identity import Identity, Role, fingerprint

pki_app = typer.Typer(help="Keep a private authority and the certificates that it issues.", no_args_is_help=True)

AuthorityFolder = Annotated[Path, typer.Argument(metavar="DIR", help="Use the authority in this folder.")]
RoleName = Annotated[
    str, typer.Option("--role", help="Name the role: aggregator-a, aggregator-b, dealer, client or operator.")
]
ClientId = Annotated[str | None, typer.Option("--name", help="Name the client by its id.")]
PassphraseFile = Annotated[Path | None, typer.Option(help="Encrypt the new key under the one line of this file.")]
AuthorityPassphraseFile = Annotated[
    Path | None, typer.Option(help="Read what ca.key is encrypted under, if it is, from this file.")
]
Days = Annotated[int, typer.Option(help="Let the certificate be valid for so many days.", min=1)]


@pki_app.command("init")
@exit_codes()
def pki_init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Make the authority in this folder, new or empty.")],
    days: Annotated[int, typer.Option(help="Let the authority's certificate be valid for so many days.", min=1)] = 3650,
    authority_passphrase_file: AuthorityPassphraseFile = None,
) -> None:
    """Create a private authority."""
    path = pki.create_authority(directory, days=days, passphrase=passphrase_of(authority_passphrase_file))
    tell(f"authority: {path}\nSHA-256: {fingerprint(path.read_bytes())}")


@pki_app.command("issue")
@exit_codes()
def pki_issue(
    directory: AuthorityFolder,
    role: RoleName,
    name: ClientId = None,
    days: Days = 365,
    passphrase_file: PassphraseFile = None,
    authority_passphrase_file: AuthorityPassphraseFile = None,
) -> None:
    """Issue a certificate and its key, where one operator runs every role."""
    files = pki.issue(
        directory,
        identity_of(role, name),
        days=days,
        passphrase=passphrase_of(passphrase_file),
        authority_passphrase=passphrase_of(authority_passphrase_file),
    )
    tell(f"certificate: {files.certificate}\nkey: {files.key}")


@pki_app.command("request")
@exit_codes()
def pki_request(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Make the key in this folder, where it stays.")],
    role: RoleName,
    name: ClientId = None,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Make a key, and the request for its certificate that goes to the authority."""
    path = pki.request(directory, identity_of(role, name), passphrase=passphrase_of(passphrase_file))
    tell(f"request: {path}\nkey: {path.with_name('key.pem')}")


@pki_app.command("sign")
@exit_codes()
def pki_sign(
    directory: AuthorityFolder,
    request: Annotated[Path, typer.Argument(metavar="REQUEST", help="Sign this request.pem of whoever asks.")],
    role: RoleName,
    name: ClientId = None,
    days: Days = 365,
    authority_passphrase_file: AuthorityPassphraseFile = None,
) -> None:
    """Sign a request; the key stays with whoever asked."""
    opens = passphrase_of(authority_passphrase_file)
    path = pki.sign(directory, request, identity_of(role, name), days=days, authority_passphrase=opens)
    tell(f"certificate: {path}\nSHA-256: {fingerprint(path.read_bytes())}")


@pki_app.command("renew")
@exit_codes()
def pki_renew(
    directory: AuthorityFolder,
    role: RoleName,
    name: ClientId = None,
    days: Days = 365,
    request: Annotated[
        Path | None, typer.Option(help="Take this request for a new key; without one, the certificate's own stays.")
    ] = None,
    authority_passphrase_file: AuthorityPassphraseFile = None,
) -> None:
    """Certify a holder once more; the certificate before stays beside it as previous.pem."""
    opens = passphrase_of(authority_passphrase_file)
    path = pki.renew(directory, identity_of(role, name), request_path=request, days=days, authority_passphrase=opens)
    tell(f"certificate: {path}\nSHA-256: {fingerprint(path.read_bytes())}")


def passphrase_of(path: Path | None) -> bytes | None:
    """Read the passphrase from a named file. Return None without one. Raises TlsFileError."""
    from precad.protos.tls.files import read_passphrase

    return None if path is None else read_passphrase(path)


def identity_of(role: str, name: str | None) -> Identity:
    """Return whom the flags name. Raises ConfigError, IdentityError."""
    if role not in set(Role):
        raise errors.ConfigError(f"--role: expected one of {', '.join(Role)}, found {role!r}")
    if name is None and role == Role.CLIENT:
        raise errors.ConfigError("--name: expected the client's id, found none")
    return Identity(Role(role), name or role)
