"""Keep one real audit client's secrets of one task: its records, their coins, and every update with its model.

    {"client": .., "task": digest}                                                  the header
    {"coins": "0110..", "shape": [..], "features": .., "labels": [..]}              drawn once, of these records
    {"n_committed": .., "model": digest, "parameters": .., "uploaded": ..}          for every update
    {"pairs": .., "most": ..}                                                       records at kinks of the model

It is a file as `precad.clients.auditing.canary_file` has it. Whoever reads it knows the records: the client's own
auditor. Everything that the audit computes can be computed again from it, by other code than the client's.
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass, field
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from precad.clients.auditing.canary_file import Secrets
from precad.clients.auditing.kinks import Kinks
from precad.clients.errors import ArgumentError
from precad.clients.records.records import Records
from precad.mpc.ring import RingArray

_FIRST: Final = ["coins", "shape", "features", "labels"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RealContribution:
    """Hold one update, and the model that both servers had committed before it."""

    n_committed: int
    model_digest: bytes
    parameters: NDArray[np.float32]
    """(n,): the model's parameters."""
    uploaded: RingArray
    """(n,): the encoded update there."""

    def fields(self) -> dict[str, Any]:
        """Return it as a line's fields."""
        return {
            "n_committed": self.n_committed,
            "model": self.model_digest.hex(),
            "parameters": base64.b64encode(self.parameters.astype("<f4").tobytes()).decode(),
            "uploaded": base64.b64encode(zlib.compress(self.uploaded.astype("<i8").tobytes(), level=1)).decode(),
        }

    @classmethod
    def of(cls, fields: dict[str, Any], n: int) -> Self:
        """Read a line's fields. Raises ValueError for any others."""
        if list(fields) != ["n_committed", "model", "parameters", "uploaded"]:
            raise ValueError(f"expected a contribution, found the fields {', '.join(fields)}")
        parameters = np.frombuffer(base64.b64decode(str(fields["parameters"]), validate=True), dtype="<f4")
        uploaded, number = _words(str(fields["uploaded"]), n), fields["n_committed"]
        if len(parameters) != n or not np.isfinite(parameters).all() or type(number) is not int:
            raise ValueError(f"expected {n} numbers of a model, found others")
        return cls(number, bytes.fromhex(str(fields["model"])), parameters.astype(np.float32), uploaded)


def _words(text: str, n: int) -> RingArray:
    """Return n integers of a line. Raises ValueError."""
    packed, unpacker = base64.b64decode(text, validate=True), zlib.decompressobj()
    try:
        found = unpacker.decompress(packed, 8 * n + 1)
    except zlib.error:
        found = b""
    if len(found) != 8 * n:
        raise ValueError(f"expected {n} integers, found others")
    return np.frombuffer(found, dtype="<i8").astype(np.int64)


@dataclass(slots=True, eq=False, repr=False)
class RealSecrets(Secrets):
    """Secrets of an audit client with records of its own."""

    held: int
    n_parameters: int
    """n: of the model."""
    records: Records
    """Those that the coins are of: the file's own, once it is read."""
    coins: NDArray[np.bool_] | None = None
    contributions: list[RealContribution] = field(default_factory=list)
    """One for each update that was encoded, in order."""
    kinks: list[Kinks] = field(default_factory=list)

    @classmethod
    def unread(cls, held: int, n_parameters: int) -> Self:
        """Return secrets to be filled from a file."""
        return cls(held, n_parameters, Records(np.zeros((0, 1), dtype=np.float32), np.zeros(0, dtype=np.int64)))

    def first_line(self, coins: str) -> dict[str, Any]:
        """See `Secrets`."""
        return {
            "coins": coins,
            "shape": list(self.records.shape),
            "features": base64.b64encode(self.records.features.astype("<f4").tobytes()).decode(),
            "labels": self.records.labels.tolist(),
        }

    def take_first(self, fields: dict[str, Any]) -> None:
        """See `Secrets`."""
        if list(fields) != _FIRST:
            raise ValueError(f"expected coins and their records, found the fields {', '.join(fields)}")
        Secrets.take_first(self, {"coins": fields["coins"]})
        shape, labels = fields["shape"], fields["labels"]
        for name, values in (("shape", shape), ("labels", labels)):
            if not isinstance(values, list) or not all(type(value) is int and value >= 0 for value in values):
                raise ValueError(f"{name}: expected a list of integers, found something else")
        features = np.frombuffer(base64.b64decode(str(fields["features"]), validate=True), dtype="<f4")
        if not shape or len(labels) != self.held or len(features) != self.held * int(np.prod(shape)):
            raise ValueError(f"expected {self.held} records, found others")
        if not np.isfinite(features).all():
            raise ValueError("features: expected finite numbers, found others")
        self.records = Records(features.astype(np.float32).reshape(self.held, *shape), np.array(labels, dtype=np.int64))

    def take_contribution(self, fields: dict[str, Any]) -> None:
        """See `Secrets`."""
        self.contributions.append(RealContribution.of(fields, self.n_parameters))


def require_tellable(client: str, records: Records, held: int) -> None:
    """Require as many records as are declared, with numbers for features and a class for a label. Raises ArgumentError.

    An auditor computes the gradient of each by itself.
    """
    if len(records) < held:
        raise ArgumentError(f"task.clients.{client}: expected {held} records to audit with, found {len(records)}")
    if records.is_text or records.labels.ndim != 1 or records.labels.dtype.kind != "i":
        raise ArgumentError(
            f"task.real_audit_clients: expected records of {client} with numbers and one class each, found "
            f"{records.features.dtype} of shape {records.shape}, labels of shape {records.labels.shape}"
        )
