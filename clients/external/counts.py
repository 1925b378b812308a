"""Read counts of held-out records from what a foreign evaluation answers, whichever library's words it uses.

A trainer's process loads this file too, in an interpreter that need not have precad.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

_FORM = struct.Struct("<3d")
SIZE = _FORM.size
NAMES = {
    "examples_metric": ("num-examples", "num_examples"),
    "accuracy_metric": ("accuracy", "eval_accuracy", "eval_acc"),
    "loss_metric": ("loss", "eval_loss"),
}
"""Settings of the operator's that name a metric, and what it is looked for by where they do not."""
_MOST = 2.0**53


class Counts(NamedTuple):
    """Held-out records, and what the model does with them."""

    correct: float
    """How many it gets right; shares of records add up."""
    total: float
    """How many there are."""
    loss_sum: float
    """The sum of their losses, which may be no finite number."""

    @property
    def is_sound(self) -> bool:
        """Tell whether some records can have these counts."""
        is_whole = 0 <= self.total <= _MOST and math.floor(self.total) == self.total
        return is_whole and 0 <= self.correct <= self.total


def packed(found: Any) -> bytes:
    """Return (correct, total, loss sum) as bytes. Raises TypeError, ValueError for anything else."""
    correct, total, loss_sum = found
    return _FORM.pack(float(correct), float(total), float(loss_sum))


def unpacked(body: bytes) -> Counts:
    """Return the counts that `packed` wrote, sound or not."""
    return Counts(*_FORM.unpack(body))


def of_metrics(metrics: Mapping[str, Any], config: Mapping[str, Any], *, has_accuracy: bool) -> Counts:
    """Return the counts that means over records come to. Raises KeyError where a metric is missing.

    has_accuracy: whether the task's targets are classes; with others nothing is right.
    """
    n = float(_named("examples_metric", metrics, config))
    right = float(_named("accuracy_metric", metrics, config)) if has_accuracy else 0.0
    return Counts(right * n, n, float(_named("loss_metric", metrics, config)) * n)


def without_names(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that are the trainer's own."""
    return {name: value for name, value in config.items() if name not in NAMES}


def _named(setting: str, metrics: Mapping[str, Any], config: Mapping[str, Any]) -> Any:
    names = (config[setting],) if setting in config else NAMES[setting]
    return metrics[next((name for name in names if name in metrics), names[0])]
