"""Answer evaluations: what the model does with the records that a client holds out, summed within the ball of radius C.

Each record goes through the model alone, so that what it counts depends on no other record. A record on which the model
raises, or gives no finite number, counts as wrong with the largest loss. An error would tell of the record.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

import numpy as np
import structlog
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from precad.clients.errors import ArgumentError, ClientError, ModelRecordError
from precad.clients.gradients.engine import deterministic, resolve_device
from precad.clients.models import networks
from precad.clients.models.learning import Learning
from precad.clients.models.losses import IGNORED, Loss
from precad.clients.models.metrics import accuracy, has_accuracy
from precad.clients.models.output_range import scale_of
from precad.clients.models.outputs import array_of, outputs_of
from precad.clients.own_code import Unspoken
from precad.clients.records import IMAGE_AXES, Records, channels_last, example_of, model_inputs
from precad.clients.training.conduct import Conduct, Vector
from precad.clients.training.projection import project
from precad.dp.queries.evaluations import EvaluationEncoding
from precad.mpc.ring import RingArray
from precad.protos.task.task import EvaluationRound, Task

log = structlog.get_logger(__name__)


class HeldOut:
    """Evaluates models for the clients that one process hosts. Raises ArgumentError for a task without evaluations."""

    def __init__(
        self,
        *,
        task: Task,
        records: Mapping[str, Records],
        conducts: Mapping[str, Conduct],
        learning: Learning | None = None,
        device: str = "auto",
    ) -> None:
        """records: those that each client holds out; a client without any adds nothing to the sum. learning: the task's
        unless it is given. Raises ArgumentError."""
        self._round, self._n_parameters = _round_of(task), task.n_parameters
        self._records, self._conducts = records, conducts
        learning = Learning.of_task(task) if learning is None else learning
        self._device, self._loss = resolve_device(device), learning.loss
        self._model = learning.build(0).eval().to(self._device)
        self._encoding = EvaluationEncoding(loss_bound=task.evaluation_loss_bound, frac_bits=self._round.frac_bits)
        self._one_at_a_time = threading.Lock()
        for client, own in records.items():
            if not len(own):
                log.warning("client.holds_out_nothing", client=client)

    def evaluate(self, client: str, parameters: NDArray[np.float32]) -> RingArray:
        """Return this client's encoded answer, (3,), for the model (d,). Called by one thread per client."""
        return self._conducts[client].encode_evaluation(self.answer(client, parameters), self._round)

    def answer(self, client: str, parameters: NDArray[np.float32]) -> Vector:
        """Return the sum of the vectors of the client's records, (3,), of norm at most C."""
        with self._one_at_a_time:
            model = networks.trained(self._model, parameters[: self._n_parameters])
            right, losses = right_and_losses(model, self._records[client], self._loss, self._device)
        return project(self._encoding.total(right, losses), self._round.client_clip)


def answer_of_counts(task: Task, right: float, n: float, loss_sum: float) -> Vector:
    """Return the answer of a client that knows counts of its records alone, (3,), of norm at most C.

    right: how many of n records, at most n. Raises ArgumentError for a task without evaluations.
    """
    of_round = _round_of(task)
    encoding = EvaluationEncoding(loss_bound=task.evaluation_loss_bound, frac_bits=of_round.frac_bits)
    return project(encoding.total_of(right, n, loss_sum), of_round.client_clip)


def _round_of(task: Task) -> EvaluationRound:
    if task.evaluation_round is None:
        raise ArgumentError(f"task.evaluation: expected 'clients', found {task.evaluation!r}")
    return task.evaluation_round


def right_and_losses(model: nn.Module, records: Records, loss: Loss, device: torch.device) -> tuple[Vector, Vector]:
    """Return the share of each record that the model gets right, and its loss, (n,) each.

    A share is of the labels or places of one record. It is 0 where targets are numbers. A loss may be no finite number.
    """
    right, losses = np.zeros(len(records)), np.full(len(records), np.inf)
    threshold = scale_of(model, example_of(records)).threshold if len(records) else 0.0
    for i in range(len(records)):
        one = records.take(np.array([i]))
        with torch.no_grad(), deterministic():
            try:
                with Unspoken(ModelRecordError):  # whatever the model or the loss raises, an exit of the process too
                    outputs, found = _passed(model, one, loss, device)
                    share = _right(outputs, one, loss, threshold)
            except ClientError:
                continue
        if np.isfinite(outputs).all():
            losses[i], right[i] = found, share
    return right, losses


def _passed(model: nn.Module, one: Records, loss: Loss, device: torch.device) -> tuple[NDArray[np.float32], float]:
    """Return the outputs for one record, (1, ..), and its loss."""
    features = model_inputs(torch.from_numpy(one.features).to(device), torch.float32)
    if features.dim() == IMAGE_AXES and device.type == "cpu":
        features = channels_last(features)
    outputs: Tensor = outputs_of(model(features))
    found = loss.each(
        _given(outputs) if loss.takes_batches else model, features, torch.from_numpy(one.labels).to(device)
    )
    return array_of(outputs), float(found.double().reshape(()).cpu())


def _given(outputs: Tensor) -> nn.Module:
    """Return a model with these outputs, so that a loss that reads nothing else takes no second pass."""
    model = nn.Identity()
    model.register_forward_hook(lambda *_: outputs)
    return model


def _right(outputs: NDArray[np.float32], one: Records, loss: Loss, threshold: float) -> float:
    if not has_accuracy(loss, one.labels) or (one.labels == IGNORED).all():
        return 0.0
    return accuracy(outputs, one.labels, threshold)
