"""The digest by which organisations compare their models: equal files give equal digests, on any machine.

It covers names and shapes of the trained parameters. Buffers and frozen parameters enter with their values, to the last
bit. Constants that are drawn from a normal distribution differ between kinds of processors: they belong in a file. The
output on fixed inputs, small and large, at fixed parameters, enters too. It is computed in float64 and rounded to
six digits of its largest number, so that machines that round otherwise agree. Code that takes float32 alone is applied
in float32, and two digits enter. A loss of the user's own enters with its values on fixed records, as many digits. The
shape and type of labels enter with it, which no loss by name leaves open. Two organisations with different code behind
one name are told so.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
from contextlib import suppress
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from precad.clients.errors import ArgumentError, ModelDigestError, ModelInputError, UnnamedModelError
from precad.clients.models.losses import CROSS_ENTROPY, Loss, OwnLoss
from precad.clients.models.outputs import outputs_of
from precad.clients.models.precision import AS_WRITTEN, DOUBLE, Precision
from precad.clients.models.raised import RAISED
from precad.clients.own_code import first_line, is_brought
from precad.protos.task.task import Task

CLASS: Final = torch.tensor(0)
"""A label that is a class."""
_PROBES: Final = 4
_FAR: Final = 64.0
"""Numbers up to here are tried too: what cuts off or bends only there is told from what does not."""
_FAR_OF_A_LOSS: Final = 16.0
"""How far a loss is tried. Farther out, the logarithm of what a sigmoid leaves is rounding."""
_DIGITS: Final = {torch.float64: 6, torch.float32: 2}
"""How many digits of a number are the same on every machine."""
_FAR_DIGITS: Final = {torch.float64: 3, torch.float32: 2}
"""How many of an output on large numbers, which rounding reaches sooner."""


def model_digest(model: nn.Module, example: Tensor, loss: Loss = CROSS_ENTROPY, label: Tensor = CLASS) -> str:
    """Return the SHA-256, in hexadecimal, of a model for records like `example`, without the batch axis.

    - label: of one record; its value does not matter

    The values of the trained parameters do not matter. Raises: ModelInputError where the model cannot be applied;
    ArgumentError where a loss of the user's own cannot.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # code that draws is refused elsewhere, by its name
        for precision in DOUBLE:
            with suppress(ArgumentError):
                return _digest(model, example, loss, label, precision)
        return _digest(model, example, loss, label, AS_WRITTEN)


@torch.no_grad()
def _digest(model: nn.Module, example: Tensor, loss: Loss, label: Tensor, precision: Precision) -> str:
    """Return the digest if the user's code takes numbers so. Raises as `model_digest`."""
    try:
        twin = copy.deepcopy(model).cpu().eval().to(precision.dtype)
    except RAISED as error:
        raise ArgumentError(f"model {type(model).__name__}: it cannot be copied: {first_line(error)}") from None
    for name, parameter in twin.named_parameters():
        parameter.copy_(fixed_numbers(name, tuple(parameter.shape)))
    features = fixed_features("input", 1, example, precision)
    try:
        with precision.held():
            output = outputs_of(twin(features))
    except RAISED as error:
        raise ModelInputError(tuple(example.shape), first_line(error)) from None
    some = fixed_features("records", _PROBES, example, precision)
    are_scaled = example.is_floating_point()
    facts = {
        "input": [str(example.dtype), *example.shape],
        "parameters": [[name, *own.shape] for name, own in model.named_parameters()],
        "constants": [[name, str(own.dtype), *own.shape, _sha256(own)] for name, own in sorted(model.named_buffers())],
        "output": [list(output.shape), *_rounded(output, _DIGITS[precision.dtype])],
        "far": _far(twin, some * _FAR, precision) if are_scaled else [],
    }
    if isinstance(loss, OwnLoss):  # others are the same code everywhere, and their tasks' digests stay
        values = _values(loss, twin, some, label, precision, _DIGITS[precision.dtype])
        if are_scaled and precision is not AS_WRITTEN:
            values += _values(loss, twin, some * _FAR_OF_A_LOSS, label, precision, _FAR_DIGITS[precision.dtype])
        facts["loss"] = [str(label.dtype), *label.shape, *values]
    return hashlib.sha256(json.dumps(facts, separators=(",", ":")).encode()).hexdigest()


def require_same_model(task: Task, model: nn.Module, example: Tensor, loss: Loss, label: Tensor) -> None:
    """Raise ModelDigestError if the task has the digest of another model, or of another loss of the user's own."""
    if task.model_digest is None or (found := model_digest(model, example, loss, label)) == task.model_digest:
        return
    has_constants = next(model.buffers(), None) is not None
    raise ModelDigestError(task.model, expected=task.model_digest, found=found, has_constants=has_constants)


def require_named_model(task: Task, model: nn.Module, example: Tensor, loss: Loss, label: Tensor) -> None:
    """Raise as `require_same_model`; UnnamedModelError if organisations bring code whose digest the task does not have.

    Whoever trains asks this: nobody else would compare what clients run.
    """
    own = [path for path in dict.fromkeys((task.model, task.loss)) if is_brought(path)]
    if task.model_digest is None and own:
        raise UnnamedModelError(", ".join(own), model_digest(model, example, loss, label))
    require_same_model(task, model, example, loss, label)


def fixed_features(name: str, n: int, example: Tensor, precision: Precision) -> Tensor:
    """Return n made-up records like the example, the same on every machine."""
    features = fixed_numbers(name, (n, *example.shape))
    return precision.of(features) if example.is_floating_point() else (features > 0).to(torch.int64)


def _far(model: nn.Module, features: Tensor, precision: Precision) -> list[str | int | None]:
    """Return the outputs on large numbers, or the kind of error where the model takes none."""
    try:
        with precision.held():
            return _rounded(outputs_of(model(features)), _FAR_DIGITS[precision.dtype])
    except RAISED as error:
        return [type(error).__name__]


def _values(
    loss: OwnLoss, model: nn.Module, features: Tensor, label: Tensor, precision: Precision, digits: int
) -> list[str]:
    """Return the loss of each record, labels being zeros and ones by turns. Raises ArgumentError."""
    n = len(features)
    turns = torch.arange(n).view(n, *[1] * label.dim()) + torch.arange(label.numel()).view(label.shape)
    try:
        with precision.held():
            values = loss.each(model, features, precision.of((turns % 2).to(label.dtype)))
        return [f"{float(value):.{digits - 1}e}" for value in values]
    except RAISED as error:
        # of made-up records, which are no secret
        why = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}".removesuffix(": ")
        raise ArgumentError(
            f"task.loss: expected a number for a made-up record of {loss.name!r}, a function of (model, record), found "
            f"{why}"
        ) from None


def fixed_numbers(name: str, shape: tuple[int, ...]) -> Tensor:
    """Return numbers between -1 and 1 that the name decides, smaller where there are many inputs."""
    n = math.prod(shape)
    drawn = np.frombuffer(hashlib.shake_128(name.encode()).digest(4 * n), dtype="<u4")
    scale = math.sqrt(math.prod(shape[1:])) if len(shape) > 1 else 1.0
    numbers = (drawn.astype(np.float64) / 2.0**31 - 1.0) / max(scale, 1.0)
    return torch.from_numpy(numbers.reshape(shape))


def _rounded(output: Tensor, digits: int) -> list[str | int | None]:
    """Return the largest number, and all as parts of it: of a single number, the sign would be all that is left."""
    values = output.numpy().astype(np.float64).ravel()
    finite = values[np.isfinite(values)]
    largest = float(np.max(np.abs(finite), initial=0.0))
    parts = values / (largest or 1.0) * 10.0**digits
    shown = [round(float(part)) if math.isfinite(part) else None for part in parts]
    return [f"{largest:.{digits - 1}e}", *shown]


def _sha256(values: Tensor) -> str:
    own = values.detach().cpu().contiguous().reshape(-1)
    return hashlib.sha256(own.view(torch.uint8).numpy().tobytes()).hexdigest()  # NumPy knows no bfloat16
