"""Figures that a server prints, against the adversary that it names: the true delta is at most the printed one.

Twelve tasks. The adversary plays against the server's own ledger for as many rounds as ledger and task let it. Then it
stops when it likes, by dynamic programming (`tests/dp/accountants/optional_stopping.py`). Failure means a figure that
is not true.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from precad.dp.accountants.pld import Conduct, PrivacyStatement, SampledGaussian, View
from precad.dp.ledgers.ledger import Ledger, Level
from precad.dp.task_privacy import task_privacy
from precad.protos.task.task import Task
from precad.servers.store.folder import open_ledger
from tests.dp.accountants.optional_stopping import true_delta
from tests.harness.harness import small_task

USER = {"algorithm": "user-dp-fedavg", "local_steps": 2, "client_clip": 2.0}
SETTINGS: dict[str, dict[str, Any]] = {
    "every record in every round": {"client_rate": 1.0, "record_rate": 1.0, "noise_multiplier": 10.0, "rounds": 40},
    "much noise": {"client_rate": 1.0, "record_rate": 1.0, "noise_multiplier": 30.0, "rounds": 60},
    "few records": {"client_rate": 1.0, "record_rate": 0.05, "noise_multiplier": 1.0, "rounds": 30},
    "a quarter of the records": {"client_rate": 0.5, "record_rate": 0.25, "noise_multiplier": 1.0, "rounds": 20},
    "few clients": {"client_rate": 0.1, "record_rate": 0.1, "noise_multiplier": 1.0, "rounds": 50},
    "one round, one may be lost": {"client_rate": 0.5, "record_rate": 0.5, "noise_multiplier": 2.0, "lost_rounds": 1},
    "many may be lost": {"client_rate": 0.3, "record_rate": 0.2, "noise_multiplier": 2.0, "lost_rounds": 25},
    "a budget against one server": {"record_rate": 0.2, "rounds": 40, "epsilon_budget_one_server": 2.0},
    "a budget against clients": {"record_rate": 0.2, "rounds": 40, "epsilon_budget_clients_only": 1.0},
    "whole clients": {**USER, "client_rate": 0.3, "noise_multiplier": 4.0, "rounds": 20},
    "whole clients with a budget": {
        **USER,
        "client_rate": 0.3,
        "noise_multiplier": 4.0,
        "rounds": 40,
        "epsilon_budget_client": 2.0,
    },
    "several steps a round": {
        "algorithm": "ins-dp-fedavg",
        "local_steps": 3,
        "client_clip": 2.0,
        "client_rate": 0.5,
        "record_rate": 0.1,
        "noise_multiplier": 2.0,
        "rounds": 10,
    },
}


QUICK = ("every record in every round", "few records", "a budget against one server", "whole clients with a budget")


@pytest.fixture(params=[name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in SETTINGS])
def task(request: pytest.FixtureRequest) -> Task:
    return small_task(**{"client_rate": 0.5, "noise_multiplier": 1.5, "rounds": 5, **SETTINGS[request.param]})


def printed(statement: PrivacyStatement) -> float:
    """The figure as people read it."""
    return float(str(statement).split()[2])


def most(task: Task) -> int:
    return task.most_draws


def test_a_figure_holds_if_draws_are_discarded(task: Task, tmp_path: Path) -> None:
    """Alice is in every round that is charged: the other draws are discarded for nothing. Then the adversary stops when
    it likes. The figure of the rounds that there were would not hold: the oracle sees that it does not."""
    privacy, n = task_privacy(task), 0
    with open_ledger(tmp_path, task) as ledger:
        before = {view: ledger.statement(view, conduct=Conduct.MAY_DISCARD) for view in View}
        while n < most(task) and not ledger.would_exceed(["alice"], n):
            ledger.charge(n, ["alice"])
            n += 1
        assert {view: ledger.statement(view, conduct=Conduct.MAY_DISCARD) for view in View} == before
        realised = [ledger.statement(view) for view in View]
    steps = n * privacy.steps_per_round
    for view, watched in zip(View, realised, strict=True):
        event = _event(privacy.events[view])
        assert true_delta(event, [printed(before[view])] * (steps + 1), may_stop=True) <= task.delta
        assert watched.epsilon <= before[view].epsilon


def test_the_oracle_refuses_figures_of_realised_rounds(tmp_path: Path) -> None:
    """Quote the adversary what its task cost when it stopped."""
    task = small_task(client_rate=1.0, record_rate=1.0, noise_multiplier=10.0, rounds=40)
    prices = [0.0]
    with open_ledger(tmp_path, task) as ledger:
        for n in range(most(task)):
            ledger.charge(n, ["alice"])
            prices.append(printed(ledger.statement(View.ONE_SERVER)))
    event = _event(task_privacy(task).events[View.ONE_SERVER])
    assert true_delta(event, prices, may_stop=True) > 3 * task.delta


def test_a_figure_of_realised_rounds_holds_if_none_is_discarded(task: Task, tmp_path: Path) -> None:
    """Alice is in a number of rounds that no release decided: no stopping."""
    privacy, n = task_privacy(task), math.ceil(task.client_rate * task.rounds)
    with open_ledger(tmp_path, task) as ledger:
        while len(ledger.rounds) < n and not ledger.would_exceed(["alice"]):
            ledger.charge(len(ledger.rounds), ["alice"])
        for view in View:
            figure, steps = printed(ledger.statement(view)), len(ledger.rounds) * privacy.steps_per_round
            assert true_delta(_event(privacy.events[view]), [figure] * (steps + 1), may_stop=False) <= task.delta


def test_levels_hold_if_visible_draws_are_discarded(task: Task, tmp_path: Path) -> None:
    """The adversary sees every draw, discards those that it dislikes before they are charged, and stops when it likes.

    A budget of a level counts the discarded draws.
    """
    with open_ledger(tmp_path, task) as ledger:
        n = _draws(ledger, most(task))
        for level, event in task_privacy(task).every_round.items():
            figure = printed(ledger.task_statement(level, Conduct.MAY_DISCARD))
            assert true_delta(event, [figure] * (n + 1), may_stop=True) <= task.delta
            if level is Level.CLIENT and task.epsilon_budget_client is not None:
                assert n < most(task)
                assert figure <= task.epsilon_budget_client


def _draws(ledger: Ledger, at_most: int) -> int:
    """How many an adversary gets that lets none be charged."""
    return next((n for n in range(at_most) if ledger.would_exceed([], n)), at_most)


def _event(event: SampledGaussian | None) -> SampledGaussian:
    assert event is not None
    return event
