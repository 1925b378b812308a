"""PRECAD's Figure 3 and Table 1: accuracy and noise of each algorithm at one epsilon."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import pytest
from rich.console import Console

from precad.deploy.errors import ConfigError
from precad.lab.papers.precad import clients as precad_clients
from tests.lab.papers.in_small import experiment, rows_of, small


def test_figure_3_in_small(tmp_path: Path) -> None:
    """Equal sigma, so equal epsilon, for PRECAD, local and central DP, whatever n; a time for both servers."""
    pytest.importorskip("matplotlib")
    report = small("precad-clients", tmp_path / "run", "--clients", 10, "--clients", 20, "--rounds", 2)
    cases = {(case["clients"], case["method"]): case for case in report["cases"]}
    assert len(cases) == 2 * (len(precad_clients.METHODS) + 1)
    for n in (10, 20):
        epsilons = {cases[n, method]["epsilon"] for method in ("PRECAD", "local DP", "central DP")}
        assert len(epsilons) == 1
        assert cases[n, "non-private"]["epsilon"] is None
        assert cases[n, "PRECAD, both servers"]["accuracy"] is None
        assert cases[n, "PRECAD, both servers"]["ms_per_round"] > 0
    assert "PRECAD, both servers" not in {row["method"] for row in rows_of(tmp_path / "run")}
    assert (tmp_path / "run" / "figure-3.png").read_bytes()[:4] == b"\x89PNG"


def test_figure_3_of_the_methods_that_are_asked_for(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    flags = ["--clients", 10, "--rounds", 1, "--method", "local-dp", "--method", "precad"]
    report = small("precad-clients", tmp_path / "run", *flags)
    assert [case["method"] for case in report["cases"]] == ["PRECAD", "local DP"]
    with pytest.raises(ConfigError, match=r"--method: expected one of precad, local-dp, .*, found 'sgd'"):
        precad_clients.Experiment(methods=("sgd",))


def test_figure_3b_deals_cifar_as_the_paper_does() -> None:
    experiment = precad_clients.Experiment(dataset="cifar10")
    config = experiment.case(precad_clients.ALL["precad"], 200).config
    assert (config["task"]["model"], config["client"]["partition"]) == ("cifar", "dirichlet")
    other = precad_clients.Experiment(dataset="cifar10", model="cnn-rgb").case(precad_clients.ALL["precad"], 200)
    assert other.config["task"]["model"] == "cnn-rgb"


def test_a_proved_epsilon_is_printed_rounded_up() -> None:
    case = {"clients": 100, "method": "PRECAD", "accuracy": None, "epsilon": 2.25002, "ms_per_round": None}
    console = Console(file=io.StringIO(), record=True, width=120)
    precad_clients.print_report(console, {"cases": [case], "paragraph": "", "output": ""})
    assert "2.26" in console.export_text()


def test_the_noise_of_table_1() -> None:
    """Compare the standard deviation of 4810 normal draws with the formula: within six times 1 / sqrt(2 * 4810).

    That is a false alarm in 10^8 runs, and the draws are from a seed.
    """
    done = experiment("precad-noise", "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    formulas = {"central DP": 1, "local DP": 8, "distributed DP": 2, "PRECAD": math.sqrt(2)}  # 64 clients, tau = 16
    assert {row["algorithm"]: row["formula"] for row in report["rows"]} == formulas
    for row in report["rows"]:
        assert row["measured"] == pytest.approx(row["formula"], rel=6 / math.sqrt(2 * report["dim"]))
    assert len({row["epsilon_of_the_round"] for row in report["rows"]}) == 1
    assert "noise in the sum" in experiment("precad-noise").stdout
