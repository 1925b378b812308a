"""The models clients train, and the flat vector that stands for one on the wire.

A model travels as one float32 vector of shape (d,): its parameters in the order of `nn.Module.named_parameters`, each
flattened in row-major order. d is `dimension(name)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from inspect import isroutine
from typing import Final, get_type_hints

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from precad.clients.app import App
from precad.clients.errors import (
    ArgumentError,
    ClientError,
    DimensionError,
    ExtensionError,
    ModelImportError,
    ModelInputError,
    OwnRecordsError,
    UnknownNameError,
)
from precad.clients.models.adapter_files import NO_FILES, Constants, load_constants
from precad.clients.models.adapters import require_constant_base
from precad.clients.models.architectures import ARCHITECTURES as ARCHITECTURES  # noqa: PLC0414 - offered here too
from precad.clients.models.architectures import image_side as image_side  # noqa: PLC0414
from precad.clients.models.constants import with_constants
from precad.clients.models.extension import imported
from precad.clients.models.fixing import unsized
from precad.clients.models.losses import CROSS_ENTROPY, Loss, Shape
from precad.clients.models.output_range import require_logits
from precad.clients.models.outputs import outputs_of
from precad.clients.models.raised import RAISED
from precad.clients.own_code import first_line, is_installed
from precad.clients.records.records import Split, example
from precad.protos.task.learning import Argument
from precad.protos.task.task import Task

_TOKENS: Final = "; arrays of int64 with two axes are tokens: save numbers as float32"
NO_ARGUMENTS: Final[Mapping[str, Argument]] = {}


def build(
    model: str | Callable[..., object],
    *,
    seed: int = 0,
    arguments: Mapping[str, Argument] = NO_ARGUMENTS,
    constants: Constants = NO_FILES,
) -> nn.Module:
    """Return the model of that name, on the CPU, with PyTorch's default initialisation drawn from `seed`.

    A name with a colon, `package.module:factory`, imports the user's own: a class or function that takes the
    `arguments` and gives a `torch.nn.Module`. It may also name an app (`precad.clients.app`), whose model it then is.
    Such a function may be given itself. Frozen parameters become buffers (`precad.clients.models.constants`).
    The same seed gives the same parameters in every process, and the global generator of torch is left as it was.
    Buffers that are drawn are a part of the architecture: only seed 0's are ever used, whatever a task's seed is.
    The start of training is public, so this generator need not be cryptographic.
    `constants`: files of an adapted model's, in place of those that its code makes.
    Raises: UnknownNameError, ModelImportError, AdapterError.
    """
    name = model if isinstance(model, str) else getattr(model, "__qualname__", type(model).__name__)
    make = _factory(model, arguments) if isinstance(model, str) else _called(name, model, arguments)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = make()
    if not isinstance(made, nn.Module):
        raise ModelImportError(name, f"it gave a {type(made).__name__}, not a torch.nn.Module")
    if (layer := unsized(made)) is not None:
        raise ModelImportError(name, f"layers: expected ones that know their sizes, found {type(layer).__name__}")
    with_constants(made)
    require_constant_base(made)
    load_constants(made, constants)
    if sparse := sorted({str(own.layout) for own in made.buffers() if own.layout is not torch.strided}):
        raise ModelImportError(name, f"constants: expected dense tensors, found {sparse[0]}")
    others = sorted({str(one.dtype).removeprefix("torch.") for one in made.parameters()} - {"float32"})
    if others or not parameter_count(made):
        found = f"found {', '.join(others)}" if others else "found none"
        raise ModelImportError(name, f"trained parameters: expected float32, and some, {found}")
    return made


def of_task(task: Task, *, seed: int = 0) -> nn.Module:
    """Return the model of a task. Raises as `build`."""
    return build(task.model, seed=seed, arguments=task.model_arguments, constants=Constants.of(task))


def _factory(name: str, arguments: Mapping[str, Argument]) -> Callable[[], object]:
    if name in ARCHITECTURES:
        if arguments:
            raise ArgumentError(f"task.model_arguments: expected none for {name!r}, found {', '.join(arguments)}")
        return ARCHITECTURES[name].make
    if ":" not in name:
        raise UnknownNameError("model", name, known=[*sorted(ARCHITECTURES), "package.module:factory"])
    try:
        found = imported("model", name, of_app="model")
    except ExtensionError as error:
        raise ModelImportError(name, str(error).rpartition("; ")[2]) from None
    if isinstance(found, str):
        return _factory(found, arguments)
    assert callable(found)  # `imported` says so
    if not (_gives_models(found) or isinstance(imported("model", name), App) or _is_own(found, name)):
        raise ModelImportError(
            name,
            "found code of an installed package that does not say it gives one: put a function that calls it into a "
            "module beside the configuration",
        )
    return _called(name, found, arguments)


def _is_own(found: Callable[..., object], name: str) -> bool:
    """Tell whether it was written in a module of the user's, whatever that imports from others."""
    is_written = isroutine(found) or isinstance(found, type)
    return not is_installed(str(found.__module__) if is_written else name.partition(":")[0])


def _gives_models(found: Callable[..., object]) -> bool:
    """Tell whether it is a model's class, or annotated to return one.

    Whoever fills in a task names this and its arguments. What ran anything, as `os:system`, would let its author run
    that on the machine of everybody who takes part.
    """
    if isinstance(found, type):
        return issubclass(found, nn.Module)
    try:
        given = get_type_hints(found).get("return")
    except Exception:  # noqa: BLE001 - of names that only a type checker imports, or of no function
        return False
    return isinstance(given, type) and issubclass(given, nn.Module)


def _called(name: str, factory: Callable[..., object], arguments: Mapping[str, Argument]) -> Callable[[], object]:
    if isinstance(factory, nn.Module):  # which can be called too
        raise ModelImportError(name, "found a model: name its class, or a function that makes it")

    def make() -> object:
        try:
            return factory(**arguments)
        except TypeError as error:
            given = f"with {', '.join(arguments)}" if arguments else "without arguments"
            raise ModelImportError(name, f"calling it {given} fails: {error}") from None
        except (ClientError, MemoryError):
            raise
        except RAISED as error:
            raise ModelImportError(name, f"calling it raises {type(error).__name__}") from None

    return make


def require_fit(model: nn.Module, shape: Shape, *, is_text: bool, loss: Loss = CROSS_ENTROPY) -> Shape:
    """Return the shape of a record's outputs. Raise ModelInputError unless the loss can read them."""
    is_training, some = model.training, example(shape, is_text=is_text)
    try:
        with torch.no_grad():
            found = outputs_of(model.eval()(some.unsqueeze(0)))
    except (ClientError, MemoryError):
        raise
    except RAISED as error:
        raise ModelInputError(shape, first_line(error) + _TOKENS * is_text) from None
    finally:
        model.train(is_training)
    outputs = tuple(found.shape[1:])
    if found.shape[:1] != (1,) or (expected := loss.misfit(outputs)):
        expected = expected if found.shape[:1] == (1,) else "a row of outputs for every record"
        raise ModelInputError(shape, f"expected {expected}, found {tuple(found.shape)} for one record")
    require_logits(model, some, loss)
    return outputs


def fitted(model: nn.Module, split: Split, loss: Loss = CROSS_ENTROPY) -> Split:
    """Return the split with as many logits as `model` gives.

    Raise ModelInputError unless the model takes these records, and the loss its outputs. Raise OwnRecordsError for a
    class of a client's own records that the model has no logit for.
    """
    outputs = require_fit(model, split.train.shape, is_text=split.train.is_text, loss=loss)
    if not split.is_own or loss is not CROSS_ENTROPY:
        return split
    (n_logits,) = outputs
    if split.class_names and n_logits != split.n_logits:
        why = f"expected {split.n_logits} logits, one for each class, found {n_logits}"
        raise ModelInputError(split.train.shape, why)
    if n_logits < split.n_logits:
        expected = f"a class in [0, {n_logits - 1}], for which the model has logits"
        raise OwnRecordsError(split.highest, expected, "one outside")
    return replace(split, n_logits=n_logits)


def parameter_count(model: nn.Module) -> int:
    """Return d, the number of parameters of `model`."""
    return sum(parameter.numel() for parameter in model.parameters())


def require_dimension(task: Task, model: nn.Module) -> None:
    """Refuse a model with another number of parameters than the task says. Raises ArgumentError."""
    if (n := parameter_count(model)) != task.n_parameters:
        beyond = task.dim - task.n_parameters  # a learnt bound's, or canaries'
        raise ArgumentError(f"task.dim: expected {n + beyond}, of model {task.model!r}, found {task.dim}")


def trained(name: str | nn.Module, parameters: NDArray[np.float32]) -> nn.Module:
    """Return the model of that name, or this one itself, buffers and shared weights included, with these parameters
    (d,).

    Raises as `build`; DimensionError."""
    model = build(name) if isinstance(name, str) else name
    model.load_state_dict(unflatten(torch.tensor(parameters), model), strict=False)  # which has no buffers
    return model


def initial_parameters(name: str, *, seed: int) -> NDArray[np.float32]:
    """Return theta_0 as a flat vector (d,): what both servers start from, given the same public seed."""
    return flatten(build(name, seed=seed))


def initial_vector(task: Task) -> NDArray[np.float32]:
    """Return the vector that both servers start from: the initial model, then 0 for a learnt bound or for canaries.

    The shape is (d,) if d is of the task's model.
    """
    parameters = flatten(build(task.model, seed=task.model_seed, arguments=task.model_arguments))
    return np.pad(parameters, (0, task.dim - task.n_parameters))


def flatten(model: nn.Module) -> NDArray[np.float32]:
    """Return the parameters of `model` as one new float32 vector (d,)."""
    with torch.no_grad():
        vector = torch.cat([parameter.reshape(-1) for parameter in model.parameters()])
    return np.array(vector.cpu().numpy(), dtype=np.float32)


def unflatten(vector: Tensor, model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters that `vector` (d,) stands for, by name, in the shapes of `model`; inverse of `flatten`.

    The result serves `torch.func.functional_call` and `nn.Module.load_state_dict` alike. Its tensors are views of
    `vector`: they keep its device and dtype. `model` gives names and shapes only and is not changed.
    Raises: DimensionError.
    """
    expected = parameter_count(model)
    if vector.shape != (expected,):
        raise DimensionError(expected=expected, found=tuple(vector.shape))
    parts = torch.split(vector, [parameter.numel() for parameter in model.parameters()])
    return {
        name: part.view(parameter.shape)
        for part, (name, parameter) in zip(parts, model.named_parameters(), strict=True)
    }
