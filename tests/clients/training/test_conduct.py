"""The wall between the honest client and every attack, by real processes: it holds where the attacks do not exist.

Failure means one of these:
- an honest client that imports an attack, that needs one to start, or that encodes otherwise where they are missing;
- a configuration with an attack that is not refused there, or in other words than field, expected, found;
- an honest local task that does not run to its end.
"""

from __future__ import annotations

import json
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from precad.clients.attacks import ATTACKS
from precad.clients.attacks.deployed import InDeployment
from precad.clients.config import ClientConfig
from precad.clients.loading import load_records
from precad.clients.process import Trainer
from precad.clients.training.conduct import Conduct, Honest
from precad.deploy.conducts import conducts_of
from precad.deploy.configuration.demo import demo_config
from precad.deploy.errors import ConfigError
from precad.protos.task.task import Task
from tests.harness.tree_without_attacks import ROOT, environment_of, tree_without_attacks

TASK: dict[str, Any] = {
    "name": "conduct",
    "clients": {"alice": 479, "bob": 479, "carol": 479},
    "rounds": 1,
    "client_rate": 1.0,
    "record_rate": 1.0,
    "record_clip": 1.0,
    "client_clip": 8.0,
    "noise_multiplier": 1.0,
    "learning_rate": 1.0,
    "model": "mlp",
    "dim": 4810,
}
MADE = Task.model_validate(TASK)
HONEST_CLIENT = """
import json, sys

import numpy as np

import precad.deploy.cli.main
import precad.deploy.cli.roles
from precad.clients.config import ClientConfig
from precad.clients.process import ClientProcess
from precad.deploy.conducts import conducts_of
from precad.protos.task.task import Task

task, config = Task.model_validate(json.loads(sys.argv[1])), ClientConfig.model_validate(json.loads(sys.argv[2]))
conducts = conducts_of(["alice", "bob"], config, task)
process = ClientProcess(task=task, config=config, conducts=conducts, addresses=("localhost:1", "localhost:2"))
encoded = process._trainer.train("alice", np.full(task.dim, 0.01, dtype=np.float32))
attacks = [name for name in sys.modules if name.startswith("precad.clients.attacks")]
print(json.dumps({"attacks": attacks, "encoded": encoded.tolist()}))
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree without the attacks, of which that is made sure."""
    tree = tree_without_attacks(tmp_path_factory.mktemp("bare") / "tree")
    done = python(
        tree, "-c", "import precad.clients; print(precad.clients.__file__); import precad.clients.attacks", check=False
    )
    assert done.stdout.strip() == str(tree / "precad" / "clients" / "__init__.py")
    assert "No module named 'precad.clients.attacks'" in done.stderr
    return tree


def python(tree: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", *arguments]
    return subprocess.run(command, env=environment_of(tree), capture_output=True, text=True, check=check)


@pytest.mark.parametrize("is_bare", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_an_honest_client_loads_no_attack_and_uploads_what_it_shall(
    bare: Path, tmp_path: Path, *, is_bare: bool
) -> None:
    """A process that has loaded the command line and all that hosts clients, and has trained and encoded.

    It samples every record, so that its upload is that of a trainer here, but for a unit of the grid. Two processes may
    have different numbers of threads.
    """
    others = {"carol": {"kind": "pixel-backdoor", "parameters": {"side": 3}}, "dave": "not_there:Attack"}
    own = {"certificates": ".", "authority": "ca.pem", "state_dir": str(tmp_path)}
    config = {**own, "attacks": {"bob": "none", **others}, "colluders": str(tmp_path / "colluders")}
    tree = bare if is_bare else ROOT
    said = python(tree, "-c", HONEST_CLIENT, json.dumps(TASK), json.dumps(config)).stdout
    found = json.loads(said.splitlines()[-1])  # the lines before are its log
    assert found["attacks"] == []

    records = load_records(MADE, ClientConfig.model_validate(config), ["alice"])
    trainer = Trainer(task=MADE, records=records, conducts={"alice": Honest()}, device="cpu")
    expected = trainer.train("alice", np.full(MADE.dim, 0.01, dtype=np.float32))
    assert np.count_nonzero(expected) > 100
    assert np.abs(np.array(found["encoded"]) - expected).max() <= 1


def deployment(folder: Path, attacks: dict[str, object]) -> Path:
    """A configuration file that a client can read; no certificate is there."""
    client = {"certificates": "pki", "authority": "ca.pem", "attacks": attacks}
    addresses = {"aggregator_a": "localhost:1", "aggregator_b": "localhost:2", "dealer": "localhost:3"}
    path = folder / "deployment.toml"
    path.write_text(tomli_w.dumps({"task": TASK, "network": addresses, "client": client}))
    return path


@pytest.mark.parametrize(
    ("attack", "kind"),
    [
        ("scaled", "scaled"),
        ({"kind": "pixel-backdoor", "parameters": {"side": 3}}, "pixel-backdoor"),
        pytest.param({"kind": "alie", "parameters": {"sees": "colluders"}}, "alie", marks=pytest.mark.slow),
        ("own_code:Attack", "own_code:Attack"),
    ],
)
def test_an_attack_is_refused_where_there_are_none(bare: Path, tmp_path: Path, attack: object, kind: str) -> None:
    """By name, whatever its form, and before code of the user's own is loaded."""
    (tmp_path / "own_code.py").write_text("raise SystemExit('loaded')\n")
    config = deployment(tmp_path, {"bob": attack})
    done = python(bare, "-m", "precad.deploy.cli.main", "client", str(config), "--id", "bob", check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "precad: client.attacks.bob: expected 'none', as this installation holds no attacks (precad.clients.attacks), "
        f"found {kind!r}\n"
    )


def test_a_client_gets_the_conduct_that_its_configuration_names() -> None:
    config = ClientConfig.model_validate(
        {"certificates": ".", "authority": "ca.pem", "attacks": {"bob": "wrap", "carol": "none", "eve": "nan"}}
    )
    found = conducts_of(["carol", "alice", "bob"], config, MADE)
    assert list(found) == ["carol", "alice", "bob"]
    assert [type(conduct) for conduct in found.values()] == [Honest, Honest, InDeployment]
    assert found["bob"].attack == ATTACKS["wrap"]()
    assert [conduct.follows_protocol for conduct in found.values()] == [True, True, False]


def test_attacks_that_are_there_and_cannot_be_imported_are_no_missing_attacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that they need is missing: that error is told, and not that there are none."""
    for name in [name for name in sys.modules if name.startswith("precad.clients.attacks")]:
        monkeypatch.delitem(sys.modules, name)
    config = ClientConfig.model_validate({"certificates": ".", "authority": "ca.pem", "attacks": {"bob": "wrap"}})
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "precad.clients.attacks.updates", None)
        with pytest.raises(ImportError, match=r"precad\.clients\.attacks\.updates"):
            conducts_of(["bob"], config, MADE)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "precad.clients.attacks", None)
        with pytest.raises(ConfigError, match=r"client\.attacks\.bob: expected 'none', .* found 'wrap'"):
            conducts_of(["bob"], config, MADE)


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=8))
def test_the_honest_conduct_rounds_toward_zero_and_changes_nothing_else(values: list[float]) -> None:
    """By exact fractions, of updates well within the ball."""
    update, task = np.array(values), MADE
    conduct = Honest()
    encoded = conduct.encode(conduct.on_update(update), task)
    assert encoded.tolist() == [int(Fraction(value) * 2**task.frac_bits) for value in values]  # int() truncates
    assert update.tolist() == values
    assert conduct.delay_s(20.0) == 0.0


def test_an_honest_update_on_the_sphere_is_within_the_bound_and_an_attack_s_need_not_be() -> None:
    """Integers, so exactly: an attack that leaves its update alone skips what makes certain of the norm."""
    task = MADE
    update = np.full(4, 3 * task.client_clip)
    assert squared(Conduct().encode(update / 6, task)) <= task.norm_bound.threshold
    assert squared(ATTACKS["scaled"]().encode(update, task)) > task.norm_bound.threshold


def squared(words: np.ndarray) -> int:
    """x.x over the integers."""
    return sum(int(x) ** 2 for x in words)


@pytest.mark.slow
def test_a_whole_honest_task_runs_where_there_are_no_attacks(bare: Path, tmp_path: Path) -> None:
    """Dealer, aggregators and clients as processes; the demo's own attackers are refused before anything starts."""
    raw = demo_config(n_clients=4, rounds=2, seed=0)
    for attacks, code in ((raw["client"]["attacks"], 2), ({}, 0)):
        config, output = tmp_path / f"{code}.toml", tmp_path / f"run-{code}"
        config.write_text(tomli_w.dumps({**raw, "client": {**raw["client"], "attacks": attacks}}))
        done = python(bare, "-m", "precad.deploy.cli.main", "run", str(config), "--output", str(output), check=False)
        assert done.returncode == code, done.stderr
        assert output.exists() == (code == 0)
    assert (tmp_path / "run-0" / "report.html").exists()
    assert len((tmp_path / "run-0" / "a" / "rounds.jsonl").read_text().splitlines()) == 2
