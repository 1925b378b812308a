"""The digest of records by whose they are."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from precad.clients.records.records import Records


def sha256_of_records(records: Mapping[str, Records]) -> str:
    """Return the SHA-256 digest, in hexadecimal, of records by their names."""
    digest = hashlib.sha256()
    for name, own in records.items():
        for values in (own.features, own.labels):
            digest.update(f"{name!r} {values.dtype.str} {values.shape}\n".encode())
            digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()
