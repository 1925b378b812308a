"""Resolve what a task trains: how its model is made, the loss of a record, and the metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray
from torch import nn

from precad.clients.app import App
from precad.clients.models import networks
from precad.clients.models.losses import CROSS_ENTROPY, Loss, loss_of
from precad.clients.models.metrics import Metric, metrics_of
from precad.protos.task.learning import Argument
from precad.protos.task.task import Task


@dataclass(frozen=True, slots=True, eq=False)
class Learning:
    """Make the model, and say what training makes small."""

    build: Callable[[int], nn.Module]
    """From the seed of the initialisation to the model, as `networks.build`."""
    loss: Loss = CROSS_ENTROPY
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    """Beside the accuracy, where the labels are classes."""

    @classmethod
    def of_task(cls, task: Task, metrics: Iterable[object] = ()) -> Self:
        """Resolve the names of a task. Raises ArgumentError (also UnknownNameError, ExtensionError)."""
        return cls(lambda seed: networks.of_task(task, seed=seed), loss_of(task.loss), metrics_of(metrics))

    @classmethod
    def of_app(cls, app: App, arguments: Mapping[str, Argument] = networks.NO_ARGUMENTS) -> Self:
        """Resolve a user's app. arguments: of its model. Raises as `of_task`."""

        def build(seed: int) -> nn.Module:
            return networks.build(app.model, seed=seed, arguments=arguments)

        return cls(build, loss_of(app.loss), metrics_of(app.metrics))

    def initial_vector(self, task: Task) -> NDArray[np.float32]:
        """Return the vector that training starts from, (d,): the initial model, then 0s."""
        return np.pad(networks.flatten(self.build(task.model_seed)), (0, task.dim - task.n_parameters))
