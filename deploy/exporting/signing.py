"""A server's signature on an export: detached, by the key and with the certificate that the server shows in TLS.

    <role>.json   what this server says: the statement's digest, its files' digests, where its own log and ledger stand
    <role>.sig    ECDSA with SHA-256 over the bytes of <role>.json, DER; `openssl dgst -sha256 -verify` checks it
    <role>.pem    the server's certificate, then the authority's

What only one server knows is here, so that the statement is the same for both. This key also signs messages of the
protocol and of TLS. None of them is such a JSON text, so a signature cannot be taken for another one.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Final, Literal

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from precad.deploy.errors import ConfigError, ExportRefusedError, refusing
from precad.deploy.exporting.finished import FinishedTask
from precad.deploy.exporting.statement import Count, Date, Part, Sha256, canonical, parse, sha256
from precad.protos.tls.files import TlsFileError, TlsMaterial, require_issuer
from precad.protos.tls.identity import AGGREGATORS, NOT_PARSED, Identity, IdentityError, Role, fingerprint

FORMAT: Final = "precad/export-signature/1"
SIGNERS: Final = AGGREGATORS


class Endorsement(Part):
    """Hold what one server signs."""

    format: Literal["precad/export-signature/1"] = FORMAT
    signer: str
    """`precad://<role>/<name>`, as in its certificate."""
    statement_sha256: Sha256
    files: dict[str, Sha256]
    """Digests of the files of the model that this server made, by name."""
    audit_log_chain: str
    """The last chain value of its audit log: every later change of the log up to there is found out by it."""
    audit_log_entries: Count
    ledger_chain: str
    """The last chain value of its privacy ledger, which finds out later changes as that of the log does. Empty where
    the task, or one that it counts, hides draws: clients who guess them would find by it that they are right. The log
    has it as well."""
    signed_on: Date
    """UTC, by its clock."""
    made_with: dict[str, str]
    """Versions of what made the files."""


def endorsement_of(
    finished: FinishedTask, signer: Identity, statement: bytes, files: Mapping[str, str], *, today: dt.date
) -> Endorsement:
    """Return what a server signs. statement: canonical. files: digests by name."""
    return Endorsement(
        signer=signer.uri,
        statement_sha256=sha256(statement),
        files=dict(files),
        audit_log_chain=finished.log_chain,
        audit_log_entries=finished.n_log_entries,
        ledger_chain="" if finished.task.hides_draws or finished.counts_hidden_draws else finished.ledger_chain,
        signed_on=today.isoformat(),
        made_with={name: version(name) for name in ("precad", "torch")},
    )


def write_signature(folder: Path, said: Endorsement, tls: TlsMaterial) -> None:
    """Write the three files of a server. Raises OSError, ConfigError where the key cannot sign so."""
    key = load_pem_private_key(tls.key, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError("key: expected one on an elliptic curve, as `precad pki` makes them, found another kind")
    content, role = canonical(said), tls.identity.role
    (folder / f"{role}.json").write_bytes(content)
    (folder / f"{role}.sig").write_bytes(key.sign(content, ec.ECDSA(hashes.SHA256())))
    (folder / f"{role}.pem").write_bytes(tls.certificate.rstrip() + b"\n" + tls.authority)


def signed_by(folder: Path) -> list[Role]:
    """Return the roles of which a folder holds anything."""
    return [role for role in SIGNERS if any((folder / name).exists() for name in names_of(role))]


def names_of(role: Role) -> tuple[str, str, str]:
    """Return a server's files."""
    return f"{role}.json", f"{role}.sig", f"{role}.pem"


def read_signature(
    folder: Path, role: Role, authority: x509.Certificate, authority_path: Path
) -> tuple[Endorsement, str]:
    """Return what a server signed, and its certificate's fingerprint, once certificate, role, signature and date fit.

    The certificate counts on the day of the signature: an export outlives it. Raises ExportRefusedError.
    """
    content, signature, chain = (_read(folder / name) for name in names_of(role))
    path = folder / f"{role}.pem"
    certificate, pem = _leaf(chain, path)
    with refusing((TlsFileError, IdentityError), refusal=ExportRefusedError):
        require_issuer(path, certificate, authority_path, (authority,))
        identity = Identity.from_certificate(pem)
    if identity.role is not role:
        raise ExportRefusedError(f"{path}: expected a certificate of {role}, found one of {identity.uri}")
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ExportRefusedError(f"{path}: expected a key on an elliptic curve, found another kind")
    try:
        key.verify(signature, content, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        raise ExportRefusedError(f"{folder}: {role}.sig is no signature of {role}.json by {role}.pem") from None
    said = parse(content, Endorsement, str(folder / f"{role}.json"))
    if said.signer != identity.uri:
        raise ExportRefusedError(f"{folder}: {role}.json: signer: expected {identity.uri}, found {said.signer}")
    _require_valid_then(certificate, said.signed_on, path)
    return said, fingerprint(pem)


def _read(path: Path) -> bytes:
    with refusing(OSError, f"{path}: expected a file of the signature, found", ExportRefusedError):
        return path.read_bytes()


def _leaf(chain: bytes, path: Path) -> tuple[x509.Certificate, bytes]:
    """Return the first certificate, and its PEM text."""
    try:
        certificate = x509.load_pem_x509_certificates(chain)[0]
    except NOT_PARSED:
        raise ExportRefusedError(f"{path}: expected PEM certificates") from None
    return certificate, certificate.public_bytes(Encoding.PEM)


def _require_valid_then(certificate: x509.Certificate, signed_on: str, path: Path) -> None:
    try:
        day = dt.date.fromisoformat(signed_on)
    except ValueError:
        raise ExportRefusedError(f"{path}: expected one of a day, found signed_on = {signed_on}") from None
    first, last = certificate.not_valid_before_utc.date(), certificate.not_valid_after_utc.date()
    if not first <= day <= last:
        raise ExportRefusedError(f"{path}: expected one valid on {day}, found one valid from {first} to {last}")
