"""Public records on which an aggregator's operator measures committed models: what `[aggregator]` names, read.

Apart from the rest because it needs PyTorch and runs the operator's code. `precad check` and the measuring process
(`precad.deploy.measuring`) import it, and no server does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel
from torch import nn

from precad.clients.app import App
from precad.clients.errors import ArgumentError, ClientError
from precad.clients.gradients.record_range import require_range
from precad.clients.models import networks
from precad.clients.models.fingerprint import require_same_model
from precad.clients.models.losses import loss_of
from precad.clients.models.metrics import METRICS, Metric, has_accuracy, metrics_of
from precad.clients.own_code import folders, imported, look_in
from precad.clients.records import Records, Split, example_label_of, example_of
from precad.clients.records.own.described import TEST, OwnRecords
from precad.clients.records.own.reading import app_of, read, read_given
from precad.clients.records.own.source import classes_of
from precad.clients.training import evaluation
from precad.deploy.errors import ConfigError, refusing
from precad.protos.task.task import Task
from precad.servers.config import AggregatorConfig


class PublicRecords(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """Hold the fields of `[aggregator]` about them."""

    records: str
    label: str | list[str] | None = None
    metrics: list[str] = []
    folder: Path

    @classmethod
    def of(cls, config: AggregatorConfig) -> PublicRecords | None:
        """Take the values of the section; None where it names no records."""
        if config.evaluation_records is None:
            return None
        return cls(
            records=config.evaluation_records,
            label=config.evaluation_label,
            metrics=config.evaluation_metrics,
            folder=config.evaluation_folder,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Measure:
    """A task's model, the records, and what is measured."""

    model: nn.Module
    records: Records
    metrics: Mapping[str, Metric]

    def of(self, parameters: NDArray[np.float32]) -> dict[str, float]:
        """Return the figures of a model, (n_parameters,). Raises ClientError."""
        return evaluation.measured(parameters, self.model, self.records, self.metrics)


def load_of_server(task: Task, letter: str, config: AggregatorConfig) -> Measure | None:
    """Return what a server's section names, read; None where it names no records. Raises ConfigError, naming the
    section."""
    public = PublicRecords.of(config)
    if public is None:
        return None
    try:
        return load(task, public)
    except ConfigError as error:
        raise ConfigError(re.sub("^(?=evaluation_)", f"aggregator.{letter}.", str(error))) from None


def load(task: Task, public: PublicRecords) -> Measure:
    """Read the records, and see that the task's model takes them. Raises ConfigError, naming fields of
    `[aggregator]`."""
    try:
        return _load(task, public)
    except ClientError as error:
        said = str(error).replace("client.records", "evaluation_records").replace("client.label", "evaluation_label")
        raise ConfigError(said) from None


def _load(task: Task, public: PublicRecords) -> Measure:
    """Raises ClientError."""
    look_in(public.folder)
    loss, model = loss_of(task.loss), networks.of_task(task)
    described = OwnRecords(
        source=public.records,
        label=public.label,
        columns=tuple(task.columns),
        class_names=tuple(task.class_names),
        shape=tuple(task.record_shape),
        numbers=loss.wants_numbers,
        folders=folders(public.folder),
    )
    app = app_of(described)
    found = read(described) if app is None or app.test is None else read_given(app.test, _test_of(app, described))
    n_classes, highest = classes_of([found])
    names = found.class_names
    split = Split(
        found.records, found.records, n_logits=len(names) or n_classes, is_own=True, class_names=names, highest=highest
    )
    records = networks.fitted(model, split, loss).test
    require_range(model, {"evaluation_records": records}, loss)
    require_same_model(task, model, example_of(records), loss, example_label_of(records))
    with refusing(ArgumentError, "evaluation_metrics"):
        wanted = metrics_of([*_metrics_of_apps(task, app), *public.metrics])
        if has_accuracy(loss, records.labels):
            wanted = {"accuracy": METRICS["accuracy"], **wanted}
        measure = Measure(model, records, wanted)
        measure.of(networks.flatten(model))  # what raises for the first model is refused at the start
    if not wanted:
        raise ConfigError(
            "evaluation_metrics: expected a figure, as labels are numbers and have no accuracy, found none"
        )
    return measure


def _test_of(app: App, described: OwnRecords) -> OwnRecords:
    """Return what is said of an app's test records: a table's label is the app's, unless the operator names one."""
    return replace(described, field=TEST, label=described.label or app.label)


def _metrics_of_apps(task: Task, app: App | None) -> list[object]:
    """Return the metrics of the app that the records are of; else of the one that the task's model is of."""
    if app is None and ":" in task.model:
        found = imported("model", task.model)
        app = found if isinstance(found, App) else None
    return [] if app is None else list(app.metrics)
