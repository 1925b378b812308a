"""What the operator of a server configures: the `[aggregator.a]`, `[aggregator.b]` and `[dealer]` sections.

Paths are relative to the configuration file. Private keys are paths here, never values.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from protos.config_path import ConfigPath
from protos.identity import Role
from protos.transport import TlsFiles, TransportError

Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]


def require_own_role(tls: TlsFiles, role: Role) -> None:
    """The certificate that this process shows is one of `role`. Raises TransportError, TlsFileError."""
    found = tls.load().identity
    if found.role is not role:
        raise TransportError(f"certificate: expected one of {role}, found one of {found.uri} ({tls.certificate})")


class _Server(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    listen: Annotated[str, Field(min_length=1)]
    """HOST:PORT to listen on."""
    certificate: ConfigPath
    """Our certificate (PEM), issued by the authority, with our role."""
    key: ConfigPath
    """Its private key (PEM, mode 0600)."""
    authority: ConfigPath
    """The authority's certificate (PEM)."""
    connect_timeout_s: Seconds = 60.0
    """How long to try to reach the other servers at the start."""

    @property
    def tls(self) -> TlsFiles:
        """What this server shows and trusts."""
        return TlsFiles(certificate=self.certificate, key=self.key, authority=self.authority)


class AggregatorConfig(_Server):
    """One aggregation server."""

    peer_certificate: ConfigPath
    """The other aggregator's certificate. Exactly this one is trusted on the link between the two."""
    dealer_certificate: ConfigPath
    """The dealer's certificate, pinned likewise."""
    initial_model: ConfigPath
    """Flat float32 vector of the task's dimension (.npy). Both servers must hold the same bytes."""
    state_dir: ConfigPath
    """Where the ledger, the round records and the model are written. One that holds a ledger is refused."""


class DealerConfig(_Server):
    """The dealer."""

    aggregator_a_certificate: ConfigPath
    """Server A's certificate, pinned."""
    aggregator_b_certificate: ConfigPath
    """Server B's certificate, pinned."""
    state_dir: ConfigPath
    """Where the record of what was dealt is written. A batch in it is never dealt again: keep it for all tasks."""
