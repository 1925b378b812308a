"""Copies of the servers and clients with one fault each, for audits to find."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import ndtr

from precad.clients.gradients.record_clipping import RecordClip
from precad.clients.training import local_update, round_update
from precad.clients.training.local_update import sample_records
from precad.lab.auditing.audited import AuditedRound
from precad.lab.simulation import SeededRandomness
from precad.lab.simulation.algorithms.algorithm import Parameters
from precad.mpc.prg import RandomBytes
from precad.mpc.ring import RingArray

CONFIG: dict[str, Any] = {
    "task": {
        "name": "audited",
        "clients": ["one", "two"],
        "rounds": 20,
        "client_rate": 1.0,
        "record_rate": 0.25,
        "record_clip": 1.0,
        "client_clip": 16.0,
        "noise_multiplier": 1.0,
        "learning_rate": 0.5,
        "model": "mlp",
        "delta": 1e-5,
    },
    "client": {"dataset": "digits"},
    "simulation": {"evaluate_every": 1000},
}


ROUND_OF_FAULT = 7
Noise = Callable[["FaultyServer", int, float, int], RingArray]
"""Round, standard deviation on the grid, and dimension to what server B adds."""


def _smaller(server: FaultyServer, t: int, std: float, dim: int) -> RingArray:
    return server.fresh(t, 0.97 * std, dim)


def _silent(server: FaultyServer, t: int, std: float, dim: int) -> RingArray:
    return np.zeros(dim, dtype=np.int64)


def _repeated(server: FaultyServer, t: int, std: float, dim: int) -> RingArray:
    return server.fresh(t - t % 2, std, dim)


def _restarted(server: FaultyServer, t: int, std: float, dim: int) -> RingArray:
    """A fixed seed: after a restart the noise of the first rounds comes again."""
    return server.fresh(t % 11, std, dim)


def _silent_once(server: FaultyServer, t: int, std: float, dim: int) -> RingArray:
    return server.fresh(t, std, dim) * int(t != ROUND_OF_FAULT)


def _truncated(server: FaultyServer, t: int, std: float, dim: int) -> RingArray:
    """No draw beyond three standard deviations: each such one is drawn again."""
    found = server.fresh(t, std, dim)
    for again in range(1, 9):
        spare = server.fresh(1000 * again + t, std, dim)
        found = np.where(np.abs(found) > 3 * std, spare, found)
    return found


def _tiled(server: FaultyServer, t: int, std: float, dim: int) -> RingArray:
    """Blocks of 50 coordinates that share their noise."""
    return np.resize(server.fresh(t, std, 50), dim)


def _copied(server: FaultyServer, t: int, std: float, dim: int) -> RingArray:
    """One coordinate has the noise of its neighbour."""
    found = server.fresh(t, std, dim)
    found[-1] = found[-2]
    return found


def _coarse(server: FaultyServer, t: int, std: float, dim: int) -> RingArray:
    return server.fresh(t, std, dim) >> 8 << 8


def _of_the_other(server: FaultyServer, t: int, std: float, dim: int) -> RingArray:
    """Ten coordinates have the other server's noise."""
    found = server.fresh(t, std, dim)
    found[-10:] = SeededRandomness.noise(server, t, "server-0", std, dim)[-10:]
    return found


def _of_another_round(server: FaultyServer, t: int, std: float, dim: int) -> RingArray:
    """Half of the rounds have too little noise, and the others as much more."""
    return server.fresh(t, (0.93 if t >= 10 else 1.067) * std, dim)


def _every_other(server: FaultyServer, t: int, std: float, dim: int) -> RingArray:
    """Noise in even coordinates only, of twice the variance."""
    found = server.fresh(t, math.sqrt(2) * std, dim)
    found[1::2] = 0
    return found


def _logistic(server: FaultyServer, t: int, std: float, dim: int) -> RingArray:
    """Another law of this variance: by its quantiles."""
    u = (ndtr(server.fresh(t, std, dim) / std)).clip(1e-12, 1 - 1e-12)
    return np.asarray(np.rint(np.log(u / (1 - u)) * std * math.sqrt(3) / math.pi), dtype=np.int64)


def _shifted(server: FaultyServer, t: int, std: float, dim: int) -> RingArray:
    """One stream, read from another place in every round."""
    return np.roll(server.fresh(0, std, dim), 3 * t)


def _going_on(server: FaultyServer, t: int, std: float, dim: int) -> RingArray:
    """A tenth of the noise is that of the round before, and the variance as printed."""
    fresh, before = server.fresh(t, std, dim), server.fresh(t - 1, std, dim)
    return np.asarray(np.rint(math.sqrt(0.99) * fresh + 0.1 * before), dtype=np.int64)


NOISES: dict[str, Noise] = {
    "noise": _smaller,
    "silent": _silent,
    "repeated": _repeated,
    "restarted": _restarted,
    "silent-once": _silent_once,
    "truncated": _truncated,
    "tiled": _tiled,
    "copied": _copied,
    "coarse": _coarse,
    "of-the-other": _of_the_other,
    "of-another-round": _of_another_round,
    "every-other": _every_other,
    "logistic": _logistic,
    "shifted": _shifted,
    "going-on": _going_on,
}


class FaultyServer(SeededRandomness):
    """Server B draws what it should not; server A is as it must be."""

    def __init__(self, seed: int, noise: str) -> None:
        super().__init__(seed)
        self._noise = NOISES[noise]

    def noise(self, t: int, source: str, std_on_grid: float, dim: int) -> RingArray:
        """See Randomness."""
        if source != "server-1":
            return super().noise(t, source, std_on_grid, dim)
        return self._noise(self, t, std_on_grid, dim)

    def fresh(self, t: int, std: float, dim: int) -> RingArray:
        """Return an honest server's draw."""
        return super().noise(t, "server-1", std, dim)


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


def _one_always(n: int, rate: float, draw: RandomBytes) -> NDArray[np.int64]:
    return np.union1d(sample_records(n, rate, draw), np.arange(min(n, 1)))


def _two_by_two(n: int, rate: float, draw: RandomBytes) -> NDArray[np.int64]:
    """One coin for two neighbours."""
    chosen = sample_records((n + 1) // 2, rate, draw)
    both = np.stack([2 * chosen, 2 * chosen + 1], axis=1).ravel()
    return both[both < n]


SAMPLES: dict[str, Callable[[int, float, RandomBytes], NDArray[np.int64]]] = {
    "sampling": _everything,
    "doubled": _twice_as_often,
    "same-sample": _always_the_same,
    "together": _together,
    "fixed-half": _fixed_half,
    "fixed-size": _of_fixed_size,
    "one-always": _one_always,
    "two-by-two": _two_by_two,
}


def _with_one_twice(self: AuditedRound, parameters: Parameters, noisy_sum: RingArray, n: int = 0) -> Parameters:
    """In one round the servers add one client's upload twice."""
    again = self._of_round["audit-0000"] * int(len(self.seen.present) == ROUND_OF_FAULT)
    return _UPDATED(self, parameters, noisy_sum + again, n)


_UPDATED = AuditedRound._updated


@contextmanager
def faulty_clients(fault: str) -> Iterator[None]:
    """Clients that clip to 1.5 R, draw their records as `SAMPLES` has it, or are counted twice; else honest ones."""
    with pytest.MonkeyPatch.context() as patch:
        if fault == "clip":
            patch.setattr("precad.lab.simulation.federation.record_clip", lambda task: RecordClip(1.5))
            patch.setattr(round_update, "record_clip", lambda task: RecordClip(1.5 * task.record_clip))
        elif fault == "twice":
            patch.setattr(AuditedRound, "_updated", _with_one_twice)
        elif fault in SAMPLES:
            patch.setattr(local_update, "sample_records", SAMPLES[fault])
        yield
