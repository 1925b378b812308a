"""A simulation that starts from a model in a file, as a deployment's servers do."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from numpy.testing import assert_array_equal
from typer.testing import Result

from precad.clients.models import networks
from precad.deploy.cli.main import app
from precad.lab.simulation import Simulation
from precad.lab.simulation.simulate import Runs, resolve
from tests.harness.command_line import CliRunner

DIM = 4810


def raw(**simulation: Any) -> dict[str, Any]:
    """FedAvg of two clients on the bundled digits, one step."""
    task = {
        "name": "start",
        "clients": 2,
        "rounds": 1,
        "client_rate": 1.0,
        "record_rate": 1.0,
        "record_clip": 1.0,
        "client_clip": 1.0,
        "noise_multiplier": 1.0,
        "learning_rate": 1.0,
        "delta": 1e-5,
        "model": "mlp",
    }
    return {"task": task, "client": {"device": "cpu"}, "simulation": {"algorithm": "fedavg", **simulation}}


def simulate(config: dict[str, Any], folder: Path) -> Result:
    """`precad simulate` in this process."""
    path = folder.with_suffix(".toml")
    path.write_text(tomli_w.dumps(config))
    return CliRunner().invoke(app, ["simulate", str(path), "--output", str(folder)], prog_name="precad")


def saved(path: Path, *, seed: int = 7) -> str:
    """A model of another seed than the task's."""
    np.save(path, networks.initial_parameters("mlp", seed=seed))
    return str(path)


def test_training_starts_from_the_file(tmp_path: Path) -> None:
    """A step of rate 0.1 away from it, by the gradient there; without a file, from the task's own."""
    start = networks.initial_parameters("mlp", seed=7)
    given, own = resolve(raw(initial_model=saved(tmp_path / "start.npy"))), resolve(raw())
    assert_array_equal(given.simulation(0).progress.parameters, start)
    assert_array_equal(own.simulation(0).progress.parameters, networks.initial_parameters("mlp", seed=0))
    simulation = given.simulation(0)
    simulation.run_round()
    gradients = [
        simulation.federation.engine.gradient_sum(start.astype(np.float64), records) / len(records)
        for records in given.records.values()
    ]
    expected = start - 0.1 * np.mean(gradients, axis=0)
    np.testing.assert_allclose(simulation.progress.parameters, expected, atol=1e-6)


def test_a_folder_knows_the_model_by_its_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file may move; another model in its place is another configuration, and none is one as well."""
    path = tmp_path / "start.npy"
    first = simulate(raw(initial_model=saved(path)), tmp_path / "run")
    assert first.exit_code == 0, first.output
    monkeypatch.setattr(Simulation, "run_round", lambda self: pytest.fail("trained again"))
    moved = shutil.move(path, tmp_path / "moved.npy")
    assert simulate(raw(initial_model=str(moved)), tmp_path / "run").exit_code == 0
    written = tomllib.loads((tmp_path / "run" / "config.toml").read_text())["simulation"]
    assert written["initial_model"] == str(moved)
    for other in (raw(initial_model=saved(path, seed=8)), raw()):
        refused = simulate(other, tmp_path / "run")
        assert (refused.exit_code, "simulation.initial_model_sha256: expected " in refused.stderr) == (2, True)
    Runs(resolve(written_config(tmp_path)), tmp_path / "run")  # what a worker does
    saved(tmp_path / "moved.npy", seed=8)
    refused = simulate(written_config(tmp_path), tmp_path / "again")
    assert (refused.exit_code, "simulation.initial_model: expected SHA-256" in refused.stderr) == (2, True)


def written_config(folder: Path) -> dict[str, Any]:
    """Return the configuration that the run wrote."""
    return tomllib.loads((folder / "run" / "config.toml").read_text())


@pytest.mark.parametrize(
    ("content", "more", "message"),
    [
        (None, {}, "initial_model: expected a .npy file"),
        (b"no", {}, "initial_model: expected a .npy file"),
        (np.zeros(DIM - 1, dtype=np.float32), {}, f"initial_model: expected {DIM} finite float32 values"),
        (np.full(DIM, np.nan, dtype=np.float32), {}, f"initial_model: expected {DIM} finite float32 values"),
        (np.zeros(DIM), {}, f"initial_model: expected {DIM} finite float32 values"),
        (np.zeros(DIM, dtype=np.float32), {"initial_model_sha256": "0" * 64}, "expected SHA-256 0000"),
        (np.zeros(DIM, dtype=np.float32), {"initial_model_sha256": "0"}, "simulation.initial_model_sha256"),
    ],
)
def test_what_is_no_start_is_refused(
    content: bytes | np.ndarray | None, more: dict[str, str], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "start.npy"
    if isinstance(content, np.ndarray):
        np.save(path, content)
    elif content is not None:
        path.write_bytes(content)
    done = simulate(raw(initial_model=str(path), **more), tmp_path / "run")
    assert (done.exit_code, "Traceback" in done.output) == (2, False), done.output
    assert message in done.stderr.replace("\n", " ")


def test_a_digest_alone_is_refused(tmp_path: Path) -> None:
    done = simulate(raw(initial_model_sha256="0" * 64), tmp_path / "run")
    assert done.exit_code == 2
    assert "initial_model_sha256 needs initial_model" in done.stderr
