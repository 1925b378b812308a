"""Read the outputs of a model as one tensor."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


def outputs_of(found: object) -> Tensor:
    """Return the outputs of a batch, (n, ..): a tensor as it is, or the `logits` of an object or a mapping.

    Raises TypeError for anything else.
    """
    if isinstance(found, Tensor):
        return found
    logits = found.get("logits") if isinstance(found, Mapping) else getattr(found, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    raise TypeError(f"expected a tensor, or an object with logits, got {type(found).__name__}")
