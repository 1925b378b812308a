"""Describe a model's arrays by name, shape and place, so that a process without the model can name and reshape them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import torch
from torch import Tensor, nn

_KNOWN: Final = (torch.float16, torch.float32, torch.float64)


@dataclass(frozen=True, slots=True)
class Entry:
    """One array of the state dict."""

    name: str
    shape: list[int]
    dtype: str
    count: int
    is_trained: bool
    at: int
    """Where it begins, in bytes: in the flat vector of trained parameters, or in the constants."""


@dataclass(frozen=True, slots=True)
class ModelArrays:
    """The state dict's entries in its order, and the bytes of those that nobody trains."""

    entries: tuple[Entry, ...]
    constants: bytes
    n_trained: int

    @classmethod
    def of(cls, model: nn.Module) -> Self:
        """Describe a model on the CPU, whose trained parameters are float32. Two names of one parameter share it."""
        places, begin = {}, 0
        for parameter in model.parameters():
            places[id(parameter)] = begin
            begin += 4 * parameter.numel()
        constants, entries = bytearray(), []
        for name, values in model.state_dict(keep_vars=True).items():
            is_trained = id(values) in places
            array = _numbers(values.detach().cpu()).numpy()
            dtype = "<f4" if is_trained else np.dtype(array.dtype).newbyteorder("<").str
            at = places[id(values)] if is_trained else len(constants)
            entries.append(Entry(name, list(array.shape), dtype, int(array.size), is_trained, at))
            if not is_trained:
                constants += np.ascontiguousarray(array).tobytes()
        return cls(tuple(entries), bytes(constants), begin // 4)


def _numbers(values: Tensor) -> Tensor:
    """Return the same numbers, in float32 where NumPy knows no such type as theirs: bfloat16."""
    is_unknown = values.is_floating_point() and values.dtype not in _KNOWN
    return values.float() if is_unknown else values
