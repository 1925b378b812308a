"""A simulated training that diverges: what is left of the round in which it did."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from precad.clients.attacks import Attack, Knowledge
from precad.clients.gradients.engine import RecordEngine
from precad.lab.simulation import SeededRandomness, Simulation, SimulationSettings
from tests.lab.simulation.test_training import IDS, MODEL, RECORDS, SPLIT, final, task


@pytest.fixture(scope="module")
def engine() -> RecordEngine:
    return RecordEngine(MODEL, torch.zeros(1, 8, 8), device="cpu")


class Bursting(Attack):
    """Behaves, but for the uploads whose numbers are listed: no model of float32 survives those."""

    def __init__(self, bursts: tuple[int, ...]) -> None:
        self.bursts, self.n_made = bursts, 0

    def craft(self, known: Knowledge) -> NDArray[np.float64]:
        """Return the honest update, or one that is finite in float64 alone."""
        self.n_made += 1
        return np.full_like(known.update, 1e60) if self.n_made in self.bursts else known.update


def training(engine: RecordEngine, optimizer: str, *bursts: int) -> Simulation:
    """Three rounds of everybody, at a rate that falls from round to round."""
    schedule = {"learning_rate": 0.1, "learning_rate_schedule": "cosine", "decay_rounds": 3}
    return Simulation(
        task=task(rounds=3, client_rate=1.0, server_optimizer=optimizer, **schedule),
        settings=SimulationSettings(algorithm="non-private"),
        records=RECORDS,
        test=SPLIT.test,
        randomness=SeededRandomness(5),
        attacks={IDS[0]: Bursting(bursts)},
        engine=engine,
    )


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_a_round_that_diverged_leaves_no_trace_in_the_servers_optimiser(engine: RecordEngine, optimizer: str) -> None:
    """The second round overflows once and is run again: the model is that of a training that never overflowed.

    Failure means that a training that goes on steps along moments, or at a rate, of a round that did not take place.
    """
    running, undisturbed = training(engine, optimizer, 2), training(engine, optimizer)
    assert len(list(running.run())) == running.progress.rounds == 1
    assert running.diverged is not None
    assert "parameters are not finite" in str(running.diverged)
    assert running.algorithm.past.n_steps == 1
    assert_array_equal(final(running), final(undisturbed))
    assert running.progress.rounds == 3
