"""Before the first record: whether a model's records have gradients of their own, and the fastest right way to them.

The model is tried in float64 on a few made-up records. A record's logits must be the same beside others and alone, and
the second time, after records of every magnitude, and no buffer may change. The first path whose gradients are those of
the loop over records is the model's. Code that takes float32 alone is tried in that, where rounding hides too much: it
is for the loop, in which no record meets another.

The model's parameters are shaken first. A layer that starts at zero, as heads of networks do, hides the layers before
it, their gradients and whatever they mix. A model whose calls depend on what records hold, as routing does, is for the
loop. In one pass a record would choose the kernels of the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from precad.clients.errors import (
    ArgumentError,
    DropoutLayerError,
    ModelInputError,
    RecordMixingLayerError,
    UnsteadyModelError,
)
from precad.clients.gradients.layers import LayerGradients, Segments, handles, owners
from precad.clients.gradients.narrow_pass import narrow_pass
from precad.clients.gradients.one_pass import Tape, one_pass
from precad.clients.gradients.record_paths import Path, by_vmap, one_by_one
from precad.clients.models.adapters import adapted, copied, require_trained
from precad.clients.models.fixing import dropout_of
from precad.clients.models.losses import Loss
from precad.clients.models.networks import flatten, parameter_count
from precad.clients.models.outputs import outputs_of
from precad.clients.models.precision import AS_WRITTEN, DOUBLE, Precision
from precad.clients.models.raised import RAISED
from precad.clients.own_code import Unspoken, first_line

Take = Callable[[nn.Module, Tensor, Tensor, Loss], list[LayerGradients]]
"""One way to the gradients of a batch's records."""
EXHAUSTED: Final = (MemoryError, torch.OutOfMemoryError, torch.AcceleratorError)
"""Errors that no record is to blame for."""
PROBE_TOLERANCE: Final = 1e-9
"""Relative, in float64; two correct ways differ by rounding, below 1e-12."""
_SAME: Final = 1e-9
"""How close outputs of the same call are the second time; in float32 the bits are the same."""
_CLOSE: Final = {torch.float64: _SAME, torch.float32: 1e-4}
"""How close a record's outputs are beside others and alone."""
Made = tuple[str | tuple[int, ...] | None, ...]
"""A kernel's name, and the shapes of what it made."""
_BRIGHTNESS: Final = (0.5, 1.0, 0.1, 0.75)
"""Brightness of the made-up records. In no order: a model that sorts its records brings them into another order."""
_STRANGE: Final = (1e3, -1e3, 1e30, -1e30, 1e-30, math.nan)
"""Multiples of them, seen in between: a model that keeps the largest value so far, or the least, is another then."""
_FURTHER: Final = (*range(2, 64), 1000)
"""Classes that are seen in between, too: a loss that keeps the highest, or something of each, is another then."""
_OTHER_VALUES: Final = (2, 3)
"""Tokens beside padding and the one that made-up texts are of; as numbers, categories that are written so."""

_LOOKING_ALIKE: Final = (
    *("equal", "nonzero", "masked_select", "unique_consecutive", "repeat_interleave", "bincount", "segment_reduce"),
    *("_nested_tensor_from_mask", "_nested_tensor_from_mask_left_aligned", "_grouped_mm", "_scaled_grouped_mm"),
)
"""Names that PyTorch's functions and the kernels below them share."""
_LOOKING: Final = frozenset(
    (
        *("item", "tolist", "numpy", "__array__", "__bool__", "__int__", "__float__", "__index__", "__complex__"),
        *("__contains__", "is_nonzero", "allclose", "argwhere", "unique", "__dlpack__", *_LOOKING_ALIKE),
    )
)
"""PyTorch's functions by which what a model does next can depend on the values of a tensor."""

_LOOKING_KERNELS: Final = frozenset(
    (
        *("_local_scalar_dense", "_unique", "_unique2", "unique_dim", "unique_dim_consecutive"),
        *("_pack_padded_sequence", "_to_sparse", "prod", *_LOOKING_ALIKE),
    )
)
"""Those of ATen, by which a scripted function does the same, and those that read values for a shape by themselves. The
gradient of `prod` looks for a zero in the whole batch, and rounds otherwise where it finds one."""


def quiet_copy(model: nn.Module) -> nn.Module:
    """Return a copy that changes nothing in place, draws nothing, and whose parameters want no gradient.

    Raises: RecordMixingLayerError, DropoutLayerError; ArgumentError where a copy cannot be made.
    """
    refuse_record_mixing(model)
    name = type(model).__name__
    with Unspoken(
        lambda error: ArgumentError(f"model {name}: it cannot be copied: {first_line(error)}"), (MemoryError,)
    ):
        quiet = copied(model).cpu().eval().requires_grad_(requires_grad=False)
    for layer in quiet.modules():
        if getattr(layer, "inplace", False) is True:
            layer.inplace = False  # type: ignore[assignment]  # a later layer would overwrite what an earlier one wrote
    return quiet


def refuse_record_mixing(model: nn.Module) -> None:
    """Raise RecordMixingLayerError, naming the layer, if `model` normalises over the batch or keeps running averages.

    With such a layer, one record changes the gradients of all others, and clipping bounds nobody's influence. Raise
    DropoutLayerError for a layer that drops values: it would be off without a word.
    """
    for name, layer in model.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) or getattr(layer, "track_running_stats", False):
            raise RecordMixingLayerError(name or "model", type(layer).__name__, is_fixable=True)
        if (probability := dropout_of(layer)) > 0:
            raise DropoutLayerError(name or "model", type(layer).__name__, probability)


def probe_records(example: Tensor) -> Tensor:
    """Make different records of the example's shape: noise of different brightness, or texts of different lengths.

    Texts are of two tokens that every vocabulary has; token 0 is padding.
    """
    n = len(_BRIGHTNESS)
    if not example.is_floating_point():
        places = torch.arange(example.numel()).view_as(example)
        return torch.stack([places % 2, torch.zeros_like(places), torch.ones_like(places), (places == 0).long()])
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand((n, *example.shape), generator=generator, dtype=torch.float64)
    return noise * torch.tensor(_BRIGHTNESS, dtype=torch.float64).view(n, *[1] * example.dim())


def n_tokens_of(model: nn.Module, example: Tensor) -> int:
    """Return how many tokens texts may have, by the tables of a model that keeps no record; two where none tells."""
    sizes = {layer.num_embeddings for layer in model.modules() if isinstance(layer, nn.Embedding | nn.EmbeddingBag)}
    for size in sorted(sizes, reverse=True) if not example.is_floating_point() else ():
        with torch.no_grad(), suppress(*RAISED):
            model(torch.full_like(example, size - 1).unsqueeze(0))
            return max(2, size)
    return 2


def probe_labels(label: Tensor, n: int) -> Tensor:
    """Return ones and zeros by turns, of the label's shape and type: every loss has a meaning for them; (n, ..)."""
    turns = torch.arange(label.numel()).view(label.shape) + torch.arange(n).view(n, *[1] * label.dim())
    return (turns % 2).to(label.dtype)


class Probed(NamedTuple):
    """The fastest right path for a model."""

    path: Path
    n_bytes: int
    """Memory that a record takes on it."""
    precision: Precision
    """In which the model was tried."""
    shaken: NDArray[np.float32]
    """Parameters at which nothing vanishes by chance, (d,)."""


def probe(model: nn.Module, features: Tensor, label: Tensor, loss: Loss) -> Probed:
    """Return the fastest right path for this model (a quiet copy).

    label: of one record; its value does not matter.
    Raises: RecordMixingLayerError, UnsteadyModelError, ModelInputError; ArgumentError for a loss that draws.
    """
    for precision in DOUBLE:
        with suppress(ModelInputError), precision.held():
            return _probed(model, features, label, loss, precision)
    return _probed(model, features, label, loss, AS_WRITTEN)


def _probed(model: nn.Module, made_up: Tensor, label: Tensor, loss: Loss, precision: Precision) -> Probed:
    """Raises as `probe`; ModelInputError too if the code takes no such numbers."""
    features, labels = precision.of(made_up), precision.of(probe_labels(label, len(made_up)))
    twin = shaken(model, features, precision)
    _require_separate_records(twin, features, loss)
    _require_steady_loss(twin, features, labels, loss)

    def is_right(take: Take) -> bool:
        return _equals(expected, lambda: take(twin, features, labels, loss))

    shape = tuple(features.shape[1:])
    with Unspoken(lambda error: ModelInputError(shape, f"it has no gradient: {first_line(error)}"), (MemoryError,)):
        expected = _flat(one_by_one(twin, features, labels, loss))
    require_trained(twin, expected)
    at = flatten(twin)
    if precision is AS_WRITTEN:
        return Probed(Path.ONE_BY_ONE, 20 * parameter_count(model), precision, at)
    is_for_one = loss.takes_batches and _has_rules(twin) and _looks_at_no_value(twin, features, labels, loss)
    if is_for_one and is_right(one_pass):
        is_narrow = adapted(twin) is not None and is_right(narrow_pass)
        path = Path.NARROW_PASS if is_narrow else Path.ONE_PASS
        return Probed(path, _one_pass_bytes(twin, features), precision, at)
    path = Path.VMAP if is_right(by_vmap) else Path.ONE_BY_ONE
    return Probed(path, 20 * parameter_count(model), precision, at)


def shaken(model: nn.Module, features: Tensor, precision: Precision) -> nn.Module:
    """Return the model in this precision, with noise of the usual initial size on its parameters; none where the model
    does not bear it.

    features: made-up records, in the same.
    """
    shaken = copied(model).to(precision.dtype)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in shaken.parameters():
            n_inputs = max(4, parameter[0].numel() if parameter.dim() > 1 else 4)
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(noise / (2 * math.sqrt(n_inputs)))
    is_borne = bool(_outputs(copied(shaken), features).isfinite().all())  # the result has seen no record
    return shaken if is_borne else copied(model).to(precision.dtype)


def _equals(expected: Tensor, take: Callable[[], list[LayerGradients]]) -> bool:
    """Tell whether this way gives the gradient of every record, (n, d)."""
    try:
        got = _flat(take())
    except MemoryError:  # the way of a model depends on no shortage
        raise
    except RAISED:
        return False  # this way is not for this model; the loop is
    if got.shape != expected.shape:
        return False
    errors, norms = (torch.linalg.vector_norm(rows, dim=1) for rows in (got - expected, expected))
    return bool((errors <= PROBE_TOLERANCE * norms).all())


def _has_rules(model: nn.Module) -> bool:
    layers = [layer for _, layer in owners(model)]
    n_owned = sum(len(list(layer.parameters(recurse=False))) for layer in layers)
    return all(handles(layer) for layer in layers) and n_owned == len(list(model.parameters()))  # none is shared


def _looks_at_no_value(model: nn.Module, features: Tensor, labels: Tensor, loss: Loss) -> bool:
    """Tell whether neither the calls of one pass nor the shapes of what it makes depend on what records hold.

    Functions that are known to look are known by name. Others show by what they make of other records. The way back
    counts too: that of a product looks for zeros in the whole batch.
    """
    made: list[list[Made]] = []
    for some in (features, *_others(features)):
        with _Kernels() as kernels, _Watch() as watch, suppress(*RAISED):
            one_pass(model, some, labels, loss)
            made.append(kernels.made)
        if watch.is_looked_at or kernels.is_looked_at or not made:  # or the code cannot be watched
            return False
    return all(one == made[0] for one in made)


def _others(features: Tensor) -> Iterator[Tensor]:
    """Yield other records of the same shapes: of other magnitude and sign, or of the same two tokens elsewhere."""
    if features.is_floating_point():
        yield from (features * factor for factor in (1e3, -1e3, math.nan))
    else:
        yield from (1 - features, torch.zeros_like(features), torch.ones_like(features))


class _Watch(TorchFunctionMode):
    """Notes calls that give values to Python, or something of a shape that values decide."""

    is_looked_at = False

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        is_mask = name == "__getitem__" and _has_mask(args[1])
        is_places = name == "where" and len(args) + len(kwargs or {}) == 1
        others = (*args[1:], *(kwargs or {}).values())
        is_cut = name == "tensor_split" and any(isinstance(one, Tensor) for one in others)
        self.is_looked_at |= name in _LOOKING or is_mask or is_places or is_cut
        return func(*args, **(kwargs or {}))


class _Kernels(TorchDispatchMode):  # type: ignore[no-untyped-call]  # of PyTorch's `__init_subclass__`
    """Notes the same below Python, where the branches of a TorchScript function are."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.is_looked_at = False
        self.made: list[Made] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Tell PyTorch not to wrap the mode for its compiler.

        Nothing is compiled here. The wrapper would import the compiler, which takes as long as the rest of a start.
        """
        return False

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = str(func.overloadpacket.__name__)
        self.is_looked_at |= name in _LOOKING_KERNELS or (name == "index" and _has_mask(tuple(args[1])))
        found = func(*args, **(kwargs or {}))
        several = found if isinstance(found, tuple | list) else (found,)
        self.made.append((name, *(_shape(one) for one in several)))
        return found


def _shape(made: object) -> tuple[int, ...] | None:
    return tuple(made.shape) if isinstance(made, Tensor) and not made.is_nested else None


def _has_mask(index: object) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, Tensor) and part.dtype in (torch.bool, torch.uint8) for part in parts)


def _outputs(model: nn.Module, features: Tensor) -> Tensor:
    """Raises ModelInputError, also unless there is a row of outputs for every record."""
    shape = tuple(features.shape[1:])
    with Unspoken(lambda error: ModelInputError(shape, first_line(error)), (MemoryError,)), torch.no_grad():
        found = outputs_of(model(features))
    if found.shape[:1] != features.shape[:1]:
        rows = f"found {tuple(found.shape)} for {len(features)}"
        raise ModelInputError(shape, f"expected a row of outputs for every record, {rows}")
    return found


def _require_separate_records(model: nn.Module, features: Tensor, loss: Loss) -> None:
    """Require a record's outputs to be the same whatever the others are, and whatever the model has seen before.

    model: one that has seen no record.
    Raises: ModelInputError, also where the loss reads others; UnsteadyModelError, RecordMixingLayerError.
    """
    buffers = [buffer.clone() for buffer in model.buffers()]
    alone = torch.cat([_outputs(copied(model), record.unsqueeze(0)) for record in features])
    together = _outputs(model, features)
    for others in _strange(features):
        with suppress(ModelInputError):
            _outputs(model, others)
    again = _outputs(model, features)
    if expected := loss.misfit(tuple(together.shape[1:])):
        found = f"outputs of shape {tuple(together.shape[1:])} a record"
        raise ModelInputError(tuple(features.shape[1:]), f"expected {expected}, found {found}")
    is_kept = all(torch.equal(*pair) for pair in zip(buffers, model.buffers(), strict=True))
    if not is_kept or not _are_close(together, again) or _keeps_values(model, features):
        raise UnsteadyModelError(type(model).__name__)
    if not _are_close(together, alone, _CLOSE[together.dtype]):
        raise RecordMixingLayerError("model", type(model).__name__)


def _keeps_values(model: nn.Module, features: Tensor) -> bool:
    """Tell whether a record has other outputs once another was seen, as where tokens are numbered as they come."""
    before, record = (torch.full_like(features[:1], value) for value in _OTHER_VALUES)
    with suppress(ModelInputError):  # where it has no such tokens
        alone, seeing = _outputs(copied(model), record), copied(model)
        _outputs(seeing, before)
        return not _are_close(_outputs(seeing, record), alone)
    return False


def _require_steady_loss(model: nn.Module, features: Tensor, labels: Tensor, loss: Loss) -> None:
    """Refuse a loss of the user's own that gives a record another number the second time. Raises ArgumentError.

    Its gradients would not be the same bits twice. That is looked for later, and would be blamed on the device.
    """
    if loss.takes_batches:
        return
    try:
        with torch.enable_grad():  # as in training
            first = loss.each(model, features, labels)
            for others in _strange(features):
                with suppress(*RAISED):
                    loss.each(model, others, labels)
            for others in _strange_labels(labels[-1:]):
                with suppress(*RAISED):
                    loss.each(model, features[-1:], others)
            second = loss.each(model, features, labels)
    except RAISED:
        return  # whoever asks for gradients next says so
    if not _are_close(first, second):
        raise ArgumentError(
            f"task.loss: {loss.name!r} gives the same record another number each time: draw nothing, and keep nothing "
            "between calls"
        )


def _strange(features: Tensor) -> Iterator[Tensor]:
    """Yield records of every magnitude, and such that are no numbers; of texts the same records."""
    return (features * factor if features.is_floating_point() else features for factor in _STRANGE)


def _strange_labels(labels: Tensor) -> Iterator[Tensor]:
    """Yield labels of every magnitude, and such that are no numbers; of classes many others."""
    if labels.is_floating_point():
        yield from (torch.full_like(labels, number) for number in _STRANGE)
    else:
        yield from (torch.full_like(labels, number) for number in _FURTHER)


def _are_close(found: Tensor, expected: Tensor, close: float = _SAME) -> bool:
    return torch.allclose(found, expected, rtol=close, atol=close, equal_nan=True)


def _flat(gradients: Sequence[LayerGradients]) -> Tensor:
    """Return all rows, (n, d), through the sums that training uses."""
    n = len(gradients[0].squared_norms())
    factors = torch.ones(n, dtype=torch.float64)
    segments: Segments = [slice(i, i + 1) for i in range(n)]
    return torch.cat([layer.weighted_sums(factors, segments) for layer in gradients], dim=1)


def _one_pass_bytes(model: nn.Module, features: Tensor) -> int:
    """Estimate the memory that one record takes, in bytes.

    Count activations twice (forward, backward), patches, and rows in the working type and in float64.
    """
    tape = Tape([layer for _, layer in owners(model)], n_rows=len(features))
    with tape.recording(), torch.enable_grad():
        model(features)
    n_entries = 0
    for layer, reads, wrote in zip(tape.layers, tape.reads, tape.n_written, strict=True):
        n_entries += 4 * (sum(read[0].numel() for read in reads) + wrote)
        if isinstance(layer, nn.Conv2d):
            n_entries += wrote // layer.out_channels * layer.weight[0].numel()
        if not (isinstance(layer, nn.Linear) and len(reads) == 1 and reads[0].dim() == 2):
            n_entries += 3 * sum(parameter.numel() for parameter in layer.parameters(recurse=False))
    return 4 * n_entries
