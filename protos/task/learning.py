"""Public parameters of the training: beside the model's name, its arguments, its digest and the loss.

All of these came later than the tasks that are already there. The canonical text has them where they are not at their
default.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

from pydantic import BaseModel, Field

Argument: TypeAlias = bool | int | float | str
"""A value of a model's argument."""


class LearningFields(BaseModel, defer_build=True):
    """A part of `precad.protos.task.task.Task`."""

    model_arguments: dict[str, bool | int | Annotated[float, Field(allow_inf_nan=False)] | str] = Field(
        default_factory=dict
    )
    """Arguments of the user's own model, by name. Lists and sections are none."""
    model_digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """SHA-256 of the names and shapes of the model's parameters, its constants, and its output on fixed inputs. A loss
    of the user's own enters with its values on fixed records. Every client compares it with its own code, and starts
    without it only for models and losses of PyTorch and precad. `precad provision` sets it, `precad check` says it."""
    base_model_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """SHA-256 of the safetensors file with the base of an adapted model (`precad.lora`). Each client has the file."""
    adapter_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """SHA-256 of the file with every adapter's A, which one machine makes for all (`precad adapter`). None: the model's
    code makes A, with bits that may differ between machines."""
    loss: Annotated[str, Field(min_length=1)] = "cross-entropy"
    """Loss of a record, by name, or `package.module:function` of the user's own (`precad.clients.models.losses`)."""
    evaluation: Literal["none", "public", "clients"] = "none"
    """Measuring of committed models. `public`: by operators of aggregators, on public records of their own, each for
    itself (`aggregator.evaluation_records`). `clients`: by the chosen clients, every few rounds, on records that they
    hold out (`client.holdout`), with a noise of its own (`evaluation_noise`)."""


LEARNING_FIELDS: Final = tuple(LearningFields.model_fields)
