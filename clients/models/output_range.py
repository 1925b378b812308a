"""Tell probabilities from logits, by what a model gives whatever its parameters are.

A model that ends in a sigmoid or a softmax stays in [0, 1]. Losses by name take logits, and would train it badly
without a word: they refuse it. A loss of the user's own may want probabilities. Accuracy then asks whether they exceed
one half. The outputs of one model alone show nothing: logits may lie there by chance. So the model is applied at
several parameters to made-up records, small and large.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from precad.clients.errors import ModelInputError
from precad.clients.models.fingerprint import fixed_features, fixed_numbers
from precad.clients.models.losses import Binary, CrossEntropy, Loss, MultiLabel, TokenCrossEntropy
from precad.clients.models.outputs import outputs_of
from precad.clients.models.precision import AS_WRITTEN
from precad.clients.models.raised import RAISED

_RECORDS: Final = 4
_SCALES: Final = (1.0, 64.0)
"""Sizes of the numbers in made-up records."""
_PARAMETERS: Final = (4.0, -4.0)
"""Sizes of made-up parameters. A last linear layer changes its sign between these two."""
_ROUNDING: Final = 1e-4


class Scale(Enum):
    """Name what a model's numbers are."""

    LOGITS = "logits"
    PROBABILITIES = "probabilities"
    """Each in [0, 1], as of a sigmoid."""
    DISTRIBUTION = "probabilities that sum to one"
    """As of a softmax."""

    @property
    def threshold(self) -> float:
        """Return above which output a label is said."""
        return 0.0 if self is Scale.LOGITS else 0.5


def scale_of(model: nn.Module, example: Tensor) -> Scale:
    """Return what the model gives for records like `example`, without the batch axis. It is left as it was.

    Logits are what nothing else is known of: outputs that never vary, and a model that raises or draws.
    """
    is_training, sums_to_one, varies = model.training, True, False
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            for found in _tried(model.eval(), example):
                if not ((found >= 0) & (found <= 1)).all():  # also where one is no number
                    return Scale.LOGITS
                rows = found.reshape(-1, found.shape[-1])
                sums_to_one &= rows.shape[1] > 1 and bool(((rows.sum(dim=1) - 1).abs() < _ROUNDING).all())
                varies |= bool(found.max() > found.min())
    except RAISED:
        return Scale.LOGITS
    finally:
        model.train(is_training)
    if not varies:
        return Scale.LOGITS
    return Scale.DISTRIBUTION if sums_to_one else Scale.PROBABILITIES


def require_logits(model: nn.Module, example: Tensor, loss: Loss) -> None:
    """Raise ModelInputError where the loss takes logits and the model gives probabilities.

    Several classes may be told apart by numbers in [0, 1], unless they sum to one.
    """
    if isinstance(loss, Binary | MultiLabel):
        is_wrong = scale_of(model, example) is not Scale.LOGITS
    elif isinstance(loss, CrossEntropy | TokenCrossEntropy):
        is_wrong = scale_of(model, example) is Scale.DISTRIBUTION
    else:
        return
    if is_wrong:
        why = f"expected logits for the loss {loss.name!r}, found probabilities"
        why += ": leave out the model's last sigmoid or softmax"
        raise ModelInputError(tuple(example.shape), why)


def _tried(model: nn.Module, example: Tensor) -> Iterator[Tensor]:
    """Yield outputs, (n, .., k): first at the model's own parameters, at which most logits leave the range."""
    own: dict[str, Tensor] = dict(model.named_parameters())
    device = next(iter(own.values())).device
    some = fixed_features("records", _RECORDS, example, AS_WRITTEN).to(device)
    inputs = [some * scale for scale in _SCALES] if example.is_floating_point() else [some]
    for size in (None, *_PARAMETERS):
        made_up = {name: size * fixed_numbers(name, tuple(p.shape)).to(p) for name, p in own.items()} if size else own
        for features in inputs:
            found = outputs_of(functional_call(model, made_up, (features,)))
            yield found if found.dim() > 1 else found.unsqueeze(1)
