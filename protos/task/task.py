"""A task: every public parameter that both servers and all clients must hold alike, and its digest.

Parties compare digests before anything else and refuse a peer on which they differ. So a client never trains under
weaker privacy than its own configuration names, and the servers never aggregate under two bounds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import cache, cached_property, partial
from typing import Annotated, Any, Final, Self

from pydantic import Field, ModelWrapValidatorHandler, ValidationError, model_validator

from precad.mpc.errors import ParameterError
from precad.protos.task import refusals
from precad.protos.task.algorithms import DEFAULT, KRUM_FIELDS, OF_AN_ALGORITHM, QUANTILE_FIELDS, TRIM_FIELDS, named
from precad.protos.task.audit_fields import AUDIT_FIELDS, refuse_audit
from precad.protos.task.bin_fields import BIN_FIELDS, refuse_bins, with_rate_of_bins
from precad.protos.task.carried_fields import carried
from precad.protos.task.convex_fields import CONVEX_FIELDS, DIRECTIONS_FILE, NoDirectionsError, refuse_convex
from precad.protos.task.derived import DerivedFigures
from precad.protos.task.evaluation import (
    BY_CLIENTS,
    EVALUATION_FIELDS,
    of_the_training,
    refuse_evaluation,
    round_fields,
)
from precad.protos.task.function_fields import FUNCTION_FIELDS, refuse_function
from precad.protos.task.grid import naming_fields, with_largest_frac_bits
from precad.protos.task.krum_fields import refuse_krum
from precad.protos.task.learning import LEARNING_FIELDS
from precad.protos.task.proved_fields import OF_A_DEALER, PROVED_FIELDS, refuse_proved, refuse_proved_fields
from precad.protos.task.proved_fields import PROTOCOL_VERSION as PROVED_VERSION
from precad.protos.task.query import QUERY_FIELDS, refuse_query
from precad.protos.task.record_fields import RECORD_FIELDS
from precad.protos.task.server_step import SERVER_STEP_FIELDS
from precad.protos.task.target import TARGET, resolved
from precad.protos.task.trim_fields import refuse_trims
from precad.protos.task.turns import TURN_FIELDS, refuse_turns
from precad.protos.task.validation_fields import VALIDATION_FIELDS, refuse_unchecked

PROTOCOL_VERSION, VERSION_BEFORE = "precad/v1.1", "precad/v1"

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


class Task(DerivedFigures):
    """The `[task]` section. Symbols are those of PRECAD's Algorithms 1 and 2."""

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

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        rules, given = self.rules, self._given
        refuse_convex(self, given)
        with naming_fields():
            _ = self.norm_check
            with suppress(NoDirectionsError):  # the dealer needs none; others do not start
                _ = self.convex_set
        if self.min_clients > len(self.clients):
            n = len(self.clients)
            raise ValueError(f"min_clients: expected at most the {n} enrolled, found {self.min_clients}")
        refusals.refuse_wire_form(self.mode, accepts_weak=self.accept_weak_wire_form, fixed_word=self.fixed_word)
        refuse_proved_fields(self.mode, given)
        refuse_unchecked(self.mode, checks_norms=self.checks_norms, is_query=self.query is not None)
        if self.is_proved:
            refuse_proved(self)
        refusals.refuse_noise(rules, max(self.noise_std_on_grid, self.client_noise_std_on_grid))
        refusals.refuse_clip(self.client_clip, self.update_bound)
        refuse_trims(self)
        refuse_krum(self)
        refuse_function(self, given)
        refusals.refuse_rates(self.record_rates, self.clients, self.record_rate)
        refusals.refuse_fields_of_others(rules, given)
        refusals.refuse_learnt_bound(rules, self.update_clipping)
        if self.non_colluding > len(self.clients):
            raise ValueError(
                f"non_colluding: expected at most the {len(self.clients)} enrolled, found {self.non_colluding}"
            )
        refusals.refuse_budgets(rules, given)
        refusals.refuse_group(rules, self.records_per_person)
        refuse_audit(self, given)
        refuse_evaluation(self, given)
        refuse_query(self, given)
        refuse_bins(self, given)
        _ = self.evaluation_round
        refuse_turns(self, given)
        refusals.refuse_step(self.learning_rate, self.divisor)
        if (rule := self.quantile_rule) is None:
            refusals.refuse_quantile_fields(self.update_clipping, given)
        else:
            refusals.refuse_quantile(rule, self.dim)
        return self

    @property
    def _given(self) -> set[str]:
        """Return the names of the fields that are not at their default."""
        return {name for name, default in _defaults(type(self)).items() if getattr(self, name) != default}

    @property
    def protocol_version(self) -> str:
        """Return the version of the protocol that this task is run under."""
        return PROVED_VERSION if self.is_proved else PROTOCOL_VERSION

    @cached_property
    def evaluation_round(self) -> EvaluationRound | None:
        """Return the parameters of an evaluation by clients; None of a task without. Raises ValueError."""
        return None if self.evaluation != BY_CLIENTS else EvaluationRound.of(self)

    def digest(self) -> bytes:
        """Return the SHA-256 of the protocol version and the canonical text."""
        return self._digest

    @cached_property
    def carried_fields(self) -> dict[str, str]:
        """Return for a hello what people are told where two tasks differ."""
        return carried(self.canonical())

    @property
    def digest_before(self) -> bytes:
        """Return the digest that the version before gave a task that it had, to recognise what is left from then."""
        return hashlib.sha256(f"{VERSION_BEFORE}\n{self.canonical(without=ABSENT_BEFORE)}".encode()).digest()

    def canonical(self, *, without: Collection[str] = ()) -> str:
        """Return every field as canonical JSON, but for those that are `ABSENT_AT_DEFAULT`, and some others.

        A `precad` task has neither `algorithm` nor the fields of other algorithms.
        """
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


@cache
def _defaults(of: type[Task]) -> dict[str, Any]:
    """Return what each field is where it is not given."""
    return {name: field.get_default(call_default_factory=True) for name, field in of.model_fields.items()}
