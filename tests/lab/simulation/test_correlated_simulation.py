"""Correlated noise and turns in a simulation: whose turn it is, what noise a round has, and how it goes on.

Failure means that a simulation is not what servers do, or that a training that is resumed is another one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal

from precad.clients.gradients.engine import RecordEngine
from precad.lab.simulation import SeededRandomness
from precad.lab.simulation.randomness import drawn
from precad.protos.task.task import Task
from tests.lab.simulation.test_training import IDS, MODEL, Recording, simulation, task

TURNS: dict[str, Any] = {"algorithm": "user-dp-fedavg", "min_separation": 3, "noise_bands": 3, "rounds": 7}


@pytest.fixture(scope="module")
def engine() -> RecordEngine:
    return RecordEngine(MODEL, torch.zeros(1, 8, 8), device="cpu")


def test_everybody_is_in_every_third_round_at_rate_1_and_no_other() -> None:
    made = task(**TURNS, client_rate=1.0)
    chosen = [drawn(SeededRandomness(3), made, t) for t in range(made.rounds)]
    for t, names in enumerate(chosen):
        assert len(names) == 2
        assert names == chosen[t % 3]
    assert sorted(client for names in chosen[:3] for client in names) == sorted(IDS)
    assert chosen[:3] != [drawn(SeededRandomness(4), made, t) for t in range(3)]


def test_a_rate_thins_the_turns_and_adds_nobody() -> None:
    whole, thin = task(**TURNS, client_rate=1.0), task(**TURNS, client_rate=0.5)
    counts = []
    for t in range(60):
        turn, names = (set(drawn(SeededRandomness(3), made, t)) for made in (whole, thin))
        assert names <= turn
        counts.append(len(names))
    assert 0.3 < np.mean(counts) / 2 < 0.7


def noise_of(made: Task, engine: RecordEngine, rounds: int) -> list[np.ndarray]:
    """Return what both servers' noise moves the sum by, round by round."""
    algorithm = simulation(engine, made, algorithm="deployed").algorithm
    return [np.array(algorithm._noise_of_servers(t)) for t in range(rounds)]  # type: ignore[attr-defined]


def test_noise_is_the_recursion_on_the_seeds_draws(engine: RecordEngine) -> None:
    """By whole vectors and floor division, from draws 2^16 times as large as independent noise has."""
    made, draws = task(**TURNS), Recording(5)
    run = simulation(engine, made, randomness=draws, algorithm="deployed")
    assert len(list(run.run())) == made.rounds
    assert {std for _, _, std in draws.drawn} == {made.noise_std_on_grid * 2**16}
    assert len(draws.drawn) == 2 * made.rounds
    found = noise_of(made, engine, made.rounds)
    for party in (0, 1):
        outputs: list[np.ndarray] = []
        for t in range(made.rounds):
            draw = SeededRandomness(5).noise(t, f"server-{party}", made.noise_std_on_grid * 2**16, made.dim)
            _, *weights = made.strategy.coefficients
            past = sum(c * n for c, n in zip(weights, reversed(outputs), strict=False))
            outputs.append((draw - past + 2**15) // 2**16)
            assert_array_equal(found[t][party], outputs[-1])


def test_a_training_that_is_resumed_is_the_same_to_the_bit(engine: RecordEngine) -> None:
    made = task(**TURNS)
    whole = simulation(engine, made, algorithm="deployed")
    list(whole.run())
    first, second = (simulation(engine, made, algorithm="deployed") for _ in range(2))
    for _ in range(4):
        first.run_round()
    second.progress, second.algorithm.past = first.progress, first.algorithm.past
    list(second.run())
    assert second.progress.parameters.tobytes() == whole.progress.parameters.tobytes()
    independent = simulation(engine, task(**{**TURNS, "noise_bands": 1}), algorithm="deployed")
    list(independent.run())
    assert independent.progress.parameters.tobytes() != whole.progress.parameters.tobytes()


def test_a_client_is_said_to_pay_for_its_turns(engine: RecordEngine) -> None:
    """Seven rounds are three turns at most; with nobody drawn twice, one."""
    made = task(**TURNS, client_rate=1.0)
    run = simulation(engine, made, algorithm="deployed")
    list(run.run())
    assert max(run.progress.participation.values()) == made.rounds_of_a_client == 3
    one_server, clients = run.algorithm.guarantees(made.rounds, run.progress.participation)
    assert one_server.epsilon == clients.epsilon
    assert "its rounds at least 3 apart" in one_server.note
