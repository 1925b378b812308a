"""Xie et al.'s tweets: settings, a public start from another collection, and positive ones that shall be negative."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from typer.testing import Result

from precad.clients.models import networks
from precad.clients.records import Records, Split, source
from precad.clients.records.tweets import LENGTH
from precad.deploy.cli.main import app
from precad.dp.accountants.pld import SampledGaussian
from precad.dp.certificates.prediction import Training, published_epsilon
from precad.lab.papers.xie import attack_cost, classes, userdp_certified
from precad.lab.papers.xie.attack_levels import LEVELS
from tests.harness.command_line import CliRunner


def tweets(labels: list[int], seed: int) -> Records:
    """Each of words that its label has more often."""
    of = np.array(labels, dtype=np.int64)
    words = np.random.default_rng(seed).integers(1, 20, size=(len(of), LENGTH)) + 20 * of[:, None]
    return Records(words.astype(np.int64), of)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Split:
    """Few made-up tweets in the place of both collections, few clients, and little training."""
    private = Split(tweets([0, 1] * 20, 1), tweets([0, 1, 1, 0, 1], 2))
    public = Split(tweets([0, 1, 2] * 4, 3), tweets([0, 1, 2], 4))
    monkeypatch.setattr(source, "_TEXTS", {"sentiment140-50k": lambda: private, "airline-tweets": lambda: public})
    row = replace(userdp_certified.TWEETS, n_clients=8, client_rate=0.5, client_records=5, rounds=1)
    monkeypatch.setattr(userdp_certified, "ROWS", {"sentiment140-50k": row})
    recipe = replace(classes.RECIPES["sentiment140-50k"], rounds=1, steps=1)
    monkeypatch.setattr(classes, "RECIPES", {"sentiment140-50k": recipe})
    return private


def experiment(*arguments: object) -> Result:
    """The command in this process."""
    words = [str(argument) for argument in ("experiment", *arguments, "--json")]
    return CliRunner().invoke(app, words, terminal_width=200, prog_name="precad")


def report_of(*arguments: object) -> dict[str, Any]:
    """Return what the command prints."""
    done = experiment(*arguments)
    assert done.exit_code == 0, done.output
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def softmaxes(model_file: Path, records: Records) -> torch.Tensor:
    """By PyTorch, (n, 10)."""
    model = networks.build("lstm-binary")
    model.load_state_dict(networks.unflatten(torch.tensor(np.load(model_file)["parameters"]), model))
    with torch.no_grad():
        found: torch.Tensor = model(torch.tensor(records.features)).softmax(dim=1)
    return found


def test_the_settings_are_table_2_s_and_the_epsilons_figure_4_s() -> None:
    """805 clients, 10 a round, an epoch of batches of 10, rate 0.3, S = 0.5. Figure 4e prints 0.41, Table 6 0.4102."""
    config = userdp_certified.Experiment(dataset="sentiment140-50k").case(2.0).config
    task, simulation = config["task"], config["simulation"]
    assert (task["clients"], task["client_rate"] * 805, task["client_clip"], task["delta"]) == (805, 10, 0.5, 1e-6)
    assert [simulation[f"local_{name}"] for name in ("steps", "batch", "rate")] == [5, 10, 0.3]
    figure = LEVELS["user"].figure_of("sentiment140-50k")
    assert (figure.rounds, figure.sigmas, figure.cost_bound) == (task["rounds"], (2.0,), 1.4)
    epsilon = published_epsilon(Training(SampledGaussian(10 / 805, 2.0), figure.rounds), 1e-6)
    assert epsilon == pytest.approx(0.4102, abs=6e-5)
    flips = attack_cost.Experiment(dataset="sentiment140-50k").filled().case(2.0, "label-flip", 5)
    assert attack_cost.quick({"level": "user", "dataset": "sentiment140-50k"})["attacks"] == ("label-flip",)
    assert flips.config["simulation"]["attack"]["parameters"] == {"gamma": 50.0, "source": 1}


@pytest.mark.slow
def test_tweets_in_small(small: Split, tmp_path: Path) -> None:
    """The start is the other collection's negative and positive tweets' but for its last layer; accuracies are those of
    the models that lie there."""
    pytest.importorskip("matplotlib")
    folder, chosen = tmp_path / "run", ("--dataset", "sentiment140-50k", "--sigma", 1, "--seeds", 2)
    report = report_of("userdp-certified", *chosen, "--dirichlet-alpha", 1, "--device", "cpu", "--output", folder)
    public = tomllib.loads((folder / "public-start" / "config.toml").read_text())
    assert (public["client"]["dataset"], public["client"]["classes"]) == ("airline-tweets", [0, 2])
    start = np.load(folder / "public-start.npy")
    trained = np.load(folder / "public-start" / "seed-0.npz")["parameters"]
    assert_array_equal(start[:-130], trained[:-650])
    assert_array_equal(start[-130:], networks.initial_parameters("lstm-binary", seed=0)[-130:])
    assert "tweets to American airlines" in report["paragraph"]
    assert "GloVe" in report["paragraph"]
    dealt = folder / "sigma-1-dirichlet-1"
    mean = torch.stack([softmaxes(dealt / f"seed-{seed}.npz", small.test) for seed in (0, 1)]).mean(dim=0)
    (case,) = report["cases"]
    assert case["accuracy_of_mean_confidence"] == np.mean(mean.argmax(dim=1).numpy() == small.test.labels)
    assert case["paper"] is None  # Table 6 is not of this deal
    assert tomllib.loads((dealt / "config.toml").read_text())["client"]["partition"] == "dirichlet"


@pytest.mark.slow
def test_what_flipped_tweets_cost_in_small(small: Split, tmp_path: Path) -> None:
    """The share of positive tweets that are not taken for negative ones, from a start that is given."""
    pytest.importorskip("matplotlib")
    np.save(tmp_path / "start.npy", networks.initial_parameters("lstm-binary", seed=5))
    chosen = ("--dataset", "sentiment140-50k", "--attackers", 4, "--seeds", 1, "--clean-seeds", 1)
    folder = tmp_path / "run"
    arguments = (
        "--level",
        "user",
        "--rounds",
        1,
        *chosen,
        "--public-start",
        tmp_path / "start.npy",
        "--output",
        folder,
    )
    report = report_of("xie-attack-cost", *arguments)
    positive = small.test.take(np.flatnonzero(small.test.labels == 1))
    for row, case in zip(report["cases"][0]["measured"], ("clean", "label-flip-k4"), strict=True):
        found = softmaxes(folder / f"sigma-2-{case}" / "seed-0.npz", positive).argmax(dim=1).numpy()
        assert row["mean"] == pytest.approx(np.mean(found == 1))
    assert "8 clients, on sentiment140-50k, negative and positive tweets" in report["paragraph"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (
            ("xie-attack-cost", "--level", "user", "--attack", "triangle-backdoor"),
            "expected one of label-flip, stat-opt at level",
        ),
        (("xie-attack-cost", "--level", "instance"), "--dataset: expected one of mnist, cifar10 at level instance"),
        (("insdp-certified",), "--dataset"),
        (("xie-defences",), "--dataset"),
        (("userdp-certified", "--public-start", "nowhere.npy"), "nowhere.npy"),
    ],
)
def test_what_tweets_do_not_have_is_refused(
    small: Split, arguments: tuple[object, ...], why: str, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    done = experiment(*arguments, "--dataset", "sentiment140-50k", "--output", tmp_path / "run")
    assert done.exit_code == 2
    assert why in " ".join(done.output.split())
