"""An evaluation round's parameters as a task of its own: what is uploaded, its bound, its noise, and its digest.

All steps of a round read a task. Those of an evaluation read this one, so they differ from a training round in
parameters alone. The digest has that of the training's task, in a field that no other task has. A server can therefore
not pass off an evaluation as a round of the training, or the other way round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import numpy as np
from pydantic import Field, ValidationError

from precad.dp.queries.kinds import EVALUATION_DIM, RECORD_BOUND
from precad.mpc.errors import ParameterError
from precad.mpc.fixed_point import decode
from precad.protos.task.evaluation import BY_CLIENTS
from precad.protos.task.grid import largest_frac_bits
from precad.protos.task.task import Task

if TYPE_CHECKING:
    from precad.dp.queries.evaluations import Figures

_KEPT: Final = (
    *("name", "clients", "client_rate", "delta", "mode", "accept_weak_wire_form", "gate", "batches_ahead"),
    *("submit_timeout_s", "registration_timeout_s", "proof_timeout_s", "min_clients"),
)
"""Fields of the training's task that its evaluations have as well."""
_MOST_FRAC_BITS: Final = 24


class EvaluationRound(Task):
    """One evaluation among the rounds of a training."""

    evaluated: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """SHA-256 of the training's task."""


def evaluation_round(task: Task) -> EvaluationRound:
    """Return the parameters of the evaluations of a task that has some. Raises ValueError.

    C is the task's, or the most records that a client declares. The grid is the finest that C allows.
    """
    clip = float(max(task.clients.values())) if task.evaluation_clip is None else task.evaluation_clip
    fields: dict[str, Any] = {name: getattr(task, name) for name in _KEPT}
    fields.update(
        evaluated=task.digest().hex(),
        rounds=1,
        lost_rounds=1,
        record_rate=1.0,
        record_clip=RECORD_BOUND,
        client_clip=clip,
        noise_multiplier=task.evaluation_noise,
        learning_rate=1.0,
        dim=EVALUATION_DIM,
    )
    if not task.rules.protects_clients:
        fields["records_per_person"] = task.records_per_person
    try:
        if not task.is_proved:
            fields["frac_bits"] = min(_MOST_FRAC_BITS, largest_frac_bits(task.mode, clip))
        return EvaluationRound.model_validate(fields)
    except (ValidationError, ParameterError) as error:
        why = error.errors(include_url=False)[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise ValueError(f"evaluation_clip, evaluation_noise: {_of_the_task(why)}") from None


def figures_of(task: Task, noisy_sum: Sequence[int]) -> Figures:
    """Return the figures that the opened sum of an evaluation gives, (3,) on the grid, with 95 % error bars.

    They hold for the held-out records of those clients whose answers were accepted, if these told the truth and both
    servers added their noise.
    """
    of_round = task.evaluation_round
    if of_round is None:
        raise ValueError(f"task.evaluation: expected {BY_CLIENTS!r}, got {task.evaluation!r}")
    from precad.dp.queries.evaluations import EvaluationEncoding

    encoding = EvaluationEncoding(loss_bound=task.evaluation_loss_bound, frac_bits=of_round.frac_bits)
    return encoding.figures(decode(np.asarray(noisy_sum, np.int64), of_round.frac_bits), of_round.sum_noise_std)


def _of_the_task(why: str) -> str:
    """Return a message about a round's fields as one about the fields of the training's task."""
    for name, ours in (("clip_norm", "client_clip"), ("client_clip", "C"), ("noise_multiplier", "noise")):
        why = why.replace(name, ours)
    return why.removeprefix("Value error, ")
