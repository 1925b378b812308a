"""The gradients of single records from one pass of an adapted model, without what its outputs do not depend on.

The pass is recorded once for each number of records, on zeros, and then run call by call in the place of the model's
code. `precad.clients.gradients.probe` compares it with the loop over records; what cannot be recorded or narrowed takes
the ordinary pass.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from precad.clients.errors import LayerRowsError
from precad.clients.gradients.calls import Call, Calls, Ref, recorded
from precad.clients.gradients.layers import LayerGradients, owners
from precad.clients.gradients.narrowing import narrowed
from precad.clients.gradients.one_pass import Take, Tape, gradients_of
from precad.clients.models.adapters import AdaptedLayer, merged_layers
from precad.clients.models.losses import Loss


class NarrowPasses:
    """The narrowed passes of one model, by the shape of their features. Keeps no features."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._programs: dict[tuple[object, ...], _Program] = {}

    @contextmanager
    def prepared(self) -> Iterator[Take]:
        """Yield what takes passes while the parameters stay as they are.

        What is yielded raises LayerRowsError where there is nothing to leave out.
        """
        with merged_layers(self._model) as adapted_layers:
            layers = [adapted_layers[layer] for _, layer in owners(self._model) if layer in adapted_layers]
            yield functools.partial(self._take, layers)

    def _take(
        self, layers: Sequence[AdaptedLayer], features: Tensor, labels: Tensor, loss: Loss
    ) -> list[LayerGradients]:
        program, tape = self._program(layers, features), Tape(layers, n_rows=len(features))
        with torch.enable_grad():
            total = loss.total(_Running(lambda given: program.outputs(given, layers, tape)), features, labels)
            return gradients_of(total, layers, tape)

    def _program(self, layers: Sequence[AdaptedLayer], features: Tensor) -> _Program:
        key = (tuple(features.shape), features.dtype)
        if key not in self._programs:
            calls = recorded(self._model, [layer.whole_weight for layer in layers], features)
            calls = None if calls is None else narrowed(calls)
            if calls is None:
                raise LayerRowsError(type(self._model).__name__, "is read at all places, or cannot be recorded")
            self._programs[key] = _Program.of(calls)
        return self._programs[key]


def narrow_pass(model: nn.Module, features: Tensor, labels: Tensor, loss: Loss) -> list[LayerGradients]:
    """Return the gradients of a batch's records, layer by layer of `model`. Raises: LayerRowsError."""
    with NarrowPasses(model).prepared() as take:
        return take(features, labels, loss)


class _Running(nn.Module):
    """Stands for the model where a loss asks it for outputs."""

    def __init__(self, outputs: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._outputs = outputs

    def forward(self, features: Tensor) -> Tensor:
        """Return the outputs of all records."""
        return self._outputs(features)


@dataclass(frozen=True, slots=True)
class _Step:
    """One call, which adapted layer it is, and which values nobody reads afterwards."""

    call: Call
    places: tuple[tuple[int, int], ...]
    """Places among the arguments that are a value, and which."""
    names: tuple[tuple[str, int], ...]
    """Likewise by name."""
    is_flat: bool
    """Whether no value is deeper within an argument."""
    layer: int | None
    done: tuple[int, ...]

    @classmethod
    def of(cls, call: Call, layer: int | None, done: tuple[int, ...]) -> _Step:
        """Find out where values are."""
        places = tuple((i, one.value) for i, one in enumerate(call.args) if isinstance(one, Ref))
        names = tuple((name, one.value) for name, one in call.kwargs.items() if isinstance(one, Ref))
        return cls(call, places, names, len(call.refs()) == len(places) + len(names), layer, done)

    def run(self, values: Mapping[int, Tensor], tape: Tape) -> Any:
        """Make the call with these values."""
        if not self.is_flat:
            call = self.call.mapped(lambda ref: values[ref.value])
            return call.func(*call.args, **call.kwargs)
        args, kwargs = list(self.call.args), self.call.kwargs
        for i, value in self.places:
            args[i] = values[value]
        if self.names:
            kwargs = {**kwargs, **{name: values[value] for name, value in self.names}}
        found = self.call.func(*args, **kwargs)
        return found if self.layer is None else tape.note(self.layer, args[0], found)


@dataclass(frozen=True, slots=True)
class _Program:
    """A pass as steps."""

    steps: tuple[_Step, ...]
    calls: Calls

    @classmethod
    def of(cls, calls: Calls) -> _Program:
        """Return the steps of narrowed calls."""
        kept, steps = {calls.output, *calls.constants, *calls.merged}, []
        for call in reversed(calls.calls):
            read = {ref.value for ref in call.refs()}
            layer = next((calls.merged[value] for value in read if value in calls.merged), None)
            steps.append(_Step.of(call, layer, tuple(read - kept)))
            kept |= read
        return cls(tuple(reversed(steps)), calls)

    def outputs(self, features: Tensor, layers: Sequence[AdaptedLayer], tape: Tape) -> Tensor:
        """Run the steps; the tape notes what adapted layers read and wrote."""
        values: dict[int, Any] = {0: features, **self.calls.constants}
        values |= {value: layers[i].whole_weight for value, i in self.calls.merged.items()}
        for step in self.steps:
            found = step.run(values, tape)
            for value in step.done:
                del values[value]
            values.update(zip(step.call.outputs, (found,) if step.call.is_single else found, strict=True))
        output: Tensor = values[self.calls.output]
        return output
