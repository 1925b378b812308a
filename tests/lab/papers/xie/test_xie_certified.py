"""Xie et al.'s certified accuracy: the estimate from models that lie there, and the paper's setting."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest

from precad.clients.records import DataSource
from precad.clients.training import evaluation
from precad.dp.accountants.pld import SampledGaussian
from precad.dp.accountants.side_by_side import XieAccountant
from precad.dp.certificates.prediction import certified_integer, xie_certified_k
from precad.lab.papers.xie import userdp_certified
from precad.lab.simulation import Simulation
from tests.lab.papers.in_small import experiment


def test_certified_accuracy_in_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two trainings: nothing follows with the radius, the estimate is the formula's on the models that lie there, and a
    second time nothing is trained."""
    pytest.importorskip("matplotlib")
    folder = tmp_path / "run"
    arguments = ("userdp-certified", "--dataset", "digits", "--sigma", 0.3, "--rounds", 1, "--seeds", 2)
    done = experiment(*arguments, "--output", folder, "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert "not the paper's 3" in report["paragraph"]
    (case,) = report["cases"]
    assert case["paper"] is None
    test = DataSource(classes=(0, 1)).load(side=28).test
    models = [np.load(folder / "sigma-0.3" / f"seed-{seed}.npz")["parameters"] for seed in (0, 1)]
    mean = np.mean([evaluation.confidences(model, "cnn-binary", test)[:, :2] for model in models], axis=0)
    is_right = mean.argmax(axis=1) == test.labels
    assert case["accuracy_of_mean_confidence"] == np.mean(is_right)
    epsilon = XieAccountant().epsilon(SampledGaussian(0.1, 0.3), 1, 0.0029)
    tolerated = [certified_integer(xie_certified_k(max(row), min(row), epsilon, 0.0029)) for row in mean]
    with (folder / "certified.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        assert float(row["certified_accuracy"]) == 0 or row["evidence"] == "estimate"
        if (row["evidence"], row["method"], row["threat"]) == ("estimate", "published", "add"):
            expected = np.mean(is_right & (np.array(tolerated) >= int(row["k"])))
            assert float(row["certified_accuracy"]) == pytest.approx(expected)
    labels = {(row["evidence"], row["method"]): row["label"] for row in rows}
    assert labels["radius", "exact"] == "bound"
    assert labels["radius", "published"] == "published_reproduction"
    assert {label for (evidence, _), label in labels.items() if evidence == "estimate"} == {"approximation"}
    for threat in ("add", "replace"):
        assert (folder / f"certified-{threat}.png").read_bytes()[:4] == b"\x89PNG"
    monkeypatch.setattr(Simulation, "run_round", lambda self: pytest.fail("trained again"))
    assert json.loads(experiment(*arguments, "--output", folder, "--json").stdout) == report


def test_userdp_s_setting_is_the_papers() -> None:
    """Tables 2 and 4: 200 clients, 20 a round, 10 local epochs of batches of 60, S = 0.7; 3 rounds."""
    config = userdp_certified.Experiment().case(1.8).config
    task, simulation = config["task"], config["simulation"]
    assert (task["clients"], task["client_rate"] * 200, task["rounds"], task["delta"]) == (200, 20, 3, 0.0029)
    assert (task["client_clip"], task["noise_multiplier"], task["learning_rate"]) == (0.7, 1.8, 1.0)
    solver = [simulation[f"local_{name}"] for name in ("batch", "rate", "momentum", "weight_decay")]
    assert solver == [60, 0.02, 0.9, 0.0005]
    assert simulation["local_steps"] == 10 * math.ceil(12_665 / 200 / 60)
