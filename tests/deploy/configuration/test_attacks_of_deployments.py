"""Attacks that a deployment's configuration names: which run, which are refused and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precad.clients.attacks import ATTACKS, Attack, PixelBackdoor, PoisonedRecords
from precad.clients.attacks.attack import hoards
from precad.clients.attacks.deployed import InDeployment, Robbed
from precad.clients.attacks.named import attacks_of
from precad.clients.config import DIVIDED, REACTING, ClientConfig
from precad.clients.records import Records
from precad.clients.training.conduct import Conduct, Honest
from precad.deploy.conducts import HOARDING, conducts_of, wanted_of
from precad.deploy.configuration.demo import demo_config
from precad.deploy.configuration.local import resolve
from precad.deploy.errors import ConfigError
from precad.deploy.run_files.folder import RunFolder
from precad.protos.task.task import Task
from tests.harness.harness import small_task
from tests.harness.hoarder import Hoarder

CLIENTS = {"alice": 10, "bob": 10, "mallory": 10}
ALONE = {"sees": "colluders"}
HOARDER = f"{Hoarder.__module__}:Hoarder"
OMNISCIENT = "expected an attack without other clients' updates, which a deployment hands to nobody"


class Omniscient(Attack):
    """An attack of a user's own that was made for simulations."""

    name = "omniscient"
    is_simulated_only = True


def client_config(attacks: dict[str, Any], **changes: Any) -> ClientConfig:
    """A client's section with these attackers."""
    return ClientConfig.model_validate({"certificates": ".", "authority": "ca.pem", "attacks": attacks, **changes})


def task(**changes: Any) -> Task:
    return small_task(CLIENTS, **changes)


REFUSED: dict[str, tuple[object, dict[str, Any], dict[str, Any], str]] = {
    "all-seeing": ("alie", {"colluders": "shared"}, {}, f"{OMNISCIENT}: sees = 'colluders' shows it"),
    "own, of simulations": (f"{__name__}:Omniscient", {}, {}, OMNISCIENT),
    "no folder": ({"kind": "min-max", "parameters": ALONE}, {}, {}, "expected client.colluders, the folder"),
    "own hoarder": (HOARDER, {}, {}, "expected one of 'semantic-backdoor' or an attack that hoards no"),
    "of proofs": ("false-proof", {}, {}, "expected an attack of mode 'masked', not of mode 'proved' only"),
    "no class": ("precad.clients.attacks:ATTACKS", {}, {}, "attack 'precad.clients.attacks:ATTACKS'"),
    "no attack": ("pathlib:Path", {}, {}, "it is no subclass of precad.clients.attacks.Attack"),
    "nowhere": ("not_there_at_all:Attack", {}, {}, "not_there_at_all"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_deployment_cannot_have_is_refused_by_name(case: str, tmp_path: Path) -> None:
    attack, changes, of_task, expected = REFUSED[case]
    changes = {name: str(tmp_path) if name == "colluders" else value for name, value in changes.items()}
    config = client_config({"mallory": attack}, **changes)
    with pytest.raises(ConfigError) as refused:
        conducts_of(["mallory"], config, task(**of_task))
    assert str(refused.value).startswith("client.attacks.mallory: ")
    assert expected in str(refused.value)


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"side": 0}, "side: expected an integer of at least 1"),
        ({"sides": 3}, "sides"),
        ({"gamma": float("nan")}, "gamma: expected a finite number"),
    ],
)
def test_wrong_parameters_are_named(parameters: dict[str, Any], expected: str) -> None:
    config = client_config({"mallory": {"kind": "pixel-backdoor", "parameters": parameters}})
    with pytest.raises(ConfigError, match=rf"client\.attacks\.mallory\.parameters: .*{expected}"):
        conducts_of(["mallory"], config, task())


@pytest.mark.parametrize(
    "attack", ["bribe", "a b:C", ":", "a:", ":C", 3, ["scaled"], {}, {"kind": "scaled", "strength": 1}]
)
def test_what_names_no_attack_is_a_configuration_error(attack: object, tmp_path: Path) -> None:
    raw = demo_config(n_clients=4)
    raw["client"] = {**raw["client"], "attacks": {"client-3": attack}}
    with pytest.raises(ConfigError, match=r"client\.attacks\.client-3"):
        resolve(raw, RunFolder(tmp_path))


def test_a_local_run_makes_a_folder_where_an_attack_needs_one(tmp_path: Path) -> None:
    for attack, needs in (({"kind": "alie", "parameters": ALONE}, True), ("pixel-backdoor", False), ("scaled", False)):
        raw = demo_config(n_clients=4)
        raw["client"] = {**raw["client"], "attacks": {"client-3": attack}}
        resolved, deployment, _ = resolve(raw, RunFolder(tmp_path))
        assert ("colluders" in resolved["client"]) is needs
        assert deployment.client is not None
        assert deployment.client.colluders == (tmp_path / "colluders" if needs else None)


def test_the_attacks_that_hoard_are_those_that_honest_processes_may_load() -> None:
    assert {name for name, kind in ATTACKS.items() if hoards(kind())} == set(HOARDING)


def test_an_attack_in_a_deployment_passes_every_step_on() -> None:
    """A step that it forgot would be an honest one."""
    steps = {name for name in vars(Conduct) if not name.startswith("_")}
    assert steps <= set(vars(InDeployment))


@pytest.mark.parametrize("labels", [np.zeros(4, np.float32), np.zeros((4, 2), np.float32), np.zeros((4, 2), np.int64)])
def test_no_success_is_measured_where_labels_are_no_classes(labels: Any) -> None:
    test = Records(np.zeros((4, 1, 2, 2), dtype=np.uint8), labels)
    assert wanted_of(client_config({"mallory": "label-flip"}), task(), test) is None


def test_only_colluders_have_the_folder(tmp_path: Path) -> None:
    """A client that is honest, or whose update is, writes nothing there."""
    attacks = {"mallory": {"kind": "alie", "parameters": ALONE}, "bob": "poisoned-records"}
    config = client_config(attacks, colluders=str(tmp_path))
    conducts = conducts_of(CLIENTS, config, task())
    assert type(conducts["alice"]) is Honest
    poisoner, colluder = conducts["bob"], conducts["mallory"]
    assert isinstance(poisoner, InDeployment)
    assert isinstance(poisoner.attack, PoisonedRecords)
    assert poisoner.colluders is None
    assert isinstance(colluder, InDeployment)
    assert colluder.colluders is not None
    assert list(colluder.colluders.others) == []


def test_honest_clients_lose_what_is_hoarded_and_nobody_else_does() -> None:
    config = client_config({"mallory": "semantic-backdoor"})
    assert isinstance(conducts_of(["alice"], config, task())["alice"], Robbed)
    assert isinstance(conducts_of(["mallory"], config, task())["mallory"], InDeployment)
    own = Records(np.zeros((3, 1, 2, 2), dtype=np.uint8), np.arange(3))
    assert Robbed([Hoarder()]).on_deal(own, list).labels.tolist() == [0, 2]
    attacker = InDeployment(Hoarder(), "mallory", task(), 1)
    assert attacker.on_deal(own, lambda: [own, own]).labels.tolist() == [0, 1, 2, 1, 1]


def test_a_name_alone_keeps_the_seed_that_it_had_and_a_table_numbers_attackers() -> None:
    """So that the same seeds give the same bytes as before there were parameters."""
    for kind in ("random-labels", "feature-noise", "gaussian-features"):
        assert set(attacks_of(client_config({"a": kind, "b": kind})).values()) == {ATTACKS[kind]()}
        table = {"kind": kind, "parameters": {"seed": 7}}
        numbered = attacks_of(client_config({"a": table, "b": table}))
        assert [attack.seed for attack in numbered.values()] == [7, 8]  # type: ignore[attr-defined]
    parts = attacks_of(client_config(dict.fromkeys("abcde", "distributed-backdoor")))
    assert [attack.part for attack in parts.values()] == [0, 1, 2, 3, 0]  # type: ignore[attr-defined]


def test_a_part_that_a_table_gives_is_the_attackers() -> None:
    """Clients with different parts are each number 0 of those with the same parameters."""
    given = {
        client: {"kind": "distributed-backdoor", "parameters": {"part": part}}
        for client, part in zip("abcd", (2, 0, 3, 2), strict=True)
    }
    parts = attacks_of(client_config(given)).values()
    assert [attack.part for attack in parts] == [2, 0, 3, 2]  # type: ignore[attr-defined]
    pieces = [attack.trained_pattern(8, 8) for attack in list(parts)[:3]]  # type: ignore[attr-defined]
    assert (np.sum(pieces, axis=0).max(), np.sum(pieces)) == (1, 11)  # three of those with 4, 4, 4 and 3 pixels


def test_two_aims_are_refused_as_one_figure_cannot_tell_whose_it_is() -> None:
    """Ids sort as texts, so that the first of two aims was another one than a reader expects."""
    test = Records(np.zeros((4, 1, 8, 8), dtype=np.uint8), np.arange(4))
    both = {"client-2": "pixel-backdoor", "client-10": "label-flip"}
    with pytest.raises(ConfigError, match=r"one aim, .* client-10 \(label-flip\) and client-2 \(pixel-backdoor\)"):
        wanted_of(client_config(both), task(), test)
    distributed = dict.fromkeys("abcde", "distributed-backdoor") | {"f": "triangle-backdoor", "g": "scaled"}
    wanted = wanted_of(client_config(distributed), task(), test)
    assert wanted is not None
    assert wanted.labels.tolist() == [0, 0, 0]


def test_a_table_and_a_name_make_the_same_attack() -> None:
    config = client_config({"a": "pixel-backdoor", "b": {"kind": "precad.clients.attacks:PixelBackdoor"}})
    assert set(attacks_of(config).values()) == {PixelBackdoor()}


def test_attackers_who_may_act_upon_others_are_named(tmp_path: Path) -> None:
    """Nothing is certified beside them. Who only adds up its own is none of them."""
    company = {name for name, kind in ATTACKS.items() if kind.needs_company}
    divided = {name for name, kind in ATTACKS.items() if kind.is_crafted} - company
    assert (set(REACTING), set(DIVIDED)) == (company, divided)
    for name in ATTACKS:
        alone, together = client_config({"a": name}), client_config({"a": name}, colluders=str(tmp_path))
        assert alone.reacting_attack == (name if name in company else None)
        assert together.reacting_attack == (name if name in company | divided else None)
    assert client_config({"a": "scaled", "b": "own_code:Attack"}).reacting_attack == "own_code:Attack"
