"""Before the first round: whether a client's records give its model anything to learn from.

A gradient that is not finite adds zero to its client's sum (`precad.clients.gradients.record_clipping`). Where a faulty
model or loss gives NaN for every record, the task would spend its budget on noise, and nobody would notice. A client
that finds this does not start, like one without records; its operator reads why. Once it has joined, a client uploads
whatever its records give: staying away would tell of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from precad.clients.errors import NoGradientError
from precad.clients.gradients.engine import RecordEngine
from precad.clients.models.networks import flatten
from precad.clients.records.records import Records, joined

_TOGETHER: Final = 1024
"""Clients whose first records are copied at a time."""


def require_some_gradient(engine: RecordEngine, records: Mapping[str, Records]) -> None:
    """Refuse records, by the field that they are from, of which none has a finite gradient at the first parameters.

    The first record of each nearly always has one: these go through the model together, as a simulation may have
    thousands of clients. No records at all pass: nothing is known of their gradients. Raises: NoGradientError.
    """
    own = [(field, some) for field, some in records.items() if len(some)]
    parameters = flatten(engine.model_copy())
    for start in range(0, len(own), _TOGETHER):
        some_of = own[start : start + _TOGETHER]
        firsts = joined([some.take(np.zeros(1, dtype=np.int64)) for _, some in some_of])
        for (field, some), is_finite in zip(some_of, engine.finite_gradients(parameters, firsts), strict=True):
            if not is_finite and not engine.has_finite_gradient(parameters, some):
                raise NoGradientError(field, engine.loss.name)
