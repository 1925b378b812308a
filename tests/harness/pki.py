"""Certificates of a test's deployment, and the configurations that go with them. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from precad.deploy.authority.pki import create_authority, issue
from precad.protos.tls.files import TlsFiles
from precad.protos.tls.identity import AGGREGATORS, Identity, Role
from precad.servers.config import AggregatorConfig, DealerConfig


@dataclass(frozen=True)
class Pki:
    """An authority's directory and who has a certificate there."""

    directory: Path

    @classmethod
    def create(cls, directory: Path, clients: Iterable[str], *, passphrase: bytes | None = None) -> Self:
        """An authority, every server, the operator and these clients. passphrase: what all keys are encrypted under."""
        create_authority(directory, passphrase=passphrase)
        identities = [Identity(role, role.value) for role in Role if role is not Role.CLIENT]
        for identity in (*identities, *(Identity(Role.CLIENT, client) for client in clients)):
            issue(directory, identity, passphrase=passphrase, authority_passphrase=passphrase)
        made = cls(directory)
        if passphrase is not None:
            made.passphrase_file.touch(0o600)
            made.passphrase_file.write_bytes(passphrase + b"\n")
        return made

    @property
    def authority(self) -> Path:
        """Return the certificate that everybody trusts."""
        return self.directory / "ca.pem"

    @property
    def passphrase_file(self) -> Path:
        """Where keys are encrypted."""
        return self.directory / "key-passphrase"

    def tls(self, name: str) -> TlsFiles:
        """Return what the holder of `name` shows and trusts."""
        folder = self.directory / name
        return TlsFiles(
            certificate=folder / "cert.pem",
            key=folder / "key.pem",
            authority=self.authority,
            key_passphrase_file=self.passphrase_file if self.passphrase_file.exists() else None,
        )

    def aggregator(self, party: int, *, listen: str, folder: Path, **changes: Any) -> AggregatorConfig:
        """The configuration of one aggregator that keeps its state under `folder`, beside the initial model."""
        own, other = AGGREGATORS[party], AGGREGATORS[1 - party]
        return AggregatorConfig(
            listen=listen,
            **self._shown_and_trusted(own),
            peer_certificate=self.tls(other).certificate,
            initial_model=folder / "initial.npy",
            state_dir=folder / own,
            connect_timeout_s=60.0,
            **{"dealer_certificate": self.tls(Role.DEALER).certificate, "reconnect_timeout_s": 0.0, **changes},
        )

    def dealer(self, *, listen: str, folder: Path, **changes: Any) -> DealerConfig:
        """The configuration of the dealer, which keeps its state under `folder`."""
        a, b = (self.tls(role).certificate for role in AGGREGATORS)
        shown = self._shown_and_trusted(Role.DEALER)
        pins = {"aggregator_a_certificate": a, "aggregator_b_certificate": b}
        return DealerConfig(
            listen=listen,
            **shown,
            **pins,
            state_dir=folder / Role.DEALER,
            **{"reconnect_timeout_s": 0.0, **changes},
        )

    def _shown_and_trusted(self, name: str) -> dict[str, Path | None]:
        return {field: value for field, value in asdict(self.tls(name)).items() if field != "holder"}
