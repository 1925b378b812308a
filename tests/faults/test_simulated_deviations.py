"""One aggregator that deviates at random, in tasks with a dealer, on the simulated clock and network.

Failure means anything that `tests.faults.simulation.deviation.OneSided` names of the honest server. It also means one
that waits for what cannot come, or ends for no reason of its own. Mode `proved` is in
`tests.integration.test_random_deviations`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from precad.protos.task.task import Task
from precad.servers.store.state import TaskState
from tests.faults.simulation import playing
from tests.faults.simulation.deviation import DeviatingWorld
from tests.faults.simulation.oracle import ViolationError
from tests.faults.test_simulated_faults import CLIENTS, a_late_charge, no_charge, the_same_number_again
from tests.harness.harness import small_task
from tests.harness.pki import Pki

OF_ALL: dict[str, Any] = {"client_rate": 0.9, "gate": "native", "dim": 6, "submit_timeout_s": 4.0, "lost_rounds": 3}
TASKS = {
    "training": small_task(CLIENTS, rounds=3, **OF_ALL),
    "evaluations": small_task(
        CLIENTS, rounds=3, evaluation="clients", evaluation_every=2, evaluation_noise=5.0, **OF_ALL
    ),
    "tests": small_task(CLIENTS, rounds=3, algorithm="tsgd-ptr", trim_noise=0.01, trim_failure=0.4, **OF_ALL),
}
RATES = (0.01, 0.04, 0.1)


@pytest.fixture(scope="module")
def pki(place: Path) -> Pki:
    return Pki.create(place / "pki", CLIENTS)


def played(place: Path, pki: Pki, task: Task, seed: int) -> DeviatingWorld:
    """A world whose honest server has ended; its folder is gone again. Raises what was found wrong."""
    return playing.played(place, lambda folder: DeviatingWorld(folder, task, pki, seed, rate=RATES[seed % len(RATES)]))


def done_by(worlds: list[DeviatingWorld]) -> tuple[Counter[str], int]:
    """Return what the deviating servers did, and how many noisy shares left the honest ones."""
    done = Counter[str]()
    for world in worlds:
        done.update(world.done)
    return done, sum(world.oracle.n_released for world in worlds)


@pytest.mark.parametrize("name", TASKS)
def test_a_few_deviating_servers(place: Path, pki: Pki, name: str) -> None:
    """Draw the same ones each time. They deviate, and rounds are committed all the same."""
    done, n_released = done_by([played(place, pki, TASKS[name], seed) for seed in range(6)])
    assert done.total() >= 10
    assert n_released >= 6


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", TASKS)
def test_hundreds_of_deviating_servers(place: Path, pki: Pki, name: str) -> None:
    """Each deviates in other ways, and most ways are tried."""
    seeds = range(1000, 1000 + int(os.environ.get("PRECAD_SIMULATED_PROGRAMS", "300")))
    done, n_released = done_by([played(place, pki, TASKS[name], seed) for seed in seeds])
    assert len(done) >= len(seeds) // 3
    assert n_released >= len(seeds)


def lost_rounds_without_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TaskState, "require_rounds_left", lambda self: None)


@pytest.mark.parametrize("plant", [no_charge, a_late_charge, the_same_number_again, lost_rounds_without_end])
def test_a_planted_fault_is_found_against_a_deviating_server(
    place: Path, pki: Pki, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    """Within a few of them, by the oracle."""
    plant(monkeypatch)
    with pytest.raises(ViolationError):
        [played(place, pki, TASKS["training"], seed) for seed in range(100)]
