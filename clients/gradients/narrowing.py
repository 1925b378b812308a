"""Leave out of a recorded pass what its outputs do not depend on.

A classifier of texts reads the last block at one place. All else that the block does at other places is for nothing,
forward and backward, except where attention reads them. So the place that is read is traced back, call by call. That
ends where one place of an output depends on several of the inputs. What is left is computed by the same functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import torch

from precad.clients.gradients.calls import Call, Calls, Place, Ref, Shape

Rule = Callable[[Call, Sequence[Shape], Place], Call | None]
"""A call, the shapes of all values and the place at which its output is read, to the call that gives that place alone.
None where there is none."""


def narrowed(calls: Calls) -> Calls | None:
    """Return the same pass without what is not read; None where it is all read."""
    wanted: dict[int, Place | None] = {calls.output: None}
    kept: list[Call] = []
    for call in reversed(calls.calls):
        if not any(output in wanted for output in call.outputs):
            continue
        new = _rewritten(call, calls.shapes, wanted)
        kept.append(new)
        for ref in new.refs():
            wanted[ref.value] = ref.place if wanted.get(ref.value, ref.place) == ref.place else None
    kept.reverse()
    made = {output for call in kept for output in call.outputs}
    is_narrow = {value: place for value, place in wanted.items() if value in made and place is not None}
    return _put_together(calls, kept, is_narrow) if is_narrow else None


def _rewritten(call: Call, shapes: Sequence[Shape], wanted: dict[int, Place | None]) -> Call:
    """Return a call that gives what is wanted of its output, or all of it: `wanted` is changed then."""
    place = wanted.get(call.outputs[0])
    name = getattr(call.func, "__name__", "")
    if call.is_single and place is not None:
        found = _RULES[name](call, shapes, place) if name in _RULES else None
        if found is not None:
            return found
    wanted.update({output: None for output in call.outputs if output in wanted})
    return (_PICKS[name](call, shapes) if name in _PICKS else None) or call


def _put_together(calls: Calls, kept: Sequence[Call], is_narrow: Mapping[int, Place]) -> Calls:
    """Return the calls, with a cut before each that reads one place of what is there in full."""
    new = Calls([], list(calls.shapes), calls.constants, calls.merged, calls.output)
    cuts: dict[Ref, int] = {}

    def source(ref: Ref) -> Ref:
        if ref.place is None or is_narrow.get(ref.value) == ref.place:
            return Ref(ref.value)
        if ref not in cuts:
            axis, index = ref.place
            cuts[ref] = new.new_value(_at_one(calls.shapes[ref.value], axis))
            new.calls.append(Call(torch.narrow, (Ref(ref.value), axis, index, 1), {}, (cuts[ref],)))
        return Ref(cuts[ref])

    for call in kept:
        changed = call.mapped(source)
        new.calls.append(changed)
        for output in call.outputs:
            if output in is_narrow:
                new.shapes[output] = _at_one(calls.shapes[output], is_narrow[output][0])
    return new


def _at_one(shape: Shape, axis: int) -> Shape:
    return (*shape[:axis], 1, *shape[axis + 1 :])


# -- where a place is picked -------------------------------------------------------------------------------------------


def _picked(call: Call, shapes: Sequence[Shape]) -> Call | None:
    """Return x[:, .., k, ..] as a pick from x at k alone."""
    x, index = call.args
    index = index if type(index) is tuple else (index,)
    at = [axis for axis, one in enumerate(index) if type(one) is int]
    if len(at) != 1 or at[0] == 0 or any(one != slice(None) for axis, one in enumerate(index) if axis != at[0]):
        return None
    return _pick(call, shapes, x, at[0], index[at[0]])


def _selected(call: Call, shapes: Sequence[Shape]) -> Call | None:
    """Return x.select(axis, k) as a pick from x at k alone."""
    if len(call.args) != 3 or call.kwargs:
        return None
    x, axis, index = call.args
    axis %= len(shapes[x.value])
    return _pick(call, shapes, x, axis, index) if axis else None


def _pick(call: Call, shapes: Sequence[Shape], x: Ref, axis: int, index: int) -> Call | None:
    n = shapes[x.value][axis]
    if n == 1:
        return None
    return replace(call, func=torch.select, args=(Ref(x.value, (axis, index % n)), axis, 0), kwargs={})


_PICKS: Final[Mapping[str, Callable[[Call, Sequence[Shape]], Call | None]]] = {
    "__getitem__": _picked,
    "select": _selected,
}


# -- what one place of an output depends on ----------------------------------------------------------------------------


def _each_entry(call: Call, shapes: Sequence[Shape], place: Place) -> Call:
    """Narrow all tensors of a call that goes entry by entry, but those that are spread over all places."""
    n_axes = len(shapes[call.outputs[0]])
    return call.mapped(lambda ref: _from_the_right(ref, shapes, n_axes - place[0], place[1]))


def _from_the_right(ref: Ref, shapes: Sequence[Shape], n_right: int, index: int) -> Ref:
    """Narrow a tensor on the axis that has `n_right - 1` axes behind it. One that is spread there stays whole."""
    own = shapes[ref.value]
    axis = len(own) - n_right
    return ref if axis < 0 or own[axis] == 1 else Ref(ref.value, (axis, index))


def _rows(n_behind: Callable[[Call], int]) -> Rule:
    """Return the rule of a function of rows: the last axes, so many, make one of its first argument."""

    def rule(call: Call, shapes: Sequence[Shape], place: Place) -> Call | None:
        if not (call.args and isinstance(call.args[0], Ref)) or place[0] >= len(shapes[call.outputs[0]]) - n_behind(
            call
        ):
            return None
        return replace(call, args=(Ref(call.args[0].value, place), *call.args[1:]))

    return rule


def _softmax(call: Call, shapes: Sequence[Shape], place: Place) -> Call | None:
    axis = call.kwargs.get("dim", call.args[1] if len(call.args) > 1 else None)
    if type(axis) is not int or axis % len(shapes[call.outputs[0]]) == place[0]:
        return None
    return _each_entry(call, shapes, place)


def _transposed(call: Call, shapes: Sequence[Shape], place: Place) -> Call | None:
    x, *axes = call.args
    n_axes = len(shapes[x.value])
    if len(axes) != 2 or call.kwargs:
        return None
    one, other = (axis % n_axes for axis in axes)
    own = {one: other, other: one}.get(place[0], place[0])
    return replace(call, args=(Ref(x.value, (own, place[1])), *axes)) if own else None


def _permuted(call: Call, shapes: Sequence[Shape], place: Place) -> Call | None:
    x, *axes = call.args
    order = axes[0] if len(axes) == 1 else axes
    if call.kwargs or len(order) != len(shapes[x.value]):
        return None
    own = order[place[0]] % len(order)
    return replace(call, args=(Ref(x.value, (own, place[1])), *axes)) if own else None


def _reshaped(call: Call, shapes: Sequence[Shape], place: Place) -> Call | None:
    """Narrow the axis of the input that is the output's: as long, with as many entries before it."""
    x, new = call.args[0], shapes[call.outputs[0]]
    before = math.prod(new[: place[0]])
    for own, length in enumerate(shapes[x.value]):
        if length == new[place[0]] and math.prod(shapes[x.value][:own]) == before and own:
            args = Ref(x.value, (own, place[1])), _at_one(new, place[0])
            return replace(call, func=torch.reshape, args=args, kwargs={})
    return None


def _attention(call: Call, shapes: Sequence[Shape], place: Place) -> Call | None:
    """Narrow what asks, and the mask; all places are read of what answers."""
    options: dict[str, Any] = dict(zip(("attn_mask", "dropout_p", "is_causal"), call.args[3:], strict=False))
    options |= call.kwargs
    n_axes = len(shapes[call.outputs[0]])
    if len(call.args) < 3 or place[0] != n_axes - 2 or options.get("is_causal"):
        return None
    asking, *answering = call.args[:3]
    if isinstance(mask := options.get("attn_mask"), Ref):
        options["attn_mask"] = _from_the_right(mask, shapes, 2, place[1])
    return replace(call, args=(Ref(asking.value, place), *answering), kwargs=options)


def _matrices(call: Call, shapes: Sequence[Shape], place: Place) -> Call | None:
    left, right = call.args
    n_axes = len(shapes[call.outputs[0]])
    if place[0] != n_axes - 2 or len(shapes[left.value]) != n_axes or len(shapes[right.value]) < 2:
        return None
    return replace(call, args=(Ref(left.value, place), right))


_ENTRYWISE: Final = (
    *("add", "sub", "mul", "div", "true_divide", "rsub", "neg", "pow", "exp", "sqrt", "rsqrt", "square", "masked_fill"),
    *("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__", "__pow__"),
    *("relu", "gelu", "silu", "tanh", "sigmoid", "elu", "leaky_relu", "softplus", "hardtanh", "erf", "mish", "dropout"),
    *("contiguous", "clone", "to", "float", "double"),
)
_RULES: Final[Mapping[str, Rule]] = {
    **dict.fromkeys(_ENTRYWISE, _each_entry),
    "linear": _rows(lambda call: 1),
    "embedding": _rows(lambda call: 1),
    "layer_norm": _rows(lambda call: len(call.args[1]) if len(call.args) > 1 else len(call.kwargs["normalized_shape"])),
    "softmax": _softmax,
    **dict.fromkeys(("transpose", "swapaxes", "swapdims"), _transposed),
    "permute": _permuted,
    **dict.fromkeys(("view", "reshape", "flatten", "unflatten"), _reshaped),
    "scaled_dot_product_attention": _attention,
    **dict.fromkeys(("matmul", "bmm", "__matmul__"), _matrices),
}
"""By the function's name. A name that means something else is found out when the gradients are compared."""
