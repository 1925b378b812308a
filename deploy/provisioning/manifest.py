"""Name by digest all that the kits of a project hold: one canonical JSON text, the same in every kit, signed.

    project.json   the manifest: the task's fields, and the SHA-256 of every file of every kit
    project.sig    ECDSA with SHA-256 over the bytes of project.json, DER
    seal.pem       the certificate of the key that signed, for `provision.precad`, by the authority

The seal's key is made for one manifest, used once and written nowhere. The SHA-256 of project.json is the project's
digest. Organisations that have the same digest pin the same certificates and run the same task.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from pydantic import BaseModel, Field, ValidationError

from precad.clients.own_code import USUAL_ADAPTER
from precad.deploy.authority import pki
from precad.deploy.configuration.sections import Network, parse_section, read_toml
from precad.deploy.errors import ConfigError, refusing
from precad.protos.task.task import Task
from precad.protos.tls.files import TlsFileError, has_signed, is_authority, require_issuer
from precad.protos.tls.identity import Identity, IdentityError, Role, parse_certificate, parse_certificates

MANIFEST: Final = "project.json"
SIGNATURE: Final = "project.sig"
SEAL: Final = "seal.pem"
TASK: Final = "task.toml"
"""`[task]` and `[network]`, the same in every kit."""
AUTHORITY: Final = "ca.pem"
ADAPTER: Final = USUAL_ADAPTER
CERTIFICATE: Final = "cert.pem"
INITIAL_MODEL: Final = "initial.npy"
_PINS: Final = "peers/"
_SEALED_FOR: Final = "provision.precad"
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Manifest(BaseModel, frozen=True, extra="forbid", strict=True):
    """Hold what is signed."""

    format: Literal["precad/kits/1"] = "precad/kits/1"
    task_digest: Sha256
    """As `precad check` shows it."""
    task: dict[str, Any]
    """The task's fields, by which a change is named."""
    network: dict[str, str]
    """Addresses of the servers."""
    sealed_on: Annotated[str, Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]
    """UTC, by the clock of whoever made the kits."""
    files: dict[str, Sha256]
    """Digests by `<participant>/<path in its kit>`."""

    def canonical(self) -> bytes:
        """Return the one text of these values."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def parse(cls, content: bytes, path: Path) -> Self:
        """Return the values of a canonical text. Raises ConfigError for any other text."""
        try:
            found = cls.model_validate_json(content)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            field = ".".join(map(str, first["loc"])) or "text"
            raise ConfigError(f"{path}: {field}: expected a manifest of kits, found: {first['msg']}") from None
        if found.canonical() != content:
            raise ConfigError(f"{path}: expected canonical JSON, found another form of it")
        return found

    def of(self, participant: str) -> dict[str, str]:
        """Return the digests of one kit's files by path."""
        start = f"{participant}/"
        return {name.removeprefix(start): digest for name, digest in self.files.items() if name.startswith(start)}


def sha256(content: bytes) -> str:
    """Return the SHA-256 in hex."""
    return hashlib.sha256(content).hexdigest()


def seal(manifest: Manifest, authority: Path, *, days: int, passphrase: bytes | None) -> dict[str, bytes]:
    """Return the three files that make a manifest's kits one. passphrase: what opens ca.key. Raises PkiError."""
    certificate, key_pem = pki.issue_for_host(authority, _SEALED_FOR, days=days, authority_passphrase=passphrase)
    key = load_pem_private_key(key_pem, password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    content = manifest.canonical()
    return {MANIFEST: content, SIGNATURE: key.sign(content, ec.ECDSA(hashes.SHA256())), SEAL: certificate}


@dataclass(frozen=True)
class Kit:
    """A kit that was verified."""

    manifest: Manifest
    participant: str
    """The one whose kit it is."""
    renewed: tuple[str, ...]
    """Certificates and pins that are not the kit's any more."""
    is_vouched: bool
    """Whether an authority in its folder has certified its seal."""


def verify(folder: Path, *, is_installed: bool = False) -> Kit:
    """Return the kit in `folder`.

    The authority's certificate in the folder must have certified the seal, and the seal must have signed the manifest.
    Every file of the kit must be the one that was signed. Where it is installed, its operator may have renewed its
    certificates and pins (`is_renewable`), and the authority of the seal may be gone. Raises ConfigError, which names
    the fields in which a task differs.
    """
    manifest, is_vouched = _signed(folder, is_installed=is_installed)
    with refusing(IdentityError, f"{folder / CERTIFICATE}"):
        own = Identity.from_certificate(_read(folder / CERTIFICATE))
    files = manifest.of(own.name)
    _require_layout(files, own, folder)
    _require_one_project(manifest, folder / MANIFEST)
    renewed = renewed_in(folder, files, own) if is_installed else ()
    faults = [
        fault
        for name, digest in files.items()
        if name not in renewed
        for fault in _faults(folder / name, digest, manifest)
    ]
    if faults:
        raise ConfigError("\n".join(faults))
    _require_task(folder / TASK, manifest)
    return Kit(manifest, own.name, renewed, is_vouched)


def is_renewable(name: str) -> bool:
    """Tell whether a file of a kit is one that operators renew while the task goes on."""
    return name in (AUTHORITY, CERTIFICATE) or name.startswith(_PINS)


def renewed_in(folder: Path, files: Mapping[str, str], own: Identity) -> tuple[str, ...]:
    """Return the certificates and pins in `folder` that are others than the kit's. files: its digests.

    Damaged ones, and those of anybody else, are no renewed ones.
    """
    return tuple(
        name
        for name, digest in sorted(files.items())
        if is_renewable(name) and _is_file(folder / name) and _is_renewed(folder / name, name, digest, own)
    )


def _is_renewed(path: Path, name: str, digest: str, own: Identity) -> bool:
    content = _read(path)
    if sha256(content) == digest:
        return False
    try:
        certificates = parse_certificates(content)
        if name == AUTHORITY:
            return all(map(is_authority, certificates))
        holder = own.uri if name == CERTIFICATE else f"precad://{path.stem}/{path.stem}"
        return all(Identity.from_certificate(one.public_bytes(Encoding.PEM)).uri == holder for one in certificates)
    except IdentityError:
        return False


def digest_of(folder: Path) -> str:
    """Return the digest of the project that the kit in `folder` belongs to. Raises ConfigError."""
    return sha256(_read(folder / MANIFEST))


def _require_layout(files: Mapping[str, str], own: Identity, folder: Path) -> None:
    """Require the files of a kit of this participant and no others: whoever seals kits places nothing else here."""
    needed = {f"{own.name}.toml", TASK, AUTHORITY, CERTIFICATE}
    known = needed | {INITIAL_MODEL, ADAPTER} | {f"{_PINS}{server}.pem" for server in Role if server.is_server}
    if not needed <= files.keys():
        raise ConfigError(f"{folder / CERTIFICATE}: expected one of the project's participants, found {own.uri}")
    if unknown := sorted(files.keys() - known):
        raise ConfigError(f"{folder / MANIFEST}: files: expected those of a kit, found {unknown[0]!r}")


def _require_one_project(manifest: Manifest, path: Path) -> None:
    """Require that all kits share task, authority, models and their constants, and pin each server's own certificate.

    So a server that finds its own key certified in its kit knows what everybody else pins.
    """
    first: dict[str, str] = {}
    for name, digest in sorted(manifest.files.items()):
        file = name.partition("/")[2]
        if file.startswith(_PINS):
            shared = f"{file.removeprefix(_PINS).removesuffix('.pem')}/{CERTIFICATE}"
            expected = manifest.files.get(shared, "none")
        elif file in (TASK, AUTHORITY, INITIAL_MODEL, ADAPTER):
            expected = first.setdefault(file, digest)
        else:
            continue
        if digest != expected:
            raise ConfigError(f"{path}: {name}: expected SHA-256 {expected}, as in the other kits, found {digest}")


def _require_task(path: Path, manifest: Manifest) -> None:
    """Require that this program reads the task as the one that made the kits did."""
    task = parse_section(Task, read_toml(path).get("task", {}), "task", base=path.parent)
    if (found := task.digest().hex()) != manifest.task_digest:
        named = differences("task", manifest.task, json.loads(task.canonical()))
        raise ConfigError(
            "\n".join([f"task_digest: expected {manifest.task_digest}, of the kit, found {found}", *named])
        )


def _signed(folder: Path, *, is_installed: bool) -> tuple[Manifest, bool]:
    """Return the manifest, and whether an authority in the folder has certified its seal."""
    content, signature, seal_pem = (_read(folder / name) for name in (MANIFEST, SIGNATURE, SEAL))
    manifest = Manifest.parse(content, folder / MANIFEST)
    day = _day(manifest, folder / MANIFEST)
    of_kits = {digest for name, digest in manifest.files.items() if name.endswith(f"/{AUTHORITY}")}
    has_another = sha256(_read(folder / AUTHORITY)) not in of_kits
    key, is_vouched = _sealing_key(folder, seal_pem, day, may_be_of_before=is_installed and has_another)
    try:
        key.verify(signature, content, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        raise ConfigError(f"{folder / SIGNATURE}: expected a signature of {MANIFEST} by {SEAL}, found none") from None
    return manifest, is_vouched


def _day(manifest: Manifest, path: Path) -> dt.date:
    try:
        return dt.date.fromisoformat(manifest.sealed_on)
    except ValueError:
        raise ConfigError(f"{path}: sealed_on: expected a day, found {manifest.sealed_on!r}") from None


def _sealing_key(
    folder: Path, pem: bytes, day: dt.date, *, may_be_of_before: bool
) -> tuple[ec.EllipticCurvePublicKey, bool]:
    """Return the seal's key, given that it is for kits, on the day of the signature; and whether an authority here
    certified it.

    may_be_of_before: an authority that is trusted no more may have certified it. Else one here must have.
    """
    path = folder / SEAL
    try:
        certificate, authorities = parse_certificate(pem), parse_certificates(_read(folder / AUTHORITY))
        is_vouched = not may_be_of_before or any(has_signed(one, certificate) for one in authorities)
        if not may_be_of_before:
            require_issuer(path, certificate, folder / AUTHORITY, authorities)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (IdentityError, TlsFileError) as error:
        raise ConfigError(f"{path}: {error}") from None
    except x509.ExtensionNotFound:
        raise ConfigError(f"{path}: expected a certificate for {_SEALED_FOR}, found one for nobody") from None
    if (found := names.get_values_for_type(x509.DNSName)) != [_SEALED_FOR] or len(names) != 1:
        raise ConfigError(f"{path}: expected a certificate for {_SEALED_FOR}, found one for {', '.join(found) or '?'}")
    first, last = certificate.not_valid_before_utc.date(), certificate.not_valid_after_utc.date()
    if not first <= day <= last:
        raise ConfigError(f"{path}: expected one valid on {day}, found one valid from {first} to {last}")
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ConfigError(f"{path}: expected a key on an elliptic curve, found another kind")
    return key, is_vouched


def _faults(path: Path, digest: str, manifest: Manifest) -> list[str]:
    """Return what is wrong with a file of a kit: of the shared file every field that differs."""
    found = sha256(_read(path))
    if found == digest:
        return []
    if path.name == TASK and (named := _differences(path, manifest)):
        return [f"{path}: {fault}" for fault in named]
    return [f"{path}: expected the kit's file, SHA-256 {digest}, found {found}: join again with an unchanged kit"]


def _differences(path: Path, manifest: Manifest) -> list[str]:
    """Return the fields in which a shared file is not the project's. A task that is not valid says so itself."""
    raw, base = read_toml(path), path.parent
    task = json.loads(parse_section(Task, raw.get("task", {}), "task", base=base).canonical())
    network = parse_section(Network, raw.get("network", {}), "network", base=base).model_dump(exclude_none=True)
    return [*differences("task", manifest.task, task), *differences("network", manifest.network, network)]


def differences(name: str, expected: Any, found: Any) -> list[str]:
    """Return a line for every field in which two values differ, named by its path: expected, found."""
    if isinstance(expected, dict) and isinstance(found, dict):
        keys = sorted(expected.keys() | found.keys())
        return [line for key in keys for line in differences(f"{name}.{key}", expected.get(key), found.get(key))]
    return [] if expected == found else [f"{name}: expected {_shown(expected)}, found {_shown(found)}"]


def _shown(value: Any) -> str:
    text = "none" if value is None else json.dumps(value, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _is_file(path: Path) -> bool:
    with refusing(OSError, f"{path}: expected a file of the kit, found"):
        return path.is_file()


def _read(path: Path) -> bytes:
    with refusing(OSError, f"{path}: expected a file of the kit, found"):
        return path.read_bytes()
