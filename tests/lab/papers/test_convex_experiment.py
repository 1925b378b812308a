"""`precad experiment convex-sets` in small: attackers stay in every set that the servers check, at one epsilon."""

from __future__ import annotations

import csv
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from precad.clients.attacks.model_space import ModelSpace
from precad.clients.errors import ArgumentError
from precad.clients.models import networks
from precad.clients.records import digits
from precad.deploy.errors import ConfigError
from precad.dp.task_privacy import task_privacy
from precad.lab.papers import backdoors, convex_sets
from precad.lab.simulation import SeededRandomness, Simulation, SimulationSettings
from precad.mpc import fixed_point
from precad.mpc.convex_set import ConvexSet
from tests.harness.harness import small_task
from tests.lab.papers.in_small import experiment, rows_of

SMALL = ("--dataset", "digits", "--model", "mlp", "--attackers", 20, "--rounds", 3, "--seeds", 1)


def test_every_set_is_trained_against_and_nobody_is_rejected(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    folder, start = tmp_path / "run", tmp_path / "start.npy"
    np.save(start, networks.initial_parameters("mlp", seed=7))
    done = experiment("convex-sets", *SMALL, "--start", start, "--output", folder, "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert [(case["defence"], case["attackers"]) for case in report["cases"]] == [
        (f"{defence.words}, {words}", 20 if words in convex_sets.ATTACKS.values() else 0)
        for words in (convex_sets.NO_ATTACK, *convex_sets.ATTACKS.values())
        for defence in convex_sets.DEFENCES
    ]
    assert [case["rejected"]["mean"] for case in report["cases"]] == [0] * 15
    assert "3 rounds from a model given, 1 seed(s), one epsilon for all" in report["paragraph"]
    assert "a gradient on the first 1000 test records, which the accuracies count too" in report["paragraph"]
    balls = [case for case in report["cases"] if "half-space" not in case["defence"]]
    assert "gradient" not in convex_sets.paragraph({**report, "cases": balls})
    assert report["start"] == hashlib.sha256(start.read_bytes()).hexdigest()
    assert str(tmp_path) not in (folder / "report.html").read_text()
    assert report["layer_sizes"] == [4160, 650]
    accuracies = {row["defence"]: row["accuracy"] for row in rows_of(folder)}
    assert len(accuracies) == 15
    assert np.load(folder / "directions.npy").shape == (1, 4810)
    of_layer = np.load(folder / "directions-of-a-layer.npy")[0]
    assert [bool(part.any()) for part in np.split(of_layer, [4160])].count(True) == 1
    with (folder / "table.csv").open(newline="") as file:
        cells = list(csv.DictReader(file))
    assert [(row["defence"], row["K"], row["backdoor accuracy"]) for row in cells] == [
        (case["defence"], str(case["attackers"]), backdoors.share(case["backdoor"])) for case in report["cases"]
    ]


def test_some_of_the_sets_can_be_chosen(tmp_path: Path) -> None:
    chosen = convex_sets.Experiment(dataset="digits", model="mlp", attackers=(3,), defences=("ball", "equal-layers"))
    assert [case.name for case in chosen.cases(tmp_path)][:3] == [
        "ball-alone",
        "equal-layers-alone",
        "ball-pixel-backdoor-k3",
    ]
    assert len(chosen.cases(tmp_path)) == 6
    with pytest.raises(ConfigError, match=r"--defence: expected one of ball, equal-layers, .*, found 'cube'"):
        convex_sets.Experiment(defences=("cube",))


def test_the_sets_lie_in_the_ball_and_the_direction_is_one_that_honest_clients_follow() -> None:
    setting = convex_sets.Experiment(dataset="digits", model="mlp")
    equal, by_size = (defence.fields(setting, Path()) for defence in convex_sets.DEFENCES[1:3])
    for found in (equal, by_size):
        assert sum(clip**2 for clip in found["layer_clips"]) == pytest.approx(convex_sets.CLIP**2)
    g = convex_sets.public_direction(setting)
    assert_array_equal(convex_sets.public_direction(setting), g)
    n = setting.layer_sizes[0]
    longest = convex_sets.longest_layer(g, setting.layer_sizes)
    is_first = np.linalg.norm(g[:n]) > np.linalg.norm(g[n:])
    assert_array_equal(longest, np.where((np.arange(g.size) < n) == is_first, g, 0.0))
    for one in (g, longest):
        integers = convex_sets.as_integers(one)
        assert np.linalg.norm(integers) == pytest.approx(2.0**14, rel=1e-2)
        assert integers @ one > 0.999 * np.linalg.norm(integers) * np.linalg.norm(one)


def test_the_direction_is_that_of_the_model_given(tmp_path: Path) -> None:
    start = tmp_path / "start.npy"
    np.save(start, networks.initial_parameters("mlp", seed=7))
    settings = [convex_sets.Experiment(dataset="digits", model="mlp", start=it) for it in (None, start)]
    one, other = (convex_sets.public_direction(it) for it in settings)
    assert np.dot(one, other) < 0.9 * np.linalg.norm(one) * np.linalg.norm(other)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "--start: expected a .npy file"),
        (np.zeros(9, dtype=np.float32), "--start: expected float32 of shape"),
        (np.zeros(4810), "--start: expected float32 of shape"),
        (np.full(4810, np.nan, dtype=np.float32), "--start: expected finite numbers"),
    ],
)
def test_what_is_no_model_is_refused(content: NDArray[np.generic] | None, expected: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    start = tmp_path / "start.npy"
    if content is not None:
        np.save(start, content)
    done = experiment("convex-sets", *SMALL, "--start", start, "--output", tmp_path / "run")
    assert done.exit_code == 2, done.output
    assert expected in " ".join(done.output.split())


def test_what_an_attacker_crafts_is_projected_onto_the_set() -> None:
    """Within the ball alone it would be refused: all of C is in the layer of the smaller bound."""
    task = small_task(layer_sizes=[20, 4], layer_clips=[1.0, 0.25])
    space = ModelSpace.of(task, np.zeros(24, dtype=np.float32), task.enforced_bound)
    crafted = np.zeros(24)
    crafted[22] = task.client_clip
    cut = task.update_set
    assert isinstance(cut, ConvexSet)
    assert not cut.holds(fixed_point.encode(crafted, task.frac_bits))
    uploaded = space.upload(crafted)
    assert cut.holds(fixed_point.encode(uploaded, task.frac_bits))
    assert uploaded[22] == pytest.approx(0.25, rel=1e-9)
    assert task_privacy(task) == task_privacy(small_task())


def test_a_simulation_that_would_not_check_the_set_refuses_the_task() -> None:
    task = small_task(("c0", "c1"), dim=4810, model="mlp", layer_sizes=[4160, 650], layer_clips=[1.0, 0.25])
    with pytest.raises(ArgumentError, match="expected 'deployed' for a task with layer_clips or half_spaces"):
        Simulation(
            task=task,
            settings=SimulationSettings(algorithm="precad"),
            records={client: digits().train.take(np.arange(10)) for client in task.clients},
            test=digits().test,
            randomness=SeededRandomness(1),
            device="cpu",
        )
