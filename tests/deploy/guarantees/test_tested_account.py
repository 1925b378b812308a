"""`precad account --ptr`: proved bounds on propose-test-release at one server, and its paper's theorems beside them."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from precad.deploy.cli.main import app
from precad.dp.accountants.gaussian_dp import eps_from_mu
from precad.dp.accountants.ptr_loss import pld_eps_ptr
from precad.lab.papers.ptr import figures
from tests.harness.command_line import CliRunner

TEST = (figures.TAU, figures.LAPLACE, figures.DELTA_0)
SAMPLED = ("--sigma", figures.SIGMA_1, "-q", figures.RATE)
DELTA = ("--delta", figures.DELTA)


def account(*arguments: object, exit_code: int = 0) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = CliRunner().invoke(app, ["account", *map(str, arguments)], terminal_width=300)
    assert done.exit_code == exit_code, done.output
    return done.output


def bounds(*arguments: object) -> dict[str, dict[str, Any]]:
    report = json.loads(account("--ptr", *TEST, *arguments, "--json"))
    return {row["name"]: row for row in report["bounds"]}


@pytest.mark.parametrize("rounds", [1, 100, 10_000])
def test_sampled_rounds_cost_what_the_papers_figure_3_has(rounds: int) -> None:
    """White box is Theorem 4.4, black box that on 4.3. The figure has orders up to 64, enough in many rounds."""
    found = bounds(*SAMPLED, "--rounds", rounds, *DELTA)
    (row,) = [one for one in figures.after_rounds(figures.TAU) if one["rounds"] == rounds]
    for name, printed in (("Theorem 4.4, corrected", "white_box"), ("Theorem 4.3", "black_box")):
        assert found[name]["epsilon"] <= row[printed] * (1 + 1e-9)
        assert rounds < 10_000 or found[name]["epsilon"] == pytest.approx(row[printed])
    parts = (figures.RATE, figures.SIGMA_1, *TEST, rounds, figures.DELTA)
    assert found["loss distributions"]["epsilon"] == pld_eps_ptr(*parts)
    assert [row["label"] for row in found.values()] == ["bound"] * 2 + ["published_reproduction"] * 3
    assert found["loss distributions"]["epsilon"] < found["Theorem 4.4, corrected"]["epsilon"]
    assert found["Theorem 4.2, corrected"] | {"epsilon": None} == found["Theorem 4.2, corrected"]
    assert "of one release without sampling" in found["Theorem 4.2, corrected"]["reason"]


def test_one_release_has_theorem_4_2_and_no_4_4() -> None:
    """By the closed form of a Gaussian beside the test's 1 / b; why 4.4 does not apply is said."""
    found = bounds("--sigma", 8, *DELTA)
    direct = 1 / figures.LAPLACE + eps_from_mu(figures.DELTA - figures.DELTA_0, 1 / 8)
    assert found["Theorem 4.2, corrected"]["epsilon"] == pytest.approx(direct)
    assert (
        found["Theorem 4.4, corrected"]["epsilon"],
        "q: expected at most e^(-1/b)" in found["Theorem 4.4, corrected"]["reason"],
    ) == (None, True)
    said = account("--ptr", *TEST, "--sigma", 8, *DELTA)
    assert "~ 0.559" in said
    assert "Theorem 4.4, corrected: q: expected at most e^(-1/b)" in said
    assert "one server that is trusted" in said


def test_noise_whose_square_is_beyond_float64_has_bounds_and_no_theorem() -> None:
    found = {name: bounds("--sigma", sigma, "--rounds", 2, *DELTA) for name, sigma in (("no", 1e-300), ("all", 1e300))}
    assert [found["no"][name]["epsilon"] for name in ("loss distributions", "Renyi divergences")] == ["inf", "inf"]
    assert 0 < found["all"]["loss distributions"]["epsilon"] < 10
    assert {rows["Theorem 4.3"]["reason"] for rows in found.values()} == {"its numbers are beyond float64"}


def test_a_picture_has_each_bound_and_says_which_is_proved(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    account("--ptr", *TEST, "--sigma", 8, "--rounds", 2, *DELTA, "--plot", tmp_path / "ptr.png")
    assert (tmp_path / "ptr.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--ptr", 0.5, 8, 0.7, "--sigma", 8, *DELTA), "delta0: expected a number in (0, 1/2), found 0.7"),
        (("--ptr", 1.5, 8, 1e-8, "--sigma", 8, *DELTA), "tau: expected a number in (0, 1]"),
        (("--ptr", *TEST, "--sigma", 8, "--rounds", 0, *DELTA), "rounds: expected an integer of at least 1, found 0"),
        (("--ptr", *TEST, *DELTA), "--sigma: expected a value beside --ptr, found none"),
        (("--ptr", *TEST, "--sigma", 8), "--delta: expected a value beside --ptr, found none"),
        (("--ptr", *TEST, "--sigma", 8, *DELTA, "-p", 0.5), "--ptr: expected none beside p, which is of other"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(arguments: tuple[object, ...], said: str) -> None:
    assert said in account(*arguments, exit_code=2)
