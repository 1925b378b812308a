"""Which records are kept for testing, each by a keyed hash of its own content.

A record's place plays no part. So one record more, or less, moves no other one between training and testing: it changes
an update by at most R, as everywhere. Equal records are on the same side.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from precad.clients.records.records import Records


def is_kept_aside(records: Records, share: float, seed: int) -> NDArray[np.bool_]:
    """Return for each record whether it is kept for testing, (n,).

    share: the probability over seeds. Another seed keeps others; it protects nobody.
    """
    if share == 0:
        return np.zeros(len(records), dtype=np.bool_)
    key = hashlib.sha256(f"precad holdout {seed}".encode()).digest()
    below = int(share * 2.0**64)
    features = np.ascontiguousarray(records.features).astype(records.features.dtype.newbyteorder("<"), copy=False)
    labels = records.labels.astype(records.labels.dtype.newbyteorder("<"), copy=False)
    return np.array(
        [
            int.from_bytes(_digest(row.tobytes() + label.tobytes(), key), "little") < below
            for row, label in zip(features, labels, strict=True)
        ],
        dtype=np.bool_,
    )


def _digest(content: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=8, key=key).digest()
