"""Compare PRECAD's theorems, as its paper prints them, with the formulas written out anew."""

from __future__ import annotations

import math

import numpy as np
import pytest

from precad.deploy.cli.main import app
from tests.harness.command_line import CliRunner
from tests.lab.papers.printed import delta, report


def test_figure_2_is_equation_4_at_delta() -> None:
    rows = report("precad-theorem-1")["rows"]
    assert [(row["sigma"], row["epoch"]) for row in rows] == [(s, e) for s in (1, 1.5, 2) for e in (5, 10, 15, 20, 25)]
    for row in rows:
        sigma, rounds = row["sigma"], 200 * row["epoch"]
        one = 0.05 * math.sqrt(0.1 * rounds * math.expm1(1 / sigma**2))
        clients = 0.1 * 0.05 * math.sqrt(rounds * math.expm1(1 / (2 * sigma**2)))
        assert delta(row["one_server"]["published"], one) == pytest.approx(1e-5, rel=1e-6)
        assert delta(row["clients_only"]["published"], clients) == pytest.approx(1e-5, rel=1e-6)
        assert row["one_server"]["proved"] > row["one_server"]["published"]


def test_theorem_2_is_the_best_epsilon_of_a_fine_grid() -> None:
    arguments = ("--sigma", 40, "--client-clip", 4, "--rounds", 100, "--loss", 0.3, "--attackers", 1, "--attackers", 7)
    epsilons = np.linspace(0, 6, 60_001)
    rows = report("precad-theorem-2", *arguments)["rows"]
    assert [row["attackers"] for row in rows] == [1, 7]
    for row in rows:
        mu = 0.1 * math.sqrt(100 * math.expm1(4**2 / (2 * 40**2 * 2**2)))
        assert row["mu"] == pytest.approx(mu)
        curve = delta(epsilons, row["attackers"] * mu)
        assert row["highest"] == pytest.approx(np.min(np.exp(epsilons) * 0.3 + curve), abs=1e-6)
        assert row["lowest"] == pytest.approx(np.max(np.exp(-epsilons) * (0.3 - curve)), abs=1e-6)


def test_theorem_2_refuses_a_loss_outside_its_range() -> None:
    done = CliRunner().invoke(app, ["experiment", "precad-theorem-2", "--loss", "3"], prog_name="precad")
    assert done.exit_code == 2
    assert "L: expected a number in [0, B] = [0, 1.0], found 3.0" in done.output
