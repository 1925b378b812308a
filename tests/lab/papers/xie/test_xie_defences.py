"""Xie et al.'s certification beside aggregation rules, under attack."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import Result

from precad.clients.records import DataSource
from precad.clients.training import evaluation
from precad.deploy.cli.main import app
from precad.lab.papers.xie import defences as xie_defences
from precad.lab.papers.xie import userdp_certified
from precad.lab.papers.xie.defences import rule_parameters
from precad.lab.simulation import Simulation
from precad.lab.simulation.rules import RULES
from tests.harness.command_line import CliRunner


def defences(*arguments: object) -> Result:
    words = [str(argument) for argument in ("experiment", "xie-defences", *arguments)]
    return CliRunner().invoke(app, words, terminal_width=200, prog_name="precad")


def more_than(f: int, n: int, rate: float) -> float:
    """Chance that more than f of n are drawn, term by term."""
    return 1 - sum(math.comb(n, j) * rate**j * (1 - rate) ** (n - j) for j in range(f + 1))


@pytest.mark.parametrize("rate", [0.1, 0.2])
@pytest.mark.parametrize("k", [2, 3, 5, 10])
def test_rules_are_made_for_the_attackers_of_a_round(rate: float, k: int) -> None:
    """The least f that is exceeded with at most 1%; Bulyan's has room in all but a thousandth of the rounds."""
    f = rule_parameters("krum", k, rate, 200)["f"]
    assert more_than(f, k, rate) <= 0.01 < more_than(f - 1, k, rate)
    assert rule_parameters("multi-krum", k, rate, 200) == {"f": f}
    assert rule_parameters("trimmed-mean", k, rate, 200)["beta"] * rate * 200 == pytest.approx(f)
    of_bulyan = rule_parameters("bulyan", k, rate, 200)["f"]
    assert 1 <= of_bulyan <= f
    assert 1 - more_than(4 * of_bulyan + 2, 200, rate) <= 0.001
    assert of_bulyan == f or 1 - more_than(4 * of_bulyan + 6, 200, rate) > 0.001
    for rule in xie_defences.RULES:
        RULES[rule](**rule_parameters(rule, k, rate, 200))


def test_who_attacks_which_defence() -> None:
    """Train equal clients in all cases, by Table 2; STAT-OPT fits the rule, birds become airplanes."""
    digits, birds = xie_defences.Experiment().filled(), xie_defences.Experiment(dataset="cifar10").filled()
    assert (digits.sigma, digits.rounds, birds.sigma, birds.rounds) == (1.8, 3, 2.3, 1)
    ours, krum = (digits.case(name, "stat-opt", 5).config for name in ("certification", "krum"))
    assert {name: krum["simulation"][name] for name in ("algorithm", "aggregation")} == {
        "algorithm": "fedavg",
        "aggregation": "krum",
    }
    solver = ("local_steps", "local_batch", "local_rate", "local_momentum", "local_weight_decay")
    assert all(ours["simulation"][name] == krum["simulation"][name] for name in solver)
    assert ours["simulation"]["attack"] == {"kind": "stat-opt", "clients": 5, "parameters": {"rule": "bound"}}
    assert krum["simulation"]["attack"]["parameters"] == {"rule": "krum"}
    flips = [found.case("mean", "label-flip", 2).config["simulation"]["attack"] for found in (digits, birds)]
    assert [attack["parameters"] for attack in flips] == [{"gamma": 50.0}, {"gamma": 50.0, "source": 2}]
    stamped = birds.case("mean", "triangle-backdoor", 2).config["simulation"]["attack"]["parameters"]
    assert stamped == {"gamma": 50.0, "steps": 10, "rate": 0.05, "divides": False}  # 100 records of 50 in 5 epochs


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--attackers", 101), "--attackers: expected 1 .. 100, found 101"),
        (("--attack", "scaled"), "--attack: expected one of stat-opt"),
        (("--rule", "sum"), "--rule: expected one of mean"),
        (("--sigma", "-1"), "--sigma: expected a finite number above 0"),
        (("--rule-seeds", 0), "--rule-seeds"),
        (("--dataset", "airline-tweets"), "--dataset"),
    ],
)
def test_flags_that_mean_nothing_are_refused(arguments: tuple[object, ...], why: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = defences(*arguments, "--output", tmp_path / "run")
    assert done.exit_code == 2
    assert why in " ".join(done.output.split())
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_defences_in_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accuracies are those of the models that lie there; attackers are counted by name; the second time nothing is
    trained."""
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(userdp_certified, "ROWS", {"mnist": replace(userdp_certified.MNIST, local_epochs=1)})
    folder = tmp_path / "run"
    chosen = ("--dataset", "digits", "--rounds", 1, "--sigma", 0.3, "--attackers", 60, "--attack", "label-flip")
    arguments = (*chosen, "--rule", "krum", "--seeds", 2, "--rule-seeds", 1, "--output", folder)
    done = defences(*arguments, "--json")
    assert done.exit_code == 0, done.output
    report: dict[str, Any] = json.loads(done.stdout)
    cases = {(case["defence"], case["attack"]): case for case in report["cases"]}
    assert len(cases) == len(report["cases"]) == 2 * 2

    test = DataSource(classes=(0, 1)).load(side=28).test
    saved = [dict(np.load(folder / "certification-label-flip-k60" / f"seed-{seed}.npz")) for seed in (0, 1)]
    each = [evaluation.confidences(found["parameters"], "cnn-binary", test)[:, :2] for found in saved]
    ours, is_one = cases["certification", "label-flip"], test.labels == 1
    predicted = np.mean(each, axis=0).argmax(axis=1)
    assert ours["accuracy_of_mean_confidence"] == pytest.approx(np.mean(predicted == test.labels))
    assert ours["attack_success_of_mean_confidence"] == pytest.approx(np.mean(predicted[is_one] == 0))
    assert ours["accuracy"] == pytest.approx(np.mean([found.argmax(axis=1) == test.labels for found in each]))
    attackers = {f"client-{i:03}" for i in range(140, 200)}
    drawn = [len(attackers & set(found["clients"].tolist())) for found in saved]
    assert ours["attackers_drawn"] == np.mean(drawn)
    assert sum(drawn) > 0
    with np.load(folder / "krum-label-flip-k60" / "seed-0.npz") as krum:
        alone = evaluation.accuracy(krum["parameters"], "cnn-binary", test)
    assert cases["krum", "label-flip"]["accuracy"] == pytest.approx(alone)
    assert "accuracy_of_mean_confidence" not in cases["krum", "label-flip"]

    assert len(report["certified"]["estimate"]["exact"]) == 1
    assert not any(report["certified"]["radius"]["exact"])  # nothing follows from two trainings
    assert "not known to us" in report["paragraph"]
    with (folder / "defences.csv").open(newline="") as file:
        assert [row["defence"] for row in csv.DictReader(file)] == [case["defence"] for case in report["cases"]]
    assert (folder / "robust-accuracy.png").read_bytes()[:4] == b"\x89PNG"
    monkeypatch.setattr(Simulation, "run_round", lambda self: pytest.fail("trained again"))
    assert json.loads(defences(*arguments, "--json").stdout) == report
