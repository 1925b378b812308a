"""`precad verify-export`: what whoever got a model can check of it, with nothing but the authority's certificate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from cryptography import x509

from precad.deploy.errors import ConfigError, ExportRefusedError, refusing
from precad.deploy.exporting import formats, signing
from precad.deploy.exporting.audits import AUDIT, NO_AUDIT, verified_audit
from precad.deploy.exporting.evidence import EVIDENCE, Evidence
from precad.deploy.exporting.export import STATEMENT
from precad.deploy.exporting.signing import Endorsement
from precad.deploy.exporting.statement import (
    ExportStatement,
    ExportStatement1,
    certificate_part,
    difference,
    file_sha256,
    parse,
    parse_statement,
    sha256,
)
from precad.protos.tls.identity import IdentityError, Role, parse_certificate

_SPEAKING: Final = (AUDIT, EVIDENCE)
"""Files that say something of the training, and are no form of the model."""


def verify_export(
    folder: Path, *, authority: Path, against: Path | None = None, wanted: Sequence[Role] = signing.SIGNERS
) -> dict[str, Any]:
    """Verify an export, and return what was found to be signed, and by whom.

    against: the other server's export of the same model, with the same statement. wanted: roles whose signatures
    must be there, in either folder.
    Raises: ConfigError for an authority or a folder that is none; ExportRefusedError at the first thing amiss.
    """
    for argument, path in (("DIR", folder), ("--against", against)):
        if path is not None and not path.is_dir():
            raise ConfigError(f"{argument}: expected a folder that `precad export` wrote, found {path}, which is none")
    trusted = _authority(authority)
    statement, signatures, digests = _verified(folder, trusted, authority)
    folders = [folder] if against is None else [folder, against]
    if against is not None:
        other, others, _ = _verified(against, trusted, authority)
        if (found := difference(statement, other)) is not None:
            raise ExportRefusedError(f"the statements of {folder} and {against} differ: {found}")
        signatures = others | signatures
    if missing := [role for role in wanted if role not in signatures]:
        raise ExportRefusedError(f"{folder}: expected the signature of {' and '.join(missing)}, found none")
    evidence = [_evidence(one, statement) for one in folders]
    return {
        "statement_sha256": sha256(statement.canonical()),
        "signatures": {role.value: _shown(*signatures[role]) for role in signing.SIGNERS if role in signatures},
        "files": {
            name: [role.value for role, (said, _) in signatures.items() if said.files.get(name) == digest]
            for name, digest in digests.items()
        },
        "certificate": _standing(statement, evidence),
        "audit": _audits(folders, statement.task.configuration_sha256),
        "statement": statement.model_dump(mode="json"),
    }


def _audits(folders: Sequence[Path], configuration_sha256: str) -> str:
    """Return what every audit in the folders says: whichever server signed it, it may speak against the model."""
    found = dict.fromkeys(verified_audit(one, configuration_sha256) for one in folders)
    return " ".join(said for said in found if said != NO_AUDIT) or NO_AUDIT


def _standing(statement: ExportStatement | ExportStatement1, evidence: Sequence[Evidence | None]) -> str:
    """Say what stands behind the certificate. evidence: of each folder, where it has any."""
    if statement.poisoning.certificate is None:
        return "none"
    return "recomputed" if any(evidence) else "as stated"


def _verified(
    folder: Path, trusted: x509.Certificate, authority: Path
) -> tuple[ExportStatement | ExportStatement1, dict[Role, tuple[Endorsement, str]], dict[str, str]]:
    """Return the statement of a folder, the signatures there, and the files' digests, once all of it belongs
    together."""
    with refusing(OSError, f"{folder / STATEMENT}: expected an export, found", ExportRefusedError):
        content = (folder / STATEMENT).read_bytes()
    statement = parse_statement(content, str(folder / STATEMENT))
    signatures = {role: signing.read_signature(folder, role, trusted, authority) for role in signing.signed_by(folder)}
    for role, (said, _) in signatures.items():
        if said.statement_sha256 != sha256(content):
            raise ExportRefusedError(f"{folder / STATEMENT}: it is not the statement that {role} signed")
    digests = _signed_files(folder, [said for said, _ in signatures.values()])
    formats.require_parameters(folder / formats.STATE_DICT, statement.model.parameters, statement.model.sha256)
    return statement, signatures, digests


def _evidence(folder: Path, statement: ExportStatement | ExportStatement1) -> Evidence | None:
    """Return the evidence, once the stated certificate follows from it; None where the folder has none. Raises
    ExportRefusedError, ConfigError."""
    path, stated = folder / EVIDENCE, statement.poisoning.certificate
    if not path.exists():
        return None
    evidence = parse(path.read_bytes(), Evidence, str(path))
    if evidence.configuration_sha256 != statement.task.configuration_sha256:
        raise ExportRefusedError(f"{path}: expected trainings of the exported task, found another configuration")
    with refusing(ConfigError, str(folder), ExportRefusedError):
        followed = certificate_part(evidence.certificate())
    if stated is None:
        raise ExportRefusedError(f"{path}: expected none, since the statement has no certificate")
    if (found := difference(followed, stated)) is not None:
        raise ExportRefusedError(f"{path}: another certificate follows from it than is stated: {found}")
    return evidence


def _signed_files(folder: Path, said: Sequence[Endorsement]) -> dict[str, str]:
    """Return the files of the model with their digests: the state_dict is among them, and a server has signed each.

    What every signature here names is there, and so is what one of them names of an audit or a certificate. Without
    it, whoever hands an export on would take away what speaks against the model.
    """
    due = {name for one in said for name in one.files if name in _SPEAKING}
    due |= set.intersection(*(set(one.files) for one in said)) if said else set()
    for name in sorted(due):
        if not (folder / name).exists():
            raise ExportRefusedError(f"{folder / name}: expected a file that is signed, found none")
    others = {STATEMENT, *(name for role in signing.SIGNERS for name in signing.names_of(role))}
    digests: dict[str, str] = {}
    for name in sorted({formats.STATE_DICT, *(path.name for path in folder.iterdir())} - others):
        if not (folder / name).is_file():
            raise ExportRefusedError(f"{folder / name}: expected a file of the model, found none")
        digests[name] = file_sha256(folder / name)
        if not any(endorsement.files.get(name) == digests[name] for endorsement in said):
            raise ExportRefusedError(f"{folder / name}: no signature here names this file with this content")
    return digests


def _authority(path: Path) -> x509.Certificate:
    try:
        return parse_certificate(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"--authority: expected a readable certificate, found {path}: {error.strerror}") from None
    except IdentityError as error:
        raise ConfigError(f"--authority: {error} ({path})") from None


def _shown(said: Endorsement, fingerprint: str) -> dict[str, Any]:
    return {
        "certificate_sha256": fingerprint,
        "signed_on": said.signed_on,
        "audit_log_chain": said.audit_log_chain,
        "ledger_chain": said.ledger_chain,
    }
