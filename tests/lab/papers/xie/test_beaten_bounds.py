"""When a measured cost of attacks is said to beat a bound, from models whose costs are known beforehand.

With all weights zero a model says the same of every record: its last bias alone is the cross-entropy that is wanted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from precad.dp.certificates.prediction import Method
from precad.lab.papers.runner import Case, Outcome
from precad.lab.papers.xie import attack_cost, userdp_certified
from precad.lab.simulation import simulate
from tests.harness.models import dimension_of

DIM = dimension_of("cnn-binary")
NO_INFLUENCE = 10_000.0
"""A noise multiplier that leaves attackers no influence: twenty of them lower a bound by less than 0.001."""


def save(folder: Path, case: Case, losses: Sequence[float], **more: object) -> Outcome:
    """Save a final model for each seed, whose cross-entropy is that of a 0 which attackers want predicted."""
    (folder / case.name).mkdir(exist_ok=True)
    for seed, loss in enumerate(losses):
        parameters = np.zeros(DIM, dtype=np.float32)
        parameters[-1] = math.log(math.expm1(loss))  # ln(1 + e^b) is the loss
        np.savez(folder / case.name / f"seed-{seed}.npz", parameters=parameters, **more)
    return Outcome(case=case, dim=DIM, runs=[{"accuracy": 0.5}] * len(losses), rows=(), ms_per_round=None)


def test_a_bound_is_beaten_below_it_by_hoeffdings_radius_and_not_above(tmp_path: Path) -> None:
    """By hand, with C_bar = 2, 40 trainings without attackers, 20 with, 2 x 3 expectations J and 3 attacks on each.

    J is 1.8 to a radius of 2 sqrt(ln(2 * 6 / 0.01) / 80) = 0.5954, so the bound is 1.2046. A mean of 20 is off by up to
    2 sqrt(ln(6 * 3 / 0.01) / 40) = 0.8658, so what beats the bound is below 0.3388.
    Failure means that an attack is called stronger than a proof by chance, or that a broken proof goes unseen.
    """
    experiment = attack_cost.Experiment(
        dataset="digits",
        sigmas=(NO_INFLUENCE, 2 * NO_INFLUENCE),
        attacks=("label-flip", "triangle-backdoor", "stat-opt"),
        attackers=(2, 5, 10),
        cost_bound=2.0,
        clean_seeds=40,
        seeds=20,
    ).filled()
    measured = {2: 0.330, 5: 0.345, 10: 0.330}
    outcomes = [save(tmp_path, experiment.clean_case(NO_INFLUENCE), [5.0, 1.6] * 20)]  # 5 is cut off at C_bar
    for k, mean in measured.items():
        case = experiment.case(NO_INFLUENCE, "label-flip", k)
        outcomes.append(save(tmp_path, case, [mean - 0.1, mean + 0.1] * 10))
    found = attack_cost._of_case(experiment, outcomes, tmp_path, NO_INFLUENCE, "label-flip")
    assert found["J"] == pytest.approx(1.8)
    assert found["radius"] == pytest.approx(0.5954, abs=5e-5)
    for method in ("published", "pld", "exact"):
        assert found["certified"]["radius"][method][0] == pytest.approx(1.2046, abs=5e-5)
        assert found["certified"]["estimate"][method][0] == pytest.approx(1.8)
    assert 1.2036 < found["certified"]["radius"]["exact"][20] < 1.2046
    assert {row["k"]: row["mean"] for row in found["measured"]} == pytest.approx({0: 1.8, **measured})
    assert [row["k"] for row in found["measured"] if row["beats_the_bound"]] == [2, 10]


def test_the_higher_of_the_two_proved_bounds_is_the_one_to_beat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is higher once. The paper's own formula proves nothing, however high it is.

    With 20 trainings and C_bar = 1, three means of 0.2 are off by up to sqrt(ln(3 / 0.01) / 40) = 0.3776.
    """
    experiment = attack_cost.Experiment(
        dataset="digits", sigmas=(NO_INFLUENCE,), attacks=("label-flip",), attackers=(2, 5, 10), clean_seeds=2, seeds=20
    ).filled()
    low, high = 0.5, 0.6
    by_method = {
        Method.PLD: {2: high, 5: low, 10: low},
        Method.EXACT: {2: low, 5: high, 10: low},
        Method.PUBLISHED: {2: high, 5: high, 10: high},
    }
    bounds = {method: [of_k.get(k, 0.0) for k in range(11)] for method, of_k in by_method.items()}
    monkeypatch.setattr(attack_cost, "_certified", lambda *_, **__: {"radius": bounds, "estimate": bounds})
    cases = [experiment.clean_case(NO_INFLUENCE)]
    cases += [experiment.case(NO_INFLUENCE, "label-flip", k) for k in experiment.attackers]
    outcomes = [save(tmp_path, case, [2.0] * 2 if case is cases[0] else [0.1] * 16 + [2.0] * 4) for case in cases]
    found = attack_cost._of_case(experiment, outcomes, tmp_path, NO_INFLUENCE, "label-flip")
    assert [row["mean"] for row in found["measured"]] == pytest.approx([1.0, 0.2, 0.2, 0.2])
    assert [row["k"] for row in found["measured"] if row["beats_the_bound"]] == [2, 5]


@pytest.mark.slow
def test_the_report_names_the_attacks_that_beat_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder holds 16 finished trainings without attackers and 16 with each attack: only flips reach their aim.

    J is 1 to a radius of sqrt(ln(2 * 2 / 0.01) / 32) = 0.4327. A mean of 16 is off by up to sqrt(ln(2 / 0.01) / 32) =
    0.4069. So what beats a bound is below 0.1604: the flips' 0, and not the pattern's 1.
    Failure means that the page says of a beaten bound that there is none.
    """
    pytest.importorskip("matplotlib")
    row = replace(userdp_certified.MNIST, n_clients=8, client_records=5, client_rate=0.5)
    monkeypatch.setattr(userdp_certified, "ROWS", {"mnist": row})
    experiment = attack_cost.Experiment(
        dataset="digits",
        sigmas=(NO_INFLUENCE,),
        attacks=("label-flip", "triangle-backdoor"),
        attackers=(2,),
        rounds=1,
        clean_seeds=16,
        seeds=16,
        device="cpu",
    )
    filled = experiment.filled()
    losses = {"none": 2.0, "label-flip": 0.1, "triangle-backdoor": 2.0}
    nobody = {"clients": np.array([], dtype=np.str_), "participation": []}
    for case in (*filled.clean_cases(), *filled.attacked_cases()):
        simulate.Runs(simulate.resolve(case.config), tmp_path / case.name)  # writes config.toml
        save(tmp_path, case, [losses[case.labels["attack"]]] * 16, rounds=1, rule=[], algorithm=[], **nobody)
        line = {"round": 0, "chosen": 0, "accepted": 0, "rejected": [], "seconds": 0.1, "accuracy": 0.5}
        for seed in range(16):
            (tmp_path / case.name / f"seed-{seed}.jsonl").write_text(json.dumps(line) + "\n")
    report = attack_cost.run(experiment, tmp_path, Console(quiet=True))
    assert report["beaten"] == [f"sigma = {NO_INFLUENCE:g}, label-flip, k = 2, share 1"]
    assert f"{report['beaten'][0]}. The paper says" in report["paragraph"]
