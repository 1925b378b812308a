"""Experiments that train, and `precad-noise`, in small on the bundled digits: what they write, and say."""

from __future__ import annotations

import csv
import dataclasses
import errno
import html
import io
import json
import math
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import Result

from precad.clients.records import DataSource
from precad.clients.training import evaluation
from precad.deploy.cli.main import app
from precad.deploy.errors import ConfigError
from precad.dp.accountants.pld import PldAccountant, SampledGaussian
from precad.dp.accountants.ptr_loss import pld_eps_ptr
from precad.dp.accountants.ptr_privacy import eps_ptr_rounds
from precad.dp.accountants.side_by_side import RdpAccountant, XieAccountant
from precad.dp.certificates.prediction import certified_integer, xie_certified_k
from precad.lab.papers import backdoors, runner
from precad.lab.papers.naseri import central_local_backdoor
from precad.lab.papers.precad import backdoor as precad_backdoor
from precad.lab.papers.precad import clients as precad_clients
from precad.lab.papers.ptr import accounting as ptr_accounting
from precad.lab.papers.ptr import mnist as ptr_mnist
from precad.lab.papers.ptr import settings as ptr_settings
from precad.lab.papers.xie import userdp_certified
from precad.lab.simulation import Simulation
from tests.harness.command_line import CliRunner
from tests.harness.legends import require_clear_of_curves


def experiment(*arguments: object) -> Result:
    """The command in this process."""
    words = [str(argument) for argument in ("experiment", *arguments)]
    return CliRunner().invoke(app, words, terminal_width=200, prog_name="precad")


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "curves.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def small(command: str, folder: Path, *arguments: object) -> dict[str, Any]:
    """Its report."""
    done = experiment(command, "--dataset", "digits", "--seeds", 1, *arguments, "--output", folder, "--json")
    assert done.exit_code == 0, done.output
    report: dict[str, Any] = json.loads(done.stdout)
    assert json.loads((folder / "report.json").read_text()) == report
    assert (folder / "report.txt").read_text().strip() == report["paragraph"]
    assert report["paragraph"] in html.unescape((folder / "report.html").read_text())
    assert "not the paper's 5000" in report["paragraph"]
    return report


@pytest.mark.parametrize(
    ("panels", "are_alike"),
    [
        (1, True),
        (3, True),
        (3, False),
        (8, True),
        (4, False),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((1, False), (2, True), (2, False))),
    ],
)
def test_no_legend_covers_a_curve(tmp_path: Path, panels: int, are_alike: bool) -> None:
    """Curves that fill their panels, under names as long as those of the certified accuracies."""
    pytest.importorskip("matplotlib")
    drawn: list[Any] = []

    def draw(axes: Any) -> None:
        for i, panel in enumerate(axes):
            for k in range(6):
                which = "" if are_alike else f" of panel {i}"
                panel.plot(
                    [0, 10], [1, k / 6], label=f"{k}: published, with the radius (published reproduction){which}"
                )
            panel.set(xlabel="attackers k", ylabel="certified accuracy", title="sigma = 1")
        drawn.append(axes[0].figure)

    runner.save_figure(draw, tmp_path / "figure.png", panels=panels)
    require_clear_of_curves(drawn[0])
    assert len(drawn[0].axes) == panels
    width, height = drawn[0].get_size_inches()
    assert width == runner.PANEL_WIDTH * min(panels, 3)
    assert height >= runner.PANEL_HEIGHT * -(-panels // 3)
    shown = [text.get_text() for legend in drawn[0].legends for text in legend.get_texts()]
    assert len(shown) == (6 if are_alike or panels == 1 else 0)


def outcome_of(accuracies: list[float], successes: list[float], every: int = 200) -> runner.Outcome:
    """One training of PRECAD under attack with these evaluations."""
    case = precad_backdoor.Experiment(rounds=every * len(accuracies)).case(precad_backdoor.DEFENCES[0], 5)
    rows = [
        {**case.labels, "seed": 0, "round": every * (i + 1), "epoch": i + 1, "accuracy": a, "attack_success": s}
        for i, (a, s) in enumerate(zip(accuracies, successes, strict=True))
    ]
    final = {"accuracy": accuracies[-1], "attack_success": successes[-1]}
    run = {"seed": 0, "rounds": every * len(accuracies), "rejected": 0, "diverged_in_round": None, **final}
    return runner.Outcome(case=case, dim=10, runs=[run], rows=rows, ms_per_round=1.0)


@pytest.mark.parametrize(
    ("accuracies", "successes", "accuracy", "backdoor", "below"),
    [
        ([0.098] * 10, [1.0] * 10, 0.098, None, 5),  # calls everything zero
        ([0.3] * 5 + [0.5, 0.6, 0.7, 0.8, 0.9], [1.0] * 6 + [0.1, 0.2, 0.3, 0.4], 0.7, 0.25, 1),
        ([0.9] * 10, [1.0] * 10, 0.9, 1.0, 0),
        ([0.9, 0.098], [0.0, 1.0], 0.098, None, 1),  # a short training is what its final model is
        ([0.098, 0.9], [1.0, 0.25], 0.9, 0.25, 0),
    ],
)
def test_a_backdoor_counts_only_where_the_model_has_learnt_its_task(
    accuracies: list[float], successes: list[float], accuracy: float, backdoor: float | None, below: int
) -> None:
    outcome = outcome_of(accuracies, successes)
    case = backdoors.of_case(outcome, outcome.reported())
    assert case["accuracy"]["mean"] == pytest.approx(accuracy)
    assert case["backdoor"]["mean"] == (None if backdoor is None else pytest.approx(backdoor))
    assert case["below_floor"] == below
    said = backdoors.in_words({"cases": [case], "seeds": 1})
    assert ("below the floor" in said) == (below > 0)
    assert backdoors.share(case["backdoor"]) == ("-" if backdoor is None else f"{backdoor:.3f}")


def test_curves_that_coincide_are_all_seen(tmp_path: Path) -> None:
    """Every defence's colour is in the picture, above its legend, though all have one result."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    one = outcome_of([0.6, 0.8, 0.9], [0.2, 0.1, 0.0])
    words = [defence.words for defence in precad_backdoor.DEFENCES]
    cases = [dataclasses.replace(one.case, labels={"defence": name, "attackers": 5}) for name in words]
    backdoors.save_figures(tmp_path / "b", [dataclasses.replace(one, case=case) for case in cases], [5], words, 100)
    seen = pyplot.imread(tmp_path / "b-k5.png")[:300, :, :3]
    for colour in runner.COLOURS:
        wanted = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        assert (np.abs(seen - wanted).max(axis=-1) < 0.2).sum() > 20, colour


@pytest.mark.parametrize(("k", "marked"), [(5, [(3.0, 0.0)]), (10, [])])
def test_what_the_paper_prints_of_a_backdoor_is_marked(k: int, marked: list[tuple[float, float]]) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    one = outcome_of([0.6, 0.8, 0.9], [0.2, 0.1, 0.1])
    case = dataclasses.replace(one.case, labels={"defence": "PRECAD, C = 20", "attackers": k})
    outcome = dataclasses.replace(one, case=case)
    printed = precad_backdoor.Experiment().printed
    own = {defence: value for (defence, of), value in printed.items() if of == k}
    figure, axes = pyplot.subplots(1, 2)
    backdoors.draw(axes, [outcome], k=k, defences=["PRECAD, C = 20"], title="", xlabel="", printed=own)
    points = [(x, y) for line in axes[1].lines if "the paper" in line.get_label() for x, y in line.get_xydata()]
    pyplot.close(figure)
    assert points == marked
    assert precad_backdoor.Experiment(dataset="cifar10").printed == {}


def test_what_is_printed_as_the_accuracy_is_said() -> None:
    """Five evaluations are the whole of a quick training: their mean would count its beginning."""
    short, long = outcome_of([0.1, 0.3, 0.5, 0.7, 0.9], [0.0] * 5), outcome_of([0.1] * 5 + [0.9] * 5, [0.0] * 10)
    assert short.reported() == [[(0.9, 0.0)]]
    assert runner.what_is_reported([short]) == "that of the final model"
    assert long.reported() == [[(0.9, 0.0)] * 5]
    assert runner.what_is_reported([long]) == "the mean of the last 5 evaluations"


def test_the_backdoor_in_small_and_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rounds, then two more; a third time nothing is left to train."""
    pytest.importorskip("matplotlib")
    folder, arguments = tmp_path / "run", ("--attackers", 10, "--sigma", 0.5, "--model", "mlp")
    small("precad-backdoor", folder, *arguments, "--rounds", 2)
    report = small("precad-backdoor", folder, *arguments, "--rounds", 4)
    assert [case["defence"] for case in report["cases"]] == [defence.words for defence in precad_backdoor.DEFENCES]
    for case in report["cases"]:
        assert case["attackers"] == 10
        assert case["backdoor"]["mean"] is None  # after four rounds no model has learnt enough
        assert (case["below_floor"], case["diverged"]) == (1, 0)
    rows = rows_of(folder)
    assert set(rows[0]) == {"defence", "attackers", "seed", "round", "epoch", "accuracy", "attack_success"}
    assert {row["round"] for row in rows if row["defence"] == "non-private"} == {"2", "4"}
    assert (folder / "backdoor-k10.png").read_bytes()[:4] == b"\x89PNG"
    monkeypatch.setattr(Simulation, "run_round", lambda self: pytest.fail("trained again"))
    assert small("precad-backdoor", folder, *arguments, "--rounds", 4) == report


def test_figure_5_is_a_curve_over_c(tmp_path: Path) -> None:
    """PRECAD alone, once for each C, which the trainings really have; a named defence is not trained twice."""
    pytest.importorskip("matplotlib")
    flags = ["--attackers", 10, "--clip", 20, "--clip", 7.5, "--defence", "precad-c20", "--rounds", 2, "--model", "mlp"]
    report = small("precad-backdoor", tmp_path / "run", *flags)
    assert [case["defence"] for case in report["cases"]] == ["PRECAD, C = 20", "PRECAD, C = 7.5"]
    whole = precad_backdoor.Experiment(clips=(7.5,))
    (only,) = whole.trained
    assert whole.case(only, 10).config["task"]["client_clip"] == 7.5
    assert (tmp_path / "run" / "figure-5.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("arguments", "k", "rounds"),
    [(["--quick"], (5,), 600), (["--quick", "--dataset", "cifar10"], (3,), 600), ([], (5, 10), 5000)],
    ids=["mnist", "cifar10", "not quick"],
)
def test_a_quick_backdoor_is_one_k_of_fewer_rounds(
    arguments: list[str], k: tuple[int, ...], rounds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    asked: list[precad_backdoor.Experiment] = []

    def run(experiment: precad_backdoor.Experiment, *_: object) -> dict[str, Any]:
        asked.append(experiment)
        raise ConfigError("not trained here")

    monkeypatch.setattr(precad_backdoor, "run", run)
    assert experiment("precad-backdoor", *arguments, "--output", tmp_path / "run").exit_code == 2
    assert [(one.numbers, one.rounds) for one in asked] == [(k, rounds)]


@pytest.mark.parametrize(
    ("arguments", "model", "epsilon"),
    [
        (["--quick"], "cnn-half", 1.2),
        (["--quick", "--model", "cnn"], "cnn", 1.2),
        (["--epsilon", 1.2], "cnn", 1.2),
        (["--quick", "--dataset", "cifar10"], "cnn-rgb", 4.0),
        (["--epsilon", 1.2, "--dataset", "cifar10"], "cifar", 1.2),
    ],
    ids=["quick", "quick, and named", "not quick", "quick on CIFAR-10", "CIFAR-10"],
)
def test_a_quick_ptr_trains_the_smaller_model(
    arguments: list[object], model: str, epsilon: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    asked: list[ptr_mnist.Experiment] = []

    def run(experiment: ptr_mnist.Experiment, *_: object) -> dict[str, Any]:
        asked.append(experiment)
        raise ConfigError("not trained here")

    monkeypatch.setattr(ptr_mnist, "proved_epsilon", lambda method, n, rate, rounds: rounds / 1000)
    monkeypatch.setattr(ptr_mnist, "run", run)
    assert experiment("ptr-mnist", *arguments, "--output", tmp_path / "run").exit_code == 2
    (one,) = asked
    assert one.case(one.settings[0], one.methods[0]).config["task"]["model"] == model
    assert one.prices == (epsilon,)


def test_the_backdoors_setting_is_the_papers() -> None:
    """Sec. 6.3 and Appendix E: C bounds PRECAD and local DP, nothing bounds clients without privacy."""
    setting = precad_backdoor.Experiment()
    assert setting.numbers == (5, 10)
    configs = {defence.name: setting.case(defence, 5).config for defence in precad_backdoor.DEFENCES}
    for name, config in configs.items():
        task, simulation = config["task"], config["simulation"]
        assert (task["clients"], task["client_rate"], task["record_rate"], task["rounds"]) == (100, 0.1, 0.05, 5000)
        assert simulation["attack"] == {"kind": "pixel-backdoor", "clients": 5, "parameters": {"divides": True}}
        is_bounded = simulation.get("client_clipping", True)
        assert is_bounded == ("-c" in name)
        if is_bounded:
            assert name.endswith(f"-c{task['client_clip']:g}")
    on_cifar = precad_backdoor.Experiment(dataset="cifar10")
    config = on_cifar.case(precad_backdoor.DEFENCES[0], 1).config
    assert on_cifar.numbers == (1, 3)
    assert config["simulation"]["attack"]["kind"] == "semantic-backdoor"
    assert (config["task"]["model"], config["client"]["partition"]) == ("cifar", "dirichlet")


@pytest.mark.parametrize(
    ("means", "verdict"),
    [((0.01, 0.95, 0.9, 0.99), "yes, yes, yes, yes"), ((0.3, 0.1, 0.9, 0.5), "NO, NO, yes, NO")],
)
def test_a_missed_target_is_called_missed(means: tuple[float, ...], verdict: str) -> None:
    names = ("PRECAD, C = 20", "local DP, C = 30", "local DP, no C", "non-private")
    band = {"min": 0.0, "max": 1.0}
    cases = [
        {"defence": name, "attackers": 5, "backdoor": {"mean": mean, **band}, "accuracy": {"mean": 0.9, **band}}
        for name, mean in zip(names, means, strict=True)
    ]
    report = {
        "attack": "pixel-backdoor",
        "model": "cnn",
        "dataset": "mnist",
        "sigma": 1.0,
        "rounds": 5000,
        "seeds": 1,
        "divides": True,
        "evaluations": "that of the final model",
        "cases": [{**case, "diverged": 0, "below_floor": 0} for case in cases],
    }
    said = precad_backdoor.paragraph(report)
    words = said.partition("At K = 5: ")[2].partition(". ")[0]
    assert ", ".join(part.rpartition(": ")[2] for part in words.split(", ")) == verdict
    assert "the paper's T" in said


@pytest.mark.slow
def test_central_and_local_dp_under_backdoors_in_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget that pays for one round of central DP and not for two; everybody else trains on."""
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(central_local_backdoor, "N_CLIENTS", 20)
    monkeypatch.setattr(central_local_backdoor, "CLIENT_RATE", 0.5)
    one, two = (PldAccountant().epsilon(SampledGaussian(0.5, 1.0), rounds, 5e-4) for rounds in (1, 2))
    folder = tmp_path / "run"
    arguments = ("--dataset", "digits", "--model", "mlp", "--attackers", 4, "--epsilon", (one + two) / 2)
    done = experiment("central-local-backdoor", *arguments, "--rounds", 3, "--seeds", 1, "--output", folder, "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (folder / "report.txt").read_text().strip() == report["paragraph"]
    assert "central DP stopped after 1 rounds" in report["paragraph"]
    cases = {case["defence"]: case for case in report["cases"]}
    assert list(cases) == [defence.words for defence in central_local_backdoor.DEFENCES]
    assert {name: case["rounds"] for name, case in cases.items()} == {**dict.fromkeys(cases, 3), "central DP": 1}
    assert cases["central DP"]["epsilon"] == pytest.approx(one)
    assert [case["epsilon"] for case in cases.values()][:2] == [None, None]
    assert cases["weak DP"]["epsilon"] > 10 * cases["central DP"]["epsilon"]
    assert {case["epsilon_is_of_a"] for case in cases.values()} == {"client", "record"}
    assert (folder / "backdoor-k4.png").read_bytes()[:4] == b"\x89PNG"


def test_attackers_replace_the_model_together_or_follow_local_dp() -> None:
    """As many as a round expects have 1 / step of weight in all, and only in one case do they follow the protocol."""
    setting = central_local_backdoor.Experiment()
    for k, gamma in ((20, 1.0), (100, 0.2)):
        for defence in central_local_backdoor.DEFENCES:
            config = setting.case(defence, k).config
            attack = config["simulation"]["attack"]
            assert (attack["clients"], attack["parameters"]["gamma"]) == (k, gamma)
            assert attack["parameters"]["replaces"] == (defence.words != "local DP")
            assert ("epsilon_budget_clients_only" in config["task"]) == (defence.words == "central DP")
            bound = config["simulation"].get("aggregation_parameters", {}).get("bound", config["task"]["client_clip"])
            assert bound == config["task"]["client_clip"]


@pytest.mark.parametrize(
    ("means", "verdict"), [((1.0, 0.9, 0.8, 0.1, 0.2, 1.0), "yes, yes, yes, yes"), ((0.1,) * 6, "NO, NO, NO, NO")]
)
def test_an_order_that_is_not_the_papers_is_said(means: tuple[float, ...], verdict: str) -> None:
    words = [defence.words for defence in central_local_backdoor.DEFENCES]
    band = {"min": 0.0, "max": 1.0}
    cases = [
        {
            "defence": name,
            "attackers": 20,
            "rounds": 7,
            "backdoor": {"mean": mean, **band},
            "diverged": 0,
            "below_floor": 0,
        }
        for name, mean in zip(words, means, strict=True)
    ]
    report = {"dataset": "mnist", "model": "cnn", "rounds": 9, "seeds": 1, "budget": 3.0, "attackers": [20]}
    said = central_local_backdoor.paragraph(
        {**report, "cases": [{**case, "accuracy": {"mean": 0.9, **band}} for case in cases]}
    )
    found = said.partition("At K = 20: ")[2].partition(". ")[0]
    assert ", ".join(part.rpartition(": ")[2] for part in found.split(", ")) == verdict


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
    assert "noise in the sum" in experiment("precad-noise").stderr


@pytest.mark.slow
def test_corrupted_records_in_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of 12 of the 1437 digits. Each mechanism trains for as long as epsilon lasts; less epsilon is a part
    of the same trainings."""
    pytest.importorskip("matplotlib")
    monkeypatch.setitem(ptr_mnist.TRAININGS, "digits", dataclasses.replace(ptr_mnist.TRAININGS["digits"], batch=12))
    monkeypatch.setattr(ptr_mnist, "EVALUATE_EVERY", 3)
    folder = tmp_path / "run"
    chosen = ("--dataset", "digits", "--model", "mlp", "--corruption", "sign-flip-0.2", "--dpsgd", "--seeds", 1)
    arguments = ("ptr-mnist", *chosen, "--output", folder)
    done = experiment(*arguments, "--epsilon", 1.2, "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (folder / "report.txt").read_text().strip() == report["paragraph"]
    (case,) = report["cases"]
    assert (case["corruption"], case["share"], case["epsilon"]) == ("sign-flip", 0.2, 1.2)
    rows = rows_of(folder)
    for key, method in (("gaussian", "TSGD + Gaussian"), ("ptr", "TSGD + PTR"), ("dpsgd", "DP-SGD")):
        own = [row for row in rows if row["method"] == method]
        assert int(own[-1]["round"]) == case[key]["rounds"] > 0
        assert float(own[-1]["epoch"]) == pytest.approx(case[key]["rounds"] * 12 / 1437)
        last = [float(row["accuracy"]) for row in own[-5:]]
        assert case[key]["accuracy"]["mean"] == pytest.approx(np.mean(last))
        assert case[key]["paper"] is None  # the paper's numbers are MNIST's
    assert (folder / "ptr-table-1.png").read_bytes()[:4] == b"\x89PNG"
    assert case["gaussian"]["rounds"] == case["dpsgd"]["rounds"] < case["ptr"]["rounds"]
    assert f"DP-SGD {case['dpsgd']['accuracy']['mean']:.3f})" in report["paragraph"]
    assert case["gaussian_renyi"] is case["ptr_renyi"] is None
    assert "do not allow 3 rounds of both" in report["paragraph"]
    monkeypatch.setattr(Simulation, "run_round", lambda self: pytest.fail("trained again"))
    again = experiment(*arguments, "--epsilon", 1.2, "--epsilon", 1.15, "--json")
    assert again.exit_code == 0, again.output
    assert [row["epsilon"] for row in json.loads(again.stdout)["cases"]] == [1.2, 1.15]


def test_cifar_10_has_the_papers_setting_and_the_rounds_of_ptr_accounting() -> None:
    """Its clip is 3 and its tau 2 of that; what is printed of it is not printed of MNIST."""
    setting = ptr_mnist.Experiment(dataset="cifar10", epsilons=(7.0,))
    (of,) = [one for one in ptr_accounting.SETTINGS if one.data == "CIFAR-10"]
    for method, theirs in zip(setting.methods, of.methods().values(), strict=True):
        assert method.parameters == {**theirs.parameters, "clip": 3.0}
        task, simulation = (setting.case(setting.settings[0], method).config[name] for name in ("task", "simulation"))
        assert task["rounds"] == ptr_mnist.rounds_within(partial(ptr_mnist.proved_epsilon, theirs, of.n, of.rate), 7.0)
        assert (task["model"], task["record_clip"], task["client_clip"]) == ("cifar", 3.0, 3.0)
        assert (task["clients"], task["learning_rate"]) == (of.n, 0.1)
        assert simulation["aggregation_parameters"]["rate"] == task["client_rate"] == of.rate
    assert set(setting.training.epsilons) == set(of.epsilons)
    for corruption in ptr_settings.CORRUPTIONS:
        assert set(corruption.paper("cifar10")) == {7.0, 10.0}
        assert set(corruption.paper("mnist")) == {3.0, 5.0}
        assert corruption.paper("digits") == {}


def test_the_rounds_are_all_that_epsilon_pays_for() -> None:
    """One more would cost more, by each mechanism's own bound; at most what the paper has in a round."""
    setting = ptr_mnist.Experiment(epsilons=(2.4,))
    gaussian, ptr = (setting.rounds(method, 2.4) for method in ptr_settings.METHODS)
    q = 256 / 60_000
    for rounds, is_within in ((gaussian, True), (gaussian + 1, False)):
        assert (PldAccountant().epsilon(SampledGaussian(q, 0.7), rounds, 1e-5) <= 2.4) == is_within
    for rounds, is_within in ((ptr, True), (ptr + 1, False)):
        assert (pld_eps_ptr(q, 1.1, 0.5, 1.0, 1e-8, rounds, 1e-5) <= 2.4) == is_within
    corruption = next(c for c in ptr_settings.CORRUPTIONS if c.name == "gradient-0.2")
    config = setting.case(corruption, ptr_settings.PTR).config
    assert (config["task"]["clients"], config["task"]["record_rate"], config["task"]["rounds"]) == (60_000, 1.0, ptr)
    assert config["simulation"]["attack"]["clients"] == 12_000


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [("--corruption", "label-0.3", "expected one of label-0"), ("--epsilon", "1", "expected enough for 50 rounds of")],
)
def test_what_the_table_does_not_have_is_refused(option: str, value: str, why: str) -> None:
    done = experiment("ptr-mnist", option, value)
    assert done.exit_code != 0
    assert why in done.output


@pytest.mark.parametrize(
    ("rounds", "mean"),
    [(2, 0.1), (5, 0.15), (9, 0.35), (11, 0.3)],
    ids=["one", "two", "four", "the last, out of step"],
)
def test_accuracy_until(monkeypatch: pytest.MonkeyPatch, rounds: int, mean: float) -> None:
    """Evaluations at 2, 4, .. 10 and at the end, 11."""
    monkeypatch.setattr(ptr_mnist, "EVALUATE_EVERY", 2)
    accuracies = {2: 0.1, 4: 0.2, 6: 0.4, 8: 0.7, 10: 0.1, 11: 0.1}
    rows = [{"round": t, "accuracy": accuracy} for t, accuracy in accuracies.items()]
    assert ptr_mnist.accuracy_until(rows, rounds) == pytest.approx(mean)


def test_the_paragraph_counts_where_ptr_is_ahead() -> None:
    def case(ptr: float, gaussian: float) -> dict[str, Any]:
        means = {"ptr": ptr, "gaussian": gaussian, "ptr_renyi": ptr - 0.1, "gaussian_renyi": 0.65}
        all_four = {
            key: {"rounds": rounds, "accuracy": {"mean": mean}, "diverged": 0}
            for rounds, (key, mean) in enumerate(means.items(), 10)
        }
        return {"corruption": "label", "share": 0.1, "epsilon": 3.0, **all_four, "dpsgd": None}

    report = {"dataset": "mnist", "model": "cnn", "seeds": 1, "cases": [case(0.9, 0.8), case(0.7, 0.8), case(0.8, 0.8)]}
    said = ptr_mnist.paragraph(report)
    assert "11 rounds of TSGD + Gaussian and 10 of TSGD + PTR, PTR is ahead in 1 of 3 settings" in said
    assert "by the paper's Renyi divergences, which allow 13 and 12, in 2." in said
    assert "label 0.1 0.700 against 0.800 (-0.100)" in said


def test_the_rounds_of_the_ptr_papers_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more would cost more, of each mechanism by each bound; and what a round loses is not aligned (errata R6)."""
    quotients = [ptr_accounting.order_2(setting) for setting in ptr_accounting.SETTINGS]
    assert [round(quotient, 2) for quotient in quotients] == [0.48, 1.33, 0.48, 3.55]
    last_layer = dataclasses.replace(ptr_accounting.SETTINGS[-1], epsilons=(3.0,))
    monkeypatch.setattr(ptr_accounting, "SETTINGS", (last_layer,))
    (row,) = json.loads(experiment("ptr-accounting", "--json").stdout)["rows"]
    q, gaussian, ptr = 2048 / 50_000, SampledGaussian(2048 / 50_000, 1.8), (2.2, 0.6, 1.0, 1e-8)
    prices = {
        "gaussian_proved": lambda rounds: PldAccountant().epsilon(gaussian, rounds, 1e-5),
        "gaussian_renyi": lambda rounds: RdpAccountant().epsilon(gaussian, rounds, 1e-5),
        "ptr_proved": lambda rounds: pld_eps_ptr(q, *ptr, rounds, 1e-5),
        "ptr_renyi": lambda rounds: eps_ptr_rounds(q, *ptr, rounds, 1e-5),
    }
    for key, price in prices.items():
        assert price(row[key]) <= 3.0 < price(row[key] + 1), key
    assert "last layer" in experiment("ptr-accounting").stderr


def test_a_full_disk_leaves_the_report_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file is the old one or the new one, whole: tables, report, paragraph and figure."""

    def write(accuracy: float) -> None:
        runner.write_rows(tmp_path / "curves.csv", [{"accuracy": accuracy}])
        runner.write(tmp_path, {"accuracy": accuracy}, [], f"{accuracy}")

    def draw(axes: Any) -> None:
        axes[0].plot([0, 1], label="accuracy")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def contents() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    write(0.5)
    runner.save_figure(draw, tmp_path / "figure.png", panels=1)
    old = contents()
    assert sorted(old) == ["curves.csv", "figure.png", "report.json", "report.txt"]
    monkeypatch.setattr(os, "fsync", full)
    for write_again in (
        lambda: runner.write_rows(tmp_path / "curves.csv", [{"accuracy": 0.75}]),
        lambda: write(0.75),
        lambda: runner.save_figure(draw, tmp_path / "figure.png", panels=2),
    ):
        with pytest.raises(OSError, match="No space left"):
            write_again()
    assert contents() == old
