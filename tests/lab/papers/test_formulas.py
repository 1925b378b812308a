"""Compare what papers print as formulas, PRECAD's theorems and PTR's curves, with the formulas written out anew."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from precad.deploy.cli.main import app
from precad.lab.papers.ptr import figures
from precad.lab.simulation.simulate import Runs, resolve
from tests.harness.command_line import CliRunner


def report(*arguments: object) -> dict[str, Any]:
    """Return what `precad experiment ... --json` prints."""
    done = CliRunner().invoke(app, [str(word) for word in ("experiment", *arguments, "--json")], prog_name="precad")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def delta(epsilon: Any, mu: float) -> Any:
    """Return Eq. 3 and 8 of PRECAD's paper."""
    return norm.cdf(-epsilon / mu + mu / 2) - np.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2)


def test_figure_2_is_equation_4_at_delta() -> None:
    for row in report("precad-theorem-1")["rows"]:
        sigma, rounds = row["sigma"], 200 * row["epoch"]
        one = 0.05 * math.sqrt(0.1 * rounds * math.expm1(1 / sigma**2))
        clients = 0.1 * 0.05 * math.sqrt(rounds * math.expm1(1 / (2 * sigma**2)))
        assert delta(row["one_server"]["published"], one) == pytest.approx(1e-5, rel=1e-6)
        assert delta(row["clients_only"]["published"], clients) == pytest.approx(1e-5, rel=1e-6)
        assert row["one_server"]["proved"] > row["one_server"]["published"]


def test_theorem_2_is_the_best_epsilon_of_a_fine_grid() -> None:
    arguments = ("--sigma", 40, "--client-clip", 4, "--rounds", 100, "--loss", 0.3, "--attackers", 1, "--attackers", 7)
    epsilons = np.linspace(0, 6, 60_001)
    for row in report("precad-theorem-2", *arguments)["rows"]:
        mu = 0.1 * math.sqrt(100 * math.expm1(4**2 / (2 * 40**2 * 2**2)))
        assert row["mu"] == pytest.approx(mu)
        curve = delta(epsilons, row["attackers"] * mu)
        assert row["highest"] == pytest.approx(np.min(np.exp(epsilons) * 0.3 + curve), abs=1e-6)
        assert row["lowest"] == pytest.approx(np.max(np.exp(-epsilons) * (0.3 - curve)), abs=1e-6)


def test_theorem_2_refuses_a_loss_outside_its_range() -> None:
    done = CliRunner().invoke(app, ["experiment", "precad-theorem-2", "--loss", "3"], prog_name="precad")
    assert done.exit_code == 2
    assert "must be in [0, B] = [0, 1.0], got 3.0" in done.output


def test_direct_analysis_is_the_test_and_a_gaussian() -> None:
    for row in figures.one_release(0.5):
        gaussian = row["direct"] - 1 / figures.LAPLACE
        assert delta(gaussian, 1 / row["sigma_1"]) == pytest.approx(figures.DELTA - row["delta_0"], rel=1e-5)


def test_strong_composition_is_no_more_than_the_sum_and_infinite_without_delta() -> None:
    one = figures.composed_directly(1)
    assert figures.composed_directly(10) <= 10.5 * one * 1.2
    assert figures.composed_directly(10_000) < 10_000 * one
    assert figures.composed_directly(10**6) == math.inf


def test_the_papers_statements_about_its_curves() -> None:
    found = {one["figure"]: one["statements"] for one in report("ptr-figures")["figures"]}
    assert all(all(found[name].values()) for name in "135")
    assert list(found["2"].values()) == [True, False]
    assert list(found["4"].values()) == [True, False]


def test_training_0_from_seed_1_is_training_1_from_seed_0(tmp_path: Any) -> None:
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
