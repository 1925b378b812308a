"""Record what a model calls of PyTorch on its way from features to outputs, so that it can be run without its code.

A pass is recorded on zeros, and only for models whose calls depend on no value (`precad.clients.gradients.probe`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from precad.clients.models.outputs import outputs_of

Shape = tuple[int, ...]
Place = tuple[int, int]
"""An axis, and an index on it."""


@dataclass(frozen=True, slots=True)
class Ref:
    """A tensor of a pass by its number, where an argument was."""

    value: int
    place: Place | None = None
    """Where the tensor is read, with the axis kept; None: everywhere."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call: tensors among its arguments are references."""

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outputs: tuple[int, ...]
    is_single: bool = True
    """Whether it returns a tensor, not a sequence of tensors."""

    def mapped(self, change: Callable[[Ref], Any]) -> Call:
        """Return the call with every reference changed."""
        kwargs = {name: mapped(value, Ref, change) for name, value in self.kwargs.items()}
        return replace(self, args=mapped(self.args, Ref, change), kwargs=kwargs)

    def refs(self) -> list[Ref]:
        """Return all references among the arguments."""
        found: list[Ref] = []
        self.mapped(found.append)
        return found


@dataclass(slots=True)
class Calls:
    """Calls in their order, from value 0, the features, to the outputs."""

    calls: list[Call] = field(default_factory=list)
    shapes: list[Shape] = field(default_factory=list)
    """By value."""
    constants: dict[int, Tensor] = field(default_factory=dict)
    """Parameters and buffers of the model by value; they change in place alone."""
    merged: dict[int, int] = field(default_factory=dict)
    """Value to the adapted layer whose merged weight it is, by its place among the layers."""
    output: int = 0

    def new_value(self, shape: Shape) -> int:
        """Return the number of one more tensor."""
        self.shapes.append(shape)
        return len(self.shapes) - 1


def mapped(value: Any, kind: type[Any], change: Callable[[Any], Any]) -> Any:
    """Return `value` with everything of a kind changed, also within tuples, lists and dicts."""
    if isinstance(value, kind):
        return change(value)
    if type(value) in (tuple, list):
        return type(value)(mapped(one, kind, change) for one in value)
    if type(value) is dict:
        return {key: mapped(one, kind, change) for key, one in value.items()}
    return value


def recorded(model: nn.Module, merged_weights: list[Tensor | None], features: Tensor) -> Calls | None:
    """Return the calls of a pass of records like these; None where calls alone do not repeat the pass.

    They do not where something is overwritten or set. Nor do they where a tensor is neither the model's nor a call's.
    features: of some records; their values are not used.
    """
    with torch.no_grad(), _Recorder(model, merged_weights, zeros := torch.zeros_like(features)) as recorder:
        found = outputs_of(model(zeros))
    output = recorder.value_of(found)
    recorder.calls.output = output or 0
    return None if output is None or recorder.is_refused else recorder.calls


class _Recorder(TorchFunctionMode):
    """Notes calls while it is entered. Tensors are known by themselves, and are not kept."""

    def __init__(self, model: nn.Module, merged_weights: list[Tensor | None], features: Tensor) -> None:
        super().__init__()
        self.calls, self.is_refused = Calls(), False
        self._known: dict[int, tuple[weakref.ref[Tensor], int]] = {}
        self._own = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
        self._merged = {id(weight): (i, weight) for i, weight in enumerate(merged_weights)}
        self._learn(features)

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given: list[Tensor] = []
        mapped((args, kwargs or {}), Tensor, given.append)
        versions = [tensor._version for tensor in given]
        found = func(*args, **(kwargs or {}))
        self._note(func, args, kwargs or {}, found)
        self.is_refused |= versions != [tensor._version for tensor in given]
        return found

    def _note(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], found: Any) -> None:
        made = found if isinstance(found, tuple | list) else (found,)
        if not any(isinstance(one, Tensor) for one in made):
            self.is_refused |= found is None  # something was set; what is asked for is the same in every pass
            return
        if not all(isinstance(one, Tensor) for one in made):
            self.is_refused = True
            return
        call = Call(func, mapped(args, Tensor, self._ref), mapped(kwargs, Tensor, self._ref), (), found is made[0])
        self.calls.calls.append(replace(call, outputs=tuple(self._learn(one) for one in made)))

    def value_of(self, tensor: Tensor) -> int | None:
        """Return the number of a tensor; None for one that nobody made."""
        known = self._known.get(id(tensor))
        if known is not None and known[0]() is tensor:
            return known[1]
        is_merged = id(tensor) in self._merged
        if not is_merged and id(tensor) not in self._own:
            return None
        value = self._learn(tensor)
        if is_merged:
            self.calls.merged[value] = self._merged[id(tensor)][0]
        else:
            self.calls.constants[value] = tensor
        return value

    def _ref(self, tensor: Tensor) -> Ref:
        value = self.value_of(tensor)
        self.is_refused |= value is None
        return Ref(value or 0)

    def _learn(self, tensor: Tensor) -> int:
        value = self.calls.new_value(tuple(tensor.shape))
        self._known[id(tensor)] = weakref.ref(tensor), value
        return value
