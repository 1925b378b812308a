"""How far a round's sum moves the model: the rate by round, and the optimiser that both servers run on opened sums.

All of it is computed from public constants and sums that are public already. So it costs no privacy, whatever the
algorithm (docs/explanation/privacy.md). Both servers must get the same bits on all machines. Everything is therefore
made of single IEEE operations, and nothing is left to a library's `pow` or `cos`, of which no two need agree.

Source of momentum: Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution", 2019 (FedAvgM).
Source of `adam`: Reddi et al., "Adaptive Federated Optimization", ICLR '21 (FedAdam). Its corrections are those of
Kingma and Ba, "Adam", ICLR '15.
"""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Context, Decimal, localcontext
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, Field, model_validator

_EXACT: Final = Context(prec=70, rounding=ROUND_HALF_EVEN)
_PI: Final = Decimal("3.1415926535897932384626433832795028841971693993751058209749445923078164062862")
_FLOAT: Final = Field(allow_inf_nan=False)


class ServerStepFields(BaseModel):
    """A part of `precad.protos.task.task.Task`. All came later: the text has them where they are not at default."""

    learning_rate_schedule: Literal["constant", "step", "linear", "cosine"] = "constant"
    """The rate after so many committed rounds, as a share of `learning_rate`. `step` multiplies it by `decay_factor`
    after every `decay_rounds`. `linear` and `cosine` lead it there within `decay_rounds`, and it stays."""
    warmup_rounds: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """The rate rises linearly over so many rounds first, and the schedule begins after them."""
    decay_rounds: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """See `learning_rate_schedule`. Never taken from T: a training that is given more rounds goes on as it was."""
    decay_factor: Annotated[float, Field(ge=0, le=1), _FLOAT] = 0.1
    """See `learning_rate_schedule`."""
    server_optimizer: Literal["sgd", "momentum", "adam"] = "sgd"
    """Use of g, a round's noisy sum over W: `sgd` moves the model by rate g. The others move it by moments of all g so
    far."""
    server_momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """`momentum`: m <- server_momentum m + g. `adam`: its beta_1."""
    server_beta2: Annotated[float, Field(ge=0, lt=1)] = 0.99
    """`adam`: its beta_2."""
    server_adaptivity: Annotated[float, Field(gt=0), _FLOAT] = 1e-3
    """`adam`: tau, which is added to the root of the second moment."""

    @model_validator(mode="after")
    def _check_server_step(self) -> Self:
        schedule, optimizer = self.learning_rate_schedule, self.server_optimizer
        if schedule == "constant":
            self._refuse("learning_rate_schedule", schedule, "decay_rounds", "decay_factor")
        elif self.decay_rounds is None:
            raise ValueError(f"decay_rounds: expected a number with learning_rate_schedule {schedule!r}, found none")
        if optimizer != "adam":
            idle = ("server_momentum",) if optimizer == "sgd" else ()
            self._refuse("server_optimizer", optimizer, *idle, "server_beta2", "server_adaptivity")
        return self

    def _refuse(self, field: str, value: str, *idle: str) -> None:
        """Refuse fields that mean nothing beside a field of this value. Raises ValueError."""
        for name in idle:
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name}: expected none with {field} {value!r}, found {getattr(self, name)}")

    @property
    def n_moments(self) -> int:
        """Return how many numbers the optimiser keeps for each parameter."""
        return {"sgd": 0, "momentum": 1, "adam": 2}[self.server_optimizer]

    def rate(self, learning_rate: float, n_steps: int) -> float:
        """Return the learning rate after so many committed rounds."""
        if n_steps < self.warmup_rounds:
            return learning_rate * (n_steps + 1) / self.warmup_rounds
        return learning_rate * self._share(n_steps - self.warmup_rounds)

    def _share(self, n_rounds: int) -> float:
        """Return the schedule's share of the rate, so many rounds after the warm-up."""
        if self.learning_rate_schedule == "constant" or self.decay_rounds is None:
            return 1.0
        if self.learning_rate_schedule == "step":
            return power(self.decay_factor, n_rounds // self.decay_rounds)
        done = min(n_rounds, self.decay_rounds)
        if self.learning_rate_schedule == "linear":
            return 1.0 - (1.0 - self.decay_factor) * done / self.decay_rounds
        return self.decay_factor + (1.0 - self.decay_factor) * half_cosine(done, self.decay_rounds)


SERVER_STEP_FIELDS: Final = tuple(ServerStepFields.model_fields)


def power(base: float, exponent: int) -> float:
    """Return base^exponent by squaring, from the exponent's highest bit: a fixed sequence of float64 products."""
    result = 1.0
    for bit in bin(exponent)[2:]:
        result *= result
        if bit == "1":
            result *= base
    return result


def half_cosine(part: int, whole: int) -> float:
    """Return the float64 nearest to (1 + cos(pi part / whole)) / 2, for 0 <= part <= whole.

    By the series in decimal arithmetic, which is the same everywhere. At most 1e6 parts leave 40 correct digits.
    """
    if part == whole:
        return 0.0
    with localcontext(_EXACT):
        square = (_PI * part / whole) ** 2
        term, total, k = Decimal(1), Decimal(1), 0
        while abs(term) > Decimal("1e-68"):
            k += 2
            term *= -square / ((k - 1) * k)
            total += term
        return float((1 + total) / 2)
