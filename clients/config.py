"""What the operator of a client process configures: the `[client]` section.

A process hosts one client by default; with several ids it hosts as many virtual clients, each with its own certificate
and its own connections.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from clients.attacks import ATTACKS
from protos.config_path import ConfigPath
from protos.transport import TlsFiles


class ClientConfig(BaseModel):
    """The clients of one process, or of one machine."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    certificates: ConfigPath
    """Folder with one sub-folder per client id, holding `cert.pem` and `key.pem`."""
    authority: ConfigPath
    """The authority's certificate (PEM)."""
    dataset: Literal["digits"] = "digits"
    """Where the records come from. `digits`: scikit-learn's bundled handwritten digits, dealt i.i.d. to the task's
    clients in the order of their ids."""
    partition_seed: Annotated[int, Field(ge=0)] = 0
    """Seed of that deal. Protects nobody."""
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    """Where gradients are computed; `auto` takes CUDA when there is one."""
    connect_timeout_s: Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)] = 60.0
    """How long to try to reach both aggregators."""
    attacks: dict[str, Literal["none", "scaled", "wrap"]] = Field(default_factory=dict)
    """Experiments only: clients that misbehave, and how (`clients.attacks`)."""

    def tls(self, client: str) -> TlsFiles:
        """What this client shows and trusts."""
        folder = self.certificates / client
        return TlsFiles(certificate=folder / "cert.pem", key=folder / "key.pem", authority=self.authority)


assert set(ATTACKS) == {"none", "scaled", "wrap"}  # the registry and the configuration's names are one list
