"""Which records are kept for testing, each by a keyed hash of its own content.

A record's place plays no part. So one record more, or less, moves no other one between training and testing: it changes
an update by at most R, as everywhere. Equal records are on the same side.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from precad.clients.records.records import Records

_HOLDOUT_BYTES: Final = 8
_ORDER_BYTES: Final = 16


def is_kept_aside(records: Records, share: float, seed: int) -> NDArray[np.bool_]:
    """Return for each record whether it is kept for testing, (n,).

    share: the probability over seeds. Another seed keeps others; it protects nobody.
    """
    if share == 0:
        return np.zeros(len(records), dtype=np.bool_)
    key = hashlib.sha256(f"precad holdout {seed}".encode()).digest()
    below = int(share * 2.0**64)
    digests = _digests(records, key, _HOLDOUT_BYTES)
    return np.array([int.from_bytes(digest, "little") < below for digest in digests], dtype=np.bool_)


def content_order(records: Records) -> NDArray[np.int64]:
    """Return the indices of the records in an order that their content decides, whatever their places, (n,)."""
    digests = list(_digests(records, b"", _ORDER_BYTES))
    return np.array(sorted(range(len(digests)), key=digests.__getitem__), dtype=np.int64)


def _digests(records: Records, key: bytes, size: int) -> Iterator[bytes]:
    features = np.ascontiguousarray(records.features).astype(records.features.dtype.newbyteorder("<"), copy=False)
    labels = records.labels.astype(records.labels.dtype.newbyteorder("<"), copy=False)
    for row, label in zip(features, labels, strict=True):
        yield hashlib.blake2b(row.tobytes() + label.tobytes(), digest_size=size, key=key).digest()
