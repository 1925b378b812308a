"""A task: every public parameter that both servers and all clients must hold alike, and its digest.

Parties compare digests before anything else and refuse a peer on which they differ. So a client never trains under
weaker privacy than its own configuration names, and the servers never aggregate under two bounds.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Annotated, Final, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from precad.mpc.errors import ParameterError
from precad.mpc.norm_bound import NormBound
from precad.mpc.sharing import Mode
from precad.protos.task.carried_fields import carried
from precad.protos.task.quantile import QuantileRule, count_noise
from precad.protos.tls.identity import Identity, IdentityError, Role

PROTOCOL_VERSION, VERSION_BEFORE = "precad/v1.1", "precad/v1"
MIN_NOISE_STD_ON_GRID, MAX_NOISE_STD_ON_GRID = 8.0, 2.0**40
"""With C * 2^f <= 9.4e7 and any number of clients below 9e10, the noisy sum then stays far from wrapping around."""

Probability = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]

AlgorithmName: TypeAlias = Literal[
    "precad", "user-dp-fedavg", "ins-dp-fedavg", "local-dp", "distributed-dp", "non-private"
]
"""Algorithms that two servers can run although they see no single update. Each is defined in
`precad.clients.training.round_update` and `precad.dp.task_privacy`."""
ONLY_SIMULATED: Final = (
    *("krum", "multi-krum", "bulyan", "median", "trimmed-mean", "geometric-median", "norm-bounding"),
    *("tsgd-gaussian", "tsgd-ptr", "central-record-dp"),
)
"""Names that `precad simulate` knows, of what needs every update in the clear, or one trusted server."""
ALIASES: Final[Mapping[str, AlgorithmName]] = MappingProxyType({"central-dp": "user-dp-fedavg"})
"""Other names of an algorithm. The task has the algorithm's own, in its canonical text and digest too."""
OF_AN_ALGORITHM: Final[Mapping[str, tuple[AlgorithmName, ...]]] = MappingProxyType(
    {
        "local_steps": ("user-dp-fedavg", "ins-dp-fedavg"),
        "local_rate": ("user-dp-fedavg", "ins-dp-fedavg"),
        "local_batch": ("user-dp-fedavg",),
        "local_momentum": ("user-dp-fedavg",),
        "local_weight_decay": ("user-dp-fedavg",),
        "update_clipping": ("user-dp-fedavg",),
        "quantile": ("user-dp-fedavg",),
        "quantile_rate": ("user-dp-fedavg",),
        "quantile_noise": ("user-dp-fedavg",),
        "non_colluding": ("distributed-dp",),
    }
)
"""Fields that mean something to these algorithms only."""
_OF_QUANTILE: Final = ("quantile", "quantile_rate", "quantile_noise")
ABSENT_AT_DEFAULT: Final = ("update_clipping", *_OF_QUANTILE)
"""Fields that came later than the algorithms that they are of. The canonical text has them where they are not at their
default, so that tasks without them keep their digest."""
ABSENT_BEFORE: Final = frozenset({"lost_rounds", "accept_weak_wire_form"})
"""Fields that tasks of `VERSION_BEFORE` had not."""
_LOG_MARGIN: Final = 64 * math.log(2)


class Task(BaseModel):
    """The `[task]` section. Symbols are those of PRECAD's Algorithms 1 and 2."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")] = "task"
    """Lower-case letters, digits, dots, dashes."""
    algorithm: AlgorithmName = "precad"
    """Algorithm, by name: who adds which noise to what (docs/simulation.md). Where it is not `precad`, the fields below
    say what changes."""
    clients: dict[str, Annotated[int, Field(ge=1)]]
    """Every enrolled client, with the number of records N_i that it declares. The declared numbers are public
    constants: they make the divisor of the update and never change during the task."""
    rounds: Annotated[int, Field(ge=1, le=1_000_000)]
    """T."""
    lost_rounds: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """How many rounds may be lost: their clients were drawn, and they do not commit. No round begins once so many are,
    and the task ends. None: `most_lost_rounds`."""
    client_rate: Probability
    """q: each enrolled client is in a round with this probability, independently (Poisson)."""
    record_rate: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
    """p: each record of a chosen client enters the round with this probability, independently (Poisson)."""
    record_clip: Positive
    """R: L2 bound on one record's gradient."""
    record_clipping: Literal["flat", "per-layer"] = "flat"
    """Scope of R: the whole gradient, or each of the L layers' by R / sqrt(L), which keeps the whole within R."""
    client_clip: Positive
    """C: L2 bound on one client's update, enforced by the servers."""
    noise_multiplier: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """sigma: the noise of each server has standard deviation sigma * R per coordinate. `user-dp-fedavg`: sigma * C.
    `local-dp`, `ins-dp-fedavg`: servers add none, every client (every local step) adds sigma * R; `distributed-dp`:
    every client adds sigma * R / sqrt(tau). `non-private`: nobody adds any, and 0 is the only value."""
    learning_rate: Positive
    """eta. Where clients send differences of models, what their average is multiplied with."""
    local_steps: Annotated[int, Field(ge=1)] = 1
    """V: descent steps of a client in a round."""
    local_rate: Positive = 0.1
    """Their learning rate."""
    local_batch: Annotated[int, Field(ge=1)] | None = None
    """Records of a step, of a pass over all of the client's in random order; None: Poisson samples of rate p."""
    local_momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """v <- momentum v + gradient, theta <- theta - rate v."""
    local_weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """So many times theta is added to the gradient."""
    update_clipping: Literal["flat", "per-layer", "private-quantile"] = "flat"
    """Scope of the bound C of clipping: the whole update, or each of its L layers by C / sqrt(L), which keeps the whole
    within C. With `private-quantile`, the whole update is clipped to a bound S that starts at C and follows a quantile
    of the norms, learnt with noise. There C bounds what is uploaded (`precad.protos.task.quantile`). Servers verify C
    alone."""
    quantile: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """`private-quantile`: the share of updates that the bound shall leave as they are."""
    quantile_rate: Positive = 0.2
    """`private-quantile`: how fast the bound follows, geometrically."""
    quantile_noise: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """`private-quantile`: sigma_b, half of each server's noise on the count of updates within the bound. None: q n / 20
    or 1.2 sigma, whichever is more."""
    non_colluding: Annotated[int, Field(ge=1)] = 1
    """tau: of every round's uploads, how many are of clients that follow the protocol and collude with nobody. A round
    with fewer uploads releases nothing."""
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """delta of the privacy statements."""
    frac_bits: Annotated[int, Field(ge=0, le=40)] = 16
    """f: fractional bits of the fixed-point encoding."""
    model: Annotated[str, Field(min_length=1)] = "mlp"
    """Architecture, by name, or `package.module:factory` of the user's own (`precad.clients.models.networks`)."""
    dim: Annotated[int, Field(ge=1)]
    """d: the number of the model's parameters, and one more for a bound that is learnt (`private-quantile`)."""
    model_seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the public initial model. Protects nobody."""
    mode: Literal["masked", "shares"] = "masked"
    """Wire form of a submission. `shares` is the paper's, for comparison: a server that deviates reads coordinates of
    updates there (docs/threat-model.md)."""
    accept_weak_wire_form: bool = False
    """Must be said, for everybody to see, of a task of mode `shares`, and of no other."""
    gate: Literal["crypten", "native"] = "crypten"
    """Comparison gate (`precad.mpc.gates`)."""
    batches_ahead: Annotated[int, Field(ge=0, le=16)] = 1
    """For how many coming rounds the servers draw the clients, and fetch the dealer's tuples, while clients train. 0:
    each round waits for the dealer."""
    submit_timeout_s: Positive = 60.0
    """How long a round waits for uploads before it is locked without the missing ones."""
    registration_timeout_s: Positive = 120.0
    """How long the servers wait for the enrolled clients to register before the task is refused."""
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
        if isinstance(algorithm, str) and algorithm in ALIASES:
            return ALIASES[algorithm]
        if algorithm in ONLY_SIMULATED:
            raise ValueError(
                f"{algorithm} needs one server that sees every update, and two servers that hold shares see none: it "
                "runs in `precad simulate`, by simulation.algorithm or simulation.aggregation"
            )
        return algorithm

    @field_validator("noise_multiplier")
    @classmethod
    def _check_that_there_is_noise(cls, multiplier: float, others: ValidationInfo) -> float:
        is_private = others.data.get("algorithm") != "non-private"
        if is_private and multiplier == 0:
            raise PydanticCustomError("greater_than", "Input should be greater than 0")
        if not is_private and multiplier != 0:
            raise ValueError(f"must be 0 where algorithm is non-private and nobody adds noise, got {multiplier}")
        return multiplier

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
        self._check_wire_form()
        self._check_noise()
        if not self.client_rate > 0:
            raise ValueError(f"client_rate must be > 0, got {self.client_rate}")
        self._check_fields_of_algorithms()
        self._check_quantile()
        return self

    def _check_wire_form(self) -> None:
        """The weaker form is nobody's by mistake. Raises ValueError."""
        if self.mode == "shares" and not self.accept_weak_wire_form:
            raise ValueError(
                "accept_weak_wire_form: expected true with mode 'shares', in which a server that deviates reads "
                "coordinates of updates bit by bit (docs/threat-model.md), found false; mode 'masked' needs no consent"
            )
        if self.mode != "shares" and self.accept_weak_wire_form:
            raise ValueError(f"accept_weak_wire_form is of mode 'shares' only, found mode {self.mode!r}")

    def _check_noise(self) -> None:
        """Refuse noise that is too small or too large on the grid, whoever adds it. Raises ValueError.

        Refuse also a client_clip that leaves no room for a client's own noise (`distributed-dp`). Nothing is refused of
        a task that adds none (`non-private`).
        """
        if self.algorithm == "non-private":
            return
        std, clip = max(self.noise_std_on_grid, self.client_noise_std_on_grid), "record_clip"
        if self.algorithm == "user-dp-fedavg":
            clip = "client_clip"
        elif self.algorithm == "distributed-dp":
            clip = "record_clip / sqrt(non_colluding)"
        if not MIN_NOISE_STD_ON_GRID <= std <= MAX_NOISE_STD_ON_GRID:
            raise ValueError(
                f"noise_multiplier * {clip} * 2^frac_bits must be between 8 and 2^40, where the noise on the grid "
                f"is accounted as the Gaussian that it is rounded from; got {std:.6g}"
            )
        if self.algorithm == "distributed-dp" and not self.update_bound > 0:
            raise ValueError(
                "client_clip must leave room for a client's own noise, which is summed as it is: expected more than "
                f"{self.client_clip - self.update_bound:.6g}, got {self.client_clip}"
            )

    def _check_fields_of_algorithms(self) -> None:
        """Nothing is set that this algorithm ignores, or cannot keep. Raises ValueError."""
        for name, algorithms in OF_AN_ALGORITHM.items():
            if self.algorithm not in algorithms and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} is of {' and '.join(algorithms)} only, found algorithm {self.algorithm!r}")
        if self.non_colluding > len(self.clients):
            raise ValueError(
                f"non_colluding must be at most the {len(self.clients)} enrolled, got {self.non_colluding}"
            )
        budgets = ["epsilon_budget_one_server", "epsilon_budget_clients_only", "epsilon_budget_client"]
        if self.algorithm != "non-private":
            budgets = [] if self.algorithm in ("precad", "user-dp-fedavg") else budgets[2:]
        for name in budgets:
            if getattr(self, name) is not None:
                raise ValueError(f"{name}: {self.algorithm} proves nothing that it could limit, expected none")

    def _check_quantile(self) -> None:
        """Refuse parameters of the learnt bound that do not fit the task. Raises ValueError.

        The count must leave the update a part of the noise budget, and must weigh a client at least 1 on the grid. A
        task whose bound is not learnt has none of these parameters.
        """
        rule = self.quantile_rule
        if rule is None:
            for name in _OF_QUANTILE:
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(
                        f"{name} needs update_clipping = 'private-quantile', found {self.update_clipping!r}"
                    )
            return
        if not (2 * rule.count_noise > self.noise_multiplier and rule.unit < rule.clip):
            raise ValueError(
                "quantile_noise: the count would need all of the round's budget, or more: expected more than half of "
                f"noise_multiplier, {self.noise_multiplier / 2:g}, found {rule.count_noise:g}"
            )
        if not rule.unit > 0:
            raise ValueError(
                "quantile_noise: client_clip * noise_multiplier / (2 quantile_noise) * 2^frac_bits, what counts a "
                f"client, must be at least 1, found quantile_noise {rule.count_noise:g}"
            )
        if self.dim < 2:
            raise ValueError(f"dim must be at least 2, the last one being the learnt bound, got {self.dim}")

    @property
    def quantile_rule(self) -> QuantileRule | None:
        """Return how the bound of updates is learnt; None where it is not."""
        if self.update_clipping != "private-quantile":
            return None
        expected = self.client_rate * len(self.clients)
        given, default = self.quantile_noise, count_noise(expected, self.noise_multiplier)
        return QuantileRule(
            clip=self.client_clip,
            frac_bits=self.frac_bits,
            noise_multiplier=self.noise_multiplier,
            count_noise=default if given is None else given,
            expected_clients=expected,
            quantile=self.quantile,
            rate=self.quantile_rate,
        )

    @property
    def n_parameters(self) -> int:
        """Return the number of the model's parameters, the first numbers of the task's vector, which has d."""
        return self.dim - (self.update_clipping == "private-quantile")

    @cached_property
    def norm_bound(self) -> NormBound:
        """Return the norm check's parameters. Raises ParameterError."""
        return NormBound(clip_norm=self.client_clip, dim=self.dim, frac_bits=self.frac_bits)

    @property
    def noise_std_on_grid(self) -> float:
        """Standard deviation of each server's noise, in units of 2^-f; 0: servers add none."""
        clips = {"precad": self.record_clip, "user-dp-fedavg": self.client_clip}
        return self.noise_multiplier * clips.get(self.algorithm, 0.0) * float(2**self.frac_bits)

    @property
    def client_noise_std_on_grid(self) -> float:
        """Return the standard deviation on the grid of the noise that a client adds by itself; 0 if it adds none.

        It is that of every step where there are several.
        """
        shares = {"local-dp": 1, "ins-dp-fedavg": 1, "distributed-dp": self.non_colluding}
        if self.algorithm not in shares:
            return 0.0
        return self.noise_multiplier * self.record_clip * float(2**self.frac_bits) / math.sqrt(shares[self.algorithm])

    @property
    def update_bound(self) -> float:
        """Return what a client clips its update to: C, less the room for noise of its own that nobody clips.

        distributed-dp: C - std (sqrt(d) + sqrt(2 ln 2^64)) - sqrt(d) 2^-f / 2. The noise and its rounding exceed the
        room with probability at most 2^-64. For the norm of d normals is above sqrt(d) + t with probability at most
        exp(-t^2 / 2) (Gaussian concentration of a 1-Lipschitz function). So the check accepts whatever the records are,
        and its verdict says nothing of them. May be <= 0, which is a configuration error.
        """
        if self.algorithm != "distributed-dp":
            return self.client_clip
        grid, root = math.ldexp(1.0, -self.frac_bits), math.sqrt(self.dim)
        room = self.client_noise_std_on_grid * (root + math.sqrt(2 * _LOG_MARGIN)) + root / 2
        return self.client_clip - room * grid * (1 + 2.0**-20)

    @property
    def divisor(self) -> float:
        """W = q * sum_i p N_i: the expected number of records in a round. A public constant, unlike the paper's
        divisor, which sums over the round's valid clients and reveals who they were. Where clients send differences
        of models, W = q n, the expected number of clients."""
        if self.algorithm in ("user-dp-fedavg", "ins-dp-fedavg"):
            return self.client_rate * len(self.clients)
        return self.client_rate * self.record_rate * sum(self.clients.values())

    def may_release(self, n_accepted: int) -> bool:
        """Return whether the sum of so many accepted uploads may be opened: distributed-dp needs tau of them, since
        fewer carry less noise than is accounted. If not, the round's sum is zero."""
        return self.algorithm != "distributed-dp" or n_accepted >= self.non_colluding

    def sum_bound(self, n_accepted: int) -> float:
        """Bound the norm of an opened sum of so many accepted updates, in units of 2^-f.

        n B + sqrt(2) s (sqrt(d) + 10) + sqrt(d), with B = C 2^f and s each server's noise. Each accepted update is
        within B. The norm of d normals exceeds sqrt(d) + 10 with probability below e^-50 (Gaussian concentration), and
        rounding moves each server's noise by at most sqrt(d) / 2.
        """
        root = math.sqrt(self.dim)
        noise = math.sqrt(2) * self.noise_std_on_grid * (root + 10) + root
        return n_accepted * (math.isqrt(self.norm_bound.threshold) + 1) + noise

    @property
    def most_lost_rounds(self) -> int:
        """`lost_rounds`, or where the task does not say, 3 and a tenth of the rounds, `batches_ahead` + 2 at least.

        An interruption loses the round in flight and those that were drawn ahead; so one alone never ends such a task.
        """
        if self.lost_rounds is not None:
            return self.lost_rounds
        return max(3 + self.rounds // 10, self.batches_ahead + 2)

    @property
    def most_draws(self) -> int:
        """In how many rounds clients can be drawn at most, with those that are lost.

        A round begins while fewer than `most_lost_rounds` are lost. When it is lost, those drawn ahead of it are too.
        """
        return self.rounds + self.most_lost_rounds + max(self.batches_ahead - 1, 0)

    @property
    def wire_mode(self) -> Mode:
        """`mode` as `mpc` names it."""
        return Mode(self.mode)

    def digest(self) -> bytes:
        """Return the SHA-256 of the protocol version and the canonical text."""
        return self._digest

    @cached_property
    def carried_fields(self) -> dict[str, str]:
        """For a hello: what people are told where two tasks differ."""
        return carried(self.canonical())

    @property
    def digest_before(self) -> bytes:
        """Return the digest that the version before gave a task that it had, to recognise what is left from then."""
        return hashlib.sha256(f"{VERSION_BEFORE}\n{self._canonical(without=ABSENT_BEFORE)}".encode()).digest()

    def canonical(self) -> str:
        """Every field, as canonical JSON; of a `precad` task without `algorithm` and those of other algorithms only, of
        others without those that are `ABSENT_AT_DEFAULT`."""
        return self._canonical()

    def _canonical(self, *, without: Collection[str] = ()) -> str:
        defaults = {name: field.default for name, field in type(self).model_fields.items()}
        left_out = {name for name in ABSENT_AT_DEFAULT if getattr(self, name) == defaults[name]}
        if self.algorithm == "precad":
            left_out = {"algorithm", *OF_AN_ALGORITHM}
        fields = self.model_dump(mode="json", exclude={*left_out, *without})
        return json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @cached_property
    def _digest(self) -> bytes:
        return hashlib.sha256(f"{PROTOCOL_VERSION}\n{self.canonical()}".encode()).digest()
