"""Evaluation of the model by the clients: rounds of their own kind, with a C and a noise of their own.

After every `evaluation_every` committed rounds the chosen clients add up what the model does with records that they
hold out. Such a round releases three numbers and moves no model. Had they been further coordinates of an update, one
ball would bound both, and a liar could spend all of C on a count.

All steps of a round read a task. Those of an evaluation read one of its own, an `EvaluationRound`
(`precad.protos.task.task`), so they differ from a training round in parameters alone. Its digest has that of the
training's task, in a field that no other task has. A server can therefore not pass off an evaluation as a round of the
training, or the other way round.

Both servers know which rounds are evaluations from what they have agreed on. It is the number right after a commit that
an evaluation is due after. A number that was lost is not tried again. So there are at most T / k
evaluations, lost ones among them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field, ValidationError

from precad.dp.queries.kinds import EVALUATION_DIM, RECORD_BOUND
from precad.protos.task.grid import largest_frac_bits
from precad.protos.task.parameters import TaskParameters

BY_CLIENTS: Final = "clients"
"""`task.evaluation` of a task that has these rounds."""
DEFAULT_LOSS_BOUND: Final = 4.0
_WITHOUT_CLASSES: Final = ("mse", "huber")
"""Losses whose targets are numbers, so that no share of them is right."""
_KEPT: Final = (
    *("name", "clients", "client_rate", "delta", "mode", "gate", "batches_ahead"),
    *("submit_timeout_s", "registration_timeout_s", "proof_timeout_s", "round_period_s", "min_clients"),
)
"""Fields of the training's task that its evaluations have as well."""
_MOST_FRAC_BITS: Final = 24
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class EvaluationFields(BaseModel, defer_build=True):
    """A part of `precad.protos.task.task.Task`."""

    evaluation_every: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """k of `evaluation = "clients"`: the chosen clients evaluate the model after every k committed rounds."""
    evaluation_noise: Positive | None = None
    """Each server's noise on an evaluation, in records: a count of held-out records has sqrt(2) times that."""
    evaluation_clip: Positive | None = None
    """C of an evaluation: how many held-out records of one client count fully. A liar moves the sum by as much. None:
    the most that a client declares. A local run that declares records itself writes what is held out (`holdout`)."""
    evaluation_loss_bound: Positive = DEFAULT_LOSS_BOUND
    """The most that the loss of one held-out record counts."""


EVALUATION_FIELDS: Final = tuple(EvaluationFields.model_fields)


def refuse_evaluation(task: TaskParameters, given: Collection[str]) -> None:
    """Refuse evaluation by clients that a task cannot have, and fields of it in another. Raises ValueError.

    given: fields that are not at their default.
    """
    if task.evaluation != BY_CLIENTS:
        for name in EVALUATION_FIELDS:
            if name in given:
                raise ValueError(f"{name} needs evaluation = {BY_CLIENTS!r}, found {task.evaluation!r}")
        return
    for name in ("evaluation_every", "evaluation_noise"):
        if getattr(task, name) is None:
            raise ValueError(f"{name}: expected a number with evaluation = {BY_CLIENTS!r}, found none")
    if not task.rules.servers_add_noise:
        raise ValueError(
            f"evaluation: expected an algorithm whose servers add noise with {BY_CLIENTS!r}, found {task.rules.name}"
        )
    if not task.checks_norms:
        raise ValueError(f"validation: expected 'norm' with evaluation = {BY_CLIENTS!r}, which it bounds, found 'none'")
    if task.query is not None:
        raise ValueError(f"evaluation: expected none in a task with a query, found {BY_CLIENTS!r}")
    if (task.evaluation_every or 0) > task.rounds:
        raise ValueError(f"evaluation_every: expected at most {task.rounds} rounds, found {task.evaluation_every}")


def round_fields(task: TaskParameters) -> dict[str, Any]:
    """Return the fields of an evaluation's own task, but for its digest of the training's. Raises ParameterError.

    C is the training's `evaluation_clip`, or the most records that a client declares. The grid is the finest that C
    allows.
    """
    clip = float(max(task.clients.values())) if task.evaluation_clip is None else task.evaluation_clip
    fields: dict[str, Any] = {name: getattr(task, name) for name in _KEPT}
    fields.update(
        rounds=1,
        lost_rounds=1,
        record_rate=1.0,
        record_clip=RECORD_BOUND,
        client_clip=clip,
        noise_multiplier=task.evaluation_noise,
        learning_rate=1.0,
        accept_weak_wire_form=task.mode == "shares",  # its vectors have no bounds of layers
        dim=EVALUATION_DIM,
        frac_bits=frac_bits_of(task.mode, clip),
    )
    if not task.rules.protects_clients:
        fields["records_per_person"] = task.records_per_person
    return fields


def frac_bits_of(mode: Any, clip: float) -> int:
    """Return f of the grid of evaluations, or of answers to a query, with this C in records. Raises ParameterError."""
    return min(_MOST_FRAC_BITS, largest_frac_bits(mode, clip))


def of_the_training(error: ValueError) -> ValueError:
    """Return what is wrong with an evaluation's own task as what is wrong with the fields of the training's."""
    why = error.errors(include_url=False)[0]["msg"] if isinstance(error, ValidationError) else str(error)
    for name, ours in (("clip_norm", "client_clip"), ("client_clip", "C"), ("noise_multiplier", "noise")):
        why = why.replace(name, ours)
    return ValueError(f"evaluation_clip, evaluation_noise: {why.removeprefix('Value error, ')}")


def has_accuracy(loss: str) -> bool:
    """Tell whether an evaluation of a task with this loss has a share that is right."""
    return loss not in _WITHOUT_CLASSES


def n_due(every: int | None, n_committed: int) -> int:
    """Return how many evaluations were due before the round that follows so many committed ones, lost or not."""
    return 0 if every is None else n_committed // every


def is_due(every: int | None, n_committed: int) -> bool:
    """Tell whether an evaluation follows so many committed rounds."""
    return every is not None and n_committed > 0 and n_committed % every == 0
