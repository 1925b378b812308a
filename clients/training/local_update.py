"""Algorithm 2 of PRECAD, lines 1 to 7: what a client computes before it encodes and shares.

`local_updates` reads like the algorithm; `precad.clients.gradients.engine` holds lines 2 to 6.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from precad.clients.errors import ArgumentError, NonFiniteModelError
from precad.clients.gradients.engine import RecordEngine
from precad.clients.gradients.record_clipping import RecordClip
from precad.clients.records import Records
from precad.clients.training.projection import shrinkage
from precad.mpc.prg import SYSTEM_BYTES, RandomBytes

_WORD_BITS: Final = 64


def local_updates(
    parameters: NDArray[np.float32] | NDArray[np.float64],
    clients: Sequence[Records],
    *,
    engine: RecordEngine,
    sample_rate: float | Sequence[float],
    record_clip: RecordClip,
    client_clip_norm: float,
    random_bytes: RandomBytes = SYSTEM_BYTES,
) -> NDArray[np.float64]:
    """Return Delta theta of several clients of one round, before encoding; (len(clients), d).

    Units are those of the aggregate. A client's Delta theta is the negative sum of the sampled records' gradients,
    each clipped to R. The sum is projected onto the ball of radius C = `client_clip_norm`; C = infinity leaves the sum
    as it is. Each record is in the sample with probability p = `sample_rate`, one for all clients or one for each,
    independently. Adding or removing one record of the sample moves the result by at most min(R, 2C), the others'
    draws held fixed. The computed result obeys this as far as docs/explanation/privacy.md says.
    `parameters` is the global model theta_t (d,). Clients share no randomness; their samples are drawn in their order.
    Raises: ArgumentError (also DimensionError), NonFiniteModelError; NonFiniteGradientError where R is infinite. Then
    nothing may be uploaded.
    Source: PRECAD, Algorithm 2, lines 1-7.
    """
    if not np.isfinite(parameters).all():
        raise NonFiniteModelError
    rates = [sample_rate] * len(clients) if isinstance(sample_rate, int | float) else sample_rate
    samples = [  # line 1
        records.take(sample_records(len(records), rate, random_bytes))
        for records, rate in zip(clients, rates, strict=True)
    ]
    updates = engine.clipped_sums(parameters, samples, record_clip)  # lines 2-6
    if client_clip_norm == math.inf:  # this form leaves NaN to `shrinkage`, which refuses it
        return np.negative(updates, out=updates)
    for i, update in enumerate(updates):
        updates[i] *= -shrinkage(update, client_clip_norm)  # line 7
    return updates


def sample_records(n_records: int, sample_rate: float, random_bytes: RandomBytes = SYSTEM_BYTES) -> NDArray[np.int64]:
    """Return the indices, ascending, of a Poisson sample: each of n_records is in it with probability p, independently.

    A record is in when its own 64-bit word is below floor(p * 2^64). Its probability is at most p, and short of p by
    less than 2^-64. Privacy is amplified only as far as this choice cannot be predicted: `random_bytes` is a
    cryptographic generator in production.
    Raises: ArgumentError unless n_records >= 0 and p is in [0, 1], or if the generator returns too few bytes.
    """
    if n_records < 0:
        raise ArgumentError(f"n_records: expected at least 0, found {n_records}")
    if not 0 <= sample_rate <= 1:
        raise ArgumentError(f"sample_rate: expected a number in [0, 1], found {sample_rate}")
    if sample_rate == 1:  # the threshold 2^64 does not fit a word
        return np.arange(n_records, dtype=np.int64)
    drawn = random_bytes(n_records * _WORD_BITS // 8)
    if len(drawn) != n_records * _WORD_BITS // 8:
        raise ArgumentError(f"random_bytes: expected {n_records * _WORD_BITS // 8} bytes, found {len(drawn)}")
    threshold = math.floor(math.ldexp(sample_rate, _WORD_BITS))  # exact: ldexp moves the exponent only
    return np.flatnonzero(np.frombuffer(drawn, dtype="<u8") < np.uint64(threshold)).astype(np.int64)
