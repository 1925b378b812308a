"""The digest by which organisations compare their models: equal files give equal digests, on any machine.

It covers names and shapes of the trained parameters. Buffers and frozen parameters enter with their values. So does the
output on a fixed input, at fixed parameters. The output is computed in float64 and rounded to six digits of its largest
number, so that machines that round otherwise agree.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from precad.clients.errors import ModelDigestError, ModelInputError
from precad.clients.models.outputs import outputs_of
from precad.protos.task.task import Task

_DIGITS: Final = 1e6


def model_digest(model: nn.Module, example: Tensor) -> str:
    """Return the SHA-256, in hexadecimal, of a model for records like `example`, without the batch axis.

    The values of the trained parameters do not matter. Raises ModelInputError where the model cannot be applied.
    """
    twin = copy.deepcopy(model).cpu().eval().double()
    with torch.no_grad():
        for name, parameter in twin.named_parameters():
            parameter.copy_(_numbers(name, tuple(parameter.shape)))
        features = _numbers("input", (1, *example.shape))
        if not example.is_floating_point():
            features = (features > 0).to(torch.int64)
        try:
            output = outputs_of(twin(features))
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise ModelInputError(tuple(example.shape), str(error).splitlines()[0]) from None
    facts = {
        "input": [str(example.dtype), *example.shape],
        "parameters": [[name, *own.shape] for name, own in model.named_parameters()],
        "constants": [[name, str(own.dtype), *own.shape, _sha256(own)] for name, own in sorted(model.named_buffers())],
        "output": [list(output.shape), *_rounded(output)],
    }
    return hashlib.sha256(json.dumps(facts, separators=(",", ":")).encode()).hexdigest()


def require_same_model(task: Task, model: nn.Module, example: Tensor) -> None:
    """Raise ModelDigestError if the task has the digest of another model."""
    if task.model_digest is not None and (found := model_digest(model, example)) != task.model_digest:
        raise ModelDigestError(task.model, expected=task.model_digest, found=found)


def _numbers(name: str, shape: tuple[int, ...]) -> Tensor:
    """Return numbers between -1 and 1 that the name decides, smaller where there are many inputs."""
    n = math.prod(shape)
    drawn = np.frombuffer(hashlib.shake_128(name.encode()).digest(4 * n), dtype="<u4")
    scale = math.sqrt(math.prod(shape[1:])) if len(shape) > 1 else 1.0
    numbers = (drawn.astype(np.float64) / 2.0**31 - 1.0) / max(scale, 1.0)
    return torch.from_numpy(numbers.reshape(shape))


def _rounded(output: Tensor) -> list[int | None]:
    values = output.numpy().astype(np.float64).ravel()
    finite = values[np.isfinite(values)]
    largest = float(np.max(np.abs(finite), initial=0.0)) or 1.0
    return [round(float(value) / largest * _DIGITS) if math.isfinite(value) else None for value in values]


def _sha256(values: Tensor) -> str:
    return hashlib.sha256(values.detach().cpu().contiguous().numpy().tobytes()).hexdigest()
