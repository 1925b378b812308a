"""The project's private certificate authority: one directory, run by the operator with files alone.

    <directory>/ca.pem, ca.key                the authority; ca.key never leaves the operator's machine
    <directory>/<name>/cert.pem, key.pem      one folder per process, for its operator to take away

Where the operators are different organisations, each makes its key itself (`request`), and the authority signs the
request (`sign`). The authority then never holds a key but its own, and <name>/ holds cert.pem alone.

A certificate says who its holder is (`precad://<role>/<name>`), under which name it may be dialled (servers only) and
in which direction it may be used. The peer that is called decides which role may do what. The extended key usage only
ensures that a client's certificate can never run a server. Nothing is revoked here: certificates expire, servers pin
each other, and each server has a list of clients' certificates that it refuses
(`precad.servers.door.revocation`).

Source: RFC 5280 for the fields; ECDSA over P-256 because every TLS library takes it.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from precad.deploy.authority import certificate_forms as forms
from precad.deploy.files.whole import appearing
from precad.protos.messages.spoken import LONGEST_REASON, shown
from precad.protos.tls import private_key
from precad.protos.tls.files import TlsFiles
from precad.protos.tls.identity import NOT_PARSED, Identity, IdentityError, parse_certificate
from precad.protos.tls.private_key import PrivateKeyError


class PkiError(Exception):
    """The authority or a certificate cannot be made as asked. Never quotes a file's contents."""


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
        raise PkiError(f"name: expected 1 to 64 characters, found {len(name)}")
    issued_at = now or dt.datetime.now(dt.UTC)
    key, key_pem = _new_key(passphrase)
    certificate = _dated(forms.authority_certificate(name, key.public_key()), issued_at, days).sign(
        key, hashes.SHA256()
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

    One certificate for each identity, until it is renewed. passphrase: what the new key is encrypted under;
    authority_passphrase: what opens ca.key. `now` is for tests.
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
        .subject_name(forms.subject_of(identity))
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

    `identity` is what the authority's operator has agreed to; a request that asks for another one is refused. The
    certificate takes the public key alone of the request. authority_passphrase: what opens ca.key. `now` is for tests.
    """
    asked = _read_request(request_path)
    certificate = certify_request(
        directory,
        asked,
        str(request_path),
        identity,
        days=days,
        authority_passphrase=authority_passphrase,
        now=now,
    )
    return file_certificate(directory, identity, certificate)


def certify_request(
    directory: Path,
    asked: bytes,
    source: str,
    identity: Identity,
    *,
    days: int,
    authority_passphrase: bytes | None = None,
    now: dt.datetime | None = None,
) -> bytes:
    """Return the certificate for a request, in PEM, not filed yet. source: where the request came from. Raises:
    PkiError."""
    authority, authority_key = _open_authority_for(directory, identity, authority_passphrase)
    key = requested_key(asked, source, identity)
    certificate = _certify(identity, key, authority, authority_key, now or dt.datetime.now(dt.UTC), days)
    return certificate.public_bytes(Encoding.PEM)


def file_certificate(directory: Path, identity: Identity, certificate: bytes) -> Path:
    """Put a certificate in the authority's folder, unless it is there. Raises: PkiError where another one is."""
    path = directory / identity.name / "cert.pem"
    if path.is_file() and path.read_bytes() == certificate:
        return path
    require_open_name(directory, identity)
    return _new_folder(directory, identity, (("cert.pem", certificate, 0o644),)) / "cert.pem"


def issue_for_host(
    directory: Path, host: str, *, days: int, authority_passphrase: bytes | None = None
) -> tuple[bytes, bytes]:
    """Return certificate and key, in PEM, of a TLS server that has no role. Kept nowhere. Raises: PkiError."""
    authority, authority_key = _open_authority(directory, authority_passphrase)
    key, key_pem = _new_key(None)
    subject = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "precad")])
    form = forms.end_certificate(
        subject, [x509.DNSName(host)], [ExtendedKeyUsageOID.SERVER_AUTH], key.public_key(), authority
    )
    return _signed(form, authority, authority_key, dt.datetime.now(dt.UTC), days).public_bytes(Encoding.PEM), key_pem


def require_authority(directory: Path, passphrase: bytes | None = None) -> None:
    """Require that its certificate and key are here and fit. Raises: PkiError."""
    _open_authority(directory, passphrase)


def require_open_name(directory: Path, identity: Identity) -> None:
    """Require that a certificate may be made for it: it has none, and is not revoked. Raises: PkiError."""
    _require_new(directory / identity.name)
    require_not_revoked(directory, identity)


def require_not_revoked(directory: Path, identity: Identity) -> None:
    """Require that its name is not in the authority's revoked-names.txt: a name a line, `#` begins a comment. Raises:
    PkiError."""
    try:
        lines = (directory / "revoked-names.txt").read_text(encoding="utf-8-sig").splitlines()
    except (FileNotFoundError, NotADirectoryError):  # who opens the authority says where there is none
        return
    except (OSError, UnicodeDecodeError):
        raise PkiError(f"{directory / 'revoked-names.txt'}: expected a readable text file") from None
    if identity.name in {line.partition("#")[0].strip() for line in lines}:
        raise PkiError(f"{identity.uri} is revoked, by revoked-names.txt of the authority")


def renew(
    directory: Path,
    identity: Identity,
    *,
    request_path: Path | None = None,
    days: int = 365,
    authority_passphrase: bytes | None = None,
    now: dt.datetime | None = None,
) -> Path:
    """Certify `identity` once more and return the certificate's path. Raises: PkiError.

    The key is the present certificate's or, if there is a request, that one's. The certificate takes the place of the
    present one at once, which stays beside it as previous.pem, for whoever pins both. authority_passphrase: what opens
    ca.key. `now` is for tests.
    """
    path = directory / identity.name / "cert.pem"
    try:
        present = path.read_bytes()
        key = parse_certificate(present).public_key()
        found = Identity.from_certificate(present)
    except OSError as error:
        raise PkiError(f"{path}: expected the certificate to renew, found: {error.strerror}") from None
    except IdentityError as error:
        raise PkiError(f"{path}: {error}") from None
    if found != identity or not isinstance(key, ec.EllipticCurvePublicKey):
        raise PkiError(f"{path}: expected the certificate of {identity.uri}, found one of {found.uri}")
    if request_path is not None:
        key = requested_key(_read_request(request_path), str(request_path), identity)
    require_not_revoked(directory, identity)
    authority, authority_key = _open_authority(directory, authority_passphrase)
    renewed = _certify(identity, key, authority, authority_key, now or dt.datetime.now(dt.UTC), days)
    replace_file(path.with_name("previous.pem"), present)
    replace_file(path, renewed.public_bytes(Encoding.PEM))
    return path


def replace_file(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Write a file that appears with all its content, in the place of an older one if there is one. Raises:
    PkiError."""
    staging = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        _write_new(staging, content, mode=mode)
        staging.replace(path)
    except OSError as error:
        staging.unlink(missing_ok=True)
        raise PkiError(f"cannot write {path}: {error.strerror}") from None


def _read_request(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise PkiError(f"{path}: expected a readable request, found: {error.strerror}") from None


def requested_key(pem: bytes, source: str, identity: Identity) -> ec.EllipticCurvePublicKey:
    """Return the key of a request that proves to hold it and asks for `identity`. source: where it came from.

    Raises PkiError.
    """
    try:
        asked = x509.load_pem_x509_csr(pem)
        names = asked.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris, is_proved = names.get_values_for_type(x509.UniformResourceIdentifier), asked.is_signature_valid
        key = asked.public_key()
    except (*NOT_PARSED, x509.ExtensionNotFound):
        raise PkiError(f"{source}: expected a PEM request of `precad pki request`") from None
    if uris != [identity.uri]:
        found = shown(", ".join(uris), LONGEST_REASON) or "nobody"
        raise PkiError(f"{source}: expected a request for {identity.uri}, found one for {found}")
    if not is_proved:
        raise PkiError(f"{source}: expected a request that its key has signed")
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise PkiError(f"{source}: expected a key on P-256")
    return key


def _open_authority_for(
    directory: Path, identity: Identity, passphrase: bytes | None
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Return the authority, where it has issued nothing to `identity` yet."""
    require_open_name(directory, identity)
    return _open_authority(directory, passphrase)


def _require_new(folder: Path) -> None:
    if os.path.lexists(folder):
        raise PkiError(f"{folder} exists already and is never overwritten")


def _new_folder(directory: Path, identity: Identity, files: Sequence[tuple[str, bytes, int]]) -> Path:
    """Return `directory`/<name> with these files (name, content, mode); it appears complete or not at all."""
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
    """Return the signed certificate of `identity`."""
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(identity.uri)]
    if identity.role.is_server:
        names.append(x509.DNSName(identity.role.server_name))
    form = forms.end_certificate(forms.subject_of(identity), names, forms.USES[identity.role], public_key, authority)
    return _signed(form, authority, authority_key, issued_at, days)


def _signed(
    form: x509.CertificateBuilder,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    issued_at: dt.datetime,
    days: int,
) -> x509.Certificate:
    """Sign a certificate that is valid for so many days, and not longer than the authority's own."""
    dated = _dated(form, issued_at, days)
    _require_within(authority, issued_at, days)
    return dated.sign(authority_key, hashes.SHA256())


def require_days(directory: Path, days: int) -> None:
    """Refuse days for which the authority certifies nobody from now on. Raises PkiError."""
    _require_in_range(days)
    path = directory / "ca.pem"
    try:
        authority = parse_certificate(path.read_bytes())
    except (OSError, IdentityError) as error:
        raise PkiError(f"{path}: expected the authority's certificate, found: {error}") from None
    _require_within(authority, dt.datetime.now(dt.UTC), days)


def _require_within(authority: x509.Certificate, issued_at: dt.datetime, days: int) -> None:
    if issued_at + dt.timedelta(days=days) > authority.not_valid_after_utc:
        expiry = f"{authority.not_valid_after_utc:%Y-%m-%d}"
        raise PkiError(f"days: expected an end before that of the authority's certificate, {expiry}, found {days}")


def _require_in_range(days: int) -> None:
    if not 1 <= days <= 36500:
        raise PkiError(f"days: expected 1 to 36500, found {days}")


def _dated(form: x509.CertificateBuilder, issued_at: dt.datetime, days: int) -> x509.CertificateBuilder:
    _require_in_range(days)
    return form.not_valid_before(issued_at - forms.CLOCK_SKEW).not_valid_after(issued_at + dt.timedelta(days=days))


def _open_authority(directory: Path, passphrase: bytes | None) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Return the authority's certificate and its key, given that they belong together."""
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
    """Return a key on P-256, and its file's content."""
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
