"""Describe a model's arrays by name, shape and place, so that a process without the model can name and reshape them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from torch import nn

from precad.clients.models.outputs import array_of


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
            array = array_of(values)
            dtype = "<f4" if is_trained else np.dtype(array.dtype).newbyteorder("<").str
            at = places[id(values)] if is_trained else len(constants)
            entries.append(Entry(name, list(array.shape), dtype, int(array.size), is_trained, at))
            if not is_trained:
                constants += np.ascontiguousarray(array).tobytes()
        return cls(tuple(entries), bytes(constants), begin // 4)
