"""Papers' experiments on two real servers: the configuration of each case, and trainings by real processes."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from precad.clients.models import networks
from precad.deploy.configuration.local import draft
from precad.deploy.errors import ConfigError
from precad.deploy.localhost.grouping import client_groups
from precad.deploy.run_files.folder import RunFolder
from precad.dp.accountants.pld import View
from precad.dp.task_privacy import task_privacy
from precad.lab import papers as lab_papers
from precad.lab.papers import two_servers
from precad.lab.papers.correlated_noise import NOISES
from precad.lab.papers.correlated_noise import Experiment as CorrelatedNoise
from precad.lab.papers.naseri import central_local_backdoor as naseri
from precad.lab.papers.naseri import next_word
from precad.lab.papers.precad import backdoor, clients, mnist
from precad.lab.papers.ptr import clients as ptr_clients
from precad.lab.papers.ptr import mnist as ptr_mnist
from precad.lab.papers.ptr.settings import CORRUPTIONS
from precad.lab.papers.runner import Case, Outcome, run_cases
from precad.lab.papers.xie.defences import Experiment as Defences
from precad.lab.papers.xie.insdp_certified import Experiment as InsDp
from precad.lab.papers.xie.userdp_certified import Experiment as UserDp
from precad.lab.simulation import simulate
from precad.servers.store.record import to_line
from precad.servers.store.rounds import CommittedRound
from tests.harness.harness import small_task

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
    **{f"Naseri et al., {defence.name}": partial(naseri.Experiment().case, defence, 20) for defence in naseri.DEFENCES},
    "trimmed sums": lambda: ptr_clients.Experiment().case(CORRUPTIONS[0]),
}
"""Made when they are needed: some count rounds at an epsilon, which takes seconds."""
UNBOUNDED = ("ins-dp-fedavg", "fedavg", "non-private")
"""Algorithms whose simulation bounds no update."""


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
    assert len(found.task.clients) == found.task.min_clients == config["clients"]
    assert found.task.checks_norms == simulation.get("validation", True)
    is_bound = simulation.get("client_clipping", True) and simulation.get("algorithm") not in UNBOUNDED
    bound = simulation.get("aggregation_parameters", {}).get("bound", config["client_clip"])
    assert found.task.client_clip == (bound if is_bound or "norm-bounding" in name else two_servers.UNBOUNDED)
    fields = {"local_steps", "local_momentum", "update_clipping"} & simulation.keys()
    for field in fields | ({"local_batch"} & simulation.keys() & {*found.task.rules.own_fields}):
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


@pytest.mark.parametrize("module", [naseri, next_word])
def test_the_epsilon_of_a_deployed_case_is_of_its_defences_unit(module: Any, tmp_path: Path) -> None:
    """Central DP's is a client's, local DP's a record's, as the report says of their simulations."""
    bounds = {f"{kind}epsilon_{view.value}": 1.0 for kind in ("", "realised_") for view in View}
    summary = dict.fromkeys(("rounds", "accepted", "rejected", "missing"), 3) | bounds
    summary |= {
        "ended": "3 rounds done",
        "model_is_finite": True,
        "accuracy": 0.9,
        "rejected_clients": [],
        "delta": 1e-5,
    }
    experiment = module.Experiment()
    for defence, unit in ((naseri.CENTRAL, "client"), (naseri.LOCAL, "record")):
        case = experiment.case(defence, 20)
        task = draft(two_servers.deployment_of(CASES[f"Naseri et al., {defence.name}"]().config), RunFolder(tmp_path))
        assert task is not None
        run = two_servers.as_simulated(summary, 0, task_privacy(task.task).unit)
        found = module._of_case(Outcome(case=case, dim=5, runs=[run], rows=[], ms_per_round=1.0))
        assert (found["epsilon"], found["epsilon_is_of_a"]) == (1.0, unit)


def test_a_mode_without_real_servers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--mode: expected --deployed beside it, found 'proved' without"):
        run_cases([CASES["precad"]()], mnist.Experiment(mode="proved"), tmp_path, QUIET, None)


def test_attackers_are_the_last_clients_and_have_a_process_each(tmp_path: Path) -> None:
    """The last ones, as in a simulation."""
    raw = two_servers.deployment_of(backdoor.Experiment(divides=False).case(backdoor.DEFENCES[0], 5).config)
    expected = {"kind": "pixel-backdoor", "parameters": {"divides": False}}
    assert raw["client"]["attacks"] == {f"client-{i}": expected for i in range(95, 100)}
    found = draft(raw, RunFolder(tmp_path))
    assert found is not None
    assert [group for group in client_groups(found) if {*group} & {*raw["client"]["attacks"]}] == [
        [f"client-{i}"] for i in range(95, 100)
    ]


@pytest.mark.parametrize(
    ("rule", "fields"),
    [
        ("mean", {"algorithm": "fedavg", "client_clip": two_servers.UNBOUNDED}),
        ("krum", {"algorithm": "krum", "krum_attackers": 4, "client_clip": two_servers.UNBOUNDED}),
        ("multi-krum", {"algorithm": "multi-krum", "krum_attackers": 4}),
    ],
)
def test_a_rule_that_two_servers_have_is_their_algorithm(rule: str, fields: Mapping[str, object]) -> None:
    """Its f is the simulation's, and who sees every update there sees the other attackers' here."""
    raw = two_servers.deployment_of(Defences().filled().case(rule, "stat-opt", 10).config)
    assert fields.items() <= raw["task"].items()
    (attack,) = {json.dumps(one) for one in raw["client"]["attacks"].values()}
    parameters = json.loads(attack)["parameters"]
    assert parameters == {"sees": "colluders", **({"rule": "krum"} if "krum" in rule else {})}


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


class TrainsError(Exception):
    """Stands for the beginning of the first training."""


def begin(*_given: object, **_named: object) -> None:
    raise TrainsError


@dataclass(frozen=True, kw_only=True)
class Asked:
    """An experiment whose cases are asked for, on bundled data where it can be."""

    module: str
    n_cases: int
    refused: tuple[str, ...] = ()
    """Beginnings of names of the cases that two servers do not run."""
    fields: Mapping[str, Any] | None = None
    """None: the bundled data set."""
    run_by: str | None = None
    needs_data: bool = False


ALL_ASKED = (
    Asked(module="precad.mnist", n_cases=3),
    Asked(module="precad.backdoor", n_cases=7, fields={"dataset": "digits", "attackers": (5,)}),
    Asked(
        module="precad.clients", n_cases=5, refused=("central", "precad-mpc"),
        fields={"dataset": "digits", "numbers": (100,)},
    ),
    Asked(module="convex_sets", n_cases=15, fields={"dataset": "digits", "attackers": (5,), "model": "mlp"}),
    Asked(module="correlated_noise", n_cases=3, fields={"dataset": "digits", "model": "mlp"}),
    Asked(module="naseri.central_local_backdoor", n_cases=6, fields={"dataset": "digits", "attackers": (20,)}),
    Asked(module="naseri.next_word", n_cases=6, fields={"attackers": (8,)}, needs_data=True),
    Asked(module="ptr.clients", n_cases=1, fields={}, needs_data=True),
    Asked(
        module="ptr.mnist", n_cases=2, refused=("tsgd-",),
        fields={"dataset": "mnist", "corruptions": ("label-0",), "epsilons": (3.0,)},
    ),
    Asked(module="xie.userdp_certified", n_cases=3, run_by="xie.certified_accuracy"),
    Asked(module="xie.insdp_certified", n_cases=3, run_by="xie.certified_accuracy"),
    Asked(module="xie.attack_cost", n_cases=5, fields={"dataset": "digits", "attackers": (2,)}),
    Asked(module="xie.attack_cost", n_cases=3, fields={"dataset": "digits", "attackers": (5,), "level": "instance"}),
    Asked(
        module="xie.defences", n_cases=32, refused=("trimmed-mean", "median", "bulyan", "geometric-median"),
        fields={"dataset": "digits", "attackers": (10,)},
    ),
)  # fmt: skip


def test_all_experiments_that_train_are_asked() -> None:
    """Adapters are another test's: their models are of a package that need not be here."""
    papers = Path(str(lab_papers.__file__)).parent
    declared = {path for path in papers.rglob("*.py") if "def case(" in path.read_text()}
    names = {".".join(path.relative_to(papers).with_suffix("").parts) for path in declared}
    assert {one.module for one in ALL_ASKED} | {"adapters", "xie.certified_setting"} >= names


@pytest.mark.parametrize(
    "asked",
    [pytest.param(one, marks=[pytest.mark.slow] * one.needs_data) for one in ALL_ASKED],
    ids=lambda asked: f"{asked.module}-{asked.n_cases}",
)
def test_every_case_deploys_or_is_refused_before_anything_trains(
    asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ask what `precad run` asks, for all cases of all steps, each by its name, before the first of them trains."""
    if asked.needs_data and not os.environ.get("PRECAD_DATA"):
        pytest.skip("PRECAD_DATA names no folder of data sets")
    asks, said = two_servers.require_runnable, dict[str, str | None]()

    def one_by_one(cases: Mapping[str, Mapping[str, Any]]) -> None:
        for name, config in cases.items():
            try:
                asks({name: config})
                said[name] = None
            except ConfigError as error:
                said[name] = str(error)
        for why in filter(None, said.values()):
            raise ConfigError(why)

    monkeypatch.setattr(two_servers, "require_runnable", one_by_one)
    monkeypatch.setattr(two_servers, "train", begin)
    monkeypatch.setattr(simulate.Runs, "run", begin)
    module = importlib.import_module(f"precad.lab.papers.{asked.module}")
    run_by = importlib.import_module(f"precad.lab.papers.{asked.run_by or asked.module}")
    experiment = module.Experiment(deployed=True, **({"dataset": "digits"} if asked.fields is None else asked.fields))
    with pytest.raises(ConfigError if asked.refused else TrainsError) as ended:
        run_by.run(experiment, tmp_path, QUIET)
    assert len(said) == asked.n_cases
    for name, why in said.items():
        if asked.refused and name.startswith(asked.refused):
            assert str(why).startswith(f"--deployed: {name}: expected ")
        else:
            assert why is None
    assert not asked.refused or "--deployed: " in str(ended.value)


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


@pytest.mark.slow
def test_krum_trains_on_two_real_servers_against_colluders_who_know_it(tmp_path: Path) -> None:
    """Attackers in processes of their own run the simulation's attack; participation is kept as a simulation does."""
    task = {
        "name": "small", "clients": 7, "rounds": 2, "client_rate": 1.0, "record_rate": 1.0, "record_clip": 1.0,
        "client_clip": 20.0, "noise_multiplier": 1.0, "learning_rate": 1.0, "model": "mlp", "gate": "native",
    }  # fmt: skip
    attack = {"kind": "stat-opt", "clients": 2, "parameters": {"rule": "krum"}}
    simulation = {
        "algorithm": "fedavg", "aggregation": "krum", "aggregation_parameters": {"f": 2}, "local_steps": 2,
        "evaluate_every": 2, "attack": attack,
    }  # fmt: skip
    config = {"task": task, "client": {"dataset": "digits"}, "simulation": simulation}
    _, (summary,), _ = two_servers.train(config, tmp_path, 1, QUIET)
    assert (summary["rounds"], summary["accepted"], summary["missing"]) == (2, 14, 0)
    with np.load(tmp_path / "seed-0.npz") as kept:
        assert dict(zip(kept["clients"].tolist(), kept["participation"].tolist(), strict=True)) == {
            f"client-{i}": 2 for i in range(7)
        }
    logs = {path.stem for path in (tmp_path / "seed-0" / "logs").glob("client-*.log")}
    assert {"client-5", "client-6"} < logs
    assert "colluder_is_silent" not in (tmp_path / "seed-0" / "logs" / "client-5.log").read_text()


def test_rounds_that_drew_nobody_count_for_nobody(tmp_path: Path) -> None:
    """Their lines have no clients: one in eight trainings of 5000 rounds, 100 clients and q = 0.1 has such a round."""
    folder, task = RunFolder(tmp_path / "seed-0"), small_task(clients=("alice", "bob"), model="mlp")
    (folder.root / "a").mkdir(parents=True)
    torch.save(networks.of_task(task).state_dict(), folder.model)
    rounds = [CommittedRound(t, chosen, chosen, (), b"", 1.0, 1.0) for t, chosen in enumerate([("bob",), ()])]
    (folder.root / "a" / "rounds.jsonl").write_text("".join(map(to_line, rounds)))

    two_servers._keep_model(folder, task)

    kept = np.load(folder.root.with_suffix(".npz"))
    assert dict(zip(kept["clients"], kept["participation"], strict=True)) == {"alice": 0, "bob": 1}
