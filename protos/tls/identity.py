"""Identity of the other end of a call: the role and the name that the authority wrote into the peer's certificate.

A certificate carries its holder as one URI, `precad://<role>/<name>`, among its subject alternative names. Nothing
else names a peer: no message field, no host name, no address.

    IdentityError             no certificate, or none that says who holds it    UNAUTHENTICATED
    ├── RoleRefusedError      a known peer whose role may not do this           PERMISSION_DENIED
    ├── PinRefusedError       the right role, another certificate than agreed   PERMISSION_DENIED
    └── KeyExchangeRefusedError  no post-quantum key exchange (`key_exchange`)  PERMISSION_DENIED

Servicers raise these before they touch any state; the table of status codes in `servers/` maps them as shown. Their
texts hold roles, names and fingerprints, all public.
"""

from __future__ import annotations

import datetime as dt
import enum
import functools
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_URI = re.compile(r"precad://([^/]+)/([^/]+)")

NOT_PARSED: Final = (
    ValueError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
"""Errors of the library for a certificate or a request that is none, or that has something in it unknown to it."""


class IdentityError(Exception):
    """The peer did not prove who it is, or an identity is not well formed."""


class RoleRefusedError(IdentityError):
    """The peer proved who it is, and its role may not make this call."""

    def __init__(self, allowed: tuple[Role, ...], found: Identity) -> None:
        super().__init__(f"this call needs the role {' or '.join(allowed)}, the peer's certificate says {found.uri}")


class PinRefusedError(IdentityError):
    """The authority signed the peer's certificate, and it is not the one agreed on with that peer."""

    def __init__(self, *, expected: str, found: str) -> None:
        super().__init__(f"the peer's certificate: expected the pinned one, SHA-256 {expected}, found {found}")


class Role(enum.StrEnum):
    """Role of a process: what it may do. Each is run by another operator."""

    AGGREGATOR_A = "aggregator-a"
    AGGREGATOR_B = "aggregator-b"
    DEALER = "dealer"
    CLIENT = "client"
    OPERATOR = "operator"

    @property
    def is_server(self) -> bool:
        """Return whether others dial this role, so that its certificate carries `server_name`."""
        return self in {Role.AGGREGATOR_A, Role.AGGREGATOR_B, Role.DEALER}

    @property
    def server_name(self) -> str:
        """Return the DNS name that a server's certificate carries: the role, wherever the process runs."""
        return f"{self}.precad"


AGGREGATORS: tuple[Role, Role] = (Role.AGGREGATOR_A, Role.AGGREGATOR_B)
"""By party: A is 0, B is 1."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A role and who holds it. There are many clients; of every other role there is one, named like the role."""

    role: Role
    name: str

    def __post_init__(self) -> None:
        if self.role is not Role.CLIENT:
            if self.name != self.role:
                raise IdentityError(f"name: expected {self.role.value!r} for the {self.role}, found {self.name!r}")
        elif self.name in set(Role):
            raise IdentityError(f"name: expected one for a client that is no role's, found {self.name!r}")
        elif not _NAME.fullmatch(self.name):
            raise IdentityError(f"name: expected one for a client that matches {_NAME.pattern}, found {self.name!r}")

    @property
    def uri(self) -> str:
        """Return the identity as certificates carry it."""
        return f"precad://{self.role}/{self.name}"

    @staticmethod
    @functools.lru_cache(maxsize=4096)  # a peer shows the same one in every call; an error is found anew each time
    def from_certificate(pem: bytes) -> Identity:
        """Return the identity in a PEM certificate whose signature somebody else has checked (TLS, or `TlsFiles.load`).

        Raises: IdentityError unless it has exactly one precad URI, and that one is well formed.
        """
        return Identity(*_named(pem))


def _named(pem: bytes) -> tuple[Role, str]:
    """Return role and name in a PEM certificate. Raises IdentityError."""
    try:
        names = parse_certificate(pem).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = [uri for uri in names.get_values_for_type(x509.UniformResourceIdentifier) if _is_ours(uri)]
    except x509.ExtensionNotFound:
        uris = []
    if len(uris) != 1:
        raise IdentityError(f"a certificate's identity: expected one precad:// URI, found {uris or 'none'}")
    match = _URI.fullmatch(uris[0])
    if match is None or match[1] not in set(Role):
        raise IdentityError(f"a certificate's identity: expected precad://<role>/<name>, found {uris[0]!r}")
    return Role(match[1]), match[2]


def _is_ours(uri: str) -> bool:
    return uri.lower().startswith("precad:")


@functools.lru_cache(maxsize=4096)  # a peer shows the same one in every call
def parse_certificates(pem: bytes) -> tuple[x509.Certificate, ...]:
    """Return the certificates in a PEM text, one or more. Raises: IdentityError when there is none."""
    try:
        certificates = tuple(x509.load_pem_x509_certificates(pem))
        for certificate in certificates:
            len(certificate.extensions)  # parsed on first use: that is now, so that no later reader has to fail
    except NOT_PARSED:
        certificates = ()
    if not certificates:
        raise IdentityError("expected one PEM certificate, found none")
    return certificates


def parse_certificate(pem: bytes) -> x509.Certificate:
    """Return the one certificate in a PEM text. Raises: IdentityError when there is none, or a chain."""
    certificates = parse_certificates(pem)
    if len(certificates) != 1:
        raise IdentityError(f"expected one PEM certificate, found {len(certificates)}")
    return certificates[0]


def fingerprint(pem: bytes) -> str:
    """Return the SHA-256 of the certificate's DER encoding, in hex: what operators compare and servers pin."""
    return parse_certificate(pem).fingerprint(hashes.SHA256()).hex()


class AuthenticatedCall(Protocol):
    """The part of a servicer context, blocking or asyncio, that tells who calls."""

    def auth_context(self) -> Mapping[str, Any]:
        """Return what TLS proved about the peer; empty over a plaintext port."""


def peer_certificate(context: AuthenticatedCall) -> bytes:
    """Return the PEM certificate whose key the peer proved to hold in the TLS handshake. Raises: IdentityError."""
    certificates = tuple(context.auth_context().get("x509_pem_cert", ()))
    if len(certificates) != 1:
        raise IdentityError("the peer showed no certificate; every call needs mutual TLS")
    return bytes(certificates[0])


def peer_identity(context: AuthenticatedCall) -> Identity:
    """Return who makes this call. Raises: IdentityError."""
    return Identity.from_certificate(peer_certificate(context))


def is_current(context: AuthenticatedCall) -> bool:
    """Return whether the caller's certificate is valid now. Raises: IdentityError.

    TLS looks at its dates in a full handshake, and not where a connection resumes an earlier one's session.
    """
    certificate = parse_certificate(peer_certificate(context))
    return certificate.not_valid_before_utc <= dt.datetime.now(dt.UTC) <= certificate.not_valid_after_utc


def require_current(context: AuthenticatedCall) -> None:
    """Require a certificate that is valid now. Raises: IdentityError."""
    if not is_current(context):
        ends = parse_certificate(peer_certificate(context)).not_valid_after_utc
        raise IdentityError(f"the peer's certificate: expected one that is valid now, found one that ends on {ends}")


def require_role(context: AuthenticatedCall, *allowed: Role) -> Identity:
    """Return who makes this call, given that its role is allowed to. Raises: RoleRefusedError, IdentityError."""
    identity = peer_identity(context)
    if identity.role not in allowed:
        raise RoleRefusedError(allowed, identity)
    return identity


def require_pinned(context: AuthenticatedCall, fingerprints: Collection[str]) -> str:
    """Require that the caller holds one of these certificates (`fingerprint`), and return which.

    There are two while the peer renews its certificate. A server's TLS accepts whatever its authority signed, so links
    between servers check this as well. Then a second certificate of the same role, however it came about, opens
    nothing.
    Raises: PinRefusedError, IdentityError.
    """
    found = fingerprint(peer_certificate(context))
    if found not in fingerprints:
        raise PinRefusedError(expected=" or ".join(fingerprints), found=found)
    return found
