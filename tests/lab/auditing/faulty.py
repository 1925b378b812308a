"""Copies of the servers and clients with one fault each, for audits to find."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from precad.clients.gradients.engine import RecordEngine
from precad.clients.gradients.record_clipping import RecordClip
from precad.clients.records import Records
from precad.clients.training import local_update, round_update
from precad.clients.training.local_update import sample_records
from precad.lab.auditing.deployment_round import AuditedRound
from precad.lab.bench.audit_figures import CONFIG as SOUND
from precad.lab.simulation.algorithms.algorithm import Parameters
from precad.mpc.prg import RandomBytes
from precad.mpc.ring import RingArray
from tests.lab.auditing.faulty_noise import ROUND_OF_FAULT

CONFIG: dict[str, Any] = {**SOUND, "task": {**SOUND["task"], "name": "audited", "rounds": 20}}


def _everything(n: int, rate: float, draw: RandomBytes) -> NDArray[np.int64]:
    return np.arange(n, dtype=np.int64)


def _twice_as_often(n: int, rate: float, draw: RandomBytes) -> NDArray[np.int64]:
    return sample_records(n, 2 * rate, draw)


def _always_the_same(n: int, rate: float, draw: RandomBytes) -> NDArray[np.int64]:
    """A sample that is drawn once, for all rounds."""
    return sample_records(n, rate, np.random.default_rng(n).bytes)


def _together(n: int, rate: float, draw: RandomBytes) -> NDArray[np.int64]:
    """One coin for all records of a client."""
    return np.arange(n if draw(1)[0] < 256 * rate else 0, dtype=np.int64)


def _fixed_half(n: int, rate: float, draw: RandomBytes) -> NDArray[np.int64]:
    """The first half of the records alone, twice as often."""
    return sample_records(n // 2, 2 * rate, draw)


def _of_fixed_size(n: int, rate: float, draw: RandomBytes) -> NDArray[np.int64]:
    return np.sort(np.frombuffer(draw(8 * n), dtype="<u8").argsort()[: round(rate * n)])


def _of_largest_size(n: int, rate: float, draw: RandomBytes) -> NDArray[np.int64]:
    """No more records than the mean, as where memory is short."""
    return sample_records(n, rate, draw)[: round(rate * n)]


def _one_always(n: int, rate: float, draw: RandomBytes) -> NDArray[np.int64]:
    return np.union1d(sample_records(n, rate, draw), np.arange(min(n, 1)))


def _two_by_two(n: int, rate: float, draw: RandomBytes) -> NDArray[np.int64]:
    """One coin for two neighbours."""
    chosen = sample_records((n + 1) // 2, rate, draw)
    both = np.stack([2 * chosen, 2 * chosen + 1], axis=1).ravel()
    return both[both < n]


def _contiguous(n: int, rate: float, draw: RandomBytes) -> NDArray[np.int64]:
    """As many neighbours as independent draws would give, from a random place on, as of a file read from there."""
    fresh = np.random.default_rng(int.from_bytes(draw(16), "big"))
    return np.sort((fresh.integers(max(n, 1)) + np.arange(fresh.binomial(n, rate))) % max(n, 1))


def _block_in_an_order(n: int, rate: float, draw: RandomBytes) -> NDArray[np.int64]:
    """Likewise, of records that were shuffled once: no neighbours of the file come together."""
    return np.sort(np.random.default_rng(n).permutation(n)[_contiguous(n, rate, draw)]) if n else np.arange(0)


def _a_tenth_more(n: int, rate: float, draw: RandomBytes) -> NDArray[np.int64]:
    return sample_records(n, 1.1 * rate, draw)


def _record_twice(n: int, rate: float, draw: RandomBytes) -> NDArray[np.int64]:
    """Each record that is drawn counts twice."""
    return np.repeat(sample_records(n, rate, draw), 2)


class _InFixedOrder:
    """Without replacement: the records of a client by turns, a quarter in each round. A call is a round of its own."""

    def __init__(self) -> None:
        self._calls = Counter[int]()

    def __call__(self, n: int, rate: float, draw: RandomBytes) -> NDArray[np.int64]:
        turns, turn = round(1 / rate), self._calls[n]
        self._calls[n] += 1
        return np.arange(turn % turns, n, turns, dtype=np.int64)


class _SeedAgain:
    """The draws of a client's fourth round come again in its twelfth."""

    def __init__(self) -> None:
        self._calls, self._kept = Counter[int](), dict[int, NDArray[np.int64]]()

    def __call__(self, n: int, rate: float, draw: RandomBytes) -> NDArray[np.int64]:
        self._calls[n] += 1
        found = sample_records(n, rate, draw)
        if self._calls[n] == 4:
            self._kept[n] = found
        return self._kept.get(n, found) if self._calls[n] == 12 else found


SAMPLES: dict[str, Callable[[int, float, RandomBytes], NDArray[np.int64]]] = {
    "sampling": _everything,
    "doubled": _twice_as_often,
    "same-sample": _always_the_same,
    "together": _together,
    "fixed-half": _fixed_half,
    "fixed-size": _of_fixed_size,
    "largest-size": _of_largest_size,
    "one-always": _one_always,
    "two-by-two": _two_by_two,
    "contiguous": _contiguous,
    "block-in-an-order": _block_in_an_order,
    "a-tenth-more": _a_tenth_more,
    "record-twice": _record_twice,
}
STATEFUL: dict[str, Callable[[], Callable[[int, float, RandomBytes], NDArray[np.int64]]]] = {
    "fixed-order": _InFixedOrder,
    "seed-again": _SeedAgain,
}


def _with_one_twice(self: AuditedRound, parameters: Parameters, noisy_sum: RingArray, n: int = 0) -> Parameters:
    """In one round the servers add one client's upload twice."""
    again = self._of_round["audit-0000"] * int(len(self.seen.present) == ROUND_OF_FAULT)
    return _UPDATED(self, parameters, noisy_sum + again, n)


_UPDATED, _CLIPPED = AuditedRound._updated, RecordEngine.clipped_sums
Sums = list[NDArray[np.float64]]


def _divided_first(self: AuditedRound, parameters: Parameters, noisy_sum: RingArray, n: int = 0) -> Parameters:
    """The sum is halved before the noise is added."""
    uploads = sum(self._of_round.values(), np.zeros_like(noisy_sum))
    return _UPDATED(self, parameters, noisy_sum - uploads // 2, n)


def _of_batches(self: RecordEngine, theta: Any, samples: Sequence[Records], clip: RecordClip) -> Any:
    """The clip of a client's sum, in place of that of each record."""
    sums = _CLIPPED(self, theta, samples, RecordClip(1e9))
    return sums / np.maximum(1.0, np.linalg.norm(sums, axis=1, keepdims=True) / clip.norm)


def _late(self: RecordEngine, theta: Any, samples: Sequence[Records], clip: RecordClip) -> Any:
    """The clip of those gradients alone that are longer than 3 R."""
    found = []
    for records in samples:
        total = np.zeros(self.dim)
        for i in range(len(records)):
            (whole,) = _CLIPPED(self, theta, [records.take(np.array([i]))], RecordClip(1e9))
            length = float(np.linalg.norm(whole)) / clip.norm
            total += whole / length if length > 3 else whole
        found.append(total)
    return np.array(found)


def _of_layers(self: RecordEngine, theta: Any, samples: Sequence[Records], clip: RecordClip) -> Any:
    """The clip of each layer by itself."""
    sizes = np.cumsum([p.numel() for p in self.model_copy().parameters()])[:-1]
    found = []
    for records in samples:
        total = np.zeros(self.dim)
        for i in range(len(records)):
            (whole,) = _CLIPPED(self, theta, [records.take(np.array([i]))], RecordClip(1e9))
            layers = np.split(whole, sizes)
            total += np.concatenate([one / max(1.0, np.linalg.norm(one) / clip.norm) for one in layers])
        found.append(total)
    return np.array(found)


@contextmanager
def faulty_clients(fault: str) -> Iterator[None]:
    """Clients that clip to 1.5 R, draw their records as `SAMPLES` has it, or are counted twice; else honest ones."""
    with pytest.MonkeyPatch.context() as patch:
        if fault == "clip":
            patch.setattr("precad.lab.simulation.federation.record_clip", lambda task: RecordClip(1.5))
            patch.setattr(round_update, "record_clip", lambda task: RecordClip(1.5 * task.record_clip))
        elif fault == "twice":
            patch.setattr(AuditedRound, "_updated", _with_one_twice)
        elif fault == "divided-first":
            patch.setattr(AuditedRound, "_updated", _divided_first)
        elif fault == "of-batches":
            patch.setattr(RecordEngine, "clipped_sums", _of_batches)
        elif fault == "late-clip":
            patch.setattr(RecordEngine, "clipped_sums", _late)
        elif fault == "of-layers":
            patch.setattr(RecordEngine, "clipped_sums", _of_layers)
        elif fault in STATEFUL:
            patch.setattr(local_update, "sample_records", STATEFUL[fault]())
        elif fault in SAMPLES:
            patch.setattr(local_update, "sample_records", SAMPLES[fault])
        yield
