"""A deployment's files as its organisations would use them: each with its own folder, keys and records.

Follows docs/guides/runbook.md: every key is made where it is used, and the authority signs requests.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from precad.deploy.authority import pki
from precad.deploy.configuration.init import HOSTS, RECORDS, deployment_files
from precad.deploy.configuration.sections import load
from precad.protos.tls.identity import Identity, Role

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = HOSTS / "samples"
SERVERS = (Role.AGGREGATOR_A, Role.AGGREGATOR_B, Role.DEALER)
NAMES: Mapping[str, str] = {
    Role.AGGREGATOR_A: "aggregator-a.organisation-a.example:7001",
    Role.AGGREGATOR_B: "aggregator-b.organisation-b.example:7002",
    Role.DEALER: "dealer.organisation-d.example:7004",
}
"""Where the samples dial the servers."""
CLIENTS = tuple(load(SAMPLES / "client.toml").task.clients)
OWN_RECORDS = 'records = "csv:records/{client}.csv"'
"""Where a client's records are, with the folder beside its configuration."""
OF_THE_TABLE = {
    line: ""
    for line in (SAMPLES / "client.toml").read_text().splitlines(keepends=True)
    if line.startswith(("columns = ", "class_names = ", "model_arguments = ", "label = "))
}
"""Replacements that take the records and the model out of the samples' task: for a task on other ones."""


@dataclass(frozen=True)
class Organisations:
    """One folder per role under `root`, which stands for /etc/precad of a machine."""

    root: Path
    has_dealer: bool = True

    @property
    def servers(self) -> tuple[Role, ...]:
        """Return the roles of the servers that there are."""
        return SERVERS if self.has_dealer else SERVERS[:2]

    @classmethod
    def create(cls, root: Path, *, has_dealer: bool = True) -> Self:
        """Everything but the configurations and the initial model."""
        made = cls(root, has_dealer)
        authority = pki.create_authority(root / "authority")
        for role in made.servers:
            made._enrol(role, Identity(role, role.value), made.folder(role) / "tls")
            shutil.copy(authority, made.folder(role) / "tls" / "ca.pem")
            token = made.folder(role) / "operations-token"
            token.touch(mode=0o600)
            token.write_text(secrets.token_urlsafe(32))
        for client in CLIENTS:
            made._enrol(Role.CLIENT, Identity(Role.CLIENT, client), made.folder(Role.CLIENT) / "clients" / client)
        (made.folder(Role.CLIENT) / "tls").mkdir()
        shutil.copy(authority, made.folder(Role.CLIENT) / "tls" / "ca.pem")
        for role in (*made.servers, Role.CLIENT):
            (made.folder(role) / "peers").mkdir()
            for other in made.servers:
                shutil.copy(made.folder(other) / "tls" / "cert.pem", made.folder(role) / "peers" / f"{other}.pem")
        made._give_records()
        return made

    def _give_records(self) -> None:
        """Every client has a table of its own, a part of the made-up one."""
        header, *rows = self.texts()[RECORDS].splitlines()
        (self.folder(Role.CLIENT) / "records").mkdir()
        for i, client in enumerate(CLIENTS):
            table = self.folder(Role.CLIENT) / "records" / f"{client}.csv"
            table.write_text("\n".join([header, *rows[i :: len(CLIENTS)]]) + "\n")

    def commands(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield for every process a server's role or a client's id, and the arguments of `precad`."""
        if self.has_dealer:
            yield Role.DEALER, ("serve", "dealer", str(self.config(Role.DEALER)))
        for letter, role in (("a", Role.AGGREGATOR_A), ("b", Role.AGGREGATOR_B)):
            yield role, ("serve", "aggregator", str(self.config(role)), "--role", letter)
        for client in CLIENTS:
            yield client, ("client", str(self.config(Role.CLIENT)), "--id", client)

    def texts(self) -> dict[str, str]:
        """Return the files of `precad init deployment`."""
        return deployment_files(has_dealer=self.has_dealer)

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
        """The samples, with other addresses, state and records beside them, and these texts replaced."""
        changes = {'"csv:/srv/': '"csv:', **{f'"{NAMES[role]}"': f'"{address}"' for role, address in addresses.items()}}
        texts = self.texts()
        for role in (*self.servers, Role.CLIENT):
            text = texts[f"{role}/{role}.toml"]
            for old, new in {**changes, **(replaced or {})}.items():
                text = text.replace(old, new)
            self.config(role).write_text(text.replace('"/var/lib/precad"', '"state"'))
