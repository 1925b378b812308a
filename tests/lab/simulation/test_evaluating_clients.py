"""Evaluations by clients in a simulation: a deployment's integers, its figures of privacy, and what has none."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from precad.clients.errors import ArgumentError
from precad.clients.models import networks
from precad.clients.models.learning import Learning
from precad.clients.records import Records, digits
from precad.clients.training.conduct import Honest
from precad.clients.training.held_out import HeldOut
from precad.dp.accountants.pld import View
from precad.dp.ledgers.ledger import Ledger
from precad.dp.task_privacy import budgets_of, task_cost, task_privacy
from precad.lab.simulation import SeededRandomness, Simulation, SimulationSettings
from precad.lab.simulation.evaluations import FIRST_NUMBER, SimulatedEvaluations
from precad.protos.task.evaluation_figures import figures_of
from precad.protos.task.task import Task

SPLIT = digits()
IDS = ("anna", "bert", "cleo")


def part(i: int, n: int = 30) -> Records:
    """Return n records of the training half."""
    return SPLIT.train.take(np.arange(i * n, (i + 1) * n))


RECORDS, HELD = ({client: part(i + at) for i, client in enumerate(IDS)} for at in (0, 3))


def task_of(**changes: Any) -> Task:
    """Return one of four rounds, evaluated after every second."""
    values = {
        "clients": dict.fromkeys(IDS, 30),
        "rounds": 4,
        "client_rate": 0.7,
        "record_rate": 0.5,
        "record_clip": 1.0,
        "client_clip": 50.0,
        "noise_multiplier": 2.0,
        "learning_rate": 1.0,
        "dim": 4810,
        "gate": "native",
        "evaluation": "clients",
        "evaluation_every": 2,
        "evaluation_noise": 3.0,
    }
    return Task.model_validate({**values, **changes})


def simulated(task: Task, held_out: dict[str, Records] | None = None, **settings: Any) -> Simulation:
    """Return the training of seed 5."""
    return Simulation(
        task=task,
        settings=SimulationSettings(**settings),
        records=RECORDS,
        test=SPLIT.test,
        randomness=SeededRandomness(5),
        held_out=HELD if held_out is None else held_out,
    )


def test_an_evaluation_is_the_drawn_clients_sum_with_both_servers_noise() -> None:
    """By hand, from the same seed: who is drawn, what each counts, and the noise of each server."""
    task = task_of()
    of_round, running = task.evaluation_round, simulated(task)
    assert of_round is not None
    done = []
    for metrics in running.run():
        done.append((metrics, running.progress.parameters.copy()))
    assert [bool(metrics.by_clients) for metrics, _ in done] == [False, True, False, True]
    draw = SeededRandomness(5)
    held_out = HeldOut(task=task, records=HELD, conducts=dict.fromkeys(IDS, Honest()), device="cpu")
    for metrics, model in (done[1], done[3]):
        number = FIRST_NUMBER + metrics.round + 1
        total = sum(held_out.evaluate(c, model) for c in draw.chosen(number, IDS, 0.7))
        for server in ("server-0", "server-1"):
            total = total + draw.noise(number, server, of_round.noise_std_on_grid, 3)
        expected = figures_of(task, [int(x) for x in np.asarray(total)]).named()
        assert metrics.by_clients == {
            name: {"value": one.value, "low": one.low, "high": one.high} for name, one in expected.items()
        }
        assert metrics.to_json()["evaluation"] == metrics.by_clients


def test_both_kinds_of_servers_give_the_same_figures() -> None:
    """In the clear, and by the servers' real program; the models are those of a task without evaluations."""
    clear, real = (simulated(task_of(), servers=servers) for servers in ("cleartext", "mpc"))
    assert [one.by_clients for one in clear.run()] == [one.by_clients for one in real.run()]
    plain = simulated(task_of(evaluation="none", evaluation_every=None, evaluation_noise=None))
    list(plain.run())
    assert plain.progress.parameters.tobytes() == clear.progress.parameters.tobytes()


def test_the_guarantee_is_the_ledgers() -> None:
    """Both charged the same rounds, and every client in both evaluations."""
    task = task_of(client_rate=1.0)
    running, privacy = simulated(task), task_privacy(task)
    list(running.run())
    with Ledger(
        None,
        events=privacy.events,
        delta=task.delta,
        budgets=budgets_of(task),
        every_round=privacy.every_round,
        most_rounds=task.most_draws,
        evaluations=privacy.evaluations,
    ) as ledger:
        for number, is_evaluation in enumerate((False, False, True, False, False, True)):
            ledger.charge(number, IDS, is_evaluation=is_evaluation)
        expected = [ledger.statement(view).epsilon for view in View]
    assert [found.epsilon for found in running.guarantees()] == pytest.approx(expected, rel=1e-12)


def test_a_budget_ends_the_training_where_the_ledger_would() -> None:
    """After two rounds and their evaluation: with one more round it would be exceeded."""
    task = task_of(client_rate=1.0)
    budget = task_cost(task).of_view(View.ONE_SERVER, 2, 1)
    running = simulated(task_of(client_rate=1.0, epsilon_budget_one_server=budget))
    done = list(running.run())
    assert [bool(one.by_clients) for one in done] == [False, True]
    tighter = simulated(task_of(client_rate=1.0, epsilon_budget_one_server=budget - 1e-6))
    assert [bool(one.by_clients) for one in tighter.run()] == [False, False]
    without = [task_cost(task).of_view(view, 2, 0) for view in View]
    assert [found.epsilon for found in tighter.guarantees()] == without, "what was refused is not charged"
    assert max(without) < budget


@pytest.mark.slow
def test_a_thousand_evaluations_cover_the_truth_at_the_nominal_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the servers' own sampler and grid; tests/dp/queries/test_evaluations.py has the twin with ideal noise."""
    task, model = task_of(client_rate=1.0, evaluation_noise=8.0), networks.initial_parameters("mlp", seed=2)
    once = HeldOut(task=task, records=HELD, conducts=dict.fromkeys(IDS, Honest()), device="cpu")
    answers = {client: once.evaluate(client, model) for client in IDS}
    monkeypatch.setattr(HeldOut, "evaluate", lambda self, client, parameters: answers[client])
    truth = figures_of(task, [int(x) for x in np.asarray(sum(answers.values()))]).named()
    hits = dict.fromkeys(truth, 0)
    for seed in range(1_000):
        evaluations = SimulatedEvaluations(
            task=task,
            settings=SimulationSettings(),
            records=HELD,
            randomness=SeededRandomness(seed),
            learning=Learning.of_task(task),
            device="cpu",
        )
        for name, found in evaluations.evaluate(2, model).items():
            hits[name] += found["low"] <= truth[name].value <= found["high"]
    for name, n in hits.items():
        assert abs(n - 950) <= 5 * math.sqrt(1_000 * 0.95 * 0.05), name


def test_what_has_no_two_servers_evaluates_nothing() -> None:
    with pytest.raises(ArgumentError, match=r"task\.evaluation: expected 'none' with simulation\.algorithm 'fedavg'"):
        simulated(task_of(), algorithm="fedavg")
    with pytest.raises(ArgumentError, match=r"client\.holdout: expected records that each client holds out"):
        simulated(task_of(), held_out={"anna": part(4)})
