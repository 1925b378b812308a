"""Copies of the servers and clients with one fault each, for audits to find."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from precad.clients.gradients.record_clipping import RecordClip
from precad.clients.training import local_update, round_update
from precad.dp.noise import rounded_gaussian
from precad.lab.simulation import SeededRandomness
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


class FaultyServer(SeededRandomness):
    """Server B draws what it should not; server A is as it must be."""

    def __init__(self, seed: int, *, factor: float = 1.0, repeats: bool = False) -> None:
        """factor: of B's standard deviation, 0 for none at all. repeats: B uses each noise in two rounds."""
        super().__init__(seed)
        self._factor, self._repeats = factor, repeats

    def noise(self, t: int, source: str, std_on_grid: float, dim: int) -> RingArray:
        """See Randomness."""
        if source != "server-1":
            return super().noise(t, source, std_on_grid, dim)
        if self._factor == 0:
            return np.zeros(dim, dtype=np.int64)
        of_round = t - t % 2 if self._repeats else t
        return rounded_gaussian.sample(
            self._factor * std_on_grid, dim, self._generator("noise", of_round, source).bytes
        )


@contextmanager
def faulty_clients(fault: str) -> Iterator[None]:
    """Clients that clip to 1.5 R, or take all of their records; and honest ones for any other fault."""
    with pytest.MonkeyPatch.context() as patch:
        if fault == "clip":
            patch.setattr("precad.lab.simulation.federation.record_clip", lambda task: RecordClip(1.5))
            patch.setattr(round_update, "record_clip", lambda task: RecordClip(1.5 * task.record_clip))
        elif fault == "sampling":
            patch.setattr(local_update, "sample_records", lambda n, rate, draw: np.arange(n, dtype=np.int64))
        yield
