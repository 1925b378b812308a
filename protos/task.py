"""A task: every public parameter that both servers and all clients must hold alike, and its digest.

Parties compare digests before anything else and refuse a peer on which they differ, so a client never trains under
weaker privacy than its own configuration names, and the servers never aggregate under two bounds.
"""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from mpc.errors import ParameterError
from mpc.norm_bound import NormBound
from mpc.sharing import Mode
from protos.identity import Identity, IdentityError, Role

PROTOCOL_VERSION = "precad/v1"
MIN_NOISE_STD_ON_GRID, MAX_NOISE_STD_ON_GRID = 8.0, 2.0**40
"""With C * 2^f <= 9.4e7 and any number of clients below 9e10, the noisy sum then stays far from wrapping around."""

Probability = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Task(BaseModel):
    """The `[task]` section. Symbols are those of PRECAD's Algorithms 1 and 2."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")] = "task"
    """Lower-case letters, digits, dots, dashes."""
    clients: dict[str, Annotated[int, Field(ge=1)]]
    """Every enrolled client, with the number of records N_i that it declares. The declared numbers are public
    constants: they make the divisor of the update and never change during the task."""
    rounds: Annotated[int, Field(ge=1, le=1_000_000)]
    """T."""
    client_rate: Probability
    """q: each enrolled client is in a round with this probability, independently (Poisson)."""
    record_rate: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
    """p: each record of a chosen client enters the round with this probability, independently (Poisson)."""
    record_clip: Positive
    """R: L2 bound on one record's gradient."""
    record_clipping: Literal["flat", "per-layer"] = "flat"
    """What R bounds: the whole gradient, or each of the L layers' by R / sqrt(L), which keeps the whole within R."""
    client_clip: Positive
    """C: L2 bound on one client's update, enforced by the servers."""
    noise_multiplier: Positive
    """sigma: the noise of each server has standard deviation sigma * R per coordinate."""
    learning_rate: Positive
    """eta."""
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """delta of the privacy statements."""
    frac_bits: Annotated[int, Field(ge=0, le=40)] = 16
    """f: fractional bits of the fixed-point encoding."""
    model: Annotated[str, Field(min_length=1)] = "mlp"
    """Architecture, by name, or `package.module:factory` of the user's own (`clients.models`)."""
    dim: Annotated[int, Field(ge=1)]
    """d: the number of the model's parameters."""
    model_seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the public initial model. Protects nobody."""
    mode: Literal["masked", "shares"] = "masked"
    """Wire form of a submission."""
    gate: Literal["crypten", "native"] = "crypten"
    """Comparison gate (`mpc.gates`)."""
    batches_ahead: Annotated[int, Field(ge=0, le=16)] = 1
    """For how many coming rounds the servers draw the clients, and fetch the dealer's tuples, while clients train. 0:
    each round waits for the dealer."""
    submit_timeout_s: Positive = 60.0
    """How long a round waits for uploads before it is locked without the missing ones."""
    registration_timeout_s: Positive = 120.0
    """How long the servers wait for the enrolled clients to register before the task is refused."""
    min_clients: Annotated[int, Field(ge=1)] = 1
    """Registered clients without which the task does not start."""
    epsilon_budget_one_server: Positive | None = None
    """A round after which the proved epsilon against one corrupted server would exceed this does not start."""
    epsilon_budget_clients_only: Positive | None = None
    """The same for the view of the clients alone."""
    epsilon_budget_client: Positive | None = None
    """The same for a whole client, in the view of the clients alone. Tested on every round, whoever is drawn."""

    @field_validator("clients")
    @classmethod
    def _check_client_ids(cls, clients: dict[str, int]) -> dict[str, int]:
        if len(clients) < 2:
            raise ValueError(f"at least 2 enrolled clients are needed, got {len(clients)}")
        for name in clients:
            try:
                Identity(Role.CLIENT, name)
            except IdentityError as error:
                raise ValueError(str(error)) from error
        return clients

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        try:
            _ = self.norm_bound
        except ParameterError as error:
            raise ValueError(str(error).replace("clip_norm", "client_clip")) from error
        if self.min_clients > len(self.clients):
            raise ValueError(f"min_clients must be at most the {len(self.clients)} enrolled, got {self.min_clients}")
        if not MIN_NOISE_STD_ON_GRID <= self.noise_std_on_grid <= MAX_NOISE_STD_ON_GRID:
            raise ValueError(
                "noise_multiplier * record_clip * 2^frac_bits must be between 8 and 2^40, where the noise on the grid "
                f"is accounted as the Gaussian that it is rounded from; got {self.noise_std_on_grid:.6g}"
            )
        if not self.client_rate > 0:
            raise ValueError(f"client_rate must be > 0, got {self.client_rate}")
        return self

    @property
    def norm_bound(self) -> NormBound:
        """The norm check's parameters. Raises ParameterError."""
        return NormBound(clip_norm=self.client_clip, dim=self.dim, frac_bits=self.frac_bits)

    @property
    def noise_std_on_grid(self) -> float:
        """Standard deviation of one server's noise, in units of 2^-f."""
        return self.noise_multiplier * self.record_clip * float(2**self.frac_bits)

    @property
    def divisor(self) -> float:
        """W = q * sum_i p N_i: the expected number of records in a round. A public constant, unlike the paper's
        divisor, which sums over the round's valid clients and reveals who they were."""
        return self.client_rate * self.record_rate * sum(self.clients.values())

    @property
    def wire_mode(self) -> Mode:
        """`mode` as `mpc` names it."""
        return Mode(self.mode)

    def digest(self) -> bytes:
        """SHA-256 of the protocol version and every field, in canonical JSON."""
        return self._digest

    @cached_property
    def _digest(self) -> bytes:
        canonical = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(f"{PROTOCOL_VERSION}\n{canonical}".encode()).digest()
