"""Xie et al.'s figures: what attacks cost, certified and measured; certified accuracy against poisoned records."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import Result

from precad.clients.attacks import TriangleBackdoor
from precad.clients.models.networks import build, unflatten
from precad.clients.records import DataSource, model_inputs
from precad.deploy.cli.main import app
from precad.dp.accountants.pld import SampledGaussian
from precad.dp.accountants.side_by_side import XieAccountant
from precad.dp.certificates.attack_inefficacy import attackers_needed, xie_corollary_k
from precad.dp.certificates.attack_simulation import simulate as worst_attack
from precad.dp.certificates.prediction import Threat, Training, certified_integer, published_epsilon, xie_certified_k
from precad.dp.published.precad import gdp_robust_bounds
from precad.lab.papers.runner import Outcome
from precad.lab.papers.xie import attack_cost, insdp_certified, userdp_certified
from precad.lab.papers.xie.attack_cost import TAUS
from precad.lab.papers.xie.attack_levels import LEVELS
from precad.lab.papers.xie.cost_arithmetic import Reached, by_epsilon, lower_bounds
from precad.lab.simulation import Simulation, simulate
from tests.harness.command_line import CliRunner

USER = Training(SampledGaussian(0.1, 2.5), 5)


def experiment(*arguments: object) -> Result:
    """The command in this process."""
    words = [str(argument) for argument in ("experiment", *arguments)]
    return CliRunner().invoke(app, words, terminal_width=200, prog_name="precad")


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def bounds_of(J: float, training: Training, threat: Threat, trainings: int | None = None) -> dict[str, list[float]]:
    return lower_bounds(J, training, delta=0.0029, threat=threat, psi=0.01, trainings=trainings)


# -- bounds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threat", list(Threat))
@pytest.mark.parametrize("J", [0.3, 0.9])
def test_without_sampling_the_bound_is_the_gaussians(threat: Threat, J: float) -> None:
    """k units in each of T rounds are (k sqrt(T) / sigma)-GDP, those who replace twice that: Phi(Phi^-1(J) - mu)."""
    exact = bounds_of(J, Training(SampledGaussian(1.0, 20.0), 4), threat)["exact"]
    for k, low in enumerate(exact):
        mu = (k if threat is Threat.ADD else 2 * k) * 2 / 20.0
        closed = gdp_robust_bounds(J, 1.0, mu)[0]
        assert closed - 2e-3 <= low <= closed + 1e-9


def test_the_published_bound_is_the_papers_whoever_is_replaced() -> None:
    """e^{-k eps} J - (1 - e^{-k eps})/(e^eps - 1) delta, Sec. 6.1.4, at the epsilon of its Figure 4, 0.4344."""
    epsilon = published_epsilon(USER, 0.0029)
    assert epsilon == pytest.approx(0.4344, abs=6e-5)
    for threat in Threat:
        for k, low in enumerate(bounds_of(0.8, USER, threat)["published"]):
            loss = -math.expm1(-k * epsilon) / math.expm1(epsilon) * 0.0029
            assert low == pytest.approx(max(math.exp(-k * epsilon) * 0.8 - loss, 0), abs=1e-9)


@pytest.mark.parametrize("threat", list(Threat))
def test_no_attack_gets_below_the_bounds(threat: Threat) -> None:
    """The cost is whether the prediction stands, so J is F_A, and no attack on it is worse than the simulated one. Its
    share is within 0.0083 but for 1e-6 of each (two shares, 6 times): a false alarm in 10^5 runs, and from a seed."""
    bounds = bounds_of(0.9, USER, threat)
    for k in (2, 5, 10):
        attack = worst_attack(k, 0.9, USER, threat, n_draws=100_000, failure=1e-6, seed=k)
        for method in ("pld", "exact"):
            assert bounds[method][k] <= attack.attacked + attack.radius
    assert bounds["exact"][2] > bounds["pld"][2] > bounds["published"][2] > 0
    assert bounds["exact"][2] > attack_floor(2, threat) - 0.06  # and not by being trivial


def attack_floor(k: int, threat: Threat) -> float:
    """Return what the attack leaves of 0.9."""
    return worst_attack(k, 0.9, USER, threat, n_draws=100_000, failure=1e-6, seed=k).attacked


def test_attackers_needed_are_the_corollarys() -> None:
    """Corollary 7 in closed form, against the first k at which the published bound is below J / tau."""
    epsilon, J = published_epsilon(USER, 0.0029), 0.8
    low = bounds_of(J, USER, Threat.REPLACE)["published"]
    for tau in TAUS:
        first = next((k for k, value in enumerate(low) if k > 0 and value <= J / tau), None)
        assert first == attackers_needed(xie_corollary_k(J, tau, epsilon, 0.0029, 1.0, "nonneg"))


def test_a_radius_only_lowers_bounds() -> None:
    known, estimated = (bounds_of(0.8, USER, Threat.REPLACE, trainings) for trainings in (None, 40))
    assert estimated["exact"][0] == pytest.approx(0.8 - math.sqrt(math.log(2 / 0.01) / 80))
    for method, bounds in known.items():
        assert all(low <= high + 1e-12 for low, high in zip(estimated[method], bounds, strict=True))


def test_what_figure_7_says_is_compared_from_end_to_end() -> None:
    """Sigmas in any order; the middle one says nothing, and a single one leaves nothing to compare."""

    def case(sigma: float, measured: float, certified: float) -> dict[str, Any]:
        rows = [{"k": 0, "mean": 0.5, "poison_share": None}, {"k": 1, "mean": measured, "poison_share": 1.0}]
        return {
            "sigma": sigma,
            "attack": "label-flip",
            "measured": rows,
            "certified": {"estimate": {"published": [0.5, certified]}},
        }

    found = by_epsilon([case(2.5, 0.3, 0.2), case(1.3, 0.4, 0.1), case(1.9, 0.9, 0.0)])
    assert list(found.values()) == [False, True]
    assert [name.partition(",")[0] for name in found] == ["label-flip"] * 2
    assert by_epsilon([case(2.5, 0.3, 0.2)]) == {}


# -- settings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sigma", "rounds", "printed"), [(5.0, 3, 0.3593), (10.0, 4, 0.2383), (10.0, 9, 0.304), (15.0, 3, 0.2029)]
)
def test_the_records_epsilons_are_the_papers(sigma: float, rounds: int, printed: float) -> None:
    """With 26 steps a round, of the task as it is resolved: its fixed point costs nothing that four digits show."""
    setting = insdp_certified.Experiment(rounds=rounds, dataset="digits")
    task = simulate.resolve(setting.case(sigma).config).task
    assert published_epsilon(setting.training(task), task.delta) == pytest.approx(printed, abs=6e-5)
    assert (len(task.clients), task.client_rate, task.record_clip) == (10, 1.0, 0.7)


def test_who_attacks_is_the_papers() -> None:
    """Sec. 6.1.3: scaled by 50, every record poisoned; of records, all in the hands of one client."""
    user = attack_cost.Experiment(level="user").filled()
    assert (user.sigmas, user.rounds) == ((2.5,), 5)
    clean, flipped = user.clean_case(2.5), user.case(2.5, "label-flip", 5)
    assert clean.config["simulation"].get("attack") is None
    assert flipped.config["simulation"]["attack"] == {
        "kind": "label-flip",
        "clients": 5,
        "parameters": {"gamma": 50.0},
    }
    parts = [
        user.case(2.5, "distributed-backdoor", k).config["simulation"]["attack"]["parameters"]["parts"] for k in (4, 20)
    ]
    assert parts == [4, 15]
    half = [
        user.case(2.5, attack, 4, 0.5).config["simulation"]["attack"]["parameters"]
        for attack in ("label-flip", "triangle-backdoor")
    ]
    assert half[0] == {"gamma": 50.0, "share": 0.5}
    assert half[1] == {"gamma": 50.0, "share": 0.5, "steps": 20, "rate": 0.02, "divides": False}
    static = user.case(2.5, "stat-opt", 5).config["simulation"]["attack"]
    assert static == {"kind": "stat-opt", "clients": 5, "parameters": {}}
    assert "stat-opt" in user.attacks
    assert "stat-opt" not in attack_cost.Experiment(level="user", poison_shares=(0.5,)).filled().attacks
    record = attack_cost.Experiment(level="instance").filled().case(10.0, "triangle-backdoor", 20)
    attack = record.config["simulation"]["attack"]
    assert (attack["clients"], attack["parameters"]) == (1, {"aim": "triangle-backdoor", "records": 20})
    assert [LEVELS[level].threat for level in ("user", "instance")] == [Threat.REPLACE, Threat.ADD]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("xie-attack-cost",), "--level"),
        (("xie-attack-cost", "--level", "server"), "--level"),
        (("xie-attack-cost", "--level", "user", "--attackers", 21), "expected 1 .. 20, found 21"),
        (("xie-attack-cost", "--level", "user", "--attackers", 0), "expected 1 .. 20, found 0"),
        (("xie-attack-cost", "--level", "user", "--attack", "scaled"), "expected one of label-flip"),
        (("xie-attack-cost", "--level", "instance", "--attack", "distributed-backdoor"), "at level instance"),
        (("xie-attack-cost", "--level", "user", "--cost-bound", 0), "--cost-bound: expected a finite number above 0"),
        (
            ("xie-attack-cost", "--level", "user", "--cost-bound", "nan"),
            "--cost-bound: expected a finite number above 0",
        ),
        (("xie-attack-cost", "--level", "user", "--poison-share", 0), "--poison-share: expected a number in (0, 1]"),
        (
            ("xie-attack-cost", "--level", "user", "--poison-share", "nan"),
            "--poison-share: expected a number in (0, 1]",
        ),
        (
            ("xie-attack-cost", "--level", "user", "--poison-share", 1.1),
            "--poison-share: expected a number in (0, 1], found 1.1",
        ),
        (
            ("xie-attack-cost", "--level", "user", "--attack", "stat-opt", "--poison-share", 0.5),
            "expected 1 with stat-opt, which poisons no record",
        ),
        (("xie-attack-cost", "--level", "instance", "--poison-share", 0.5), "expected 1 at level instance"),
        (("xie-attack-cost", "--level", "user", "--sigma", "-1"), "--sigma: expected a finite number above 0"),
        (("userdp-certified", "--clipping", "median-not-private"), "--clipping: expected one of flat"),
        (("userdp-certified", "--clipping", "flat", "--clipping", "median"), "found 'median'"),
        (("userdp-certified", "--dirichlet-alpha", 0), "--dirichlet-alpha: expected a number above 0"),
        (
            ("userdp-certified", "--dirichlet-alpha", "inf", "--dirichlet-alpha", "nan"),
            "--dirichlet-alpha: expected a number above 0, found nan",
        ),
        (("userdp-certified", "--classes", 3), "--classes: expected 2 or 10 on mnist, found 3"),
        (("userdp-certified", "--classes", 10, "--dataset", "cifar10"), "expected 2 on cifar10, found 10"),
        (("xie-attack-cost", "--level", "user", "--classes", 10, "--attack", "stat-opt"), "at level user"),
        (("xie-attack-cost", "--level", "instance", "--classes", 10), "expected 2 at level instance, found 10"),
        (("insdp-certified", "--seeds", 0), "--seeds"),
        (("xie-defences", "--sigma", "nan"), "--sigma: expected a finite number above 0"),
        (("precad-mnist", "--sigma", "inf"), "--sigma: expected a finite number above 0"),
        (("precad-backdoor", "--clip", "inf"), "--clip: expected a finite number above 0"),
        (("convex-sets", "--clip", 0), "--clip: expected a finite number above 0"),
        (
            ("convex-sets", "--deployed", "--mode", "proved", "--defence", "half-space"),
            "--mode: expected one with a dealer",
        ),
        (("convex-sets", "--rate", "nan"), "--rate: expected a finite number above 0"),
        (("ptr-mnist", "--epsilon", "nan"), "--epsilon: expected a finite number above 0"),
        (("central-local-backdoor", "--epsilon", "nan"), "--epsilon: expected a finite number above 0"),
        (("word-backdoor", "--epsilon", "-1"), "--epsilon: expected a finite number above 0"),
    ],
)
def test_flags_that_mean_nothing_are_refused(arguments: tuple[object, ...], why: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = experiment(*arguments, "--output", tmp_path / "run")
    assert done.exit_code == 2
    assert why in " ".join(done.output.split())
    assert not (tmp_path / "run").exists()


# -- in small, on the bundled digits -----------------------------------------------------------------------------------


def small(folder: Path, *arguments: object) -> dict[str, Any]:
    """Its report."""
    chosen = ("--dataset", "digits", "--rounds", 1, "--seeds", 1, "--clean-seeds", 2)
    done = experiment("xie-attack-cost", *chosen, *arguments, "--output", folder, "--json")
    assert done.exit_code == 0, done.output
    report: dict[str, Any] = json.loads(done.stdout)
    assert json.loads((folder / "report.json").read_text()) == report
    assert (folder / "report.txt").read_text().strip() == report["paragraph"]
    return report


@pytest.mark.parametrize(("deployed", "without"), [(False, 0.75), (True, None)])
def test_only_simulations_have_the_same_seeds_without_attackers(deployed: bool, without: float | None) -> None:
    """Every draw of a deployment is the operating system's."""
    setting = attack_cost.Experiment(dataset="digits", deployed=deployed).filled()
    case, runs = setting.case(2.0, "label-flip", 5), [{"accuracy": 0.5}] * 2
    outcome = Outcome(case=case, dim=1, runs=runs, rows=[], ms_per_round=None)
    clean = Reached(losses=np.zeros(3), successes=np.array([0.0, 0.5, 1.0]))
    row = attack_cost._measured(setting, outcome, Reached(losses=np.zeros(2), successes=np.ones(2)), clean)
    assert (row["mean"], row["same_seeds_without"]) == (0, without)
    fewer = Reached(losses=np.zeros(1), successes=np.ones(1))
    assert attack_cost._measured(setting, outcome, clean, fewer)["same_seeds_without"] is None


@pytest.mark.slow
def test_clients_that_attack_in_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs are by PyTorch, on stamped ones that shall be zeros; a second time, with the paper's C_bar, nothing is
    trained."""
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(userdp_certified, "ROWS", {"mnist": replace(userdp_certified.MNIST, local_epochs=1)})
    folder, arguments = tmp_path / "run", ("--level", "user", "--sigma", 2, "--sigma", 3, "--attackers", 20)
    report = small(folder, *arguments, "--attack", "triangle-backdoor")
    wanted = TriangleBackdoor().success_records(DataSource(classes=(0, 1)).load(side=28).test)
    assert wanted is not None
    model, losses, missed = build("cnn-binary"), [], []
    for seed in (0, 1):
        parameters = np.load(folder / "sigma-2-clean" / f"seed-{seed}.npz")["parameters"]
        model.load_state_dict(unflatten(torch.tensor(parameters), model))
        with torch.no_grad():
            logits = model(model_inputs(torch.tensor(wanted.features), torch.float32))
        losses.append(float(torch.nn.functional.cross_entropy(logits, torch.tensor(wanted.labels))))
        missed.append(float((logits.argmax(dim=1) != 0).double().mean()))
    assert report["cases"][0]["measured"][0]["losses"] == pytest.approx(losses, rel=1e-4)
    assert report["cases"][0]["J"] == pytest.approx(np.mean(missed))
    assert report["cases"][0]["measured"][1]["same_seeds_without"] == pytest.approx(missed[0])
    assert len(report["by_epsilon"]) == 2
    assert report["beaten"] == []
    assert "not the paper's 5" in report["paragraph"]
    assert len(rows_of(folder / "costs.csv")) == 2 * (2 + 1)
    labels = {(row["evidence"], row["method"]): row["label"] for row in rows_of(folder / "certified.csv")}
    assert labels["radius", "exact"] == "bound"
    assert labels["radius", "published"] == "published_reproduction"
    assert {label for (evidence, _), label in labels.items() if evidence == "estimate"} == {"approximation"}
    for name in ("cost-sigma-2", "cost-sigma-3", "cost-by-epsilon", "needed"):
        assert (folder / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
    monkeypatch.setattr(Simulation, "run_round", lambda self: pytest.fail("trained again"))
    cut = small(folder, *arguments, "--attack", "triangle-backdoor", "--cost-bound", 0.5)
    assert cut["cases"][0]["J"] == pytest.approx(np.mean([min(loss, 0.5) for loss in losses]), rel=1e-4)


@pytest.mark.slow  # other figures of the same command are tried in small
def test_shares_of_poisoned_records_in_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each share trains in a folder of its own beside the same clean trainings, and all are measured by the same J."""
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(userdp_certified, "ROWS", {"mnist": replace(userdp_certified.MNIST, local_epochs=1)})
    arguments = ("--level", "user", "--sigma", 2, "--attackers", 20, "--attack", "label-flip")
    report = small(tmp_path / "run", *arguments, "--poison-share", 1, "--poison-share", 0.5)
    (case,) = report["cases"]
    assert [(row["k"], row["poison_share"]) for row in case["measured"]] == [(0, None), (20, 0.5), (20, 1.0)]
    trained = sorted(path.name for path in (tmp_path / "run").iterdir() if path.is_dir())
    assert trained == ["sigma-2-clean", "sigma-2-label-flip-k20", "sigma-2-label-flip-k20-share-0.5"]
    half = json.loads((tmp_path / "run" / trained[2] / "seed-0.jsonl").read_text().splitlines()[-1])
    assert case["measured"][1]["attack_success"] == pytest.approx(half["attack_success"])
    rows = rows_of(tmp_path / "run" / "costs.csv")
    assert [row["poison_share"] for row in rows] == ["", "", "0.5", "1.0"]


@pytest.mark.slow
def test_poisoned_records_in_small(tmp_path: Path) -> None:
    """Both levels write the same; the success of an attack is that of the training's own evaluation."""
    pytest.importorskip("matplotlib")
    report = small(tmp_path / "run", "--level", "instance", "--sigma", 1, "--attackers", 5, "--attack", "label-flip")
    (case,) = report["cases"]
    clean, attacked = case["measured"]
    assert (clean["k"], attacked["k"]) == (0, 5)
    assert 0 <= clean["attack_success"] <= 1
    own = json.loads((tmp_path / "run" / "sigma-1-label-flip-k5" / "seed-0.jsonl").read_text().splitlines()[-1])
    assert attacked["attack_success"] == pytest.approx(own["attack_success"])
    assert case["certified"]["estimate"]["exact"][0] == pytest.approx(case["J"])
    assert "poisoned records that join one client's" in report["paragraph"]


@pytest.mark.slow
def test_accuracy_certified_against_records_in_small(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    arguments = ("insdp-certified", "--dataset", "digits", "--sigma", 1, "--rounds", 1, "--seeds", 1)
    done = experiment(*arguments, "--output", tmp_path / "run", "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert "poisoned records" in report["paragraph"]
    assert report["cases"][0]["paper"] is None
    hoeffding = math.sqrt(math.log(2 * 2 * len(DataSource(classes=(0, 1)).load(side=28).test) / 0.01) / 2)
    assert hoeffding > report["cases"][0]["radius"] == 1  # a confidence is nowhere further from its mean


@pytest.mark.parametrize(
    ("chosen", "clipping", "dealt"),
    [
        ({"clippings": ("private-quantile",)}, "private-quantile", "i.i.d."),
        ({"clippings": ("per-layer",)}, "per-layer", "i.i.d."),
        ({"dirichlet_alphas": (0.5,)}, "flat", "by Dir(0.5)"),
    ],
)
def test_figures_2_and_3_are_no_table_4(chosen: dict[str, Any], clipping: str, dealt: str) -> None:
    """Other clipping, other deals: other trainings, with the same account, and no accuracies of the paper."""
    setting = userdp_certified.Experiment(sigmas=(1.8,), **chosen).filled()
    (case,) = setting.cases()
    assert case.labels == {"sigma": 1.8, "clipping": clipping, "records": dealt}
    assert setting.printed(case) is None
    plan = simulate.resolve({**case.config, "client": {**case.config["client"], "dataset": "digits"}})
    assert setting.training(plan.task) == Training(SampledGaussian(0.1, 1.8), 3)
    assert plan.settings.update_clipping == clipping
    assert (plan.client.partition == "dirichlet") == (dealt != "i.i.d.")


def test_ways_of_clipping_and_dealing_stand_in_one_result() -> None:
    """Each has a folder of its own; the one that is Table 4's keeps the folder that it has alone, and its accuracy."""
    several = userdp_certified.Experiment(
        sigmas=(1.8, 3.0), clippings=("flat", "per-layer"), dirichlet_alphas=(math.inf, 0.5)
    ).filled()
    cases = several.cases()
    assert [case.name for case in cases[:4]] == [
        "sigma-1.8", "sigma-1.8-dirichlet-0.5", "sigma-1.8-per-layer", "sigma-1.8-per-layer-dirichlet-0.5",
    ]  # fmt: skip
    assert len({case.name for case in cases}) == 8
    assert [several.printed(case) for case in cases] == [0.9742, None, None, None, 0.7279, None, None, None]
    (alone,) = userdp_certified.Experiment(sigmas=(1.8,)).filled().cases()
    assert cases[0] == alone
    assert replace(several, rounds=2).printed(cases[0]) is None


def test_ten_classes_are_trained_as_two_are() -> None:
    """More records of each client make more steps, and the same sampling the same account; the paper prints nothing."""
    ten = userdp_certified.Experiment(n_classes=10, sigmas=(0.8,), rounds=3).filled()
    (case,) = ten.cases()
    assert (case.config["task"]["model"], case.config["client"]["classes"]) == ("cnn", list(range(10)))
    assert case.config["simulation"]["local_steps"] == 10 * math.ceil(60_000 / 200 / 60)
    assert ten.printed(case) is None
    plan = simulate.resolve({**case.config, "client": {**case.config["client"], "dataset": "digits"}})
    assert published_epsilon(ten.training(plan.task), 0.0029) == pytest.approx(2.8305, abs=6e-5)  # Table 4's


def test_ten_classes_are_certified_by_their_two_largest_confidences(tmp_path: Path) -> None:
    """Means are PyTorch's of ten outputs, and the certified number is the formula's of the first and the second."""
    pytest.importorskip("matplotlib")
    arguments = ("--dataset", "digits", "--classes", 10, "--sigma", 0.8, "--rounds", 1, "--seeds", 1)
    with pytest.MonkeyPatch.context() as patch:
        quick = replace(userdp_certified.TEN_DIGITS, local_epochs=1, client_records=60)
        patch.setattr(userdp_certified, "TEN_DIGITS", quick)
        done = experiment("userdp-certified", *arguments, "--output", tmp_path / "run", "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["classes"], report["model"]) == (list(range(10)), "cnn")
    assert "ten classes, 1 round(s) (the paper states none)" in report["paragraph"]
    test = DataSource().load(side=28).test
    model = build("cnn")
    parameters = np.load(tmp_path / "run" / "sigma-0.8-classes-10" / "seed-0.npz")["parameters"]
    model.load_state_dict(unflatten(torch.tensor(parameters), model))
    with torch.no_grad():
        shares = torch.softmax(model(model_inputs(torch.tensor(test.features), torch.float32)).double(), dim=1).numpy()
    is_right, epsilon = (
        shares.argmax(axis=1) == test.labels,
        XieAccountant().epsilon(SampledGaussian(0.1, 0.8), 1, 0.0029),
    )
    second, first = np.sort(shares, axis=1)[:, -2:].T
    tolerated = [certified_integer(xie_certified_k(a, b, epsilon, 0.0029)) for a, b in zip(first, second, strict=True)]
    rows = rows_of(tmp_path / "run" / "certified.csv")
    found = [row for row in rows if (row["method"], row["evidence"], row["threat"]) == ("published", "estimate", "add")]
    assert len(found) > 1
    for row in found:
        expected = np.mean(is_right & (np.array(tolerated) >= int(row["k"])))
        assert float(row["certified_accuracy"]) == pytest.approx(expected, abs=1 / len(test) + 1e-9)


@pytest.mark.slow
def test_attacks_on_ten_classes_in_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stamped images of nine classes are wanted as zeros."""
    pytest.importorskip("matplotlib")
    quick = replace(userdp_certified.TEN_DIGITS, local_epochs=1, client_records=60)
    monkeypatch.setattr(userdp_certified, "TEN_DIGITS", quick)
    arguments = ("--classes", 10, "--sigma", 0.5, "--attackers", 20, "--attack", "triangle-backdoor")
    report = small(tmp_path / "run", "--level", "user", *arguments)
    (case,) = report["cases"]
    own = json.loads(
        (tmp_path / "run" / "sigma-0.5-classes-10-triangle-backdoor-k20" / "seed-0.jsonl").read_text().splitlines()[-1]
    )
    assert case["measured"][1]["attack_success"] == pytest.approx(own["attack_success"])
    assert "ten classes, 1 round(s) (the paper states none)" in report["paragraph"]


@pytest.mark.slow
def test_ways_of_clipping_and_dealing_in_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal epsilons, a case for each way, and a picture with a panel for each sigma."""
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(userdp_certified, "ROWS", {"mnist": replace(userdp_certified.MNIST, local_epochs=1)})
    arguments = ("--dataset", "digits", "--sigma", 1, "--rounds", 1, "--seeds", 1, "--clipping", "flat")
    more = ("--clipping", "per-layer", "--dirichlet-alpha", "inf", "--dirichlet-alpha", 0.5)
    done = experiment("userdp-certified", *arguments, *more, "--output", tmp_path / "run", "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    ways = [(case["clipping"], case["records"]) for case in report["cases"]]
    assert ways == [("flat", "i.i.d."), ("flat", "by Dir(0.5)"), ("per-layer", "i.i.d."), ("per-layer", "by Dir(0.5)")]
    assert len({case["epsilon_published"] for case in report["cases"]}) == 1
    assert "sigma = 1 (per-layer, by Dir(0.5)):" in report["paragraph"]
    rows = rows_of(tmp_path / "run" / "certified.csv")
    assert {(row["clipping"], row["records"]) for row in rows} == set(ways)
