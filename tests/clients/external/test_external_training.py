"""Foreign trainers as clients: whatever they return, C bounds it, and what was cut or failed is counted."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from pydantic import ValidationError
from structlog.testing import capture_logs

from precad.clients.config import ClientConfig
from precad.clients.errors import ArgumentError, NonFiniteModelError
from precad.clients.external.counts import of_metrics
from precad.clients.external.training import ExternalTraining, program_of
from precad.clients.models import networks
from precad.clients.process import _work_of
from precad.clients.training.conduct import Honest
from precad.clients.training.record_draws import PoissonDraws
from precad.deploy.conducts import conducts_of
from precad.deploy.configuration.trainers import counted
from precad.dp.queries.evaluations import EvaluationEncoding
from precad.mpc import fixed_point
from precad.protos.task.task import Task

HERE = Path(__file__).parent
IDS = ["alice", "bob"]
DIM = 4810
START = networks.initial_parameters("mlp", seed=1)
ONES = math.sqrt(DIM)
"""The norm of an update that adds 1 to every parameter."""


def task(**changes):
    fields = {
        "clients": dict.fromkeys(IDS, 5),
        "rounds": 2,
        "client_rate": 1.0,
        "record_rate": 1.0,
        "record_clip": 0.5,
        "client_clip": 1.0,
        "noise_multiplier": 1.0,
        "learning_rate": 1.0,
        "model": "mlp",
        "dim": DIM,
        "algorithm": "user-dp-fedavg",
    }
    return Task.model_validate({**fields, **changes})


def config(place, name="add_one", **changes):
    """A client whose trainer is in `foreign.py`, in the module's own words."""
    (place / "state").mkdir(exist_ok=True)
    fields = {
        "certificates": place / "pki",
        "authority": place / "ca.pem",
        "state_dir": place / "state",
        "folder": HERE,
        "trainer": f"foreign:{name}",
        "trainer_isolation": "best-effort",
    }
    return ClientConfig(**{**fields, **changes})


@pytest.fixture
def training(tmp_path):
    made = []

    def make(name="add_one", task_changes=None, **changes):
        conducts = {"alice": Honest()}
        made.append(
            ExternalTraining(
                task=task(**(task_changes or {})), config=config(tmp_path, name, **changes), conducts=conducts
            )
        )
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_more_than_c_is_cut_to_c_and_counted(training, tmp_path):
    """The direction stays; the count is in the text for Prometheus, by client."""
    ours = training()
    for _ in range(2):
        update = ours.update("alice", START)
        assert np.linalg.norm(update) <= 1.0
        assert_allclose(update, np.full(DIM, 1 / ONES), rtol=1e-6)
    lines = (tmp_path / "state" / "alice.prom").read_text().splitlines()
    assert 'precad_client_updates_clipped_total{client="alice"} 2' in lines
    assert 'precad_client_trainings_total{client="alice",outcome="trained"} 2' in lines


def test_counts_that_cannot_be_written_are_no_reason_to_end(training, tmp_path):
    """A folder stands in the file's place. The update is the same, and the log says why."""
    ours = training()
    (tmp_path / "state" / "alice.prom.new").mkdir(parents=True)
    with capture_logs() as lines:
        assert_allclose(ours.update("alice", START), np.full(DIM, 1 / ONES), rtol=1e-6)
    (told,) = [line for line in lines if line["event"] == "client.metrics_not_written"]
    assert (told["client"], told["reason"]) == ("alice", "Is a directory")


def test_less_than_c_is_left_as_it_is(training):
    ours = training(task_changes={"client_clip": 100.0})
    encoded = ours.train("alice", START)
    expected = (START + np.float32(1)).astype(np.float64) - START
    assert_allclose(fixed_point.decode(encoded, 16), expected, atol=2**-16)
    assert (ours.tallies["alice"].trained, ours.tallies["alice"].clipped) == (1, 0)


def test_layers_are_cut_one_by_one(training):
    ours = training(task_changes={"update_clipping": "per-layer"})
    update = ours.update("alice", START)
    assert np.linalg.norm(update) <= 1.0
    parts = np.split(update, np.cumsum([p.numel() for p in networks.build("mlp").parameters()])[:-1])
    layers = [np.concatenate(parts[i : i + 2]) for i in range(0, len(parts), 2)]
    for layer in layers:
        assert_allclose(np.linalg.norm(layer), 1 / math.sqrt(len(layers)), rtol=1e-9)
    assert ours.tallies["alice"].clipped == 1


@pytest.mark.parametrize(("clip", "clipped"), [(1.0, 1), (100.0, 0)])
def test_a_learnt_bound_counts_what_it_cuts(training, clip, clipped):
    ours = training(task_changes={"client_clip": clip, "update_clipping": "private-quantile", "dim": DIM + 1})
    update = ours.update("alice", np.append(START, np.float32(0)))
    assert len(update) == DIM + 1
    assert np.linalg.norm(update) <= clip
    assert ours.tallies["alice"].clipped == clipped


@pytest.mark.parametrize("name", ["nan", "leave", "wrong_shape"])
def test_a_failed_training_uploads_zeros(training, name, tmp_path):
    """Whoever stayed away would say that the training failed. The next round is tried again."""
    ours = training(name)
    for _ in range(2):
        assert_array_equal(ours.train("alice", START), np.zeros(DIM, np.uint64))
    assert (ours.tallies["alice"].trained, ours.tallies["alice"].failed) == (0, 2)
    assert 'outcome="failed"} 2' in (tmp_path / "state" / "alice.prom").read_text()


def test_a_model_that_is_not_finite_is_not_trained(training):
    with pytest.raises(NonFiniteModelError):
        training().update("alice", np.full(DIM, np.nan, np.float32))


@pytest.mark.parametrize("algorithm", ["precad", "ins-dp-fedavg", "local-dp"])
def test_other_algorithms_have_no_place_for_a_foreign_trainer(tmp_path, algorithm):
    with pytest.raises(ArgumentError, match=r"client\.trainer: expected task\.algorithm 'user-dp-fedavg', .* found"):
        program_of(task(algorithm=algorithm, client_clip=100.0), config(tmp_path), "alice")


def test_a_trainer_that_lies_among_the_keys_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match=r"client\.folder: expected a place outside .*pki.* found"):
        program_of(task(), config(tmp_path, folder=tmp_path / "pki" / "alice"), "alice")


def test_attackers_train_beside_a_foreign_trainer(tmp_path):
    """In one process: the honest client uploads the trainer's update within C, the attacker its own, a hundredfold."""
    whole = config(tmp_path, attacks={"bob": "scaled"})
    made = task(client_clip=0.01, local_rate=1.0)
    both, _ = _work_of(made, whole, conducts_of(IDS, whole, made), PoissonDraws(made))
    try:
        alice, bob = (fixed_point.decode(both.train(client, START), 16) for client in IDS)
    finally:
        both.close()
    assert_allclose(alice, np.full(DIM, 0.01 / ONES), atol=2**-16)
    assert np.linalg.norm(bob) == pytest.approx(1.0, rel=0.1)
    assert not np.array_equal(np.sign(bob), np.ones(DIM))


EVALUATED = {
    "evaluation": "clients",
    "evaluation_every": 1,
    "evaluation_noise": 2.0,
    "evaluation_clip": 100.0,
    "evaluation_loss_bound": 4.0,
}


def test_counts_of_a_foreign_trainer_are_those_that_a_client_of_ours_answers_with(training, tmp_path):
    """40 right of 50 and losses of 1.5 each, given as counts, beside fifty records one by one, on the grid."""
    ours = training("ward", EVALUATED, trainer_config={"answer": "40 50 75"})
    one = ours._task.evaluation_round
    encoding = EvaluationEncoding(loss_bound=4.0, frac_bits=one.frac_bits)
    expected = encoding.total(np.repeat([1.0, 0.0], [40, 10]), np.full(50, 1.5))
    assert_allclose(ours.answer("alice", START), expected, atol=50 * 2.0**-one.frac_bits)
    decoded = fixed_point.decode(ours.evaluate("alice", START), one.frac_bits)
    assert_allclose(decoded, expected, atol=51 * 2.0**-one.frac_bits)
    lines = (tmp_path / "state" / "alice.prom").read_text().splitlines()
    assert 'precad_client_evaluations_total{client="alice",outcome="evaluated"} 2' in lines
    assert counted(tmp_path / "state") == {"trained": 0, "clipped": 0, "failed": 0}


@pytest.mark.parametrize("answer", ["1e15 1e15 0", "0 9007199254740992 inf", "0 1000 1e300", "700 1000 -5"])
def test_whatever_a_foreign_trainer_counts_it_moves_the_sum_by_its_ball_at_most(training, answer):
    """A trainer that claims any number of records, or any loss, is within C before the servers check it."""
    ours = training("ward", EVALUATED, trainer_config={"answer": answer})
    one = ours._task.evaluation_round
    assert np.linalg.norm(ours.answer("alice", START)) <= 100.0
    encoded = ours.evaluate("alice", START)
    assert sum(int(x) ** 2 for x in encoded) <= one.norm_bound.threshold


@pytest.mark.parametrize(
    "answer",
    ["raise", "leave", "1 2", "1 2 3 4", "3 2 1", "-1 2 1", "1 2.5 1", "nan 2 1", "1 nan 1", "1 inf 1", "1 1e16 1"],
)
def test_an_evaluation_that_fails_adds_nothing(training, answer):
    """Whoever stayed away would say that it failed. A training afterwards is as if nothing had been."""
    ours = training("ward", EVALUATED | {"client_clip": 100.0}, trainer_config={"answer": answer})
    for _ in range(2):
        assert_array_equal(ours.evaluate("alice", START), np.zeros(3, np.uint64))
    tally = ours.tallies["alice"]
    assert (tally.evaluated, tally.evaluations_failed, tally.failed) == (0, 2, 0)
    assert_allclose(ours.update("alice", START), np.ones(DIM), rtol=1e-6)


def test_a_trainer_without_evaluate_is_refused_before_a_round(training):
    expected = r"client\.trainer: expected one that evaluates models, .*task\.evaluation = 'clients', found 'foreign"
    with pytest.raises(ArgumentError, match=expected):
        training("add_one", EVALUATED)


def test_attackers_answer_evaluations_beside_a_foreign_trainer(tmp_path):
    """The honest client with its trainer's counts, the attacker with its own records."""
    whole = config(tmp_path, "ward", attacks={"bob": "scaled"}, trainer_config={"answer": "40 50 75"}, holdout=0.5)
    made = task(**EVALUATED)
    work, evaluating = _work_of(made, whole, conducts_of(IDS, whole, made), PoissonDraws(made))
    try:
        alice, bob = (evaluating.evaluate(client, START) for client in IDS)
    finally:
        work.close()
    n = made.evaluation_round.frac_bits
    weight = EvaluationEncoding(loss_bound=4.0, frac_bits=n).weights[0]
    assert fixed_point.decode(alice, n)[0] / weight == pytest.approx(50, abs=1e-3)
    assert fixed_point.decode(bob, n)[0] > 0


def test_metrics_are_found_by_the_names_of_examples_or_of_the_operator():
    """A mean over n records is their sum by n; a missing one is named, not taken for zero."""
    found = {"num-examples": 50, "eval_acc": 0.8, "eval_loss": 1.5, "f1": 0.5}
    assert of_metrics(found, {}, has_accuracy=True) == (40.0, 50.0, 75.0)
    assert of_metrics(found, {"accuracy_metric": "f1"}, has_accuracy=True) == (25.0, 50.0, 75.0)
    assert of_metrics({"num_examples": 2, "loss": 3.0}, {}, has_accuracy=False) == (0.0, 2.0, 6.0)
    with pytest.raises(KeyError, match="accuracy"):
        of_metrics({"num_examples": 2, "loss": 3.0}, {}, has_accuracy=True)


def test_a_round_leaves_time_to_upload(tmp_path):
    """A configured time holds where it is shorter; texts have the client's id."""
    told = {"trainer_config": {"data": "/srv/{client}.npz", "epochs": 2}, "trainer_node": {"partition-id": 7}}
    found = program_of(task(submit_timeout_s=10.0), config(tmp_path, **told), "bob")
    assert found.timeout_s == 8.0
    assert found.config == {"data": "/srv/bob.npz", "epochs": 2}
    assert found.node == {"partition-id": 7, "num-partitions": 2, "client": "bob"}
    assert program_of(task(), config(tmp_path, trainer_timeout_s=3.0), "bob").timeout_s == 3.0
    assert {path.name for path in found.hidden} == {"pki", "state"}


def test_a_place_follows_from_the_task_whatever_the_order_of_the_file(tmp_path):
    """Files that list clients otherwise have one digest: none of them may give two clients the same partition."""
    there = task()
    here = there.model_copy(update={"clients": dict(reversed(there.clients.items()))})
    assert here.digest() == there.digest()
    assert list(here.clients) != list(there.clients)
    programs = program_of(here, config(tmp_path), "alice"), program_of(there, config(tmp_path), "bob")
    assert [program.node["partition-id"] for program in programs] == [0, 1]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"trainer": "no colon"}, "expected module:function, flower:module:app or nvflare:script.py, found 'no colon'"),
        ({"trainer": "nvflare:train-script"}, "expected module:function, flower:module:app or nvflare:script.py"),
        ({"trainer": "flower:app"}, "expected module:function, flower:module:app or nvflare:script.py"),
        ({"trainer": None, "trainer_timeout_s": 1.0}, "trainer_timeout_s is of a trainer"),
        ({"trainer_config": {"a": [1]}}, "trainer_config"),
    ],
)
def test_faults_of_a_configuration_are_named(tmp_path, changes, expected):
    with pytest.raises(ValidationError, match=expected):
        config(tmp_path, **changes)
