"""The project's private certificate authority: one directory, run by the operator with files alone.

    <directory>/ca.pem, ca.key                the authority; ca.key never leaves the operator's machine
    <directory>/<name>/cert.pem, key.pem      one folder per process, for its operator to take away

Where the operators are different organisations, each makes its key itself (`request`), and the authority signs the
request (`sign`): then no key but its own is ever in the authority's hands, and <name>/ holds cert.pem alone.

A certificate says who its holder is (`precad://<role>/<name>`), under which name it may be dialled (servers only) and
in which direction it may be used. Which role may do what is decided by the peer that is called; the extended key
usage only ensures that a client's certificate can never run a server. Nothing is revoked: certificates expire, and
servers pin each other.

Source: RFC 5280 for the fields; ECDSA over P-256 because every TLS library takes it.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

from deploy.whole_folder import appearing
from protos import private_key
from protos.identity import Identity, IdentityError, Role, parse_certificate
from protos.private_key import PrivateKeyError
from protos.transport import TlsFiles

CLOCK_SKEW = dt.timedelta(minutes=5)
"""How far a peer's clock may lag behind the operator's: certificates are valid from that long before their issue."""

_USES: dict[Role, list[ObjectIdentifier]] = {
    Role.AGGREGATOR_A: [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH],
    Role.AGGREGATOR_B: [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH],
    Role.DEALER: [ExtendedKeyUsageOID.SERVER_AUTH],  # it is dialled, and dials nobody
    Role.CLIENT: [ExtendedKeyUsageOID.CLIENT_AUTH],
    Role.OPERATOR: [ExtendedKeyUsageOID.CLIENT_AUTH],
}


class PkiError(Exception):
    """The authority or a certificate cannot be made as asked; nothing was written. Never quotes a file's contents."""


def create_authority(
    directory: Path,
    *,
    name: str = "precad",
    days: int = 3650,
    passphrase: bytes | None = None,
    now: dt.datetime | None = None,
) -> Path:
    """Make a new authority in `directory` and return its certificate's path. Raises: PkiError.

    It may sign end certificates only (path length 0). passphrase: what its key is encrypted under. `now` is for tests.
    """
    if not 1 <= len(name) <= 64:  # ub-common-name, RFC 5280 appendix A.1
        raise PkiError(f"name must have 1 to 64 characters, got {len(name)}")
    issued_at = now or dt.datetime.now(dt.UTC)
    key, key_pem = _new_key(passphrase)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    certificate = (
        _unsigned(subject, subject, key.public_key(), issued_at, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(is_authority=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    path, key_path = directory / "ca.pem", directory / "ca.key"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.ExitStack() as undo:
            _write_new(key_path, key_pem, mode=0o600)
            undo.callback(key_path.unlink)
            _write_new(path, certificate.public_bytes(Encoding.PEM), mode=0o644)
            undo.pop_all()
    except OSError as error:
        raise PkiError(f"cannot write {error.filename or directory}: {error.strerror}") from None
    return path


def issue(
    directory: Path,
    identity: Identity,
    *,
    days: int = 365,
    passphrase: bytes | None = None,
    authority_passphrase: bytes | None = None,
    now: dt.datetime | None = None,
) -> TlsFiles:
    """Issue a key and a certificate to `identity` by the authority in `directory`. Raises: PkiError.

    One certificate for each identity: to renew, move the old folder away first, then let the peers pin the new one.
    passphrase: what the new key is encrypted under; authority_passphrase: what opens ca.key. `now` is for tests.
    """
    authority, authority_key = _open_authority_for(directory, identity, authority_passphrase)
    issued_at = now or dt.datetime.now(dt.UTC)
    key, key_pem = _new_key(passphrase)
    certificate = _certify(identity, key.public_key(), authority, authority_key, issued_at, days)
    made = (("key.pem", key_pem, 0o600), ("cert.pem", certificate.public_bytes(Encoding.PEM), 0o644))
    folder = _new_folder(directory, identity, made)
    return TlsFiles(certificate=folder / "cert.pem", key=folder / "key.pem", authority=directory / "ca.pem")


def request(directory: Path, identity: Identity, *, passphrase: bytes | None = None) -> Path:
    """Make a key for `identity` in `directory`/<name>, and the request to sign it (PKCS #10), whose path is returned.

    Run by whoever will hold the certificate; key.pem stays there, request.pem goes to the authority.
    passphrase: what the key is encrypted under. Raises: PkiError.
    """
    _require_new(directory / identity.name)
    key, key_pem = _new_key(passphrase)
    asked = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(_subject(identity))
        .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(identity.uri)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise PkiError(f"cannot write {directory}: {error.strerror}") from None
    made = (("key.pem", key_pem, 0o600), ("request.pem", asked.public_bytes(Encoding.PEM), 0o644))
    return _new_folder(directory, identity, made) / "request.pem"


def sign(
    directory: Path,
    request_path: Path,
    identity: Identity,
    *,
    days: int = 365,
    authority_passphrase: bytes | None = None,
    now: dt.datetime | None = None,
) -> Path:
    """Sign a request by the authority in `directory` and return the certificate's path there. Raises: PkiError.

    `identity` is what the authority's operator has agreed to; a request that asks for another one is refused. Of the
    request, the certificate takes the public key alone. authority_passphrase: what opens ca.key. `now` is for tests.
    """
    authority, authority_key = _open_authority_for(directory, identity, authority_passphrase)
    public_key = _requested_key(request_path, identity)
    certificate = _certify(identity, public_key, authority, authority_key, now or dt.datetime.now(dt.UTC), days)
    made = (("cert.pem", certificate.public_bytes(Encoding.PEM), 0o644),)
    return _new_folder(directory, identity, made) / "cert.pem"


def _requested_key(path: Path, identity: Identity) -> ec.EllipticCurvePublicKey:
    """The key of a request that proves to hold it and asks for `identity`."""
    try:
        asked = x509.load_pem_x509_csr(path.read_bytes())
        names = asked.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris, is_proved = names.get_values_for_type(x509.UniformResourceIdentifier), asked.is_signature_valid
        key = asked.public_key()
    except OSError as error:
        raise PkiError(f"{path}: expected a readable request, found: {error.strerror}") from None
    except (ValueError, UnsupportedAlgorithm, x509.ExtensionNotFound, x509.DuplicateExtension):
        raise PkiError(f"{path}: expected a PEM request of `precad pki request`") from None
    if uris != [identity.uri]:
        raise PkiError(f"{path}: expected a request for {identity.uri}, found one for {', '.join(uris) or 'nobody'}")
    if not is_proved:
        raise PkiError(f"{path}: expected a request that its key has signed")
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise PkiError(f"{path}: expected a key on P-256")
    return key


def _open_authority_for(
    directory: Path, identity: Identity, passphrase: bytes | None
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """The authority, where it has issued nothing to `identity` yet."""
    _require_new(directory / identity.name)
    return _open_authority(directory, passphrase)


def _require_new(folder: Path) -> None:
    if os.path.lexists(folder):
        raise PkiError(f"{folder} exists already and is never overwritten")


def _new_folder(directory: Path, identity: Identity, files: Sequence[tuple[str, bytes, int]]) -> Path:
    """`directory`/<name> with these files (name, content, mode); it appears complete or not at all."""
    folder = directory / identity.name
    try:
        with appearing(folder) as staging:
            for name, content, mode in files:
                _write_new(staging / name, content, mode=mode)
    except OSError as error:
        raise PkiError(f"cannot write {folder}: {error.strerror}") from None
    return folder


def _certify(
    identity: Identity,
    public_key: ec.EllipticCurvePublicKey,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    issued_at: dt.datetime,
    days: int,
) -> x509.Certificate:
    """The signed certificate of `identity`."""
    subject = _subject(identity)
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(identity.uri)]
    if identity.role.is_server:
        names.append(x509.DNSName(identity.role.server_name))
    unsigned = _unsigned(subject, authority.subject, public_key, issued_at, days)
    if issued_at + dt.timedelta(days=days) > authority.not_valid_after_utc:
        expiry = f"{authority.not_valid_after_utc:%Y-%m-%d}"
        raise PkiError(f"days must end before the authority's certificate does, on {expiry}, got {days}")
    return (
        unsigned.add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(is_authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(_USES[identity.role]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )


def _subject(identity: Identity) -> x509.Name:
    """For people. It has no common name, which TLS libraries, gRPC among them, would take for a host name: a client
    named `dealer.precad` must not pass for the dealer."""
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "precad"),
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, identity.role),
            x509.NameAttribute(NameOID.USER_ID, identity.name),
        ]
    )


def _unsigned(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, issued_at: dt.datetime, days: int
) -> x509.CertificateBuilder:
    """What an authority's certificate and a peer's have in common."""
    if not 1 <= days <= 36500:
        raise PkiError(f"days must be from 1 to 36500, got {days}")
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())  # 159 random bits
        .not_valid_before(issued_at - CLOCK_SKEW)
        .not_valid_after(issued_at + dt.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _key_usage(*, is_authority: bool) -> x509.KeyUsage:
    """An authority signs certificates; a peer signs TLS handshakes."""
    return x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _open_authority(directory: Path, passphrase: bytes | None) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """The authority's certificate and its key, given that they belong together."""
    path, key_path = directory / "ca.pem", directory / "ca.key"
    try:
        certificate = parse_certificate(path.read_bytes())
        key = private_key.open_private_key(key_path.read_bytes(), passphrase)
    except OSError as error:
        raise PkiError(f"no authority in {directory}: cannot read {error.filename}: {error.strerror}") from None
    except IdentityError as error:
        raise PkiError(f"{path}: {error}") from None
    except PrivateKeyError as error:
        raise PkiError(f"{key_path}: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise PkiError(f"{key_path} is not the key of {path}")
    return certificate, key


def _new_key(passphrase: bytes | None) -> tuple[ec.EllipticCurvePrivateKey, bytes]:
    """A key on P-256, and its file's content."""
    key = ec.generate_private_key(ec.SECP256R1())
    try:
        return key, private_key.to_pem(key, passphrase)
    except PrivateKeyError as error:
        raise PkiError(str(error)) from None


def _write_new(path: Path, content: bytes, *, mode: int) -> None:
    """Write a file that did not exist, durably; its mode holds from its first instant. Raises: OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink()
        raise
