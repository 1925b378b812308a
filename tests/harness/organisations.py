"""The sample configurations as four organisations would use them: each with its own folder, keys and files.

Follows docs/guides/runbook.md: every key is made where it is used, and the authority signs requests.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from precad.deploy.authority import pki
from precad.deploy.configuration.sections import load
from precad.protos.tls.identity import Identity, Role

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "deploy" / "hosts" / "samples"
SERVERS = (Role.AGGREGATOR_A, Role.AGGREGATOR_B, Role.DEALER)
NAMES: Mapping[str, str] = {
    Role.AGGREGATOR_A: "aggregator-a.organisation-a.example:7001",
    Role.AGGREGATOR_B: "aggregator-b.organisation-b.example:7002",
    Role.DEALER: "dealer.organisation-d.example:7004",
}
"""Where the samples dial the servers."""
CLIENTS = tuple(load(SAMPLES / "client.toml").task.clients)


@dataclass(frozen=True)
class Organisations:
    """One folder per role under `root`, which stands for /etc/precad of a machine."""

    root: Path

    @classmethod
    def create(cls, root: Path) -> Self:
        """Everything but the configurations and the initial model."""
        made = cls(root)
        authority = pki.create_authority(root / "authority")
        for role in SERVERS:
            made._enrol(role, Identity(role, role.value), made.folder(role) / "tls")
            shutil.copy(authority, made.folder(role) / "tls" / "ca.pem")
            token = made.folder(role) / "operations-token"
            token.touch(mode=0o600)
            token.write_text(secrets.token_urlsafe(32))
        for client in CLIENTS:
            made._enrol(Role.CLIENT, Identity(Role.CLIENT, client), made.folder(Role.CLIENT) / "clients" / client)
        (made.folder(Role.CLIENT) / "tls").mkdir()
        shutil.copy(authority, made.folder(Role.CLIENT) / "tls" / "ca.pem")
        for role in (*SERVERS, Role.CLIENT):
            (made.folder(role) / "peers").mkdir()
            for other in SERVERS:
                shutil.copy(made.folder(other) / "tls" / "cert.pem", made.folder(role) / "peers" / f"{other}.pem")
        return made

    def _enrol(self, role: Role, identity: Identity, place: Path) -> None:
        """A key made at home; the request goes to the authority, the certificate comes back."""
        request = pki.request(self.folder(role) / "new", identity)
        certificate = pki.sign(self.root / "authority", request, identity, days=30)
        place.mkdir(parents=True)
        shutil.copy(certificate, place / "cert.pem")
        request.with_name("key.pem").replace(place / "key.pem")

    def folder(self, role: Role) -> Path:
        """Return the folder of one machine."""
        return self.root / role

    def config(self, role: Role) -> Path:
        """The configuration of one machine."""
        return self.folder(role) / f"{role}.toml"

    def write_configs(self, addresses: Mapping[str, str] = NAMES, replaced: Mapping[str, str] | None = None) -> None:
        """The samples, with other addresses, state beside them, and these texts replaced."""
        changes = {f'"{NAMES[role]}"': f'"{address}"' for role, address in addresses.items()}
        for role in (*SERVERS, Role.CLIENT):
            text = (SAMPLES / f"{role}.toml").read_text()
            for old, new in {**changes, **(replaced or {})}.items():
                text = text.replace(old, new)
            self.config(role).write_text(text.replace('"/var/lib/precad"', '"state"'))
