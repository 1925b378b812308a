"""Configure a simulation: the `[simulation]` section, beside the `[task]` of a deployment."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, Field, model_validator

from precad.protos.task.quantile import LEARNT

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Parameters = dict[str, bool | int | float | str]


class AttackSettings(BaseModel, frozen=True, extra="forbid", strict=True):
    """`[simulation.attack]`: malicious clients, all of one kind."""

    kind: Annotated[str, Field(min_length=1)]
    """A name of `precad.clients.attacks` or `precad.lab.simulation.attackers`, or `package.module:Class`."""
    clients: Annotated[int, Field(ge=1)] | list[str]
    """How many, the last ones in the order of ids; or which."""
    parameters: Parameters = Field(default_factory=dict)
    """Fields of the attack's class, by name."""


class SimulationSettings(BaseModel, frozen=True, extra="forbid", strict=True):
    """How the task is simulated."""

    algorithm: Annotated[str, Field(min_length=1)] = "precad"
    """A name of `precad.lab.simulation.algorithms`, or `package.module:Class`."""
    servers: Literal["cleartext", "mpc"] = "cleartext"
    """PRECAD's two servers: their proved-equal round in the clear, or their real program over an in-memory channel."""
    validation: bool = True
    """PRECAD and local DP: whether servers check norms. Without, nothing bounds a malicious client (of PRECAD, the
    paper's faster version)."""
    client_clipping: bool = True
    """Whether clients project their update onto the ball of radius C."""
    aggregation: Annotated[str, Field(min_length=1)] = "sum"
    """`sum`, over the public divisor W; or, where one server sees every update, a rule of
    `precad.lab.simulation.rules`, or `package.module:Class`."""
    aggregation_parameters: Parameters = Field(default_factory=dict)
    """Fields of the rule's class, by name."""
    non_colluding: Annotated[int, Field(ge=1)] = 1
    """tau of distributed DP: how many clients of every round follow the protocol and collude with nobody."""
    local_steps: Annotated[int, Field(ge=1)] = 1
    """V: descent steps of a client in a round, where an algorithm trains locally."""
    local_rate: Positive = 0.1
    """Their learning rate."""
    local_batch: Annotated[int, Field(ge=1)] | None = None
    """Records of a step, where clients train without noise of their own. A pass takes all of the client's records in
    random order, and its last step those that are left. None: Poisson samples of rate p."""
    local_momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Momentum of local steps, also of those with noise: v <- momentum v + gradient, theta <- theta - rate v."""
    local_weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Weight decay of local steps, also of those with noise: so many times theta is added to the gradient."""
    update_clipping: Literal[
        "flat",
        "per-layer",
        "private-quantile",
        "private-quantile-per-layer",
        "median-not-private",
        "median-per-layer-not-private",
    ] = "flat"
    """How the trusted server of `user-dp-fedavg` and `central-dp` bounds updates, from S = `task.client_clip`:
    `precad.lab.simulation.update_clipping`. What is learnt of the updates is private, or nothing is, as the name
    says."""
    quantile: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """`private-quantile`: the share of updates that the bound shall leave as they are."""
    quantile_rate: Positive = 0.2
    """`private-quantile`: how fast the bound follows, geometrically."""
    quantile_noise: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """`private-quantile`: sigma_b, half the noise on the count of updates within the bound. The rest of the round's
    budget is the updates'. None: q n / 20, or 1.2 z where that is more."""
    first_seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the training number 0: training i, in the files `seed-i`, draws from first_seed + i. Under
    `[client.holder]` draws follow from the number and from a secret key that each run folder draws (`holder.key`)."""
    evaluate_every: Annotated[int, Field(ge=1)] = 10
    """Rounds between two evaluations on the test records; the last round is always evaluated."""
    batching: Literal["round", "client"] = "round"
    """Whether the records of all chosen clients go through the model in one pass, or each client's in its own. The
    same up to float32 rounding; `client` gives the bits of a deployment with one client per process."""
    initial_model: Annotated[str, Field(min_length=1)] | None = None
    """A `.npy` file, from the working directory: the public model that training starts from, in place of the one that
    `task.model_seed` draws. As in a deployment, it is flat float32, (d,)."""
    initial_model_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    """Digest of its values as they travel; a run folder's configuration has it, so that another model is refused
    there."""
    attack: AttackSettings | None = None

    @model_validator(mode="after")
    def _check_initial_model(self) -> Self:
        if self.initial_model_sha256 is not None and self.initial_model is None:
            raise ValueError("initial_model_sha256 needs initial_model, found none")
        return self

    @model_validator(mode="after")
    def _check_quantile(self) -> Self:
        given = sorted(self.model_fields_set & {"quantile", "quantile_rate", "quantile_noise"})
        if given and self.update_clipping not in LEARNT:
            raise ValueError(f"{given[0]} needs update_clipping = 'private-quantile', found {self.update_clipping!r}")
        return self
