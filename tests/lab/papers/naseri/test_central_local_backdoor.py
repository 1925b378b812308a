"""Backdoors under central and local DP, by Naseri et al.: in small, and what is said of their order."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from precad.dp.accountants.pld import PldAccountant, SampledGaussian
from precad.lab.papers.naseri import central_local_backdoor
from tests.lab.papers.in_small import experiment


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
