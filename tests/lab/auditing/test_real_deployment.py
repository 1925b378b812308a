"""Audits of a real deployment with real records: an audit client trains on its own, those that its coins leave in.

What counts as failure:
- a sound deployment is accused, or a figure is above the proved one;
- a client's process that clips at 1.5 R, or takes all of its records, is not found.

Both processes are found for certain here. One record that adds more than R gives the first away, 3 rounds the
second. In these about 32 of 32 records were drawn at a rate of 0.5.
"""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose
from rich.console import Console

from precad.clients.auditing.real_file import RealContribution, RealSecrets
from precad.clients.records import Records
from precad.deploy.cli.main import app
from precad.dp.accountants.pld import View
from precad.dp.auditing.guesses import Guesses, Plan
from precad.dp.auditing.shares import Shares
from precad.dp.task_privacy import task_privacy
from precad.lab.auditing import real_record_rounds
from precad.lab.auditing.deployment import evidence_of
from precad.lab.auditing.real_record_rounds import Released, rounds_of
from precad.lab.auditing.real_record_verdicts import judged_real
from precad.lab.auditing.real_records import taken_apart
from precad.lab.auditing.report import faults_of, print_audit
from precad.mpc import fixed_point
from precad.servers.errors import AuditError
from tests.harness.command_line import CliRunner
from tests.harness.harness import small_task
from tests.lab.auditing import planted
from tests.lab.auditing.planted import CONFIG, ROUNDS
from tests.lab.auditing.test_deployment_audit import audited, task_of


def test_a_sound_deployment_is_not_accused_and_shows_most_of_what_is_printed(sound: Path) -> None:
    """64 records of one client; the printed epsilon is of its rounds. Guesses are of 64 coins."""
    found = audited(sound)
    real, privacy = found["real"], task_privacy(task_of(sound))
    assert (real["records"], real["rounds"], real["alarms"]) == (64, ROUNDS, [])
    assert [seat["seat"] for seat in real["seats"]] == ["server_a", "clients"]
    for seat in real["seats"]:
        assert (seat["alarms"], seat["exceeded"]) == ([], False)
        assert seat["printed"] == pytest.approx(privacy.epsilon(View(seat["view"]), ROUNDS, 1e-5), rel=1e-9)
        assert 0.4 * seat["printed"] < seat["per_round"] < seat["printed"]
    assert real["seats"][1].keys() - real["seats"][0].keys() == {"f_dp", "strict"}
    assert max(real["seats"][1][name] for name in ("f_dp", "strict")) < real["seats"][1]["printed"]
    assert (found["passed"], faults_of(found)) == (True, [])
    shown = io.StringIO()
    print_audit(Console(file=shown, width=200), found)
    assert f"audit (95 %) by 64 real records in {ROUNDS} rounds: server A corrupted " in shown.getvalue()
    assert "bound" not in shown.getvalue()


def test_what_the_client_wrote_down_is_what_its_coins_and_draws_say(sound: Path) -> None:
    """No record that is left out was drawn; a drawn one adds R or its own gradient's length; about half were drawn."""
    evidence = evidence_of(task_of(sound), [sound / "a", sound / "b"], [sound / "clients"])
    found = rounds_of(evidence.task, evidence.released, evidence.real)
    assert found is not None
    weights = np.array(found.weights)
    assert not weights[:, ~found.coins].any()
    assert 0.99 < weights.max() <= 1 + 1e-3
    assert 0.3 < (weights[:, found.coins] > 0).mean() < 0.7  # else in 1 of 10^4 runs
    assert found.unexplained < 1e-3
    assert len(found.scores) == ROUNDS


@pytest.mark.slow  # test_real_records.py has both faults in simulations
def test_a_longer_clip_and_missing_sampling_are_found_by_the_clients_own_records(tmp_path: Path) -> None:
    """By the command, with exit code 1; records at kinks find the clip too, in the client's process."""
    planted.run(CONFIG, tmp_path / "run", {"one-to-witness": "clip+sampling"})
    found = CliRunner().invoke(app, ["audit", "privacy", "--run", str(tmp_path / "run"), "--json"], terminal_width=200)
    assert found.exit_code == 1
    report = json.loads(found.stdout)
    for seat in report["real"]["seats"]:
        assert any(line.startswith("clip: expected at most R, found 1.49") for line in seat["alarms"])
        assert any(line.startswith("sampling: expected a rate of 0.5") for line in seat["alarms"])
        assert seat["exceeded"]
    assert report["real"]["alarms"][0].startswith("gradients: expected an update that is a sum of its records' clipped")
    assert report["kinks"]["alarms"]
    assert "precad: " in found.stderr
    assert "real records, server A corrupted: clip: expected at most R, found 1.49" in found.stderr
    assert not report["passed"]


HELD = 6
TASK = small_task(
    clients={"alice": 40, "own": HELD, "watch": 1},
    audit_clients=["watch"],
    real_audit_clients=["own"],
    model="mlp",
    dim=4810 + 1,
    record_rate=0.5,
    record_clip=1.0,
    client_clip=7.0,
    mode="masked",
)


class Made:
    """A training in the clear whose every draw is known: one real audit client, and a pull of somebody else's."""

    def __init__(self, rounds: int, noise: float, arrives: float = 1.0, left_out: bool = False) -> None:
        draws, n = np.random.default_rng(5), TASK.n_parameters
        self.secrets = RealSecrets.unread(HELD, n)
        self.secrets.records = Records(draws.random((HELD, 1, 8, 8), dtype=np.float32), np.arange(HELD))
        self.secrets.coins = np.array([True, False, True, True, False, True])
        theta, self.drawn, models = draws.normal(0, 0.1, n).astype(np.float32), [], ["00" * 32]
        reader = real_record_rounds._Reader(TASK, {"own": self.secrets})
        rounded: list[tuple[str, frozenset[str]]] = []
        for t in range(rounds):
            gradients = real_record_rounds.single_gradients(reader._model, theta, self.secrets.records)
            clipped = gradients / np.maximum(1, np.linalg.norm(gradients, axis=1))[:, None]
            drawn = (draws.random(HELD) < 0.5) & (self.secrets.coins | left_out)
            added = -(drawn.astype(np.float64) @ clipped)
            words = fixed_point.encode(added, TASK.frac_bits)
            self.secrets.contributions.append(RealContribution(t, bytes.fromhex(models[-1]), theta, words))
            self.drawn.append(drawn)
            total = arrives * added - 2 * clipped[0] + draws.normal(0, noise, n)
            theta = (theta + TASK.rate(TASK.learning_rate, t) / TASK.divisor * total).astype(np.float32)
            models.append(f"{t + 1:064x}")
            rounded.append((models[-1], frozenset({"alice", "own"})))
        last = np.pad(theta, (0, 1))
        self.released = Released(models[0], rounded, last)

    def read(self) -> real_record_rounds.RealRounds:
        found = rounds_of(TASK, self.released, {"own": self.secrets})
        assert found is not None
        return found


def test_draws_noise_and_scores_of_a_training_in_the_clear_are_read_as_they_were() -> None:
    made = Made(4, 0.01)
    found = made.read()
    assert (np.array(found.weights) > 0).tolist() == [drawn.tolist() for drawn in made.drawn]
    assert found.unexplained < 1e-3
    left = 4 + 0.01**2 * TASK.n_parameters  # the other's pull of 2 R, and noise
    assert found.energy / 4 == pytest.approx(left, rel=0.1)
    assert found.n_energy == 4 * TASK.n_parameters
    observed = found.observed()
    assert observed is not None
    scores = observed.scores.sum(axis=0)[1:]  # but the record that the other pulls along
    assert Guesses.of_scores(scores, made.secrets.coins[1:], Plan(2, 2)).correct >= 3  # type: ignore[index]


@pytest.mark.parametrize("arrives", [1.0, 0.0])
def test_an_upload_that_is_left_out_of_the_sum_is_found_beside_an_unknown_pull(arrives: float) -> None:
    """40 rounds. Half an interval is about 0.7, so that 0 is found, and 1 accused in less than 1 of 400 trainings."""
    seen = {"seat": "clients", "limits": {"noise_at_most": 1.5, "noise_chance": 0.004}}
    found = judged_real(TASK, Made(40, 0.5, arrives).read(), [seen], Shares.of(0.95, 1, has_real=True))
    assert found is not None
    (seat,) = found["seats"]
    assert any(line.startswith("arrival: expected a factor of 1") for line in seat["alarms"]) == (arrives == 0)


def test_a_record_that_its_coin_leaves_out_is_found_in_an_update() -> None:
    found = Made(3, 0.01, left_out=True).read()
    assert (np.array(found.weights)[:, ~found.coins] > 0).any()


def test_a_model_that_the_client_was_never_sent_is_refused() -> None:
    """A file and a log that are of different models give no figure."""
    made = Made(2, 0.01)
    other = Released(made.released.first_model, [("ff" * 32, frozenset({"own"}))] * 2, None)
    with pytest.raises(AuditError, match="after 1 rounds: expected what own added to"):
        rounds_of(TASK, other, {"own": made.secrets})


def test_rounding_to_a_coarse_grid_is_no_fault_and_a_twentieth_of_r_is() -> None:
    """At 8 bits the grid moves an update of 4,810 numbers by at most 0.14 R."""
    draws = np.random.default_rng(6)
    gradients = draws.normal(size=(5, 4810))
    unit = gradients / np.linalg.norm(gradients, axis=1)[:, None]
    added = unit[0] + unit[3]
    coarse = taken_apart(gradients, np.round(added * 2**8) / 2**8, 2.0**-8)
    assert_allclose(coarse.weights, [1, 0, 0, 1, 0], atol=0.02)
    assert coarse.unexplained == 0
    assert taken_apart(gradients, 1.05 * added).unexplained == pytest.approx(0.05, abs=1e-4)


def test_records_alike_are_never_counted_as_drawn_or_not() -> None:
    """Two that have one gradient cannot be told apart once there is rounding; their sum still can be judged."""
    gradient = np.random.default_rng(7).normal(size=4810)
    unit = gradient / np.linalg.norm(gradient)
    for step in (2.0**-16, 0.0):  # of a deployment's grid, and of float32 alone
        found = taken_apart(np.array([gradient, gradient]), unit, step)
        assert not found.tellable.any()
        assert found.unexplained == 0
