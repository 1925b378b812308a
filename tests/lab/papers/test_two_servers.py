"""Papers' experiments on two real servers: the configuration of each case, and trainings by real processes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from precad.clients.models import networks
from precad.deploy.configuration.local import draft
from precad.deploy.errors import ConfigError
from precad.deploy.run_files.folder import RunFolder
from precad.lab.papers import two_servers
from precad.lab.papers.correlated_noise import NOISES
from precad.lab.papers.correlated_noise import Experiment as CorrelatedNoise
from precad.lab.papers.precad import backdoor, clients, mnist
from precad.lab.papers.ptr import clients as ptr_clients
from precad.lab.papers.ptr import mnist as ptr_mnist
from precad.lab.papers.ptr.settings import CORRUPTIONS
from precad.lab.papers.runner import Case, run_cases
from precad.lab.papers.xie.insdp_certified import Experiment as InsDp
from precad.lab.papers.xie.userdp_certified import Experiment as UserDp

QUIET = Console(quiet=True)
CASES: Mapping[str, Callable[[], Case]] = {
    "precad": lambda: mnist.Experiment().case(1.0),
    **{f"backdoor, {defence.name}": partial(backdoor.Experiment().case, defence, 5) for defence in backdoor.DEFENCES},
    **{
        f"clients, {method.name}": partial(clients.Experiment().case, method, 1000)
        for method in clients.METHODS
        if method.name != "central"
    },
    "user-dp": lambda: UserDp().case(1.8),
    "user-dp, by layer": lambda: UserDp().case(1.8, "per-layer"),
    "ins-dp": lambda: InsDp().case(5.0),
    "correlated noise": lambda: CorrelatedNoise().case(next(iter(NOISES))),
    "trimmed sums": lambda: ptr_clients.Experiment().case(CORRUPTIONS[0]),
}
"""Made when they are needed: some count rounds at an epsilon, which takes seconds."""


@pytest.mark.parametrize("name", CASES)
def test_a_case_is_a_deployment_of_the_same_task(name: str, tmp_path: Path) -> None:
    """Every field of the task is the simulation's, but for the bound of clients that do not clip."""
    case = CASES[name]()
    raw = two_servers.deployment_of(case.config)
    found = draft(raw, RunFolder(tmp_path))
    assert found is not None
    config, simulation = case.config["task"], case.config["simulation"]
    for field in ("rounds", "client_rate", "record_rate", "learning_rate", "model"):
        assert getattr(found.task, field) == config[field]
    assert len(found.task.clients) == config["clients"]
    assert found.task.checks_norms == simulation.get("validation", True)
    is_bound = simulation.get("client_clipping", True) and simulation.get("algorithm") != "ins-dp-fedavg"
    assert found.task.client_clip == (config["client_clip"] if is_bound else two_servers.UNBOUNDED)
    for field in {"local_steps", "local_batch", "local_momentum", "update_clipping"} & simulation.keys():
        assert getattr(found.task, field) == simulation[field]


@pytest.mark.parametrize("name", ["precad", "user-dp", "ins-dp", "correlated noise"])
def test_a_case_is_a_deployment_in_mode_proved_too(name: str, tmp_path: Path) -> None:
    """Both are the same task, but for the mode and what only the others have."""
    case = CASES[name]()
    masked, proved = (
        draft(two_servers.deployment_of(case.in_mode(mode).config), RunFolder(tmp_path)) for mode in (None, "proved")
    )
    assert masked is not None
    assert proved is not None
    assert (masked.task.mode, proved.task.mode) == ("masked", "proved")
    assert masked.task.digest != proved.task.digest
    assert masked.task.noise_multiplier == proved.task.noise_multiplier


def test_a_mode_without_real_servers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--mode: expected --deployed beside it, found 'proved' without"):
        run_cases([CASES["precad"]()], mnist.Experiment(mode="proved"), tmp_path, QUIET, None)


def test_attackers_are_the_last_clients() -> None:
    """As in a simulation."""
    raw = two_servers.deployment_of(backdoor.Experiment(divides=False).case(backdoor.DEFENCES[0], 5).config)
    expected = {"kind": "pixel-backdoor", "parameters": {"divides": False}}
    assert raw["client"]["attacks"] == {f"client-{i}": expected for i in range(95, 100)}


@pytest.mark.parametrize(
    ("case", "found"),
    [
        (lambda: clients.Experiment().case(clients.BOTH_SERVERS, 100), "simulation.servers = 'mpc'"),
        (lambda: clients.Experiment().case(clients.ALL["central"], 100), "'central-record-dp'"),
        (lambda: ptr_mnist.Experiment().case(CORRUPTIONS[0], ptr_mnist.PTR), "simulation.aggregation = 'tsgd-ptr'"),
        (lambda: mnist.Experiment().case(1.0).from_seed(3), "--first-seed"),
    ],
)
def test_what_two_servers_do_not_run_is_refused_by_name(case: Callable[[], Case], found: str) -> None:
    """Before anything is started."""
    with pytest.raises(ConfigError, match=r"^--deployed: ") as error:
        two_servers.deployment_of(case().config)
    assert found in str(error.value)


def test_a_public_start_is_the_model_of_both_servers(tmp_path: Path) -> None:
    """In place of the model that the task's seed draws; a second call continues from the same one alone."""
    start, other = tmp_path / "start.npy", tmp_path / "other.npy"
    np.save(start, networks.initial_parameters("cnn-binary", seed=7))
    np.save(other, networks.initial_parameters("cnn-binary", seed=8))
    raw = two_servers.deployment_of(UserDp(public_start=start).case(1.8).config)
    assert raw["localhost"] == {"clients_per_process": 50, "initial_model": str(start)}
    assert two_servers.deployment_of(UserDp().case(1.8).config)["localhost"] == {"clients_per_process": 50}


@pytest.mark.slow
def test_a_case_trains_on_two_real_servers_and_is_continued(tmp_path: Path) -> None:
    """Two trainings of six clients, one of them an attacker whom the check refuses. A second call trains nothing."""
    config = {
        "task": {
            "name": "small",
            "clients": 6,
            "rounds": 4,
            "client_rate": 1.0,
            "record_rate": 0.2,
            "record_clip": 1.0,
            "client_clip": 20.0,
            "noise_multiplier": 1.0,
            "learning_rate": 0.5,
            "model": "mlp",
            "gate": "native",
        },
        "client": {"dataset": "digits"},
        "simulation": {"evaluate_every": 2, "attack": {"kind": "scaled", "clients": 1}},
    }
    dim, summaries, lines = two_servers.train(config, tmp_path, 2, QUIET)
    assert dim == 4810
    for number, (summary, rounds) in enumerate(zip(summaries, lines, strict=True)):
        assert (summary["seed"], summary["rounds"], summary["missing"]) == (number, 4, 0)
        assert (summary["accepted"], summary["rejected"], summary["rejected_clients"]) == (20, 4, ["client-5"])
        assert ["accuracy" in line for line in rounds] == [False, True, False, True]
        assert rounds[-1]["accuracy"] == pytest.approx(summary["accuracy"], abs=1e-4)
        assert len(summary["guarantees"]) == 2
        assert all(one["epsilon"] > 0 for one in summary["guarantees"])
        with np.load(tmp_path / f"seed-{number}.npz") as kept:
            assert kept["parameters"].shape == (dim,)
    models = [(tmp_path / f"seed-{i}" / "model.pt").read_bytes() for i in range(2)]
    assert models[0] != models[1], "each training draws anew"
    written = (tmp_path / "seed-0" / "summary.json").stat().st_mtime_ns
    again = two_servers.train(config, tmp_path, 2, QUIET)
    assert (again[1], again[2]) == (summaries, lines)
    assert (tmp_path / "seed-0" / "summary.json").stat().st_mtime_ns == written
    assert json.loads((tmp_path / "seed-1" / "summary.json").read_text())["ended"] == "4 rounds done"
    assert networks.initial_parameters("mlp", seed=0).shape == (dim,)
