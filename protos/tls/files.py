"""The files of TLS: what a process shows and whom it trusts, validated together before anything uses them.

TransportError          an address that cannot be used, a certificate of the wrong role
└── TlsFileError        a TLS file that cannot be used: field, expected, found, path
"""

from __future__ import annotations

import datetime as dt
import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, ObjectIdentifier

from precad.protos.tls import private_key
from precad.protos.tls.identity import Identity, IdentityError, Role, fingerprint, parse_certificates
from precad.protos.tls.private_key import PrivateKeyError
from precad.protos.tls.renewable import LastGood

TlsField = Literal["certificate", "key", "key_passphrase_file", "authority", "pinned"]

ENVIRONMENT_VARIABLE = "PRECAD_KEY_PASSPHRASE"


class TransportError(Exception):
    """A link cannot be set up as configured."""


class TlsFileError(TransportError):
    """A certificate or key file cannot be used. Never quotes what is in a file."""

    def __init__(self, tls_field: TlsField, path: Path | str, *, expected: str, found: str) -> None:
        super().__init__(f"{tls_field}: expected {expected}, found {found} ({path})")


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """Our identity, and its proof: read and validated by `TlsFiles.load`. The key is in the clear here."""

    identity: Identity
    certificate: bytes
    key: bytes = field(repr=False)
    authority: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class TlsFiles:
    """Where a process finds what it shows and what it trusts."""

    certificate: Path
    """Our certificate (one PEM object), issued by the authority, with our identity."""
    key: Path
    """Its private key, out of reach of other users (mode 0600; a group may read it where it must)."""
    authority: Path
    """The authority's own certificate; two of them, one after the other, while a new authority takes an old one's
    place. Every peer that is not pinned must be signed by one of them."""
    key_passphrase_file: Path | None = None
    """File with the passphrase that the key is encrypted under, as closed as the key. Without one,
    PRECAD_KEY_PASSPHRASE of the environment. A key in the clear needs neither, and is refused where a file is named."""
    holder: Identity | None = None
    """Holder that the certificate must have, where that is known."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """Return all files."""
        secret = () if self.key_passphrase_file is None else (self.key_passphrase_file,)
        return self.certificate, self.key, self.authority, *secret

    def load(self) -> TlsMaterial:
        """Return what the files hold, once it all fits together now. Raises: TlsFileError."""
        certificate_pem = _read("certificate", self.certificate)
        certificate = _parse_valid("certificate", self.certificate, certificate_pem)
        authorities = _read_authorities(self.authority)
        key_pem = self._own_key(certificate)
        require_issuer(self.certificate, certificate, self.authority, authorities)
        try:
            identity = Identity.from_certificate(certificate_pem)
        except IdentityError as error:
            raise TlsFileError("certificate", self.certificate, expected="an identity", found=str(error)) from None
        if self.holder not in {None, identity}:
            raise TlsFileError(
                "certificate", self.certificate, expected=f"one of {self.holder.uri}", found=f"one of {identity.uri}"
            )
        return TlsMaterial(identity, certificate_pem, key_pem, b"".join(map(_pem, authorities)))

    def load_into(self, context: ssl.SSLContext) -> None:
        """Make `context` show our certificate, with its key, from now on. Raises: TlsFileError."""
        self.load()
        try:
            context.load_cert_chain(self.certificate, self.key, password=self._passphrase())
        except (OSError, ssl.SSLError):  # they were replaced since the line above
            raise TlsFileError("key", self.key, expected="the certificate's key", found="another one") from None

    def _passphrase(self) -> bytes | None:
        """Return the passphrase of the key, if there is any. Raises: TlsFileError."""
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
        try:
            certified = certificate.public_key()
        except (ValueError, UnsupportedAlgorithm):
            found = "one of no key that is known"
            raise TlsFileError("certificate", self.certificate, expected="a key's", found=found) from None
        if key.public_key() != certified:
            raise TlsFileError(
                "key", self.key, expected="the certificate's key", found="the key of another certificate"
            )
        return private_key.to_pem(key)


def read_passphrase(path: Path | None) -> bytes | None:
    """Read a passphrase from the file or, without one, from the environment; None where neither is.

    Raises: TlsFileError.
    """
    content = os.environb.get(ENVIRONMENT_VARIABLE.encode()) if path is None else _read("key_passphrase_file", path)
    try:
        return None if content is None else private_key.parse_passphrase(content)
    except PrivateKeyError as error:
        source = ENVIRONMENT_VARIABLE if path is None else path
        raise TlsFileError("key_passphrase_file", source, expected=error.expected, found=error.found) from None


@dataclass(frozen=True, slots=True)
class PinFile:
    """The certificates that alone are trusted as those of `role`: one, and the next one while it is being renewed."""

    path: Path
    role: Role

    @property
    def paths(self) -> tuple[Path, ...]:
        """Return the one file."""
        return (self.path,)

    def load(self) -> Pins:
        """Read the pins: all of that role and good for a server, one at least valid now: TLS itself looks at each one's
        dates.

        Their usage is checked here because TLS exempts trust anchors from it. Raises: TlsFileError.
        """
        certificates = _parse("pinned", self.path, _read("pinned", self.path))
        for certificate in certificates:
            self._require_server_of_role(certificate)
        _require_a_valid("pinned", self.path, certificates)
        return Pins(tuple(map(_pem, certificates)))

    def _require_server_of_role(self, certificate: x509.Certificate) -> None:
        try:
            found = Identity.from_certificate(_pem(certificate))
        except IdentityError as error:
            raise TlsFileError(
                "pinned", self.path, expected=f"the certificate of {self.role}", found=str(error)
            ) from None
        if found.role is not self.role or not permits(certificate, ExtendedKeyUsageOID.SERVER_AUTH):
            expected = f"the server certificate of {self.role}"
            raise TlsFileError("pinned", self.path, expected=expected, found=f"one of {found.uri}")


@dataclass(frozen=True, slots=True)
class Pins:
    """Certificates of one peer, as PEM."""

    certificates: tuple[bytes, ...]

    @property
    def pem(self) -> bytes:
        """Return all of them, one after the other."""
        return b"".join(self.certificates)

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """Return their SHA-256, in hex."""
        return tuple(map(fingerprint, self.certificates))


def renewable(files: TlsFiles) -> LastGood[TlsMaterial]:
    """Return what we show and trust, for as long as the process lives. A renewed certificate must name the same holder.

    Raises: TlsFileError.
    """
    return LastGood("tls", replace(files, holder=files.load().identity), TlsFileError)


def renewable_pins(path: Path, role: Role) -> LastGood[Pins]:
    """Return the pins in a file that may be replaced. Raises: TlsFileError."""
    return LastGood("pins", PinFile(path, role), TlsFileError)


@dataclass(frozen=True, kw_only=True, slots=True)
class TlsContext:
    """TLS 1.3 outside gRPC, from files: we show our certificate, and ask for a pinned one where `pinned` is given."""

    tls: TlsFiles
    pinned: PinFile | None
    server_side: bool

    @property
    def paths(self) -> tuple[Path, ...]:
        """Return all files."""
        return self.tls.paths + (() if self.pinned is None else self.pinned.paths)

    def load(self) -> ssl.SSLContext:
        """Return a new one, for connections to come. Raises: TlsFileError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if self.server_side else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        self.tls.load_into(context)
        if self.pinned is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # a leaf is a trust anchor, for itself alone
            context.load_verify_locations(cadata=self.pinned.load().pem.decode())
        return context

    def renewable(self) -> LastGood[ssl.SSLContext]:
        """Return a context that is renewed for as long as the process lives. Raises: TlsFileError."""
        return LastGood("tls", replace(self, tls=replace(self.tls, holder=self.tls.load().identity)), TlsFileError)


def _read(tls_field: TlsField, path: Path) -> bytes:
    """Return the file's bytes; of a secret one, only when other users cannot read them too."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode & 0o777
            if tls_field in ("key", "key_passphrase_file") and mode & 0o007:
                raise TlsFileError(tls_field, path, expected="a file closed to other users", found=f"mode {mode:04o}")
            return file.read()
    except OSError as error:
        raise TlsFileError(tls_field, path, expected="a readable file", found=f"{error.strerror}") from None


def _parse(tls_field: TlsField, path: Path, pem: bytes) -> Sequence[x509.Certificate]:
    """At least one certificate."""
    try:
        return parse_certificates(pem)
    except IdentityError as error:
        raise TlsFileError(tls_field, path, expected="a PEM certificate", found=str(error)) from None


def _parse_valid(tls_field: TlsField, path: Path, pem: bytes) -> x509.Certificate:
    """Return the one certificate in `pem`, given that it is valid now."""
    certificates = _parse(tls_field, path, pem)
    if len(certificates) != 1:
        raise TlsFileError(tls_field, path, expected="a PEM certificate", found=f"{len(certificates)} of them")
    _require_a_valid(tls_field, path, certificates)
    return certificates[0]


def _require_a_valid(tls_field: TlsField, path: Path, certificates: Sequence[x509.Certificate]) -> None:
    """Require that one at least is valid now, by this machine's clock."""
    now = dt.datetime.now(dt.UTC)
    if not any(c.not_valid_before_utc <= now <= c.not_valid_after_utc for c in certificates):
        periods = " and ".join(
            f"{c.not_valid_before_utc:%Y-%m-%d %H:%M} to {c.not_valid_after_utc:%Y-%m-%d %H:%M}" for c in certificates
        )
        expected = f"one valid at {now:%Y-%m-%d %H:%M} UTC, this machine's clock"
        raise TlsFileError(tls_field, path, expected=expected, found=f"valid {periods}")


def _read_authorities(path: Path) -> Sequence[x509.Certificate]:
    """Read one or more, one of them valid now."""
    certificates = _parse("authority", path, _read("authority", path))
    _require_a_valid("authority", path, certificates)
    return certificates


def is_authority(certificate: x509.Certificate) -> bool:
    """Return whether the certificate may sign others."""
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def require_issuer(
    path: Path, certificate: x509.Certificate, authority_path: Path, authorities: Sequence[x509.Certificate]
) -> None:
    """Require authorities, one of which signed `certificate`; the paths are for the message. Raises: TlsFileError."""
    if not all(map(is_authority, authorities)):
        raise TlsFileError("authority", authority_path, expected="an authority's certificate", found="a peer's")
    if not any(has_signed(authority, certificate) for authority in authorities):
        raise TlsFileError(
            "certificate", path, expected=f"one signed by {authority_path}", found="one that it did not sign"
        )


def has_signed(authority: x509.Certificate, certificate: x509.Certificate) -> bool:
    """Return whether the authority signed the certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature):  # other names, a key of another kind
        return False
    return True


def permits(certificate: x509.Certificate, usage: ObjectIdentifier) -> bool:
    """Return whether the certificate says that it may be used so; silence is no."""
    try:
        return usage in certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return False


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)
