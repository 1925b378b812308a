"""A user's own training as one object: model, records, loss and metrics.

The same object serves a simulation, a local run and an organisation's client. Servers never import it: they need the
model's dimension alone, which the task says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class App:
    """A model, the records that it is trained on, its loss, and what is measured.

        model    a class or function that gives a `torch.nn.Module`; or its name, as `task.model` has it
        records  a data set, arrays (features, labels), a source as `client.records` has it, `{client}` in it the
                 client's id, or a function of no arguments that gives one of the first two
        label    column with the labels, or a list of columns, where the source is a table
        loss     by name, or a function of (model, record) (docs/tutorial/library.md)
        metrics  by name, or functions of (outputs, labels)
        test     records to measure on, given as `records` are; without any, those that are trained on. An
                 organisation's client measures nothing, and needs none

    A model's function takes the task's `model_arguments`. PyTorch's generator gets a seed before each call.
    """

    model: Callable[..., Any] | str
    records: Any = field(default=None, repr=False)
    loss: str | Callable[..., Any] = "cross-entropy"
    metrics: Sequence[str | Callable[..., Any]] = ("accuracy",)
    test: Any = field(default=None, repr=False)
    label: str | Sequence[str] | None = None

    def with_records(self, records: Any) -> Self:
        """Return an app that differs in its records alone."""
        return replace(self, records=records)
