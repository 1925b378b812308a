"""Fields of a task whose servers evaluate a CrypTen function of the shared sum, before noise and opening.

The function is code of the operators. Each runs it only if the configuration of its own server names it, too, and if
its file has the digest that the task names. What it does to the sensitivity of the sum is the operators' word.
Source: ours (docs/reference/protocol-crypten-functions.md).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Final

from pydantic import BaseModel, Field

from precad.protos.task.parameters import TaskParameters
from precad.protos.task.proved_fields import MODE as PROVED
from precad.protos.task.quantile import LEARNT

FRAC_BITS: Final = 16
"""Fractional bits of a CrypTen tensor."""
NO_BOUND: Final = (
    "no bound: task.sum_function has no sum_function_factor, so nothing says how far one record moves its result"
)
"""Words for people, wherever a task or a run of one is shown."""
_REFUSED_BESIDE: Final = ("query", "audit_clients", "noise_bands")
"""Fields that a sum is taken for as it is."""


class FunctionFields(BaseModel, defer_build=True):
    """A part of `precad.protos.task.task.Task`. The text has them where they are not at their default."""

    sum_function: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$", max_length=256)] | None = None
    """`package.module:function` of CrypTen tensors, such as `precad.mpc.crypten.examples:clip`: both servers evaluate
    it on the shared sum, before their noise. Each must name it in its own configuration, too
    (`aggregator.sum_function`). `precad simulate` runs it by this field alone, in its own process."""
    sum_function_arguments: dict[str, bool | int | Annotated[float, Field(allow_inf_nan=False)] | str] = Field(
        default_factory=dict
    )
    """Its public arguments, by name."""
    sum_function_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """SHA-256 of the file that the function is in. A server whose file is another one refuses the task."""
    sum_function_factor: Annotated[float, Field(ge=1, le=1e6, allow_inf_nan=False)] | None = None
    """L: the function moves by at most L times as far as the sum, in L2, and takes zero to zero. Servers add L times
    the noise. The operators vouch for L, and every epsilon rests on it. None: no bound, of which only an algorithm that
    claims nothing has a use."""

    @property
    def sum_factor(self) -> float:
        """Return L, by which the sensitivity of what is opened exceeds that of the sum; 1 without a function."""
        return 1.0 if self.sum_function_factor is None else self.sum_function_factor

    @property
    def has_unbounded_sum(self) -> bool:
        """Return whether a function without a declared factor changes the sum."""
        return self.sum_function is not None and self.sum_function_factor is None


def function_claim(task: FunctionFields) -> str:
    """Return in words what is claimed of a task's function."""
    if task.has_unbounded_sum:
        return NO_BOUND
    return f"it moves at most {task.sum_factor:g} times as far as the sum does, as operators say"


FUNCTION_FIELDS: Final = tuple(FunctionFields.model_fields)


def refuse_function(task: TaskParameters, given: Collection[str]) -> None:
    """Refuse a function of the sum in a task that has no shares for it, or whose figures would not hold.

    given: fields that are not at their default. Raises ValueError.
    """
    if task.sum_function is None:
        for name in FUNCTION_FIELDS:
            if name in given:
                raise ValueError(f"{name} needs sum_function, found none")
        return
    if task.sum_function_sha256 is None:
        raise ValueError("sum_function_sha256: expected the digest of its file with sum_function, found none")
    if task.mode == PROVED:
        raise ValueError("sum_function: expected none in mode 'proved', which has no dealer for its tuples")
    if task.frac_bits != FRAC_BITS:
        raise ValueError(f"frac_bits: expected {FRAC_BITS} with sum_function, as CrypTen has, found {task.frac_bits}")
    if not task.checks_norms:
        raise ValueError("validation: expected 'norm' with sum_function, which needs a sum that does not wrap")
    if task.update_clipping in LEARNT:
        raise ValueError("update_clipping: expected a fixed bound with sum_function, which would change the count")
    for name in _REFUSED_BESIDE:
        if name in given:
            raise ValueError(f"{name}: expected none beside sum_function, found a value")
    _refuse_claims(task)


def _refuse_claims(task: TaskParameters) -> None:
    """Refuse a factor of nothing, and an epsilon without a factor. Raises ValueError."""
    rules = task.rules
    if rules.keeps_some or rules.clients_add_noise:
        raise ValueError(
            "sum_function: expected an algorithm whose servers add noise to the sum, or one without noise, found "
            f"{rules.name!r}"
        )
    if rules.is_private and task.sum_function_factor is None:
        raise ValueError(
            f"sum_function_factor: expected a number with algorithm {rules.name!r}, whose epsilon it bounds, found "
            "none; without one there is no bound, and algorithm 'non-private' or 'fedavg' says so"
        )
    if not rules.is_private and task.sum_function_factor is not None:
        raise ValueError(f"sum_function_factor: {rules.name} proves nothing that it could bound, expected none")
