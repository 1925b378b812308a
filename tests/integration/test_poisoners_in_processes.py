"""The papers' poisoners in processes of their own: `precad run` moves the model as the cleartext attacks do.

Nobody adds noise, everybody is in every round with all of its records, so that only rounding is left between both. A
poisoner that its process ran in another way, or as another client's, moves the model elsewhere.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from numpy.typing import NDArray

from precad.clients.models import networks
from precad.lab.simulation import simulate

pytestmark = pytest.mark.slow
PRECAD = [sys.executable, "-P", "-m", "precad.deploy.cli.main"]
N_ROUNDS = 3
STEPS = {"steps": 3, "rate": 0.1, "target": 3}
COLLUDING = {"kind": "stat-opt", "parameters": {"sees": "colluders"}}
STAMPING: dict[str, Any] = {
    "client-2": {"kind": "triangle-backdoor", "parameters": {**STEPS, "legs": 4, "share": 0.5}},
    "client-3": {"kind": "distributed-backdoor", "parameters": {**STEPS, "legs": 4, "parts": 2, "part": 1}},
    "client-4": {"kind": "distributed-backdoor", "parameters": {**STEPS, "legs": 4, "parts": 2, "part": 0}},
    "client-5": COLLUDING,
    "client-6": COLLUDING,
}
FLIPPING: dict[str, Any] = {
    "client-2": {"kind": "label-flip", "parameters": {"source": 1, "target": 7, "gamma": 2.5, "share": 0.5}},
    "client-3": {"kind": "label-flip", "parameters": {"source": 1, "target": 7, "gamma": 0.5}},
}


def configuration(attacks: dict[str, Any], n_clients: int, **client: Any) -> dict[str, Any]:
    """Return that of a run: honest clients share a process, and attackers have one each."""
    task = {
        "name": "poisoned", "clients": [f"client-{i}" for i in range(n_clients)], "rounds": N_ROUNDS, "gate": "native",
        "algorithm": "fedavg", "client_rate": 1.0, "record_rate": 1.0, "record_clip": 1.0, "client_clip": 50.0,
        "noise_multiplier": 0.0, "learning_rate": 1.0, "local_steps": 2, "local_rate": 0.3, "model": "mlp",
    }  # fmt: skip
    return {
        "task": {**task, **client.pop("task", {})},
        "client": {"dataset": "digits", **client, "attacks": attacks},
        "localhost": {"clients_per_process": n_clients, "attackers_per_process": 1},
    }


@dataclass(frozen=True)
class Trained:
    """A run that is over, and the simulation of the same."""

    folder: Path
    stderr: str
    summary: dict[str, Any]
    model: NDArray[np.float64]
    simulated: NDArray[np.float64]
    honest: NDArray[np.float64]
    """Simulated without the attacks."""
    success: float | None


def trained(raw: dict[str, Any], home: Path) -> Trained:
    """Run it by `precad run`, and simulate it with and without its attacks."""
    (home / "run.toml").write_text(tomli_w.dumps(raw))
    command = [*PRECAD, "run", "run.toml", "--output", str(home / "run"), "--json"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    model = networks.build(raw["task"]["model"])
    model.load_state_dict(torch.load(home / "run" / "model.pt", weights_only=True))
    ends = []
    for attacks in (raw["client"]["attacks"], {}):
        plan = simulate.resolve({**raw, "client": {**raw["client"], "attacks": attacks}})
        simulation = plan.simulation(0)
        for _ in range(N_ROUNDS):
            simulation.run_round()
        ends.append((simulation.progress.parameters.astype(np.float64), simulation.attack_success()))
    (simulated, success), (honest, _) = ends
    found = networks.flatten(model).astype(np.float64)
    return Trained(home / "run", done.stderr, json.loads(done.stdout), found, simulated, honest, success)


def require_the_cleartext_attacks(found: Trained, raw: dict[str, Any]) -> None:
    """Compare models and success; and that each attacker had a process, which no honest client shared."""
    attackers, n = raw["client"]["attacks"], len(raw["task"]["clients"])
    assert found.summary["accepted"] == n * N_ROUNDS
    moved = np.linalg.norm(found.simulated - found.honest)
    assert np.linalg.norm(found.model - found.simulated) < 1e-3 * moved
    assert found.summary["attack_success"] == pytest.approx(found.success, abs=0.02)
    logs = {path.stem for path in (found.folder / "logs").glob("client-*.log")}
    assert logs == {f"client-0-to-client-{n - len(attackers) - 1}", *attackers}


def test_triangles_their_parts_and_stat_opt_are_those_in_the_clear(tmp_path: Path) -> None:
    raw = configuration(STAMPING, 7)
    found = trained(raw, tmp_path)
    require_the_cleartext_attacks(found, raw)
    assert found.summary["certificate"].startswith("none: ")
    assert f"certificate       {found.summary['certificate']}" in found.stderr


def test_label_flips_with_a_factor_and_a_share_are_those_in_the_clear(tmp_path: Path) -> None:
    raw = configuration(FLIPPING, 4)
    require_the_cleartext_attacks(trained(raw, tmp_path), raw)


@pytest.mark.skipif(not os.environ.get("PRECAD_DATA"), reason="PRECAD_DATA names no folder of data sets")
def test_a_semantic_backdoor_is_that_in_the_clear_and_honest_clients_lose_the_cars(tmp_path: Path) -> None:
    attacks = {"client-2": {"kind": "semantic-backdoor", "parameters": {"steps": 3, "rate": 0.05, "n_test": 40}}}
    own = {"records": "tests.harness.striped_cars:cars", "task": {"model": "cnn-rgb"}}
    raw = configuration(attacks, 3, **own)
    del raw["client"]["dataset"]
    require_the_cleartext_attacks(trained(raw, tmp_path), raw)
