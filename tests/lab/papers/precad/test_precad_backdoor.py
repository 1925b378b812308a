"""PRECAD's Figures 4 and 5: the paper's setting, in small, and what counts as a backdoor."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precad.deploy.errors import ConfigError
from precad.lab.papers import backdoors, runner
from precad.lab.papers.precad import backdoor as precad_backdoor
from precad.lab.simulation import Simulation
from tests.lab.papers.in_small import experiment, rows_of, small


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
