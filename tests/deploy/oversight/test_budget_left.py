"""Quality, rounds left and time left, as `precad status` and `precad watch` show them."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from rich.console import Console

import precad.deploy
from precad.deploy.configuration.check import check_file
from precad.deploy.errors import ConfigError
from precad.deploy.oversight.status_shown import show_rounds, status_table
from precad.dp.accountants.pld import View
from precad.dp.accountants.task_cost import Charged
from precad.servers.telemetry.status import RoundSummary, Status, epsilons_of, rounds_left_in_budget, seconds_left
from tests.harness.harness import asynchronous, small_task

ALERTS = yaml.safe_load((Path(precad.deploy.__file__).parent / "hosts" / "grafana" / "alerts.yml").read_text())
SPENT = dict.fromkeys(View, 0.5)


def a_round(number: int, *, at: float | None = None, **quality: float) -> RoundSummary:
    return RoundSummary(
        round=number, n_chosen=3, n_accepted=3, n_rejected=0, n_missing=0, bytes={}, epsilon=SPENT, model_digest="00",
        seconds=dict.fromkeys(("collect", "lock", "validate"), 0.1), committed_at=at, quality=quality,
    )  # fmt: skip


def a_status(*rounds: RoundSummary, **changes: Any) -> Status:
    common: dict[str, Any] = {"role": "aggregator-a", "version": "0", "since": 0.0, "started_at": 0.0, "state": "x"}
    common |= {"is_ready": True, "rounds_planned": 9, "rounds_done": len(rounds), "rounds": rounds}
    return Status(**{**common, **changes})


def shown(status: Status) -> str:
    screen = io.StringIO()
    Console(file=screen, width=200).print(status_table({"a": status}))
    return screen.getvalue()


@asynchronous
async def test_watch_shows_a_figure_that_comes_after_its_round() -> None:
    """Into a pipe, each round once without it, and then the figure by itself, once."""

    async def statuses() -> AsyncIterator[Status]:
        yield a_status(a_round(0))
        yield a_status(a_round(0, accuracy=0.25), a_round(1))
        yield a_status(a_round(0, accuracy=0.25), a_round(1, accuracy=0.5), a_round(2, accuracy=0.75))
        yield a_status(a_round(0, accuracy=0.25), a_round(1, accuracy=0.5), a_round(2, accuracy=0.75))

    screen = io.StringIO()
    await show_rounds(statuses(), Console(file=screen, width=200), title="")
    lines = [line for line in screen.getvalue().splitlines() if line.startswith("round ")]

    assert [line.split("  accuracy ")[1].split()[0] for line in lines] == ["-", "-", "0.250", "0.750", "0.500"]
    assert lines[2] == "round 0  accuracy 0.250"
    assert lines[4] == "round 1  accuracy 0.500"


def test_the_table_says_the_latest_figures_and_why_there_is_none() -> None:
    found = shown(a_status(a_round(0, accuracy=0.25, mse=1.5), a_round(1), measuring_fault="timed_out"))
    assert "accuracy 0.25, mse 1.5 (round 0)" in found
    assert "the latest model: timed out" in found
    assert "quality" not in shown(a_status(a_round(0)))


def test_the_table_says_what_is_left() -> None:
    found = shown(a_status(a_round(0), rounds_left_in_budget=7, seconds_left=600.0))
    assert "for 7 more rounds at least" in found
    assert "10 minutes" in found
    assert "budget" not in shown(a_status(a_round(0)))


def test_rounds_left_are_the_smallest_over_budgets() -> None:
    """None without a budget."""
    both = {"epsilon_budget_one_server": 3.0, "epsilon_budget_clients_only": 1.0}
    task = small_task(rounds=40, record_rate=0.1, **both)
    epsilons = epsilons_of(task, SPENT, Charged(2, 2, 2))
    each = [one.rounds_left for one in epsilons]

    assert None not in each
    assert len(set(each)) == 2
    assert rounds_left_in_budget(epsilons) == min(each)  # type: ignore[type-var] # none is None
    assert rounds_left_in_budget(epsilons_of(small_task(), SPENT)) is None


def test_an_alert_comes_before_a_budget_that_the_last_round_passes_in_one_step() -> None:
    """Mode `proved` takes from delta: six rounds cost 1.4 of 60 here, and a seventh more than any budget."""
    budget: dict[str, Any] = {"epsilon_budget_one_server": 60.0, "mode": "proved", "delta": 3.33e-10}
    task = small_task(rounds=20, record_rate=0.1, noise_multiplier=2.0, **budget)
    rule = next(rule for rule in ALERTS["groups"][0]["rules"] if rule["alert"] == "PrecadBudgetNearlySpent")
    comparison = rule["expr"].partition("and on")[0]
    fires = []
    for n in range(7):
        epsilons = epsilons_of(task, dict.fromkeys(View, 0.0), Charged(n, n, n))
        (one,) = (one for one in epsilons if one.budget is not None)
        names = ("spent", "budget", "left", "rounds_left", "rounds_counted")
        metrics = {f"precad_epsilon_{name}": getattr(one, name) for name in names}
        fires.append(eval(comparison.strip(), {}, metrics))  # Prometheus' arithmetic is Python's here
    assert fires == [False] * 5 + [True] * 2
    assert one.spent < 2.0


@pytest.mark.parametrize(
    ("budget", "rate", "expected"),
    [
        ({}, 1.0, 10.0 * 37),  # without a budget: all rounds that are planned
        ({"epsilon_budget_one_server": 1.0}, 1.0, None),  # as many as the budget allows
        ({"epsilon_budget_one_server": 1.0}, 0.5, None),  # about twice as many, of which a client is in half
    ],
)
def test_time_left_is_of_the_rounds_that_are_still_to_come(
    budget: dict[str, float], rate: float, expected: float | None
) -> None:
    task = small_task(rounds=40, record_rate=0.1, client_rate=rate, noise_multiplier=2.0, **budget)
    rounds = [a_round(i, at=100.0 + 10.0 * i) for i in range(3)]
    epsilons = epsilons_of(task, SPENT, Charged(3, 3, 3))
    allowed = rounds_left_in_budget(epsilons)
    if expected is None:
        assert allowed is not None
        expected = 10.0 * min(37, allowed / rate)
        assert 0.0 < expected < 370.0

    assert seconds_left(task, rounds, 3, epsilons) == pytest.approx(expected)
    assert seconds_left(task, rounds[:1], 1, epsilons) is None
    assert seconds_left(task, rounds, task.rounds, epsilons) is None


LOCAL = """
[task]
clients = ["alice", "bob"]
rounds = 2
client_rate = 1.0
record_rate = 0.5
record_clip = 1.0
client_clip = 16.0
noise_multiplier = 4.0
learning_rate = 1.0
gate = "native"
evaluation = {evaluation}
[aggregator.b]
evaluation_records = "npz:public.npz"
"""


def test_check_reads_the_public_records(tmp_path: Path) -> None:
    """And refuses them by their field, where the task or the model has no use for them."""
    config = tmp_path / "local.toml"
    config.write_text(LOCAL.format(evaluation='"public"'))
    with pytest.raises(ConfigError, match=r"evaluation_records: expected a file or folder public\.npz"):
        check_file(config)
    for side, fault in ((8, None), (9, "evaluation|record")):
        np.savez(tmp_path / "public.npz", x=np.zeros((5, 1, side, side), np.float32), labels=np.arange(5))
        if fault is None:
            found = check_file(config)["aggregator_b_measures_on"]
            assert found == "5 public records of shape (1, 8, 8): accuracy"
        else:
            with pytest.raises(ConfigError):
                check_file(config)


def test_records_without_a_task_that_knows_of_them_are_refused(tmp_path: Path) -> None:
    config = tmp_path / "local.toml"
    config.write_text(LOCAL.format(evaluation=json.dumps("none")))
    with pytest.raises(ConfigError, match=r"aggregator\.b\.evaluation_records: expected task\.evaluation = 'public'"):
        check_file(config)
