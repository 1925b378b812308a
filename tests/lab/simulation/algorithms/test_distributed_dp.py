"""Distributed DP with one trusted sum: when a round releases something, and whose noise is in what it releases.

Failure means that a guarantee is stated of noise that is not there, or that a round is lost which the guarantee allows.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from precad.clients.gradients.engine import RecordEngine
from precad.clients.models import networks
from precad.lab.simulation import AttackSettings, SeededRandomness
from precad.mpc import fixed_point
from tests.lab.simulation.test_training import (
    DIM,
    IDS,
    MODEL,
    STEP,
    Recording,
    Silent,
    chosen_in,
    clipped_sum,
    final,
    sample_of,
    simulation,
    task,
)


@pytest.fixture(scope="module")
def engine() -> RecordEngine:
    return RecordEngine(MODEL, torch.zeros(1, 8, 8), device="cpu")


def test_a_round_of_exactly_tau_clients_is_released_and_one_of_fewer_is_not(engine: RecordEngine) -> None:
    """The seed draws six clients, then five, and tau is six: the model takes the first step alone.

    Failure means that a round is thrown away which is private enough, or released with less noise than is proved.
    """
    made, first, second = task(), chosen_in(0), chosen_in(1)
    assert (len(first), len(second)) == (6, 5)
    running = simulation(engine, made, randomness=Silent(5), algorithm="distributed-dp", non_colluding=6)
    assert [(metrics.n_chosen, metrics.n_accepted) for metrics in running.run()] == [(6, 6), (5, 0)]
    start = networks.initial_parameters("mlp", seed=0)
    expected = start - sum(clipped_sum(start, sample_of(c, 0), 1.0) for c in first) / made.divisor
    assert np.abs(expected - start).max() > 0.01
    assert np.abs(running.progress.parameters - expected).max() < 6 * STEP / made.divisor + 1e-6


def test_the_noise_is_that_of_honest_clients_alone(engine: RecordEngine) -> None:
    """Two of six flip labels, and draw no noise: the model has moved by the four others' draws, as decoded here.

    Failure means that a simulation counts on noise which attackers, in a deployment, leave out.
    """
    made, honest = task(rounds=1), IDS[:4]
    assert set(chosen_in(0)) == set(IDS)
    attack = AttackSettings(kind="label-flip", clients=2)
    settings = {"algorithm": "distributed-dp", "non_colluding": 4, "attack": attack}
    draws = Recording(5)
    noisy, silent = (final(simulation(engine, made, randomness=by, **settings)) for by in (draws, Silent(5)))
    assert [source for _, source, _ in draws.drawn] == honest
    std = 0.5 / STEP  # sigma R / sqrt(tau), in steps of the grid
    added = sum(SeededRandomness(5).noise(0, client, std, DIM) for client in honest)
    expected = fixed_point.decode(added, made.frac_bits) / made.divisor
    assert np.abs(noisy - silent - expected).max() < 1e-6
    assert np.abs(expected).max() > 0.01
