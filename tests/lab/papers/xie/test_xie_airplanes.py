"""Xie et al.'s airplanes and birds: settings by their printed epsilons, and a public start from the other classes."""

from __future__ import annotations

import hashlib
import json
import tomllib
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal

from precad.clients.models import networks
from precad.clients.records import Records, Split, model_inputs, source
from precad.clients.training import evaluation
from precad.deploy.cli.main import app
from precad.dp.accountants.pld import SampledGaussian
from precad.dp.certificates.prediction import Training, published_epsilon
from precad.lab.papers.xie import attack_cost, classes, insdp_certified, userdp_certified
from precad.lab.papers.xie import tables as xie_tables
from precad.lab.papers.xie.attack_levels import LEVELS
from precad.lab.papers.xie.classes import AIRPLANES_AND_BIRDS, classes_of
from tests.harness.command_line import CliRunner

PER_CLASS, PER_CLASS_TEST = 110, 5


def pictures(per_class: int, seed: int) -> Records:
    """Ten classes, each of its own brightness."""
    labels = np.repeat(np.arange(10), per_class)
    noise = np.random.default_rng(seed).integers(0, 40, size=(len(labels), 3, 32, 32))
    return Records((noise + 20 * labels[:, None, None, None]).astype(np.uint8), labels)


@pytest.fixture
def small_cifar(monkeypatch: pytest.MonkeyPatch) -> Split:
    """Made-up pictures in CIFAR-10's place, and little training."""
    split = Split(pictures(PER_CLASS, 1), pictures(PER_CLASS_TEST, 2))
    monkeypatch.setattr(source, "_IMAGES", {"cifar10": lambda may_download: split})
    recipe = replace(classes.RECIPES["cifar10"], rounds=1, steps=1)
    monkeypatch.setattr(classes, "RECIPES", {"cifar10": recipe})
    monkeypatch.setattr(userdp_certified, "ROWS", {"cifar10": replace(userdp_certified.CIFAR, local_epochs=1)})
    monkeypatch.setattr(insdp_certified, "ROWS", {"cifar10": replace(insdp_certified.CIFAR, local_steps=1)})
    return split


def report_of(*arguments: object) -> dict[str, Any]:
    """Return what the command prints."""
    words = [str(argument) for argument in ("experiment", *arguments, "--json")]
    done = CliRunner().invoke(app, words, prog_name="precad")
    assert done.exit_code == 0, done.output
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_the_rows_are_those_of_the_printed_epsilons() -> None:
    """Tables 4, 5, 7 and 8: every noise multiplier with an accuracy has the epsilon that is printed beside it."""
    printed = tomllib.loads(resources.files("precad.lab.papers.xie").joinpath("xie_tables.toml").read_text())["table"]
    user = list(userdp_certified.ROWS.values())
    records = list(insdp_certified.ROWS.values())
    expected = {
        **{row.table: (row, row.client_rate, row.rounds, row.delta) for row in user},
        **{row.table: (row, row.record_rate, row.rounds * row.local_steps, row.delta) for row in records},
    }
    for name, (row, rate, steps, delta) in expected.items():
        (table,) = [found for found in printed if found["name"] == f"CCS '23, {name}"]
        assert sorted(row.accuracies) == sorted(table["sigma"])
        assert set(row.sigmas) <= set(row.accuracies)
        for sigma, epsilon in zip(table["sigma"], table["epsilon"], strict=True):
            training = Training(SampledGaussian(rate, float(sigma)), steps)
            assert xie_tables.is_reproduced(published_epsilon(training, delta), epsilon), (name, sigma)


def test_cifars_settings_are_table_2_s() -> None:
    """Clients, rates, batches and S, written out; birds are 2, airplanes 0."""
    user = userdp_certified.Experiment(dataset="cifar10").case(2.3).config
    task, simulation = user["task"], user["simulation"]
    assert (task["clients"], task["client_rate"] * 200, task["rounds"], task["client_clip"]) == (200, 40, 1, 1.0)
    assert [simulation[f"local_{name}"] for name in ("steps", "batch", "rate")] == [5, 50, 0.05]
    records = insdp_certified.Experiment(dataset="cifar10").case(4.0).config
    task, simulation = records["task"], records["simulation"]
    assert (task["clients"], task["record_rate"] * 1000, task["rounds"], task["record_clip"]) == (10, 50, 1, 1.0)
    assert [simulation[f"local_{name}"] for name in ("steps", "rate")] == [100, 0.05]
    assert user["client"]["classes"] == records["client"]["classes"] == [0, 2]
    assert classes_of("cifar10") is AIRPLANES_AND_BIRDS


@pytest.mark.slow
def test_airplanes_in_small(small_cifar: Split, tmp_path: Path) -> None:
    """The start comes from the other classes alone, every training begins with it, and means are PyTorch's."""
    pytest.importorskip("matplotlib")
    folder = tmp_path / "run"
    arguments = ("--dataset", "cifar10", "--sigma", 0.3, "--seeds", 2, "--device", "cpu")
    report = report_of("userdp-certified", *arguments, "--output", folder)

    public = tomllib.loads((folder / "public-start" / "config.toml").read_text())
    assert public["client"]["classes"] == [1, 3, 4, 5, 6, 7, 8, 9]
    assert sum(public["task"]["clients"].values()) == 8 * PER_CLASS
    start = np.load(folder / "public-start.npy")
    trained = np.load(folder / "public-start" / "seed-0.npz")["parameters"]
    head = 2 * 128 + 2
    assert_array_equal(start[:-head], trained[: 131_466 - 1290])
    assert_array_equal(start[-head:], networks.initial_parameters("cnn-pooled-binary", seed=0)[-head:])
    begun = tomllib.loads((folder / "sigma-0.3" / "config.toml").read_text())["simulation"]
    assert begun["initial_model_sha256"] == hashlib.sha256(start.astype("<f4").tobytes()).hexdigest()
    assert "other eight classes of CIFAR-10" in report["paragraph"]
    assert report["public_start"]["file"] == "public-start.npy"
    assert 0 <= report["public_start"]["accuracy_on_its_own_classes"] <= 1

    test = small_cifar.test.take(np.flatnonzero(np.isin(small_cifar.test.labels, (0, 2))))
    model, softmaxes = networks.build("cnn-pooled-binary"), []
    for seed in (0, 1):
        parameters = np.load(folder / "sigma-0.3" / f"seed-{seed}.npz")["parameters"]
        assert np.linalg.norm(parameters - start) < np.linalg.norm(parameters)
        model.load_state_dict(networks.unflatten(torch.tensor(parameters), model))
        with torch.no_grad():
            softmaxes.append(model(model_inputs(torch.tensor(test.features), torch.float32)).softmax(dim=1))
    predicted = torch.stack(softmaxes).mean(dim=0).argmax(dim=1).numpy()
    (case,) = report["cases"]
    assert case["accuracy_of_mean_confidence"] == pytest.approx(np.mean(predicted == test.labels))
    assert case["paper"] is None  # Table 5 has no sigma = 0.3


def test_a_start_that_is_given(small_cifar: Split, tmp_path: Path) -> None:
    """Nothing public is trained, and the paper's accuracy stands beside ours."""
    pytest.importorskip("matplotlib")
    np.save(tmp_path / "start.npy", networks.initial_parameters("cnn-pooled-binary", seed=5))
    arguments = ("--dataset", "cifar10", "--sigma", 4, "--seeds", 1, "--public-start", tmp_path / "start.npy")
    report = report_of("insdp-certified", *arguments, "--output", tmp_path / "run")
    assert not (tmp_path / "run" / "public-start").exists()
    assert report["cases"][0]["paper"] == 0.8143
    assert "Table 8 has 0.8143" in report["paragraph"]
    assert "that was given (start.npy)" in report["paragraph"]


@pytest.mark.slow
def test_what_birds_cost_in_small(small_cifar: Split, tmp_path: Path) -> None:
    """Birds shall be airplanes: the cost is the share of birds that are not, by `cnn-pooled-binary`."""
    pytest.importorskip("matplotlib")
    np.save(tmp_path / "start.npy", networks.initial_parameters("cnn-pooled-binary", seed=5))
    chosen = ("--dataset", "cifar10", "--sigma", 4, "--attackers", 3, "--attack", "label-flip", "--seeds", 1)
    arguments = (*chosen, "--rounds", 1, "--clean-seeds", 1, "--public-start", tmp_path / "start.npy")
    report = report_of("xie-attack-cost", "--level", "user", *arguments, "--output", tmp_path / "run")
    birds = small_cifar.test.take(np.flatnonzero(small_cifar.test.labels == 2))
    for row, case in zip(report["cases"][0]["measured"], ("clean", "label-flip-k3"), strict=True):
        parameters = np.load(tmp_path / "run" / f"sigma-4-{case}" / "seed-0.npz")["parameters"]
        found = evaluation.confidences(parameters, "cnn-pooled-binary", birds).argmax(axis=1)
        assert row["mean"] == pytest.approx(np.mean(found != 0))
    assert "airplanes and birds" in report["paragraph"]
    assert "that was given (start.npy)" in report["paragraph"]


@pytest.mark.slow
def test_what_a_bad_model_costs_in_small(small_cifar: Split, tmp_path: Path) -> None:
    """STAT-OPT wants every image taken for the other class: its cost is the accuracy, of the attacked models too."""
    pytest.importorskip("matplotlib")
    chosen = ("--dataset", "cifar10", "--sigma", 4, "--attackers", 10, "--attack", "stat-opt", "--seeds", 1)
    arguments = (*chosen, "--rounds", 2, "--clean-seeds", 1)
    report = report_of("xie-attack-cost", "--level", "user", *arguments, "--output", tmp_path / "run")
    clean, attacked = report["cases"][0]["measured"]
    both = small_cifar.test.take(np.flatnonzero(np.isin(small_cifar.test.labels, (0, 2))))
    for row, case in ((clean, "clean"), (attacked, "stat-opt-k10")):
        parameters = np.load(tmp_path / "run" / f"sigma-4-{case}" / "seed-0.npz")["parameters"]
        assert row["mean"] == pytest.approx(evaluation.accuracy(parameters, "cnn-pooled-binary", both))
    assert {row["k"] for row in (clean, attacked)} == {0, 10}


def test_who_attacks_birds() -> None:
    """Birds are class 2, whoever flips them: a client, or records that join one's."""
    user, records = (attack_cost.Experiment(level=level, dataset="cifar10").filled() for level in LEVELS)
    parameters = [
        of.case(8.0, attack, 4).config["simulation"]["attack"]["parameters"]
        for of, attack in ((user, "label-flip"), (user, "triangle-backdoor"), (records, "label-flip"))
    ]
    assert parameters == [
        {"gamma": 50.0, "source": 2},
        {"gamma": 50.0, "steps": 10, "rate": 0.05, "divides": False},
        {"aim": "label-flip", "records": 4, "source": 2},
    ]


def test_the_costs_epsilons_are_the_papers() -> None:
    """Figures 4d and 6c print 0.59 and 0.31, the first two decimals of what its tables and the earlier version have."""
    (user, records), (clients, joined) = (
        [level.figure_of("cifar10") for level in LEVELS.values()],
        (userdp_certified.CIFAR, insdp_certified.CIFAR),
    )
    trainings = [
        Training(SampledGaussian(clients.client_rate, *user.sigmas), user.rounds),
        Training(SampledGaussian(joined.record_rate, *records.sigmas), records.rounds * joined.local_steps),
    ]
    epsilons = [published_epsilon(each, row.delta) for each, row in zip(trainings, (clients, joined), strict=True)]
    assert epsilons == pytest.approx([0.5978, 0.3158], abs=6e-5)
    assert [user.cost_bound, records.cost_bound] == [0.2, 2.0]
