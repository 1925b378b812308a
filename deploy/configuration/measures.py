"""Try what a local run measures before anything starts: on the model as it is initialised.

A metric that raises, or public records that cannot be read, shall not be found by the first round's model.
"""

from __future__ import annotations

import numpy as np

from precad.clients.config import ClientConfig
from precad.clients.errors import ArgumentError
from precad.clients.models import networks
from precad.clients.models.learning import Learning
from precad.clients.records import Records
from precad.clients.training import evaluation
from precad.deploy.configuration.public_records import Measure, load_of_server
from precad.deploy.configuration.sections import Deployment
from precad.deploy.errors import refusing
from precad.protos.task.task import Task


def learning_of(task: Task, config: ClientConfig, test: Records) -> Learning:
    """Return what the task trains, with metrics that give numbers on the test records. Raises ConfigError, naming
    `client.metrics`, and as `Learning.of_task`."""
    learning = Learning.of_task(task)
    with refusing(ArgumentError, "client.metrics"):
        with_metrics = Learning.of_task(task, config.metrics)
        if with_metrics.metrics:
            model = learning.build(0)
            evaluation.measured(networks.flatten(model), model, test, with_metrics.metrics)
    return with_metrics


def remark_on_classes(records: Records) -> str:
    """Say that all records have one class, so that any accuracy is idle. Return nothing where they have several."""
    labels = records.labels
    if labels.ndim != 1 or labels.dtype == np.float32 or not len(labels) or (labels != labels[0]).any():
        return ""
    return f"warning: all {len(labels)} records are of one class: a model that always says so is never wrong"


def public_measures(deployment: Deployment) -> dict[str, Measure]:
    """Return what the operators of aggregators measure models on, by the server's letter. Raises ConfigError."""
    task, sections = deployment.task, (("a", deployment.aggregator.a), ("b", deployment.aggregator.b))
    found = {letter: load_of_server(task, letter, own) for letter, own in sections if own is not None}
    return {letter: measure for letter, measure in found.items() if measure is not None}
