"""`precad simulate` and `precad experiment precad-mnist`: what they write, how they go on, and what they refuse."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from rich.console import Console

from precad.clients.config import ClientConfig
from precad.deploy.errors import ConfigError
from precad.dp.accountants.pld import PldAccountant
from precad.lab.simulation import Simulation
from precad.lab.simulation.simulate import Runs, resolve, run_plan
from precad.protos.task.task import Task
from tests.harness.command_line import precad

SMALL: dict[str, Any] = {
    "task": {
        "name": "small",
        "clients": 10,
        "rounds": 6,
        "client_rate": 0.5,
        "record_rate": 0.2,
        "record_clip": 1.0,
        "client_clip": 8.0,
        "noise_multiplier": 1.0,
        "learning_rate": 1.0,
    },
    "simulation": {"evaluate_every": 2, "attack": {"kind": "scaled", "clients": 2}},
}
ROOT = Path(__file__).parents[3]
DEVICE = ClientConfig.model_fields["device"].default


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(tomli_w.dumps(SMALL))
    return path


def test_the_default_needs_no_file_and_no_download(tmp_path: Path) -> None:
    """The demo's training on the bundled digits: what the deployment refuses is refused."""
    done = precad("simulate", "--output", tmp_path / "run", "--json")
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout)
    (run,) = summary["seeds"]
    assert run["accuracy"] > 0.8
    assert run["rejected_clients"] == ["client-6", "client-7"]
    assert [guarantee["unit"] for guarantee in run["guarantees"]] == ["record", "record"]
    assert "proved bound" in done.stderr
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == summary


def test_a_deployments_file_is_simulated(tmp_path: Path) -> None:
    done = precad("simulate", ROOT / "examples" / "digits.toml", "--rounds", 2, "--output", tmp_path / "run", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["seeds"][0]["rounds"] == 2


def test_declared_numbers_are_the_divisors(tmp_path: Path) -> None:
    """Twice as many declared records, at twice the learning rate, are the same step: that of the records dealt."""
    dealt = resolve(SMALL).task.clients
    found = []
    for name, factor in (("dealt", 1), ("doubled", 2)):
        task = {**SMALL["task"], "clients": {c: factor * n for c, n in dealt.items()}, "learning_rate": factor * 1.0}
        Runs(resolve({**SMALL, "task": task}), tmp_path / name).run(0)
        with np.load(tmp_path / name / "seed-0.npz") as saved:
            found.append(saved["parameters"])
    Runs(resolve(SMALL), tmp_path / "number").run(0)
    with np.load(tmp_path / "number" / "seed-0.npz") as saved:
        found.append(saved["parameters"])
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])


def test_an_infinite_epsilon_is_valid_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a finite epsilon for a delta that is below what the transform can prove.

    An accountant that proves none is taken at its word by summary, standard output and report, and none breaks.
    """
    path = tmp_path / "tiny.toml"
    path.write_text(tomli_w.dumps({**SMALL, "task": {**SMALL["task"], "delta": 1e-14}}))
    assert all(0 < epsilon < math.inf for epsilon in epsilons_of(path, tmp_path / "proved"))
    monkeypatch.setattr(PldAccountant, "epsilon", lambda *_: math.inf)
    assert epsilons_of(path, tmp_path / "run") == ["inf", "inf"]
    assert precad("report", tmp_path / "run").exit_code == 0


def epsilons_of(path: Path, folder: Path) -> list[Any]:
    """Return the epsilons of a run's guarantees, equal in its summary and on standard output."""
    done = precad("simulate", path, "--rounds", 2, "--output", folder, "--json")
    assert done.exit_code == 0, done.output
    found = []
    for text in (done.stdout, (folder / "summary.json").read_text()):
        (run,) = json.loads(text, parse_constant=pytest.fail)["seeds"]
        found.append([guarantee["epsilon"] for guarantee in run["guarantees"]])
    assert found[0] == found[1]
    return found[0]


def test_every_round_has_a_line_and_every_seed_a_file(config: Path, tmp_path: Path) -> None:
    done = precad("simulate", config, "--seeds", 2, "--output", tmp_path / "run", "--json")
    assert done.exit_code == 0, done.output
    for seed in (0, 1):
        lines = [json.loads(line) for line in (tmp_path / "run" / f"seed-{seed}.jsonl").read_text().splitlines()]
        assert [line["round"] for line in lines] == list(range(6))
        assert [line["round"] for line in lines if "accuracy" in line] == [1, 3, 5]
        assert all(line["accepted"] + len(line["rejected"]) == line["chosen"] for line in lines)
    again = precad("simulate", tmp_path / "run" / "config.toml", "--seeds", 2, "--output", tmp_path / "again", "--json")
    models = [np.load(tmp_path / folder / "seed-1.npz")["parameters"].tobytes() for folder in ("run", "again")]
    assert again.exit_code == 0, again.output
    assert models[0] == models[1]


def test_several_models_say_that_their_epsilons_add_up(config: Path, tmp_path: Path) -> None:
    """Each line is of one model; one model alone has nothing to add."""
    several = precad("simulate", config, "--seeds", 2, "--rounds", 2, "--output", tmp_path / "several")
    alone = precad("simulate", config, "--seeds", 1, "--rounds", 2, "--output", tmp_path / "alone")
    said = "who sees several of them adds up their epsilons, and their deltas"
    assert [said in " ".join(done.output.split()) for done in (several, alone)] == [True, False]


LEARNING = {"algorithm": "user-dp-fedavg", "update_clipping": "private-quantile", "evaluate_every": 2}
"""With a bound that rounds hand on."""


LEARNING_OF_TWO: dict[str, Any] = {
    "task": {**SMALL["task"], "algorithm": "user-dp-fedavg", "client_clip": 0.5, "update_clipping": "private-quantile"},
    "simulation": {"evaluate_every": 2},
}
"""A learnt bound with two servers, in the vector that they train."""


ADAM: dict[str, Any] = {
    "task": {**SMALL["task"], "server_optimizer": "adam", "learning_rate_schedule": "cosine", "decay_rounds": 5},
}
"""Moments that rounds hand on, and rates by round."""


@pytest.mark.parametrize("changes", [{}, {"simulation": LEARNING}, LEARNING_OF_TWO, ADAM])
def test_a_run_that_was_cut_off_goes_on_to_the_same_bits(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Killed in round 3, two rounds after the last evaluation was saved: lines beyond it are written again."""
    plan = resolve(SMALL | changes)
    whole = Runs(plan, tmp_path / "whole").run(0)

    class KilledError(Exception):
        pass

    def kill(metrics: Any) -> None:
        if metrics.round == 4:
            raise KilledError

    with pytest.raises(KilledError):
        Runs(plan, tmp_path / "cut").run(0, on_round=kill)
    resumed = Runs(plan, tmp_path / "cut").run(0)
    kept = ("accuracy", "rejected", "rounds", "guarantees", "accuracy_of_last_evaluations")
    assert {name: resumed[name] for name in kept} == {name: whole[name] for name in kept}
    models = [np.load(tmp_path / folder / "seed-0.npz")["parameters"].tobytes() for folder in ("whole", "cut")]
    assert models[0] == models[1]
    lines = [
        [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in path.read_text().splitlines()]
        for path in (tmp_path / "whole" / "seed-0.jsonl", tmp_path / "cut" / "seed-0.jsonl")
    ]
    assert lines[0] == lines[1]


def test_a_finished_run_is_not_trained_again(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = precad("simulate", config, "--output", tmp_path / "run", "--json")
    monkeypatch.setattr(Simulation, "run_round", lambda self: pytest.fail("trained again"))
    second = precad("simulate", config, "--output", tmp_path / "run", "--json")
    accuracies = [json.loads(done.stdout)["seeds"][0]["accuracy"] for done in (first, second)]
    assert accuracies[0] == accuracies[1]


def test_more_rounds_go_on_to_the_model_of_a_run_without_a_halt(config: Path, tmp_path: Path) -> None:
    """Halted after 3 of 6 rounds, between two evaluations; its own evaluation there does not enter the summary."""
    for rounds in (3, 6):
        done = precad("simulate", config, "--rounds", rounds, "--output", tmp_path / "halted", "--json")
        assert done.exit_code == 0, done.output
    halted = json.loads(done.stdout)["seeds"][0]
    whole = json.loads(precad("simulate", config, "--output", tmp_path / "whole", "--json").stdout)["seeds"][0]
    kept = ("accuracy", "rejected", "rounds", "guarantees", "accuracy_of_last_evaluations")
    assert {name: halted[name] for name in kept} == {name: whole[name] for name in kept}
    models = [np.load(tmp_path / folder / "seed-0.npz")["parameters"].tobytes() for folder in ("whole", "halted")]
    assert models[0] == models[1]
    configs = [(tmp_path / folder / "config.toml").read_text() for folder in ("whole", "halted")]
    assert configs[0] == configs[1]


def test_a_training_that_diverges_ends_with_a_record(tmp_path: Path) -> None:
    """A step so long that float32 overflows: exit code 3, the last finite model, and the same once more."""
    path = tmp_path / "wild.toml"
    wild = {**SMALL, "task": {**SMALL["task"], "learning_rate": 1e38}, "simulation": {"algorithm": "non-private"}}
    path.write_text(tomli_w.dumps(wild))
    for _ in range(2):
        done = precad("simulate", path, "--output", tmp_path / "run", "--json")
        assert done.exit_code == 3, done.output
        (run,) = json.loads(done.stdout)["seeds"]
        assert 0 <= run["diverged_in_round"] < 6
        assert run["rounds"] == run["diverged_in_round"]
        assert run["ended"].startswith(f"the training diverged in round {run['rounds']}")
        assert f"diverged in round {run['rounds']}" in done.stderr.replace("\n", " ")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["seeds"] == [run]
    assert np.isfinite(np.load(tmp_path / "run" / "seed-0.npz")["parameters"]).all()
    assert len((tmp_path / "run" / "seed-0.jsonl").read_text().splitlines()) == run["rounds"]


@pytest.mark.parametrize(
    ("changes", "rounds", "reason"),
    [
        ({"learning_rate": 1e20}, 6, "seed 0: the training diverged: the model is not finite"),
        ({"epsilon_budget_one_server": 1e-3}, 0, "seed 0: 0 rounds done: the budget allows no further round"),
    ],
    ids=["a step of 1e20", "a budget that allows no round"],
)
def test_a_training_with_nothing_to_show_is_told_by_the_exit_code(
    tmp_path: Path, changes: dict[str, float], rounds: int, reason: str
) -> None:
    """Everything is written all the same. The model's own parameters are finite."""
    path = tmp_path / "wild.toml"
    path.write_text(tomli_w.dumps({**SMALL, "task": {**SMALL["task"], **changes}}))
    done = precad("simulate", path, "--output", tmp_path / "run", "--json")
    assert done.exit_code == 3, done.output
    assert reason in " ".join(done.stderr.split())
    (run,) = json.loads(done.stdout)["seeds"]
    assert (run["rounds"], run["diverged_in_round"], run["model_is_finite"]) == (rounds, None, rounds == 0)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["seeds"] == [run]
    assert np.isfinite(np.load(tmp_path / "run" / "seed-0.npz")["parameters"]).all()


def test_a_process_killed_while_it_writes_the_configuration_is_gone_on_with(config: Path, tmp_path: Path) -> None:
    """Take the killed process's remains neither for a configuration nor for somebody else's file."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".config.toml-0123456789abcdef").write_text("[task")
    Runs(resolve(SMALL), folder)
    assert (folder / "config.toml").exists()


def test_a_full_disk_leaves_the_rounds_that_were_there(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a training is gone on with, too: without them it could not be."""

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    runs = Runs(resolve({**SMALL, "task": {**SMALL["task"], "rounds": 2}}), tmp_path / "run")
    runs.run(0)
    old = (tmp_path / "run" / "seed-0.jsonl").read_text()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match="No space left"):
        runs.run(0)
    assert (tmp_path / "run" / "seed-0.jsonl").read_text() == old
    with pytest.raises(ConfigError, match="No space left"):
        Runs(resolve(SMALL), tmp_path / "run")
    assert "rounds = 2" in (tmp_path / "run" / "config.toml").read_text()


def test_a_disk_that_fills_up_while_it_trains_is_told_in_a_line(config: Path, tmp_path: Path) -> None:
    """A save that does not fit ends the command with code 2. With room again it goes on, to the same bits."""
    folder, other = tmp_path / "run", tmp_path / "other"
    assert precad("simulate", config, "--output", folder, "--rounds", 2).exit_code == 0
    (folder / ".seed-0.npz").symlink_to("/dev/full")
    ended = precad("simulate", config, "--output", folder)
    said = f"precad: --output: expected a folder to write to, found {folder}: No space left on device"
    assert (ended.exit_code, ended.stderr.splitlines()[-1]) == (2, said)
    (folder / ".seed-0.npz").unlink()
    for one in (folder, other):
        assert precad("simulate", config, "--output", one).exit_code == 0
    saved = [np.load(one / "seed-0.npz")["parameters"].tobytes() for one in (folder, other)]
    assert saved[0] == saved[1]


@pytest.mark.parametrize("rule", ["sum", "median"])
def test_honest_updates_that_are_not_finite_are_a_divergence_under_any_rule(tmp_path: Path, rule: str) -> None:
    """A local step so long that float64 overflows, on finite gradients."""
    path = tmp_path / "wild.toml"
    simulation = {"algorithm": "fedavg", "local_rate": 1e300, "local_weight_decay": 1e10, "aggregation": rule}
    path.write_text(tomli_w.dumps({**SMALL, "simulation": simulation}))
    done = precad("simulate", path, "--output", tmp_path / "run", "--json")
    assert done.exit_code == 3, done.output
    (run,) = json.loads(done.stdout)["seeds"]
    assert run["diverged_in_round"] == run["rounds"] == 0
    assert run["ended"].startswith("the training diverged in round 0: ")


def test_under_a_private_rule_they_are_zero(tmp_path: Path) -> None:
    """An end would tell that somebody's update is there."""
    path = tmp_path / "wild.toml"
    rule = {"rate": 0.5, "n_enrolled": 10, "clip": 1.0, "noise_multiplier": 1.0, "trim": 0.25}
    simulation = {
        "algorithm": "fedavg",
        "local_rate": 1e300,
        "local_weight_decay": 1e10,
        "aggregation": "tsgd-gaussian",
    }
    path.write_text(tomli_w.dumps({**SMALL, "simulation": {**simulation, "aggregation_parameters": rule}}))
    done = precad("simulate", path, "--rounds", 1, "--output", tmp_path / "run", "--json")
    assert done.exit_code == 0, done.output
    (run,) = json.loads(done.stdout)["seeds"]
    assert (run["rounds"], run["diverged_in_round"]) == (1, None)


def test_a_folder_from_before_a_field_is_gone_on_with_if_the_field_has_its_default(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Take out every field of the task's that has its default, as if the field had come later.

    Fields of the other sections are given beside it as their defaults. A field of another value makes it another task.
    """
    folder = tmp_path / "run"
    precad("simulate", config, "--output", folder)
    written = (folder / "config.toml").read_text()
    defaults = {name for name, field in Task.model_fields.items() if not field.is_required()}
    older = tomllib.loads(written)
    given = {name: value for name, value in older["task"].items() if name in defaults}
    same_as_default = {name for name, value in given.items() if value == Task.model_fields[name].default}
    assert {"record_clipping", "algorithm", "gate"} <= same_as_default
    older["task"] = {name: value for name, value in older["task"].items() if name not in same_as_default}
    (folder / "config.toml").write_text(tomli_w.dumps(older))
    explicit = {**SMALL, "simulation": {**SMALL["simulation"], "validation": True}, "client": {"device": DEVICE}}
    (tmp_path / "explicit.toml").write_text(tomli_w.dumps(explicit))

    monkeypatch.setattr(Simulation, "run_round", lambda self: pytest.fail("trained again"))
    again = precad("simulate", tmp_path / "explicit.toml", "--output", folder, "--json")
    assert again.exit_code == 0, again.stderr
    assert json.loads(again.stdout)["seeds"][0]["rounds"] == 6

    for name, value in (("record_clipping", "per-layer"), ("learning_rate", 2.0)):
        other = {**SMALL, "task": {**SMALL["task"], name: value}}
        (tmp_path / "other.toml").write_text(tomli_w.dumps(other))
        (folder / "config.toml").write_text(tomli_w.dumps(older))
        refused = precad("simulate", tmp_path / "other.toml", "--output", folder)
        assert (refused.exit_code, f"precad: task.{name}: expected " in refused.stderr) == (2, True), name
    older["task"]["from_the_future"] = 1
    (folder / "config.toml").write_text(tomli_w.dumps(older))
    refused = precad("simulate", config, "--output", folder)
    assert (refused.exit_code, "expected a configuration of this version" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (lambda lines: [*lines[:-1], lines[-1][:20]], 5),
        (lambda lines: [*lines[:-1], lines[-1][:-1]], 5),
        (lambda lines: [*lines[:2], b"[]\n", *lines[3:]], 2),
        (lambda lines: [*lines[:3], *lines[4:]], 3),
        (lambda lines: [b"\xff\n", *lines[1:]], 0),
        (lambda lines: [b'{"round": 0}\n', *lines[1:]], 0),
    ],
    ids=["cut", "without its end", "no round", "one less", "no text", "no fields"],
)
def test_a_damaged_line_is_found_before_any_seed_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[list[bytes]], list[bytes]], found: int
) -> None:
    """The first seed would train, and the summary of the last one would then find no JSON. Nothing is changed."""
    plan, run, console = resolve(SMALL), tmp_path / "run", Console(quiet=True)
    run_plan(plan, run, [0], console)
    lines, save = (run / "seed-0.jsonl").read_bytes().splitlines(keepends=True), (run / "seed-0.npz").read_bytes()
    (run / "seed-1.npz").write_bytes(save)
    (run / "seed-1.jsonl").write_bytes(b"".join(spoil(lines)))
    for seed in (0, 1):  # a line after those of the save may be cut: it is trained again
        with (run / f"seed-{seed}.jsonl").open("ab") as file:
            file.write(b'{"round": 6, "chos')
    before = {path: path.read_bytes() for path in run.iterdir()}
    monkeypatch.setattr(Simulation, "run_round", lambda self: pytest.fail("trained"))
    with pytest.raises(ConfigError, match=rf"^--output: expected 6 rounds in .*seed-1\.jsonl, found {found}$"):
        run_plan(plan, run, [0, 1], console)
    assert {path: path.read_bytes() for path in run.iterdir()} == before
    run_plan(plan, run, [0], console)
    assert (run / "seed-0.jsonl").read_bytes() == b"".join(lines)


def test_a_damaged_checkpoint_and_another_configuration_are_refused(config: Path, tmp_path: Path) -> None:
    precad("simulate", config, "--output", tmp_path / "run")
    other = precad("simulate", config, "--rounds", 3, "--output", tmp_path / "run")
    assert other.exit_code == 2
    assert "--output: expected a folder of at most 3 rounds, found 6" in other.stderr
    raw = {**SMALL, "task": {**SMALL["task"], "client_clip": 9.0}}
    (tmp_path / "other.toml").write_text(tomli_w.dumps(raw))
    other = precad("simulate", tmp_path / "other.toml", "--output", tmp_path / "run")
    assert other.exit_code == 2
    where = tmp_path / "run" / "config.toml"
    assert other.stderr == f"precad: task.client_clip: expected 8.0, as in {where}, found 9.0\n"
    raw = {**SMALL, "client": {"partition_seed": 7717}}
    (tmp_path / "other.toml").write_text(tomli_w.dumps(raw))
    other = precad("simulate", tmp_path / "other.toml", "--output", tmp_path / "run")
    assert other.stderr == f"precad: client.partition_seed: expected what {where} says, found another value\n"
    good = (tmp_path / "run" / "config.toml").read_text()
    for bad in ("[task", "[task]\nrounds = []", "task = 1", "[task]\n", "a = " + "[" * 5000):
        (tmp_path / "run" / "config.toml").write_text(bad)
        broken = precad("simulate", config, "--output", tmp_path / "run")
        assert (broken.exit_code, "expected a resolved configuration" in broken.stderr) == (2, True), bad
    (tmp_path / "run" / "config.toml").write_text(good)
    metrics = tmp_path / "run" / "seed-0.jsonl"
    whole = metrics.read_text()
    metrics.write_text("".join(whole.splitlines(keepends=True)[:4]))
    cut = precad("simulate", config, "--output", tmp_path / "run")
    assert (cut.exit_code, "expected 6 rounds in" in cut.stderr) == (2, True)
    metrics.write_text(whole)
    (tmp_path / "run" / "seed-0.npz").write_bytes(b"PK damaged")
    damaged = precad("simulate", config, "--output", tmp_path / "run")
    assert damaged.exit_code == 2
    assert "expected a training to go on with" in damaged.stderr
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert precad("simulate", config, "--output", tmp_path / "full").exit_code == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": {"clients": 1}}, "task.clients: expected between 2 and"),
        ({"task": {"clients": "ten"}}, "task.clients: expected a number"),
        ({"task": {"rounds": 0}}, "task.rounds"),
        ({"task": {"model": "oracle"}}, "task.model: expected one of"),
        ({"task": {"dim": 3}}, "task.dim: expected 4810"),
        ({"client": {"dataset": "cats"}}, "client.dataset"),
        ({"client": {"attacks": {"eve": "scaled"}}}, "client.attacks.eve"),
        ({"simulation": {"evaluate_every": 0}}, "simulation.evaluate_every"),
        ({"simulation": {"magic": 1}}, "simulation.magic: expected no such key"),
        ({"simulation": {"algorithm": "magic"}}, "unknown algorithm 'magic'"),
        ({"simulation": {"attack": {"kind": "scaled", "clients": 11}}}, "simulation.attack.clients"),
        ({"simulation": {"attack": {"kind": "scaled", "clients": 1, "parameters": {"x": 1}}}}, "attack.parameters"),
        ({"simulate": {}}, "simulate: expected one of task, client, simulation"),
    ],
)
def test_faults_of_the_file_end_with_two(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    raw = {name: dict(section) for name, section in SMALL.items()}
    for name, section in change.items():
        raw[name] = {**raw.get(name, {}), **section}
    path = tmp_path / "faulty.toml"
    path.write_text(tomli_w.dumps(raw))
    done = precad("simulate", path, "--output", tmp_path / "run")
    assert (done.exit_code, "Traceback" in done.output) == (2, False), done.output
    assert message in done.stderr


@pytest.mark.parametrize("workers", [1, 2])
def test_what_no_training_can_begin_with_leaves_no_folder(tmp_path: Path, workers: int) -> None:
    """The mended file could not be run there."""
    wrong = {**SMALL, "simulation": {**SMALL.get("simulation", {}), "attack": {"kind": "scled", "clients": 1}}}
    (tmp_path / "wrong.toml").write_text(tomli_w.dumps(wrong))
    done = precad("simulate", tmp_path / "wrong.toml", "--workers", workers, "--output", tmp_path / "run")
    assert (done.exit_code, "unknown attack 'scled'" in done.stderr) == (2, True)
    assert not (tmp_path / "run").exists()


def test_an_unusual_sigma_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = precad("experiment", "precad-mnist", "--dataset", "digits", "--sigma", -1, "--output", tmp_path / "fig")
    assert done.exit_code == 2
    assert "--sigma: expected a finite number above 0" in done.stderr


def test_a_foreign_trainer_is_not_simulated() -> None:
    """It would be left out without a word: a simulation's clients are no processes."""
    raw = {**SMALL, "client": {**SMALL.get("client", {}), "trainer": "mine:train"}}
    with pytest.raises(ConfigError, match=r"client\.trainer: expected none in a simulation, .* found 'mine:train'"):
        resolve(raw)


def test_training_0_from_seed_1_is_training_1_from_seed_0(tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "task": {
            "name": "seeds", "clients": 5, "rounds": 2, "client_rate": 0.9, "record_rate": 0.2, "record_clip": 1.0,
            "client_clip": 8.0, "noise_multiplier": 1.0, "learning_rate": 1.0,
        },
        "simulation": {"evaluate_every": 2},
    }  # fmt: skip
    later = {**config, "simulation": {**config["simulation"], "first_seed": 1}}
    models = {}
    for name, raw, seed in (("one", config, 1), ("later", later, 0), ("zero", config, 0)):
        Runs(resolve(raw), tmp_path / name).run(seed)
        with np.load(tmp_path / name / f"seed-{seed}.npz") as saved:
            models[name] = saved["parameters"]
    assert np.array_equal(models["one"], models["later"])
    assert not np.array_equal(models["zero"], models["later"])


def test_a_folder_in_which_another_process_trains_is_refused(tmp_path, capsys):
    """Both would write the same files. It is free again when the other one has ended, however it ended."""
    raw, folder = {**SMALL, "task": {**SMALL["task"], "rounds": 2}}, tmp_path / "run"
    run_plan(resolve(raw), folder, [0], Console(quiet=True))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    holds = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX); print(flush=True)"
    command = [sys.executable, "-c", f"{holds}; sys.stdin.read()", str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(ConfigError, match="expected a folder in which no other process trains, found one in"):
            run_plan(resolve(SMALL), folder, [0], Console(quiet=True))
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
        other.kill()
    assert run_plan(resolve(SMALL), folder, [0], Console(quiet=True))["seeds"][0]["rounds"] == 6


def test_an_interrupted_simulation_says_how_it_goes_on(tmp_path):
    """Ctrl-C ends it with code 130 and one line. What was saved stays of its own number of rounds."""
    config, folder = tmp_path / "small.toml", tmp_path / "a run"
    config.write_text(tomli_w.dumps(SMALL))
    command = [sys.executable, "-P", "-m", "precad.deploy.cli.main", "simulate", str(config), "--output", str(folder)]
    process = subprocess.Popen([*command, "--rounds", "100000"], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60.0
    while not (folder / "seed-0.npz").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60.0)
    assert process.returncode == 130
    assert f"interrupted; the same command with --output '{folder}' goes on" in " ".join(told.split())
    done = precad("simulate", config, "--output", folder, "--rounds", 2)
    assert done.exit_code == 2
    assert "expected a folder of at most 2 rounds, found 100000" in done.stderr
