"""Mutual TLS between PRECAD's processes: what each shows, what each trusts, and how a link notices a dead peer.

A peer is its role, never its address: a server's certificate names `<role>.precad`, and whoever dials asks for that
name wherever the process runs. Both ends show a certificate. A server trusts what the authority signed and lets the
servicer decide about roles (`protos.identity`). A channel trusts the authority or, between servers, exactly the one
pinned certificate and not the authority.

What gRPC 1.85 with BoringSSL does, measured and mostly held fast by the tests:
- The extended key usage is enforced in both directions, so a client's certificate cannot run a server. A trust anchor
  is exempt from it: whoever pins has to look (`read_pinned`).
- A leaf works as trust anchor (X509_V_FLAG_PARTIAL_CHAIN), for itself alone. Name and expiry still count.
- Without a DNS name in the certificate, gRPC falls back to the subject's common name. Ours have none (`deploy.pki`).
- A frozen link is noticed after `ping_timeout_ms`, by default a minute; a shorter `keepalive_timeout_ms` alone, which
  the guides name, did not change that.
- In TLS 1.3 a refused client learns only that the socket closed; the reason is in the server's log.

    TransportError          an address that cannot be used, a certificate of the wrong role
    └── TlsFileError        a TLS file that cannot be used: field, expected, found, path
"""

from __future__ import annotations

import datetime as dt
import errno
import os
import re
import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import grpc
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.x509.oid import ExtendedKeyUsageOID, ObjectIdentifier

from protos import private_key
from protos.identity import Identity, IdentityError, Role, parse_certificate
from protos.private_key import PrivateKeyError

TlsField = Literal["certificate", "key", "key_passphrase_file", "authority", "pinned"]

ENVIRONMENT_VARIABLE = "PRECAD_KEY_PASSPHRASE"
CONNECT_TIMEOUT_S = 5
"""Limit on one attempt to connect, handshake included."""
PING_TIME_S = 4
"""A link that is silent for so long is tested with a ping. (A process that dies closes its links, seen at once.)"""
PING_TIMEOUT_S = 8
"""How long a server or the operator waits for a ping's answer until it takes the link for dead."""
CLIENT_PING_TIMEOUT_S = 30
"""Likewise on links of clients: on a slow line, a ping queues behind the upload that is under way."""
IDLE_TIME_S = 60
"""A server hangs up on a connection without a call after so long: nobody parks connections."""
RETRY_HINT = "grpc-retry-pushback-ms"
"""The trailer of a call that is refused for now: milliseconds until it may be made again, in decimal (gRFC A6)."""

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.keepalive_time_ms", 1000 * PING_TIME_S),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),  # any number of them
    ("grpc.min_reconnect_backoff_ms", 1000 * CONNECT_TIMEOUT_S),  # despite its name, the limit on one attempt
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.enable_http_proxy", 0),  # the address is the whole route: no variable of the environment bends it
)
"""Of every channel. Message sizes stay at gRPC's 4 MB: what grows with d is streamed in chunks."""

SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_concurrent_streams", 16),  # of one connection: nobody parks thousands of calls
    ("grpc.max_connection_idle_ms", 1000 * IDLE_TIME_S),
    ("grpc.per_message_decompression", 0),  # nothing here is compressed: a small message stays small
    ("grpc.so_reuseport", 0),  # gRPC's default lets a second process take a share of our port's connections
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 1000 * PING_TIME_S // 2),  # half: timers are not exact
    ("grpc.keepalive_time_ms", 1000 * CLIENT_PING_TIMEOUT_S),  # frees what vanished clients hold
    ("grpc.keepalive_timeout_ms", 1000 * CLIENT_PING_TIMEOUT_S),
    ("grpc.http2.ping_timeout_ms", 1000 * CLIENT_PING_TIMEOUT_S),
    ("grpc.server_handshake_timeout_ms", 1000 * CONNECT_TIMEOUT_S),  # who connects and stays silent
)
"""Of every server; they permit the pings of CHANNEL_OPTIONS."""


class TransportError(Exception):
    """A link cannot be set up as configured."""


class TlsFileError(TransportError):
    """A certificate or key file cannot be used. Never quotes what is in a file."""

    def __init__(self, tls_field: TlsField, path: Path | str, *, expected: str, found: str) -> None:
        super().__init__(f"{tls_field}: expected {expected}, found {found} ({path})")


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """Who we are, and the proof: read and validated by `TlsFiles.load`. The key is in the clear here."""

    identity: Identity
    certificate: bytes
    key: bytes = field(repr=False)
    authority: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class TlsFiles:
    """Where a process finds what it shows and what it trusts. Each file holds one PEM object."""

    certificate: Path
    """Our certificate, issued by the authority, with our identity."""
    key: Path
    """Its private key, out of reach of other users (mode 0600; a group may read it where it must)."""
    authority: Path
    """The authority's own certificate. Every peer that is not pinned must be signed by it."""
    key_passphrase_file: Path | None = None
    """What the key is encrypted under, as closed as the key. Without one, PRECAD_KEY_PASSPHRASE of the environment. A
    key in the clear needs neither, and is refused where a file is named."""

    def load(self) -> TlsMaterial:
        """What the files hold, once it all fits together now. Raises: TlsFileError."""
        certificate_pem = _read("certificate", self.certificate)
        certificate = _parse_valid("certificate", self.certificate, certificate_pem)
        authority_pem = _read("authority", self.authority)
        authority = _parse_valid("authority", self.authority, authority_pem)
        key_pem = self._own_key(certificate)
        require_issuer(self.certificate, certificate, self.authority, authority)
        try:
            identity = Identity.from_certificate(certificate_pem)
        except IdentityError as error:
            raise TlsFileError("certificate", self.certificate, expected="an identity", found=str(error)) from None
        return TlsMaterial(identity, certificate_pem, key_pem, authority_pem)

    def load_into(self, context: ssl.SSLContext) -> None:
        """What `context` shows from now on: our certificate, with its key. Raises: TlsFileError."""
        self.load()
        context.load_cert_chain(self.certificate, self.key, password=self._passphrase())

    def _passphrase(self) -> bytes | None:
        """Of the key, if there is any. Raises: TlsFileError."""
        return read_passphrase(self.key_passphrase_file)

    def _own_key(self, certificate: x509.Certificate) -> bytes:
        """As PEM in the clear; it is the certificate's."""
        pem = _read("key", self.key)
        if self.key_passphrase_file is not None and not private_key.is_encrypted(pem):
            raise TlsFileError("key", self.key, expected="an encrypted PEM private key", found="something else")
        if (passphrase := self._passphrase()) is None and private_key.is_encrypted(pem):
            expected = f"key_passphrase_file or {ENVIRONMENT_VARIABLE} for an encrypted key"
            raise TlsFileError("key", self.key, expected=expected, found="neither")
        try:
            key = private_key.open_private_key(pem, passphrase)
        except PrivateKeyError as error:
            raise TlsFileError("key", self.key, expected=error.expected, found=error.found) from None
        if key.public_key() != certificate.public_key():
            raise TlsFileError(
                "key", self.key, expected="the certificate's key", found="the key of another certificate"
            )
        return private_key.to_pem(key)


def read_passphrase(path: Path | None, environment: Mapping[bytes, bytes] = os.environb) -> bytes | None:
    """From the file or, without one, from the environment; None where neither is. Raises: TlsFileError."""
    content = environment.get(ENVIRONMENT_VARIABLE.encode()) if path is None else _read("key_passphrase_file", path)
    try:
        return None if content is None else private_key.parse_passphrase(content)
    except PrivateKeyError as error:
        source = ENVIRONMENT_VARIABLE if path is None else path
        raise TlsFileError("key_passphrase_file", source, expected=error.expected, found=error.found) from None


def _read(tls_field: TlsField, path: Path) -> bytes:
    """The file's bytes; of a secret one, only when other users cannot read them too."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode & 0o777
            if tls_field in ("key", "key_passphrase_file") and mode & 0o007:
                raise TlsFileError(tls_field, path, expected="a file closed to other users", found=f"mode {mode:04o}")
            return file.read()
    except OSError as error:
        raise TlsFileError(tls_field, path, expected="a readable file", found=f"{error.strerror}") from None


def _parse_valid(tls_field: TlsField, path: Path, pem: bytes) -> x509.Certificate:
    """The certificate in `pem`, given that it is valid now."""
    try:
        certificate = parse_certificate(pem)
    except IdentityError as error:
        raise TlsFileError(tls_field, path, expected="a PEM certificate", found=str(error)) from None
    now = dt.datetime.now(dt.UTC)
    if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
        period = (
            f"{certificate.not_valid_before_utc:%Y-%m-%d %H:%M} to {certificate.not_valid_after_utc:%Y-%m-%d %H:%M}"
        )
        raise TlsFileError(tls_field, path, expected=f"one valid at {now:%Y-%m-%d %H:%M} UTC", found=f"valid {period}")
    return certificate


def require_issuer(
    path: Path, certificate: x509.Certificate, authority_path: Path, authority: x509.Certificate
) -> None:
    """`authority` is one, and signed `certificate`; the paths are for the message. Raises: TlsFileError."""
    try:
        is_authority = authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        is_authority = False
    if not is_authority:
        raise TlsFileError("authority", authority_path, expected="an authority's certificate", found="a peer's")
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):  # ValueError: other names; TypeError: a key of another kind
        raise TlsFileError(
            "certificate", path, expected=f"one signed by {authority_path}", found="one that it did not sign"
        ) from None


def read_pinned(path: Path, role: Role) -> bytes:
    """The PEM certificate of the one peer that may hold `role`: valid now, of that role, good for a server.

    The last is checked here because TLS exempts trust anchors from it. Raises: TlsFileError.
    """
    pem = _read("pinned", path)
    certificate = _parse_valid("pinned", path, pem)
    try:
        found = Identity.from_certificate(pem)
    except IdentityError as error:
        raise TlsFileError("pinned", path, expected=f"the certificate of {role}", found=str(error)) from None
    if found.role is not role or not _permits(certificate, ExtendedKeyUsageOID.SERVER_AUTH):
        raise TlsFileError("pinned", path, expected=f"the server certificate of {role}", found=f"one of {found.uri}")
    return pem


def _permits(certificate: x509.Certificate, usage: ObjectIdentifier) -> bool:
    """Whether the certificate says that it may be used so; silence is no."""
    try:
        return usage in certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return False


def server_credentials(ours: TlsMaterial) -> grpc.ServerCredentials:
    """Of a server to which every peer must show a certificate of the authority. Raises: TransportError."""
    if not ours.identity.role.is_server:
        raise TransportError(f"certificate: expected one of a server to listen with, found {ours.identity.uri}")
    return grpc.ssl_server_credentials(
        [(ours.key, ours.certificate)], root_certificates=ours.authority, require_client_auth=True
    )


def channel_credentials(ours: TlsMaterial, role: Role, pinned: Path | None = None) -> grpc.ChannelCredentials:
    """For dialling `role`: trusts the authority or, where `pinned` is given, that one certificate alone.

    Raises: TlsFileError, TransportError.
    """
    if not _permits(parse_certificate(ours.certificate), ExtendedKeyUsageOID.CLIENT_AUTH):
        raise TransportError(f"certificate: expected one to dial {role} with, found {ours.identity.uri}")
    trusted = ours.authority if pinned is None else read_pinned(pinned, role)
    return grpc.ssl_channel_credentials(
        root_certificates=trusted, private_key=ours.key, certificate_chain=ours.certificate
    )


def tls_context(tls: TlsFiles, role: Role, pinned: Path, *, server_side: bool) -> ssl.SSLContext:
    """For a TLS connection outside gRPC with whoever holds `role`: TLS 1.3, both show a certificate, and the peer's
    must be the pinned one. Raises: TlsFileError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server_side else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    tls.load_into(context)
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # a leaf is a trust anchor, for itself alone
    context.load_verify_locations(cadata=read_pinned(pinned, role).decode())
    return context


_ADDRESS = re.compile(r"(?:([A-Za-z0-9._-]+)|\[([0-9A-Fa-f:.]+)]):([0-9]{1,5})")


def split_address(address: str) -> tuple[str, int]:
    """Host and port. gRPC reads more into an address (default ports, ports modulo 2^16, schemes); we refuse it.

    Raises: TransportError.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None or int(match[3]) > 65535:
        raise TransportError(f"address: expected HOST:PORT or [IPV6]:PORT with a port up to 65535, found {address!r}")
    return match[1] or match[2], int(match[3])


def with_port(address: str, port: int) -> str:
    """The same host with another port."""
    return f"{address.rpartition(':')[0]}:{port}"


def dial(address: str, role: Role, tls: TlsFiles, pinned: Path | None = None) -> grpc.aio.Channel:
    """A channel to whoever holds `role` at `address`, on the running event loop. It connects on first use.

    Raises: TlsFileError, TransportError. A peer that is not `role` fails the calls, see `explain`.
    """
    split_address(address)
    if not role.is_server:
        raise TransportError(f"role: expected a server to dial, found {role}")
    ours = tls.load()
    patience_s = CLIENT_PING_TIMEOUT_S if ours.identity.role is Role.CLIENT else PING_TIMEOUT_S
    options: tuple[tuple[str, int | str], ...] = (
        *CHANNEL_OPTIONS,
        ("grpc.ssl_target_name_override", role.server_name),
        ("grpc.keepalive_timeout_ms", 1000 * patience_s),
        ("grpc.http2.ping_timeout_ms", 1000 * patience_s),  # a minute by default, whatever the line above says
    )
    return grpc.aio.secure_channel(address, channel_credentials(ours, role, pinned), options)


def bind_server(
    address: str,
    tls: TlsFiles,
    interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    *,
    max_connections: int | None = None,
) -> tuple[grpc.aio.Server, int]:
    """A server on the running event loop that holds its port, and the port (of the system's choice where it was 0).

    Whoever connects beyond max_connections is hung up on before the handshake. The caller adds its servicers, then
    starts it. Raises: TlsFileError, TransportError.
    """
    credentials = server_credentials(tls.load())
    require_free(address)
    limits = () if max_connections is None else (("grpc.max_allowed_incoming_connections", max_connections),)
    server = grpc.aio.server(interceptors=tuple(interceptors), options=(*SERVER_OPTIONS, *limits))
    try:
        return server, server.add_secure_port(address, credentials)
    except RuntimeError:
        raise TransportError(f"address: expected a free one to listen on, found {address} just taken") from None


def require_free(address: str) -> None:
    """No other process listens on any address that the name stands for.

    gRPC itself goes on when one of several is taken: localhost may be 127.0.0.1, in use, and ::1, free.
    """
    host, port = split_address(address)
    try:
        resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise TransportError(f"address: expected a host to listen on, found {address}: {error.strerror}") from None
    refusals = []
    for family, kind, protocol, _, endpoint in resolved:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(endpoint)
        except OSError as error:
            refusals.append(error)
    in_use = [error for error in refusals if error.errno == errno.EADDRINUSE]
    if in_use or len(refusals) == len(resolved):
        reason = (in_use or refusals)[0].strerror
        raise TransportError(f"address: expected a free one to listen on, found {address}: {reason}")


_NOT_ISSUED = "its certificate is not the pinned one, or comes from another authority"
_CAUSES = (
    ("unable to get local issuer certificate", _NOT_ISSUED),
    ("BAD_SIGNATURE", _NOT_ISSUED),
    ("certificate has expired", "its certificate has expired"),
    ("certificate is not yet valid", "its certificate is not valid yet"),
    ("unsupported certificate purpose", "its certificate is not one of a server"),
    ("Hostname Verification Check failed", "its certificate is of another role"),
    ("WRONG_VERSION_NUMBER", "it does not speak TLS"),
    ("Connection refused", "nothing listens there"),
    ("Socket closed", "it hung up on our certificate (its log says why), or it is stopping"),
)
"""gRPC's words for a connection that did not come about, and what they mean here."""


def explain(error: grpc.aio.AioRpcError, role: Role, address: str) -> str:
    """One line for people about a call that failed for want of a connection; of other calls, gRPC's own text."""
    details = error.details() or error.code().name
    if details.startswith("failed to connect"):
        details = next((cause for words, cause in _CAUSES if words in details), details)
    return f"{role} at {address}: {details}"
