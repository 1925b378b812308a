"""`precad join`: put a kit beside the key that stays at home, once everything in it is what was agreed on.

Nothing of the kit is used before three checks. The digest of its manifest is the one that the operator was told. Every
file is the manifest's. The certificate is of the key that `precad pki request` made here. Files that the manifest does
not name stay where they are.

The same kit may be joined again and again. Certificates and pins that its operator renewed meanwhile stay. The kit's
own would bring back a pin that was taken out because its key was stolen.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from precad.deploy.authority import pki
from precad.deploy.configuration.sections import read_toml
from precad.deploy.errors import ConfigError
from precad.deploy.provisioning.kits import KEY, OPERATIONS_TOKEN, REVOKED
from precad.deploy.provisioning.manifest import (
    AUTHORITY,
    CERTIFICATE,
    MANIFEST,
    SEAL,
    SIGNATURE,
    digest_of,
    renewed_in,
    verify,
)
from precad.protos.tls.files import TlsFiles
from precad.protos.tls.identity import AGGREGATORS, Identity

_REVOKED_HEAD: Final = b"# SHA-256 fingerprints of clients' certificates that are no longer accepted, one a line\n"


@dataclass(frozen=True)
class Joined:
    """A kit in its place."""

    identity: Identity
    config: Path
    """The role's configuration, for `precad check`, `serve` and `client`."""


def join(kit: Path, directory: Path, agreed: str) -> Joined:
    """Install the kit in `directory`/<participant>, where its key is, and return what was installed.

    agreed: the project's digest, as the operators of A and B read it out. Raises ConfigError, TlsFileError. Then
    nothing was written.
    """
    found = digest_of(kit)
    if found != agreed.strip().lower().replace(":", "").replace(" ", ""):  # which is not said: it would be copied
        raise ConfigError(
            f"--agreed: expected the digest of this kit's project, found another one, {agreed:.80}: do not start"
        )
    verified = verify(kit)
    name, files = verified.participant, verified.manifest.of(verified.participant)
    own = Identity.from_certificate((kit / CERTIFICATE).read_bytes())
    folder = directory / name
    is_again = (folder / MANIFEST).exists() and digest_of(folder) == found
    renewed = renewed_in(folder, files, own) if is_again else ()
    _require_own_key(folder, own, *(folder / n if n in renewed else kit / n for n in (CERTIFICATE, AUTHORITY)))
    if not is_again:
        (folder / MANIFEST).unlink(missing_ok=True)  # with half of each, it is neither the old kit nor the new one
    for path in (*files, SEAL, SIGNATURE, MANIFEST):  # the manifest last: until then it is no kit
        if path not in renewed:
            (folder / path).parent.mkdir(exist_ok=True)
            pki.replace_file(folder / path, (kit / path).read_bytes())
    if own.role.is_server and not (folder / OPERATIONS_TOKEN).exists():
        pki.replace_file(folder / OPERATIONS_TOKEN, f"{secrets.token_urlsafe(32)}\n".encode(), mode=0o600)
    config = folder / f"{name}.toml"
    if own.role in AGGREGATORS and not (folder / REVOKED).exists() and _reads_revoked(config):
        pki.replace_file(folder / REVOKED, _REVOKED_HEAD)
    return Joined(own, config)


def _reads_revoked(config: Path) -> bool:
    """Return whether a server of this configuration reads the list there. Kits of earlier versions name none."""
    try:
        each = read_toml(config).get("aggregator", {}).values()
    except (ConfigError, AttributeError):
        return False  # `precad check` says what is wrong with settings of one's own
    return any(isinstance(own, Mapping) and own.get("revoked") == REVOKED for own in each)


def _require_own_key(folder: Path, own: Identity, certificate: Path, authority: Path) -> None:
    """Require that the certificate is of the key that was made here: nobody else's request came in its place."""
    key = folder / KEY
    if not key.is_file():
        raise ConfigError(f"DIR: expected {key}, of precad pki request {folder.parent}, found none")
    TlsFiles(certificate=certificate, key=key, authority=authority, holder=own).load()


def kit_facts(config: Path) -> dict[str, str]:
    """Return what `precad check` shows of a configuration that came in a kit; nothing of any other.

    Raises ConfigError if a file of the kit is missing or was changed, other than certificates and pins.
    """
    folder = config.parent
    if not any((folder / name).exists() for name in (SIGNATURE, SEAL)):
        return {}
    kit = verify(folder, is_installed=True)
    said = f"unchanged but for {', '.join(kit.renewed)}, renewed since" if kit.renewed else "unchanged"
    if not kit.is_vouched:
        said += "; no authority here has certified its seal: compare the project digest"
    return {"kit": f"of {kit.participant}, {said}", "project_digest": digest_of(folder)}
