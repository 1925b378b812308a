"""`precad enrol`: whoever will hold a certificate makes the key, and shows a one-time token for the rest.

    <directory>/<name>/key.pem, cert.pem, ca.pem      request.pem stays beside them

The endpoint is verified before the token leaves. The certificate of its authority must have the fingerprint that the
operator was told by another channel. The same authority must have signed the certificate that the endpoint shows. When
the answer is lost, the same command goes on with the same key.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
from cryptography.hazmat.primitives.serialization import Encoding

from precad.deploy.authority import pki
from precad.deploy.authority.enrolment.endpoint import MAX_REQUEST_BYTES, SERVER_NAME
from precad.protos.messages.spoken import LONGEST_REASON, shown
from precad.protos.tls.files import TlsFileError, TlsFiles, read_passphrase
from precad.protos.tls.identity import Identity, IdentityError, fingerprint, parse_certificate
from precad.servers.errors import PeerUnreachableError
from precad.servers.operations.access import read_private

ENVIRONMENT_VARIABLE = "PRECAD_ENROLMENT_TOKEN"
TIMEOUT_S = 30.0

_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,200}")


def read_token(path: Path | None, environment: Mapping[str, str] = os.environ) -> str:
    """Read the token from the file (closed to other users) or, without one, from the environment. Raises: PkiError,
    SetupError."""
    text = environment.get(ENVIRONMENT_VARIABLE) if path is None else read_private(path, "--token-file")
    if text is None:
        raise pki.PkiError(f"token: expected it in --token-file or in {ENVIRONMENT_VARIABLE}, found none")
    if not _TOKEN.fullmatch(token := text.strip()):
        raise pki.PkiError(f"token: expected one of `precad pki token`, found {len(text)} other characters")
    return token


async def enrol(
    url: str,
    directory: Path,
    identity: Identity,
    token: str,
    authority_fingerprint: str,
    *,
    key_passphrase_file: Path | None = None,
) -> TlsFiles:
    """Return key, certificate and authority of `identity`, in `directory`/<name>. key_passphrase_file: encrypts the
    key.

    Raises: PkiError, PeerUnreachableError when nobody answers."""
    _require_url(url)
    pinned = _pinned(authority_fingerprint)
    folder = directory / identity.name
    if (folder / "cert.pem").exists():
        raise pki.PkiError(f"{folder} has a certificate already, which is never overwritten")
    if not (folder / "request.pem").exists():
        passphrase = None if key_passphrase_file is None else read_passphrase(key_passphrase_file)
        pki.request(directory, identity, passphrase=passphrase)
    try:
        async with asyncio.timeout(TIMEOUT_S), aiohttp.ClientSession() as session:
            authority = await _authority(session, url, pinned)
            certificate = await _certificate(session, url, authority, token, (folder / "request.pem").read_bytes())
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        is_refused = isinstance(getattr(error, "os_error", None), ConnectionRefusedError)
        why = "nothing listens there" if is_refused else shown(str(error), LONGEST_REASON) or type(error).__name__
        raise PeerUnreachableError(f"no enrolment at {url}: {why}") from None
    files = TlsFiles(
        certificate=folder / "cert.pem",
        key=folder / "key.pem",
        authority=folder / "ca.pem",
        key_passphrase_file=key_passphrase_file,
        holder=identity,
    )
    _keep(files, certificate, authority)
    return files


def _require_url(url: str) -> None:
    """Refuse what nobody can be asked at, before a key is made. Raises PkiError."""
    try:
        parts = urlsplit(url)
        is_one = parts.scheme == "https" and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of a port or an address
        is_one = False
    if not is_one:
        raise pki.PkiError("URL: expected https://HOST:PORT, found another form of address")


def _pinned(given: str) -> str:
    """Return a fingerprint's digits. Refuse what is none before the endpoint shows its own: that would be believed.

    Raises PkiError.
    """
    digits = given.strip().lower().replace(":", "")
    if not re.fullmatch("[0-9a-f]{64}", digits):
        raise pki.PkiError(
            f"--authority-fingerprint: expected a SHA-256, 64 hexadecimal digits, found another text of {len(digits)}"
        )
    return digits


async def _authority(session: aiohttp.ClientSession, url: str, expected: str) -> bytes:
    """Return the authority's certificate, over a connection that proves nothing: its fingerprint does."""
    async with session.get(f"{url}/ca.pem", ssl=False, allow_redirects=False) as answer:
        pem = await _body(answer)
    try:
        authority = parse_certificate(pem).public_bytes(Encoding.PEM)
    except IdentityError:
        raise pki.PkiError(f"{url}: expected an authority's certificate, found something else") from None
    if (found := fingerprint(authority)) != expected:
        raise pki.PkiError(f"--authority-fingerprint: expected {expected}, found an authority with {found} at {url}")
    return authority


async def _certificate(session: aiohttp.ClientSession, url: str, authority: bytes, token: str, request: bytes) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=authority.decode())
    headers = {"Authorization": f"Bearer {token}"}
    async with session.post(
        f"{url}/enrol",
        data=request,
        headers=headers,
        ssl=context,
        server_hostname=SERVER_NAME,
        allow_redirects=False,
    ) as answer:
        body = await _body(answer)
    if answer.status != 200:
        text = "".join(c for c in body.decode(errors="replace")[:500] if c.isprintable())
        raise pki.PkiError(f"the authority refused ({answer.status}): {text}")
    return body


async def _body(answer: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for piece in answer.content.iter_chunked(MAX_REQUEST_BYTES):
        body += piece
        if len(body) > MAX_REQUEST_BYTES:
            raise pki.PkiError(f"the endpoint's answer: expected at most {MAX_REQUEST_BYTES} bytes, found more")
    return bytes(body)


def _keep(files: TlsFiles, certificate: bytes, authority: bytes) -> None:
    """Put the certificate in its place when it, the key and the authority belong together. Raises: PkiError."""
    unproved = replace(files, certificate=files.certificate.with_name("answer.pem"))
    pki.replace_file(files.authority, authority)
    pki.replace_file(unproved.certificate, certificate)
    try:
        unproved.load()
        os.replace(unproved.certificate, files.certificate)
    except TlsFileError as error:
        raise pki.PkiError(f"the authority's answer does not fit: {error}") from None
    finally:
        unproved.certificate.unlink(missing_ok=True)
