"""TSGD + PTR on two servers beside the paper's TSGD + Gaussian: the same records, corruption and epsilon."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from precad.deploy.cli.main import app
from precad.deploy.errors import ConfigError
from precad.deploy.localhost import several
from precad.lab.papers.ptr import clients
from precad.lab.papers.ptr.mnist import DELTA
from precad.lab.papers.ptr.settings import CORRUPTIONS, GAUSSIAN
from precad.lab.simulation.rules.trimmed_sums import TsgdGaussian
from tests.harness.command_line import CliRunner

CORRUPTED = [corruption for corruption in CORRUPTIONS if corruption.share]


@pytest.mark.parametrize("corruption", CORRUPTED, ids=lambda corruption: corruption.name)
def test_what_stands_beside_has_the_records_and_the_corruption(corruption):
    """One rule of aggregation differs, and the rounds."""
    experiment = clients.Experiment(epsilon=3.0)
    of_ptr, of_gaussian = experiment.case(corruption).config, experiment.beside(corruption).config
    assert of_ptr["client"] == of_gaussian["client"]
    assert of_ptr["simulation"]["attack"] == of_gaussian["simulation"]["attack"]
    shared = of_ptr["task"].keys() & of_gaussian["task"].keys() - {"rounds", "noise_multiplier"}
    assert {name: of_ptr["task"][name] for name in shared} == {name: of_gaussian["task"][name] for name in shared}
    assert {"clients", "client_rate", "record_clip", "client_clip", "learning_rate", "model"} <= shared


def test_it_has_the_rounds_that_the_epsilon_pays_for():
    """By the rule's own bound: one more round costs more."""
    experiment = clients.Experiment(epsilon=3.0)
    rounds = experiment.beside(CORRUPTED[0]).config["task"]["rounds"]
    rule = TsgdGaussian(
        rate=clients.OF_MNIST.batch / clients.N_CLIENTS, n_enrolled=clients.N_CLIENTS, **GAUSSIAN.parameters
    )
    assert rule.epsilon(rounds, DELTA) <= 3.0 < rule.epsilon(rounds + 1, DELTA)


def test_the_mode_is_the_servers_and_not_of_what_stands_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Gaussian's training is over when the servers' begins: two real ones, which another test starts."""
    pytest.importorskip("matplotlib")
    random = np.random.default_rng(0)
    made = random.random((75, 1, 28, 28), dtype=np.float32), random.integers(0, 10, 75)
    monkeypatch.setattr(clients, "sixty", lambda: made)  # in the shape of MNIST, whose files are not everywhere
    started: list[str] = []

    def prepare(raw: Mapping[str, Any], *_: object, **__: object) -> NoReturn:
        started.append(raw["task"]["mode"])
        raise ConfigError("here the servers would start")

    monkeypatch.setattr(several, "prepare", prepare)
    words = [
        "experiment",
        "ptr-clients",
        "--quick",
        "--deployed",
        "--mode",
        "shares",
        "--output",
        str(tmp_path / "run"),
    ]
    done = CliRunner().invoke(app, words)
    assert started == ["shares"], done.output


def test_a_mode_without_trimmed_sums_is_refused_before_the_first_training(tmp_path: Path) -> None:
    words = [
        "experiment",
        "ptr-clients",
        "--quick",
        "--deployed",
        "--mode",
        "proved",
        "--output",
        str(tmp_path / "run"),
    ]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert "--mode: expected one with a dealer" in done.output
    assert not (tmp_path / "run").exists()
