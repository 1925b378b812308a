"""Read the outputs of a model as one tensor, and tensors as NumPy's arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from numpy.typing import NDArray
from torch import Tensor

_KNOWN: Final = (torch.float16, torch.float32, torch.float64)
"""Floating-point types that NumPy has, too."""


def outputs_of(found: object) -> Tensor:
    """Return the outputs of a batch, (n, ..): a tensor as it is, or the `logits` of an object or a mapping.

    Raises TypeError for anything else.
    """
    if isinstance(found, Tensor):
        return found
    logits = found.get("logits") if isinstance(found, Mapping) else getattr(found, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    raise TypeError(f"expected a tensor, or an object with logits, found {type(found).__name__}")


def array_of(values: Tensor) -> NDArray[Any]:
    """Return the same numbers on the CPU, in float32 where NumPy knows no such type as theirs: bfloat16."""
    is_unknown = values.is_floating_point() and values.dtype not in _KNOWN
    return (values.float() if is_unknown else values).detach().cpu().numpy()
