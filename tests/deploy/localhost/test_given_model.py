"""A local run that starts from a model in a file, in place of the one that the task's seed draws.

Failure means two servers that start from another model than the file's, or a file that a simulation reads differently.
It also means a run that began with one model and is continued from another.
"""

from __future__ import annotations

import io
import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from numpy.testing import assert_allclose, assert_array_equal
from rich.console import Console

from precad.clients.models import networks
from precad.deploy.cli.main import app
from precad.deploy.configuration.sections import read_local
from precad.deploy.errors import ConfigError
from precad.deploy.localhost.deployment import LocalRun
from precad.deploy.run_files.state import NAME, RunState
from precad.lab.simulation.simulate import Runs, resolve
from tests.harness.command_line import CliRunner

DIM = 4810
SILENT = Console(file=io.StringIO())


def raw(file: str | None = "start.npy", **more: str) -> dict[str, Any]:
    """FedSGD of two clients with all of their records, in which nothing is drawn: a step of rate 0.5."""
    task = {
        "name": "given",
        "clients": ["anna", "boris"],
        "rounds": 1,
        "client_rate": 1.0,
        "record_rate": 1.0,
        "record_clip": 1.0,
        "client_clip": 1400.0,
        "noise_multiplier": 0.0,
        "algorithm": "non-private",
        "learning_rate": 0.5,
        "model": "mlp",
        "gate": "native",
    }
    own = {"initial_model": file, **more} if file is not None else {}
    return {"task": task, "client": {"dataset": "digits", "device": "cpu"}, "localhost": own}


def written(config: dict[str, Any], folder: Path) -> Path:
    """Return the file of a configuration, in a folder of its own."""
    folder.mkdir(exist_ok=True)
    (folder / "task.toml").write_text(tomli_w.dumps(config))
    return folder / "task.toml"


def start(seed: int = 7) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return a model of another seed than the task's, (d,)."""
    return networks.initial_parameters("mlp", seed=seed)


def test_both_servers_start_from_the_file_beside_the_configuration(tmp_path: Path) -> None:
    """The run folder has its values and their digest; a simulation of the file starts there, too."""
    config = written(raw(), tmp_path / "own")
    np.save(config.parent / "start.npy", start())
    run = LocalRun(read_local(config), tmp_path / "run", SILENT)
    assert_array_equal(np.load(run.folder.initial_model), start())
    assert not np.array_equal(networks.initial_vector(run.deployment.task), start())
    kept = tomllib.loads(run.folder.config.read_text())
    assert kept["aggregator"]["a"]["initial_model"] == kept["aggregator"]["b"]["initial_model"] == "initial_model.npy"
    plan = resolve(read_local(config))
    assert plan.initial is not None
    assert_array_equal(plan.initial, start())
    assert plan.raw["simulation"]["initial_model_sha256"] == kept["localhost"]["initial_model_sha256"]


def test_a_simulations_own_start_goes_first(tmp_path: Path) -> None:
    for name, seed in (("start.npy", 7), ("other.npy", 8)):
        np.save(tmp_path / name, start(seed))
    both = raw(str(tmp_path / "start.npy")) | {"simulation": {"initial_model": str(tmp_path / "other.npy")}}
    plan = resolve(both)
    assert plan.initial is not None
    assert_array_equal(plan.initial, start(8))


def test_a_run_is_continued_from_its_own_start_alone(tmp_path: Path) -> None:
    """Wherever the file is by then; without it, and with another, the continuation is refused."""
    path, folder = tmp_path / "start.npy", tmp_path / "run"
    np.save(path, start())
    LocalRun(raw(str(path)), folder, SILENT)
    (folder / NAME).write_text(RunState.INTERRUPTED)
    moved = shutil.move(path, tmp_path / "moved.npy")
    assert LocalRun(raw(str(moved)), folder, SILENT, resumes=True).deployment.localhost.initial_model == str(moved)
    np.save(path, start(8))
    for other in (raw(str(path)), raw(None)):
        with pytest.raises(ConfigError, match=r"localhost\.initial_model: expected SHA-256 [0-9a-f]{64}, as in"):
            LocalRun(other, folder, SILENT, resumes=True)
    with pytest.raises(ConfigError, match=r"localhost\.initial_model: expected SHA-256 [0-9a-f]{64}, found"):
        LocalRun(tomllib.loads((folder / "config.toml").read_text()), folder, SILENT, resumes=True)


@pytest.mark.parametrize(
    ("content", "more", "message"),
    [
        (None, {}, "initial_model: expected a .npy file"),
        (b"no", {}, "initial_model: expected a .npy file"),
        (np.zeros(DIM - 1, dtype=np.float32), {}, f"initial_model: expected {DIM} finite float32 values"),
        (np.full(DIM, np.inf, dtype=np.float32), {}, f"initial_model: expected {DIM} finite float32 values"),
        (np.array([{}] * DIM), {}, "initial_model: expected a .npy file"),
        (np.zeros(DIM, dtype=np.float32), {"initial_model_sha256": "0" * 64}, "expected SHA-256 0000"),
        (np.zeros(DIM, dtype=np.float32), {"initial_model_sha256": "0"}, "localhost.initial_model_sha256"),
    ],
)
def test_what_is_no_start_is_refused(
    content: bytes | np.ndarray[Any, Any] | None, more: dict[str, str], message: str, tmp_path: Path
) -> None:
    """Before anything is written or started."""
    config = written(raw(**more), tmp_path / "own")
    if isinstance(content, np.ndarray):
        np.save(config.parent / "start.npy", content)
    elif content is not None:
        (config.parent / "start.npy").write_bytes(content)
    done = CliRunner().invoke(app, ["run", str(config), "--output", str(tmp_path / "run")], prog_name="precad")
    assert (done.exit_code, "Traceback" in done.output) == (2, False), done.output
    assert message in done.stderr.replace("\n", " ")
    assert not (tmp_path / "run").exists()


def test_a_digest_alone_is_refused(tmp_path: Path) -> None:
    alone = raw(None) | {"localhost": {"initial_model_sha256": "0" * 64}}
    with pytest.raises(ConfigError, match="initial_model_sha256 needs initial_model, found none"):
        LocalRun(alone, tmp_path / "run", SILENT)


@pytest.mark.slow
def test_a_training_of_two_real_servers_goes_on_from_the_file(tmp_path: Path) -> None:
    """To the model of the simulation of the same file, but for the grid: nothing is drawn."""
    np.save(tmp_path / "start.npy", start())
    config = raw(str(tmp_path / "start.npy"))
    done = CliRunner().invoke(
        app, ["run", str(written(config, tmp_path)), "--output", str(tmp_path / "run"), "--json"], prog_name="precad"
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["rounds"] == 1
    model = networks.build("mlp")
    model.load_state_dict(torch.load(tmp_path / "run" / "model.pt", weights_only=True))
    Runs(resolve(config), tmp_path / "simulated").run(0)
    with np.load(tmp_path / "simulated" / "seed-0.npz") as kept:
        assert_allclose(networks.flatten(model), kept["parameters"], atol=1e-4)
        assert np.abs(kept["parameters"] - start()).max() > 1e-2
