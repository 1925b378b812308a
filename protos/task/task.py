"""A task: every public parameter that both servers and all clients must hold alike, and its digest.

Parties compare digests before anything else and refuse a peer on which they differ. So a client never trains under
weaker privacy than its own configuration names, and the servers never aggregate under two bounds.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import (
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from precad.dp.noise.correlated import Strategy
from precad.mpc.errors import ParameterError
from precad.mpc.norm_bound import NormBound
from precad.mpc.parameters import Mode
from precad.protos.task import refusals
from precad.protos.task.algorithms import (
    DEFAULT,
    KRUM_FIELDS,
    OF_AN_ALGORITHM,
    QUANTILE_FIELDS,
    RULES,
    TRIM_FIELDS,
    AlgorithmName,
    AlgorithmRules,
    named,
)
from precad.protos.task.audit_fields import AUDIT_FIELDS, AuditFields, canary_places, refuse_audit
from precad.protos.task.bin_fields import BIN_FIELDS, BinFields, refuse_bins, with_rate_of_bins
from precad.protos.task.carried_fields import carried
from precad.protos.task.convex_fields import (
    CONVEX_FIELDS,
    DIRECTIONS_FILE,
    FIXED_WORDS,
    ConvexFields,
    NoDirectionsError,
    refuse_convex,
    set_of,
)
from precad.protos.task.evaluation import (
    BY_CLIENTS,
    EVALUATION_FIELDS,
    EvaluationFields,
    of_the_training,
    refuse_evaluation,
    round_fields,
)
from precad.protos.task.function_fields import FUNCTION_FIELDS, FunctionFields, refuse_function
from precad.protos.task.grid import with_largest_frac_bits
from precad.protos.task.krum_fields import KrumFields, KrumRule, refuse_krum
from precad.protos.task.learning import LEARNING_FIELDS, LearningFields
from precad.protos.task.proved_fields import (
    ETA_OF_AN_UPLOAD,
    OF_A_DEALER,
    PROVED_FIELDS,
    ProvedFields,
    eta,
    refuse_proved,
    refuse_proved_fields,
)
from precad.protos.task.proved_fields import PROTOCOL_VERSION as PROVED_VERSION
from precad.protos.task.quantile import BY_LAYER, LEARNT, QuantileRule, count_noise
from precad.protos.task.query import QUERY_FIELDS, QueryFields, refuse_query
from precad.protos.task.record_fields import RECORD_FIELDS, RecordFields
from precad.protos.task.server_step import SERVER_STEP_FIELDS, ServerStepFields
from precad.protos.task.target import TARGET, resolved
from precad.protos.task.trim_fields import TrimFields, TrimRule, refuse_trims
from precad.protos.task.turns import TURN_FIELDS, TurnFields, refuse_turns
from precad.protos.task.validation_fields import VALIDATION_FIELDS, ValidationFields, refuse_unchecked
from precad.protos.tls.identity import Identity, IdentityError, Role

if TYPE_CHECKING:
    from precad.mpc.proved.sizes import ProofSizes

PROTOCOL_VERSION, VERSION_BEFORE = "precad/v1.1", "precad/v1"

Probability = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]

ABSENT_AT_DEFAULT: Final = (
    *("record_rates", "update_clipping", *QUANTILE_FIELDS),
    *(*RECORD_FIELDS, *LEARNING_FIELDS, *SERVER_STEP_FIELDS, *PROVED_FIELDS, *QUERY_FIELDS, *EVALUATION_FIELDS),
    *(*VALIDATION_FIELDS, *AUDIT_FIELDS, *TURN_FIELDS, *TRIM_FIELDS, *KRUM_FIELDS, *FUNCTION_FIELDS, *CONVEX_FIELDS),
    *BIN_FIELDS,
)
"""Fields that came later than the algorithms that they are of, or than tasks. The canonical text has them where they
are not at their default, so that tasks without them keep their digest."""
ABSENT_BEFORE: Final = frozenset({"lost_rounds", "accept_weak_wire_form"})
"""Fields that tasks of `VERSION_BEFORE` had not."""
_LOG_MARGIN: Final = 64 * math.log(2)
_OF_A_ROUNDED_DRAW: Final = 1 / 12
"""Variance that rounding adds to a server's noise, in steps of the grid."""


class Task(
    RecordFields,
    LearningFields,
    ServerStepFields,
    ProvedFields,
    QueryFields,
    EvaluationFields,
    ValidationFields,
    AuditFields,
    TurnFields,
    TrimFields,
    KrumFields,
    FunctionFields,
    ConvexFields,
    BinFields,
):
    """The `[task]` section. Symbols are those of PRECAD's Algorithms 1 and 2."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True, strict=True)

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")] = "task"
    """Lower-case letters, digits, dots, dashes."""
    algorithm: AlgorithmName = DEFAULT
    """Algorithm, by name: who adds which noise to what (docs/guides/simulation.md). Where it is not `precad`, the
    fields below say what changes."""
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
    """sigma: the noise of each server has standard deviation sigma * R per coordinate. `user-dp-fedavg`: sigma * C;
    `tsgd-ptr`: sigma * C, or tau of it once a test has passed.
    `local-dp`, `ins-dp-fedavg`: servers add none, every client (every local step) adds sigma * R; `distributed-dp`:
    every client adds sigma * R / sqrt(tau). `non-private`, `fedavg`, `krum`, `multi-krum`: nobody adds any, and 0 is
    the only value."""
    learning_rate: Positive
    """eta. Where clients send differences of models, what their average is multiplied with. The rate of a round may
    differ (`learning_rate_schedule`)."""
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
    non_colluding: Annotated[int, Field(ge=1)] = 1
    """tau: of every round's uploads, how many are of clients that follow the protocol and collude with nobody. A round
    with fewer uploads releases nothing."""
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """delta of the privacy statements."""
    frac_bits: Annotated[int, Field(ge=0, le=40)] = 16
    """f: fractional bits of the fixed-point encoding. `"largest"`: the most that C allows, which is the default in mode
    `proved`. Each bit less doubles what rounding adds to a record's sensitivity."""
    model: Annotated[str, Field(min_length=1)] = "mlp"
    """Architecture, by name, or `package.module:factory` of the user's own (`precad.clients.models.networks`)."""
    dim: Annotated[int, Field(ge=1)]
    """d: the number of the model's parameters, and one more for a bound that is learnt (`private-quantile`) or for each
    canary of `audit_clients`."""
    model_seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the public initial model. Protects nobody."""
    mode: Literal["masked", "shares", "proved"] = "masked"
    """Wire form of a submission. `shares` is the paper's, for comparison: a server that deviates reads coordinates of
    updates there (docs/explanation/threat-model.md). With `proved` each client proves its norm; there is no dealer."""
    accept_weak_wire_form: bool = False
    """Must be said, for everybody to see, of a task of mode `shares`, or with `layer_clips` or `half_spaces`, and of no
    other: a server that deviates reads parts of updates there, bit by bit."""
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

    @model_validator(mode="wrap")
    @classmethod
    def _resolve_target(cls, fields: Any, validated: ModelWrapValidatorHandler[Self]) -> Self:
        """Take a section that names a `target_epsilon` for the one that it is resolved to."""
        fields = with_rate_of_bins(with_largest_frac_bits(fields))
        if not isinstance(fields, Mapping) or TARGET not in fields:
            return validated(fields)

        return validated(resolved(fields, partial(cls._of_valid_fields, validated=validated)))

    @classmethod
    def _of_valid_fields(cls, section: dict[str, Any], validated: ModelWrapValidatorHandler[Self]) -> Self:
        """Return a task whose fields are valid one by one. Whether they fit together is seen once all are known.

        Raises: ValidationError.
        """
        try:
            return validated(section)
        except ValidationError as error:
            if any(fault["loc"] for fault in error.errors(include_url=False)):
                raise
        return cls.model_construct(**{**section, "algorithm": named(section.get("algorithm", DEFAULT))})

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
            raise ValueError(f"must be 0 where nobody adds noise, got {multiplier}")
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
        rules, given = self.rules, self._given
        refuse_convex(self, given)
        try:
            _ = self.norm_bound
            with suppress(NoDirectionsError):  # the dealer needs none; others do not start
                _ = self.update_set
        except ParameterError as error:
            raise ValueError(str(error).replace("clip_norm", "client_clip")) from error
        if self.min_clients > len(self.clients):
            raise ValueError(f"min_clients must be at most the {len(self.clients)} enrolled, got {self.min_clients}")
        refusals.refuse_wire_form(self.mode, accepts_weak=self.accept_weak_wire_form, fixed_word=self.fixed_word)
        refuse_proved_fields(self.mode, given)
        is_query = self.query is not None
        refuse_unchecked(self.mode, checks_norms=self.checks_norms, is_query=is_query)
        if self.is_proved:
            refuse_proved(self)
        refusals.refuse_noise(rules, max(self.noise_std_on_grid, self.client_noise_std_on_grid))
        refusals.refuse_clip(self.client_clip, self.update_bound)
        if not self.client_rate > 0:
            raise ValueError(f"client_rate must be > 0, got {self.client_rate}")
        refuse_trims(self)
        refuse_krum(self)
        refuse_function(self, given)
        refusals.refuse_rates(self.record_rates, self.clients, self.record_rate)
        refusals.refuse_fields_of_others(rules, given)
        if self.non_colluding > len(self.clients):
            raise ValueError(
                f"non_colluding must be at most the {len(self.clients)} enrolled, got {self.non_colluding}"
            )
        refusals.refuse_budgets(rules, given)
        refusals.refuse_group(rules, self.records_per_person)
        refuse_audit(self, given)
        refuse_evaluation(self, given)
        refuse_query(self, given)
        refuse_bins(self, given)
        _ = self.evaluation_round
        refuse_turns(self, given)
        if (rule := self.quantile_rule) is None:
            refusals.refuse_quantile_fields(self.update_clipping, given)
        else:
            refusals.refuse_quantile(rule, self.dim)
        return self

    @property
    def _given(self) -> set[str]:
        """Return the names of the fields that are not at their default."""
        fields = type(self).model_fields.items()
        return {name for name, field in fields if getattr(self, name) != field.get_default(call_default_factory=True)}

    @property
    def rules(self) -> AlgorithmRules:
        """Return what the algorithm asks of servers and clients."""
        return RULES[self.algorithm]

    @property
    def quantile_rule(self) -> QuantileRule | None:
        """Return how the bound of updates is learnt; None where it is not."""
        if self.update_clipping not in LEARNT:
            return None
        expected = self.expected_clients
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
    def trim_rule(self) -> TrimRule | None:
        """Return the test of the task's rounds; None where nothing is tested."""
        return TrimRule(self) if self.rules.trims else None

    @property
    def krum_rule(self) -> KrumRule | None:
        """Return which updates a round adds up; None where it is every accepted one."""
        return KrumRule(self) if self.rules.selects else None

    def n_summed(self, n_accepted: int) -> int:
        """Return how many updates are in the sum of a round with so many accepted ones, at most."""
        return n_accepted if (rule := self.krum_rule) is None else rule.n_kept(n_accepted)

    def divisor_of(self, n_accepted: int) -> float:
        """Return W of a round with so many accepted updates: a constant, but how many are added up by Krum's rule."""
        return self.divisor if self.krum_rule is None else max(1, self.n_summed(n_accepted))

    @property
    def n_parameters(self) -> int:
        """Return the number of the model's parameters, the first numbers of the task's vector, which has d."""
        return self.dim - (self.update_clipping in LEARNT) - self.n_canaries

    @property
    def n_canaries(self) -> int:
        """Return how many canaries the audit clients have together."""
        return sum(self.clients.get(client, 0) for client in self.audit_clients)

    @property
    def canary_coordinates(self) -> slice:
        """Return where the canaries' coordinates are in the task's vector: last."""
        return slice(self.dim - self.n_canaries, self.dim)

    @property
    def canaries_of(self) -> dict[str, range]:
        """Return which of these coordinates each audit client has."""
        return canary_places(self.audit_clients, self.clients)

    @property
    def clips_layers(self) -> bool:
        """Return whether a client clips its update layer by layer."""
        return self.update_clipping in BY_LAYER

    @cached_property
    def norm_bound(self) -> NormBound:
        """Return the norm check's parameters. Raises ParameterError."""
        return NormBound(clip_norm=self.client_clip, dim=self.dim, frac_bits=self.frac_bits)

    @cached_property
    def update_set(self) -> NormBound:
        """Return what each upload is checked for: `norm_bound`, or a smaller convex set.

        Raises ParameterError, also where the file of its directions is not at hand.
        """
        return set_of(self)

    @cached_property
    def proof_sizes(self) -> ProofSizes:
        """Return the sizes of uploads and proofs in mode `proved`. Raises ParameterError."""
        from precad.mpc.proved.sizes import ProofSizes

        return ProofSizes(clip_norm=self.client_clip, dim=self.dim, frac_bits=self.frac_bits)

    @property
    def is_proved(self) -> bool:
        """Return whether clients prove their norms, and nobody deals tuples."""
        return self.mode == "proved"

    @property
    def protocol_version(self) -> str:
        """Return the version of the protocol that this task is run under."""
        return PROVED_VERSION if self.is_proved else PROTOCOL_VERSION

    @property
    def hides_draws(self) -> bool:
        """Return whether rounds take as long whoever was drawn, and slots say nothing of it."""
        return self.is_proved and self.round_period_s is not None

    @property
    def challenge_after_s(self) -> float | None:
        """Return when challenges leave after the invitations, in a task that hides draws; None: as soon as they can.

        Half of the spare time after `submit_timeout_s`, so that the servers' work between them does not show. At most
        half of `proof_timeout_s`: clients wait for a challenge that long, and prove in what is left.
        """
        if not self.hides_draws or self.round_period_s is None:
            return None
        spare_s = self.round_period_s - self.submit_timeout_s - self.proof_timeout_s
        return self.submit_timeout_s + min(spare_s, self.proof_timeout_s) / 2

    @property
    def draws_ahead(self) -> int:
        """Return for how many coming rounds clients are drawn while others train: `batches_ahead`, if it has a use."""
        return 0 if self.is_proved else self.batches_ahead

    @property
    def noise_std_on_grid(self) -> float:
        """Standard deviation of each server's noise, in units of 2^-f; 0: servers add none.

        With `sum_function_factor` L it is L sigma R: sigma is the noise over the sensitivity of what is opened.
        """
        return self.sum_factor * self._noise_std_on_grid if self.rules.servers_add_noise else 0.0

    @property
    def strategy(self) -> Strategy:
        """Return how each server's noise is correlated over rounds."""
        return Strategy.banded(self.noise_bands)

    @property
    def client_noise_std_on_grid(self) -> float:
        """Return the standard deviation on the grid of the noise that a client adds by itself; 0 if it adds none.

        It is that of every step where there are several.
        """
        if not self.rules.clients_add_noise:
            return 0.0
        return self._noise_std_on_grid / math.sqrt(self.non_colluding if self.rules.clients_share_noise else 1)

    @property
    def _noise_std_on_grid(self) -> float:
        clip = self.client_clip if self.rules.protects_clients else self.record_clip
        return self.noise_multiplier * clip * float(2**self.frac_bits)

    @property
    def update_bound(self) -> float:
        """Return what a client clips its update to: C, less the room for noise of its own that nobody clips.

        distributed-dp: C - std (sqrt(d) + sqrt(2 ln 2^64)) - sqrt(d) 2^-f / 2. The noise and its rounding exceed the
        room with probability at most 2^-64. For the norm of d normals is above sqrt(d) + t with probability at most
        exp(-t^2 / 2) (Gaussian concentration of a 1-Lipschitz function). So the check accepts whatever the records are,
        and its verdict says nothing of them. May be <= 0, which is a configuration error.
        """
        if not self.rules.clients_share_noise:
            return self.client_clip
        grid, root = math.ldexp(1.0, -self.frac_bits), math.sqrt(self.dim)
        room = self.client_noise_std_on_grid * (root + math.sqrt(2 * _LOG_MARGIN)) + root / 2
        return self.client_clip - room * grid * (1 + 2.0**-20)

    @property
    def divisor(self) -> float:
        """W = q * sum_i p_i N_i: the expected number of records in a round. A public constant, unlike the paper's
        divisor, which sums over the round's valid clients and reveals who they were. Canaries train nothing and do not
        count. Where clients send differences of models, W is the expected number of clients."""
        if self.rules.trains_locally:
            return self.expected_clients
        if self.record_rates:  # in the order of ids, which all parties know
            return self.client_rate * sum(self.rate_of(name) * n for name, n in sorted(self.clients.items()))
        return self.client_rate * self.record_rate * (sum(self.clients.values()) - self.n_canaries)

    @property
    def expected_clients(self) -> float:
        """Return q n, or q n / b where clients take turns: the expected number of clients in a round."""
        expected = self.client_rate * len(self.clients)
        return expected if self.min_separation == 1 else expected / self.min_separation

    def rate_of(self, client: str) -> float:
        """Return p_i: the probability with which a record of this client enters a round that the client is in."""
        return self.record_rates.get(client, self.record_rate)

    def may_release(self, n_accepted: int) -> bool:
        """Return whether the sum of so many accepted uploads may be opened: distributed-dp needs tau of them, since
        fewer carry less noise than is accounted. If not, the round's sum is zero."""
        return not self.rules.clients_share_noise or n_accepted >= self.non_colluding

    def sum_bound(self, n_accepted: int) -> float:
        """Bound the norm of an opened sum of so many accepted updates, in units of 2^-f.

        n B + sqrt(2) s (sqrt(d) + 10) + sqrt(d), with B = C 2^f and s each server's noise. Each of the n updates that
        are added up is within B. The norm of d normals exceeds sqrt(d) + 10 with probability below e^-50 (Gaussian
        concentration), and rounding moves each server's noise by at most sqrt(d) / 2. Correlated noise has the reach of
        its strategy. A function of the sum makes it at most L times as long.
        Infinite where no norm is checked, or without L.
        """
        if not self.checks_norms or self.has_unbounded_sum:
            return math.inf
        root, (two_norm, one_norm) = math.sqrt(self.dim), self.strategy.reach(self.rounds)
        noise = math.sqrt(2) * two_norm * self.noise_std_on_grid * (root + 10) + one_norm * root
        longest = self.n_summed(n_accepted) * (math.isqrt(self.norm_bound.threshold) + 1)
        return self.sum_factor * longest + noise

    @property
    def fixed_word(self) -> str | None:
        """Return the field of bounds that servers check by words which no coin draws, None where there are none."""
        return next((name for name in FIXED_WORDS if getattr(self, name)), None)

    @property
    def enforced_bound(self) -> float:
        """Return C; infinity where no server checks it."""
        return self.client_clip if self.checks_norms else math.inf

    @property
    def sum_noise_std(self) -> float:
        """Return the standard deviation of both servers' noise on each number of an opened sum, rounding included."""
        return math.ldexp(math.sqrt(2 * (self.noise_std_on_grid**2 + _OF_A_ROUNDED_DRAW)), -self.frac_bits)

    @property
    def most_lost_rounds(self) -> int:
        """`lost_rounds`, or where the task does not say, 3 and a tenth of the rounds, `batches_ahead` + 2 at least.

        An interruption loses the round in flight and those that were drawn ahead; so one alone never ends such a task.
        """
        if self.lost_rounds is not None:
            return self.lost_rounds
        return max(3 + self.rounds // 10, self.draws_ahead + 2)

    @property
    def most_draws(self) -> int:
        """In how many rounds clients can be drawn at most, with those that are lost.

        A round begins while fewer than `most_lost_rounds` are lost. When it is lost, those drawn ahead of it are too.
        """
        return self.rounds + self.most_lost_rounds + max(self.draws_ahead - 1, 0)

    @property
    def rounds_of_a_client(self) -> int:
        """Return in how many of the T rounds a client can be drawn at most: T / min_separation, rounded up."""
        return -(-self.rounds // self.min_separation)

    @property
    def delta_slack(self) -> float:
        """Return what the mode itself takes from delta, as eta of `precad.dp.accountants.slack`; 0 but in `proved`.

        Where clients share the noise, the uploads of all whose noise counts take their part.
        """
        return self._n_noise_carriers * eta(self.rounds, self.most_evaluations) if self.is_proved else 0.0

    @property
    def _n_noise_carriers(self) -> int:
        """Return on how many clients' uploads a round's statement rests: one's own, and those that share its noise."""
        return self.non_colluding if self.rules.clients_share_noise else 1

    @property
    def most_evaluations(self) -> int:
        """Return how many evaluations by clients there are at most, those that are lost among them."""
        return 0 if self.evaluation_every is None else self.rounds // self.evaluation_every

    @cached_property
    def evaluation_round(self) -> EvaluationRound | None:
        """Return the parameters of an evaluation by clients; None of a task without. Raises ValueError."""
        return None if self.evaluation != BY_CLIENTS else EvaluationRound.of(self)

    @property
    def upload_slack(self) -> float:
        """Return what one upload takes of `delta_slack`."""
        return self._n_noise_carriers * ETA_OF_AN_UPLOAD if self.is_proved else 0.0

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
        """Return every field as canonical JSON, but for those that are `ABSENT_AT_DEFAULT`.

        A `precad` task has neither `algorithm` nor the fields of other algorithms.
        """
        return self._canonical()

    def _canonical(self, *, without: Collection[str] = ()) -> str:
        left_out = {DIRECTIONS_FILE, *ABSENT_AT_DEFAULT} - (self._given - {DIRECTIONS_FILE})
        if self.is_proved:
            left_out = (left_out | set(OF_A_DEALER)) - {"proof_timeout_s"}
        if self.rules.is_default:
            left_out |= {"algorithm", *OF_AN_ALGORITHM}
        fields = self.model_dump(mode="json", exclude={*left_out, *without})
        if self.is_proved:
            fields["lost_rounds"] = self.most_lost_rounds
        return json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @cached_property
    def _digest(self) -> bytes:
        return hashlib.sha256(f"{self.protocol_version}\n{self.canonical()}".encode()).digest()


class EvaluationRound(Task):
    """The parameters of one evaluation by clients among the rounds of a training (`precad.protos.task.evaluation`)."""

    evaluated: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """SHA-256 of the training's task."""

    @classmethod
    def of(cls, task: Task) -> Self:
        """Return that of a training. Raises ValueError, which names the fields of the training's task."""
        try:
            return cls.model_validate({**round_fields(task), "evaluated": task.digest().hex()})
        except (ValidationError, ParameterError) as error:
            raise of_the_training(error) from None
