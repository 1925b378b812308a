"""Before the first round: whether a client's records give its model anything to learn from.

A gradient that is not finite adds zero to its client's sum (`precad.clients.gradients.record_clipping`). Where a faulty
model or loss gives NaN for every record, the task would spend its budget on noise, and nobody would notice. A client
that finds this does not start, like one without records; its operator reads why. Once it has joined, a client uploads
whatever its records give: staying away would tell of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from precad.clients.errors import NoGradientError
from precad.clients.gradients.engine import RecordEngine
from precad.clients.models.networks import flatten
from precad.clients.records.records import Records


def require_some_gradient(engine: RecordEngine, records: Mapping[str, Records]) -> None:
    """Refuse records, by the field that they are from, of which none has a finite gradient at the first parameters.

    No records at all pass: nothing is known of their gradients. Raises: NoGradientError.
    """
    parameters = flatten(engine.model_copy())
    for field, own in records.items():
        if len(own) and not engine.has_finite_gradient(parameters, own):
            raise NoGradientError(field, engine.loss.name)
