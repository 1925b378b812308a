"""Which of a client's records a round has: drawn anew in every round, or in bins that hold for an epoch.

    Poisson     each record with probability p_i in each round, by itself
    bins        each record in exactly one of the T rounds of an epoch, uniformly, by itself

A bin follows from the client's secret key by a keyed hash of epoch, content and place. The place is the record's among
those of the same content. So it is the same after a restart, and no other record's moves when one is added or
removed. Copies of a record have bins of their own, as one for all would be known from a copy.

    bin = BLAKE2b_key( SHA-256(task, run, epoch) || SHA-256(record) || place ) mod T,    a number of 256 bits

A number of 256 bits mod T is within T 2^-256 of uniform. To whoever lacks the key, the hash is a random function.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import numpy as np
import structlog
from numpy.typing import NDArray

from precad.clients.errors import ArgumentError
from precad.clients.record_bins import Payer, RecordBins
from precad.clients.records import Records
from precad.protos.task.task import Task

log = structlog.get_logger(__name__)
_PLACE_BYTES: Final = 8
_BIN_BYTES: Final = 32


class Drawn(NamedTuple):
    """Records of a client that a round's sample is of."""

    records: Records
    rate: float
    """With which each of these is in the round."""


class RecordDraws(Protocol):
    """Draw a client's records of a round."""

    def enter(self, client: str, task_id: str, number: int) -> None:
        """Hear which round, as both servers number it, the client's next draw is for."""

    def drawn(self, client: str, own: Records) -> Drawn:
        """Return what the round's sample is of. Raises ClientError where the client stays away from the round."""


class PoissonDraws:
    """Each round draws by itself, whatever its number."""

    def __init__(self, task: Task) -> None:
        """Raises ArgumentError for a task whose records are in bins."""
        if task.record_bins is not None:
            raise ArgumentError(f"task.record_bins: expected none where each round draws, found {task.record_bins}")
        self._task = task

    def enter(self, client: str, task_id: str, number: int) -> None:
        """See RecordDraws."""

    def drawn(self, client: str, own: Records) -> Drawn:
        """See RecordDraws. All of them, at the rate of this client."""
        return Drawn(own, self._task.rate_of(client))


@dataclass(frozen=True, slots=True, repr=False)
class BinKey:
    """Secret of a client's bins, and the run that they are of."""

    key: bytes
    task_id: str


class EpochBins:
    """Bins of one client's records, of the epoch that was asked for last. The same records in every epoch."""

    def __init__(self, task: Task, own: Records) -> None:
        """task: one whose records are in bins."""
        assert task.record_bins is not None  # or nobody would make this
        self.own, self._run, self._bins = own, task.digest().hex(), task.record_bins
        self._digests = [
            hashlib.sha256(features.tobytes() + label.tobytes()).digest()
            for features, label in zip(own.features, own.labels, strict=True)
        ]
        self._last: tuple[BinKey, int, NDArray[np.int64]] | None = None

    def of_epoch(self, key: BinKey, epoch: int) -> NDArray[np.int64]:
        """Return the bin of each record in an epoch, (n,)."""
        run = hashlib.sha256(f"{self._run} {key.task_id} {epoch}".encode()).digest()
        before: Counter[bytes] = Counter()
        found = np.empty(len(self._digests), dtype=np.int64)
        for i, digest in enumerate(self._digests):
            place = before[digest].to_bytes(_PLACE_BYTES, "big")
            before[digest] += 1
            drawn = hashlib.blake2b(run + digest + place, key=key.key, digest_size=_BIN_BYTES).digest()
            found[i] = int.from_bytes(drawn, "big") % self._bins
        return found

    def of_round(self, key: BinKey, number: int) -> Drawn:
        """Return the records whose bin the round of this number is, for certain."""
        epoch, place = divmod(number, self._bins)
        if self._last is None or self._last[:2] != (key, epoch):
            self._last = (key, epoch, self.of_epoch(key, epoch))
        return Drawn(self.own.take(np.flatnonzero(self._last[2] == place)), 1.0)

    def fingerprint(self, key: bytes) -> bytes:
        """Return 32 bytes by which its holder knows these records again, in any order; nobody else learns of them."""
        return hashlib.blake2b(b"".join(sorted(self._digests)), key=key, digest_size=_BIN_BYTES).digest()


class BinDraws:
    """Records in bins, of the clients that one process hosts. A client's rounds come one after the other."""

    def __init__(self, task: Task, kept: Mapping[str, RecordBins]) -> None:
        """kept: what each client keeps on disk."""
        self._task, self._kept = task, kept
        self._entered: dict[str, tuple[str, int]] = {}
        self._bins: dict[str, tuple[EpochBins, bytes]] = {}
        """Each client's, and the digest by which its file knows its records again."""

    def enter(self, client: str, task_id: str, number: int) -> None:
        """See RecordDraws."""
        self._entered[client] = (task_id, number)

    def drawn(self, client: str, own: Records) -> Drawn:
        """See RecordDraws. Those whose bin the round is, once it is on disk that they were. A round is drawn once.

        None of records that are others than when the epoch began.
        """
        if (which := self._entered.pop(client, None)) is None:
            raise ArgumentError(f"{client}: expected a round to draw records for, found none")
        task_id, number = which
        kept = self._kept[client]
        if client not in self._bins or self._bins[client][0].own is not own:
            made = EpochBins(self._task, own)
            self._bins[client] = (made, made.fingerprint(kept.key))
        bins, known_by = self._bins[client]
        if not kept.begin(task_id, number, known_by):
            log.warning(
                "client.records_changed", client=client, round=number, waits_for="the next epoch of record_bins"
            )
            return Drawn(own.take(np.empty(0, dtype=np.int64)), 1.0)
        return bins.of_round(BinKey(kept.key, task_id), number)


def draws_of(task: Task, folder: Path, clients: Collection[str], payers: Mapping[str, Payer]) -> RecordDraws:
    """Return how rounds of a task draw. folder: where clients keep their bins, each in a file of its own.

    payers: by client, of those whose epochs are paid. Raises StateFileError.
    """
    if task.record_bins is None:
        return PoissonDraws(task)
    kept = {
        client: RecordBins(
            client,
            task.digest(),
            bins=task.record_bins,
            file=folder / f"{client}.bins",
            payer=payers.get(client),
        )
        for client in clients
    }
    return BinDraws(task, kept)
