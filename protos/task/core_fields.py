"""Fields of a task that PRECAD's algorithms name, and those of every deployment: what has a symbol, and waits.

Each is checked by itself here. Whether they fit together is `precad.protos.task.task`'s to say.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from precad.mpc.parameters import MAX_FRAC_BITS
from precad.protos.task.algorithms import DEFAULT, RULES, AlgorithmName, named
from precad.protos.tls.identity import Identity, IdentityError, Role

Probability = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
MOST_RECORDS: Final = 2**53
"""A client declares no more: above it, floats would round their number."""
MOST_FRAC_BITS: Final = MAX_FRAC_BITS


class CoreFields(BaseModel):
    """A part of `precad.protos.task.task.Task`. Symbols are those of PRECAD's Algorithms 1 and 2."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True, strict=True)

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")] = "task"
    """Lower-case letters, digits, dots, dashes."""
    algorithm: AlgorithmName = DEFAULT
    """Algorithm, by name: who adds which noise to what (docs/guides/simulation.md). Where it is not `precad`, the
    fields below say what changes."""
    clients: dict[str, Annotated[int, Field(ge=1, le=MOST_RECORDS)]]
    """Every enrolled client, with the number of records N_i that it declares. The declared numbers are public
    constants: they make the divisor of the update and never change during the task."""
    rounds: Annotated[int, Field(ge=1, le=1_000_000)]
    """T."""
    lost_rounds: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """How many rounds may be lost: their clients were drawn, and they do not commit. No round begins once so many are,
    and the task ends. None: 3 and a tenth of the rounds, `batches_ahead` + 2 at least."""
    client_rate: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
    """q: each enrolled client is in a round with this probability, independently (Poisson)."""
    record_rate: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
    """p: each record of a chosen client enters the round with this probability, independently (Poisson)."""
    record_rates: dict[str, Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]] = Field(default_factory=dict)
    """p_i of single clients by id, at most p. Ledgers charge everybody at p, which costs at least as much. A client's
    own figure is that of its p_i (`precad check`)."""
    record_clip: Positive
    """R: L2 bound on one record's gradient."""
    record_clipping: Literal["flat", "per-layer"] = "flat"
    """Scope of R: the whole gradient, or each of the L layers' by R / sqrt(L), which keeps the whole within R."""
    client_clip: Positive
    """C: L2 bound on one client's update, enforced by the servers."""
    noise_multiplier: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """sigma: the noise of each server has standard deviation sigma * R per coordinate. `user-dp-fedavg`,
    `tsgd-gaussian`: sigma * C; `tsgd-ptr`: sigma * C, or tau of it once a test has passed.
    `local-dp`, `ins-dp-fedavg`: servers add none, every client (every local step) adds sigma * R; `distributed-dp`:
    every client adds sigma * R / sqrt(tau). `non-private`, `fedavg`, `krum`, `multi-krum`: nobody adds any, and 0 is
    the only value."""
    learning_rate: Positive
    """eta. Where clients send differences of models, what their average is multiplied with. The rate of a round may
    differ (`learning_rate_schedule`)."""
    local_steps: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """V: descent steps of a client in a round."""
    local_rate: Positive = 0.1
    """Their learning rate."""
    local_batch: Annotated[int, Field(ge=1)] | None = None
    """Records of a step, of a pass over all of the client's in random order; None: Poisson samples of rate p."""
    local_momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """v <- momentum v + gradient, theta <- theta - rate v."""
    local_weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """So many times theta is added to the gradient."""
    update_clipping: Literal["flat", "per-layer", "private-quantile", "private-quantile-per-layer"] = "flat"
    """Scope of the bound C of clipping: the whole update, or each of its L layers by C / sqrt(L), which keeps the whole
    within C. With `private-quantile`, the whole update is clipped to a bound S that starts at C and follows a quantile
    of the norms, learnt with noise. There C bounds what is uploaded (`precad.protos.task.quantile`). With
    `private-quantile-per-layer`, each layer is clipped to S / sqrt(L). Servers verify C alone."""
    quantile: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """`private-quantile`: the share of updates that the bound shall leave as they are."""
    quantile_rate: Positive = 0.2
    """`private-quantile`: how fast the bound follows, geometrically."""
    quantile_noise: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """`private-quantile`: sigma_b, half of each server's noise on the count of updates within the bound. None: q n / 20
    or 1.2 sigma, whichever is more."""
    non_colluding: Annotated[int, Field(ge=1, le=MOST_RECORDS)] = 1
    """tau: of every round's uploads, how many are of clients that follow the protocol and collude with nobody. A round
    with fewer uploads releases nothing."""
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """delta of the privacy statements."""
    frac_bits: Annotated[int, Field(ge=0, le=MOST_FRAC_BITS)] = 16
    """f: fractional bits of the fixed-point encoding. `"largest"`: the most that C allows, which is the default in mode
    `proved`. Each bit less doubles what rounding adds to a record's sensitivity."""
    model: Annotated[str, Field(min_length=1)] = "mlp"
    """Architecture, by name, or `package.module:factory` of the user's own (`precad.clients.models.networks`)."""
    dim: Annotated[int, Field(ge=1)]
    """d: the number of the model's parameters, and one more for a bound that is learnt (`private-quantile`) or for each
    canary of `audit_clients`."""
    model_seed: Annotated[int, Field(ge=0, lt=2**64)] = 0
    """Seed of the public initial model. Protects nobody."""
    mode: Literal["masked", "shares", "proved"] = "masked"
    """Wire form of a submission. `shares` is the paper's, for comparison: a server that deviates reads coordinates of
    updates there (docs/explanation/threat-model.md). With `proved` each client proves its norm; there is no dealer."""
    accept_weak_wire_form: bool = False
    """Must be said, for everybody to see, of a task of mode `shares`, or with `layer_clips` or `half_spaces`. A server
    that deviates reads parts of updates there, bit by bit. No other task says it."""
    gate: Literal["crypten", "native"] = "crypten"
    """Comparison gate (`precad.mpc.gate_names`)."""
    batches_ahead: Annotated[int, Field(ge=0, le=16)] = 1
    """For how many coming rounds the servers draw the clients, and fetch the dealer's tuples, while clients train. 0:
    each round waits for the dealer."""
    submit_timeout_s: Positive = 60.0
    """How long a round waits for uploads before it is locked without the missing ones."""
    registration_timeout_s: Positive = 120.0
    """How long the servers wait for all enrolled clients. Then the task begins with those that registered, or is
    refused where they are fewer than `min_clients`."""
    min_clients: Annotated[int, Field(ge=1)] = 1
    """Registered clients without which the task does not start, or a restarted server does not go on."""
    epsilon_budget_one_server: Positive | None = None
    """A round after which the proved epsilon against one corrupted server would exceed this does not start."""
    epsilon_budget_clients_only: Positive | None = None
    """Likewise for the view of the clients alone."""
    epsilon_budget_client: Positive | None = None
    """Likewise for a whole client, in the view of the clients alone. Tested on every round, whoever is drawn."""

    @field_validator("algorithm", mode="before")
    @classmethod
    def _name_the_algorithm(cls, algorithm: object) -> object:
        return named(algorithm)

    @field_validator("noise_multiplier")
    @classmethod
    def _check_that_there_is_noise(cls, multiplier: float, others: ValidationInfo) -> float:
        is_private = RULES[others.data.get("algorithm", DEFAULT)].is_private
        if is_private and multiplier == 0:
            raise PydanticCustomError("greater_than", "Input should be greater than 0")
        if not is_private and multiplier != 0:
            raise ValueError(f"expected 0 where nobody adds noise, found {multiplier}")
        return multiplier

    @field_validator("clients")
    @classmethod
    def _check_client_ids(cls, clients: dict[str, int]) -> dict[str, int]:
        if len(clients) < 2:
            raise ValueError(f"expected at least 2 enrolled clients, found {len(clients)}")
        for name in clients:
            try:
                Identity(Role.CLIENT, name)
            except IdentityError as error:
                raise ValueError(str(error)) from error
        return clients
