"""Five clients stamp the paper's pixels on MNIST, with C and without: two servers' processes and a simulation agree.

Seeds and noise are equal, and so are the models, byte by byte. Success is measured on the stamped test records.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precad.clients.attacks.named import attacks_of
from precad.clients.config import ClientConfig
from precad.clients.records import Records, mnist
from precad.deploy.conducts import conducts_of
from precad.lab.simulation import Simulation, SimulationSettings
from precad.protos.task.task import Task
from tests.harness.harness import Pki, small_task
from tests.harness.models import dimension_of
from tests.integration.test_simulated_training import Client, Replayed, trained_by_processes

ATTACKERS = tuple(f"mallory-{i}" for i in range(5))
CLIENTS = (*(f"alice-{i}" for i in range(5)), *ATTACKERS)
N_RECORDS, N_ROUNDS = 120, 6
PIXELS = {"kind": "pixel-backdoor", "parameters": {"divides": False}}
UNBOUNDED: dict[str, Any] = {"validation": "none", "client_clip": 1000.0}


@functools.cache
def records() -> dict[str, Records]:
    """Return a hundred and twenty images for each client."""
    train = mnist().train
    return {c: train.take(np.arange(i * N_RECORDS, (i + 1) * N_RECORDS)) for i, c in enumerate(CLIENTS)}


def task_of(**changes: Any) -> Task:
    """Return the paper's model and clip of records, in a few rounds of everybody."""
    values = {
        "rounds": N_ROUNDS,
        "model": "cnn-standardised",
        "dim": dimension_of("cnn-standardised"),
        "client_clip": 20.0,
        "record_clip": 2.0,
        "record_rate": 0.25,
        "noise_multiplier": 1.0,
        "learning_rate": 0.3,
        "gate": "native",
        "client_rate": 1.0,
    }
    return small_task(dict.fromkeys(CLIENTS, N_RECORDS), **{**values, **changes})


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("PRECAD_DATA"), reason="PRECAD_DATA names no folder of data sets")
@pytest.mark.parametrize("changes", [{}, UNBOUNDED], ids=["within C", "unbounded"])
def test_five_backdoors_give_the_simulated_bytes(changes: dict[str, Any], tmp_path: Path) -> None:
    """Nobody is rejected, and the model is another than without the attack, whose success is whole after six rounds."""
    task = task_of(**changes)
    config = ClientConfig.model_validate(
        {"certificates": ".", "authority": "ca.pem", "attacks": dict.fromkeys(ATTACKERS, PIXELS)}
    )
    conducts = conducts_of(CLIENTS, config, task)
    clients = {client: Client(client, task, conducts[client], held=records()[client]) for client in CLIENTS}
    found = trained_by_processes(task, Pki.create(tmp_path / "pki", CLIENTS), tmp_path, clients, conducts)

    everybody = dict.fromkeys(range(task.rounds), CLIENTS)
    models, success = [], []
    for attacks in (attacks_of(config), {}):
        simulation = Simulation(
            task=task,
            settings=SimulationSettings(algorithm="deployed", batching="client", servers="cleartext"),
            records=records(),
            test=mnist().test,
            randomness=Replayed(everybody),
            attacks=attacks,
            device="cpu",
            initial=np.zeros(task.dim, dtype=np.float32),
        )
        lines = list(simulation.run())
        assert not any(line.rejected for line in lines)
        models.append(simulation.progress.parameters.tobytes())
        success.append(lines[-1].attack_success)
    assert found == (models[0], [[]] * N_ROUNDS)
    assert models[0] != models[1]
    assert success == [1.0, None]
