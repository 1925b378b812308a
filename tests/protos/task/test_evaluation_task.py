"""A task whose clients evaluate its model: what it must fulfil, when an evaluation is due, and the round's own task."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from precad.dp.accountants.pld import View
from precad.dp.accountants.task_cost import Level, evaluation_fields, evaluations_of
from precad.dp.task_privacy import task_cost, task_privacy
from precad.protos.task.evaluation import has_accuracy, is_due
from precad.protos.task.task import Task
from tests.harness.harness import small_task

CLIENTS: dict[str, Any] = {"evaluation": "clients", "evaluation_every": 3, "evaluation_noise": 5.0, "rounds": 10}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"evaluation_every": None}, "evaluation_every: expected a number with evaluation = 'clients', found none"),
        ({"evaluation_noise": None}, "evaluation_noise: expected a number"),
        ({"evaluation_every": 11}, "evaluation_every: expected at most 10 rounds, found 11"),
        ({"evaluation": "public"}, "evaluation_every needs evaluation = 'clients', found 'public'"),
        ({"evaluation": "none", "evaluation_every": None, "evaluation_noise": None, "evaluation_clip": 3.0}, "needs"),
        ({"algorithm": "local-dp"}, "evaluation: expected an algorithm whose servers add noise"),
        ({"evaluation_noise": 1e-9}, "evaluation_clip, evaluation_noise: noise"),
        ({"evaluation_clip": 1e9}, "evaluation_clip, evaluation_noise: "),
        ({"evaluation_loss_bound": 0.0}, "greater than 0"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        small_task(**{**CLIENTS, **fields})


@pytest.mark.parametrize("mode", ["masked", "shares", "proved"])
def test_the_round_has_its_own_bound_and_noise(mode: str) -> None:
    """And the training's clients, rates and mode."""
    task = small_task(**CLIENTS, mode=mode, evaluation_clip=7.0, client_rate=0.5)
    one = task.evaluation_round
    assert one is not None
    assert (one.client_clip, one.noise_multiplier, one.record_clip, one.dim) == (7.0, 5.0, 1.0, 3)
    assert (one.clients, one.client_rate, one.mode, one.record_rate) == (task.clients, 0.5, mode, 1.0)
    assert one.evaluation_round is None


def test_the_most_declared_records_count_where_no_bound_is_named() -> None:
    task = small_task({"alice": 10, "bob": 25}, **CLIENTS)
    assert task.evaluation_round is not None
    assert task.evaluation_round.client_clip == 25.0


def test_no_other_task_has_an_evaluation_rounds_digest() -> None:
    """Two trainings that differ anywhere have different ones, and its text is no training's."""
    tasks = [small_task(**CLIENTS), small_task(**CLIENTS, learning_rate=0.5), small_task(**CLIENTS, model_seed=3)]
    rounds = [task.evaluation_round for task in tasks]
    digests = {one.digest() for one in (*tasks, *rounds) if one is not None}
    assert len(digests) == 6
    assert rounds[0] is not None
    with pytest.raises(ValidationError, match="Extra inputs"):
        Task.model_validate(json.loads(rounds[0].canonical()))


def test_an_evaluation_is_due_after_every_k_rounds() -> None:
    assert [n for n in range(11) if is_due(3, n)] == [3, 6, 9]
    assert small_task(**CLIENTS).most_evaluations == 3
    assert not any(is_due(None, n) for n in range(11))


@pytest.mark.parametrize(("loss", "expected"), [("cross-entropy", True), ("multi-label", True), ("mse", False)])
def test_targets_that_are_numbers_have_no_accuracy(loss: str, *, expected: bool) -> None:
    assert has_accuracy(loss) is expected


def test_a_target_covers_the_evaluations() -> None:
    """By a second composition: dp_accounting's accountant, on a grid of its own."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
    from dp_accounting.pld import PLDAccountant

    fields = small_task(**CLIENTS, record_rate=0.2).model_dump(exclude_none=True) | {"target_epsilon": 3.0}
    del fields["noise_multiplier"]
    task = Task.model_validate(fields)
    privacy = task_privacy(task)
    training, evaluations = privacy.events[View.ONE_SERVER], privacy.evaluations
    assert training is not None
    assert evaluations is not None
    library = PLDAccountant(value_discretization_interval=2e-4)
    library.compose(
        SelfComposedDpEvent(PoissonSampledDpEvent(0.2, GaussianDpEvent(training.noise_multiplier)), task.rounds)
    )
    one = evaluations.events[View.ONE_SERVER]
    library.compose(SelfComposedDpEvent(GaussianDpEvent(one.noise_multiplier), task.most_evaluations))
    assert library.get_epsilon(task.delta) == pytest.approx(3.0, rel=1e-2)
    alone = {name: value for name, value in fields.items() if not name.startswith("evaluation")}
    assert task.noise_multiplier > Task.model_validate(alone).noise_multiplier


def test_a_target_below_what_evaluations_cost_is_refused() -> None:
    fields = small_task(**CLIENTS).model_dump(exclude_none=True) | {"target_epsilon": 0.1, "evaluation_noise": 0.5}
    del fields["noise_multiplier"]
    with pytest.raises(ValidationError, match=r"target_epsilon: expected more than \d+\.?\d*, what 3 evaluations cost"):
        Task.model_validate(fields)


def test_the_whole_client_is_the_unit_where_clients_are_protected() -> None:
    """In closed form: its sum moves by C = 12 records, the most that one declares, under noise of 5."""
    evaluations = task_privacy(small_task(**CLIENTS, algorithm="user-dp-fedavg")).evaluations
    assert evaluations is not None
    assert evaluations.events[View.ONE_SERVER].noise_multiplier == pytest.approx(5 / 12)
    assert evaluations.events[View.CLIENTS_ONLY].noise_multiplier == pytest.approx(2**0.5 * 5 / 12)


def test_a_hidden_draw_counts_evaluations_too() -> None:
    """In mode `proved` with a period of rounds, which an evaluation keeps as well; the header is read back."""
    hidden = {"mode": "proved", "submit_timeout_s": 2.0, "proof_timeout_s": 1.0, "round_period_s": 4.0}
    task = small_task(**CLIENTS, **hidden, client_rate=0.3, delta=1e-3, client_clip=3.0, noise_multiplier=9.0)
    assert task.evaluation_round is not None
    assert task.evaluation_round.hides_draws
    privacy, cost = task_privacy(task), task_cost(task)
    assert privacy.evaluations is not None
    assert privacy.evaluations.levels.keys() == privacy.every_round.keys() >= {Level.HIDDEN_CLIENT}
    for level in privacy.every_round:
        assert cost.of_level(level, 10, 3) > cost.of_level(level, 10)
    assert cost.of_level(Level.HIDDEN_CLIENT, 10, 3) <= cost.of_level(Level.CLIENT, 10, 3)
    header = json.loads(json.dumps({"evaluations": evaluation_fields(privacy.evaluations)}))
    assert evaluations_of(header) == privacy.evaluations
