"""Rates of single clients: the divisor that PRECAD has, and figures that hold for whoever draws less.

Failure means that a model is scaled wrongly, or that a client's records are accounted with less than they spend.
"""

from __future__ import annotations

import itertools
import math

import pytest

from precad.dp.accountants.pld import PldAccountant, SampledGaussian, TwoStageSampledGaussian, View
from precad.dp.task_privacy import task_privacy
from precad.protos.task import derived
from tests.harness.harness import small_task

RATES = {"bob": 0.25, "alice": 0.1}
RISING = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.9, 1.0)


def test_the_divisor_counts_each_client_at_its_rate() -> None:
    """Source: PRECAD, equation (2), with the sum over all enrolled clients. Their order is no part of it."""
    clients = {"mallory": 13, "alice": 10, "bob": 11}
    task = small_task(clients, client_rate=0.5, record_rate=0.5, record_rates=RATES)
    assert task.divisor == pytest.approx(0.5 * (0.1 * 10 + 0.25 * 11 + 0.5 * 13), rel=1e-15)
    other = small_task(dict(reversed(clients.items())), client_rate=0.5, record_rate=0.5, record_rates=RATES)
    assert other.divisor == task.divisor
    assert small_task(clients, algorithm="user-dp-fedavg", record_rates=RATES).divisor == 3


def test_the_divisor_is_the_same_under_every_version_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """From 3.12 on, `sum` carries what it rounds away. Servers of both kinds would make two models of one sum."""
    clients = {f"client-{i}": 1 for i in range(10)}
    monkeypatch.setattr(derived, "sum", math.fsum, raising=False)
    task = small_task(clients, client_rate=1.0, record_rate=0.2, record_rates=dict.fromkeys(clients, 0.1))
    assert task.divisor == 0.9999999999999999  # 0.1 and 0.1 and so on, each sum rounded


def test_ledgers_charge_the_largest_rate() -> None:
    assert task_privacy(small_task(record_rates=RATES)) == task_privacy(small_task())


@pytest.mark.parametrize("sigma", [0.6, 1.0, 4.0])
def test_a_smaller_rate_never_costs_more(sigma: float) -> None:
    """By the ledger's accountant, for a record of a client that takes part and of one that may."""
    accountant = PldAccountant()
    own = [accountant.epsilon(SampledGaussian(rate, sigma), 10, 1e-5) for rate in RISING]
    drawn = [accountant.epsilon(TwoStageSampledGaussian(0.5, rate, sigma), 10, 1e-5) for rate in RISING]
    for smaller, larger in (*itertools.pairwise(own), *itertools.pairwise(drawn)):
        assert smaller <= larger


def test_a_client_s_own_figure_is_that_of_its_rate() -> None:
    """Told by `precad check`, to whoever has one."""
    from precad.deploy.configuration.check_records import own_privacy

    task = small_task(rounds=20, noise_multiplier=3.0, record_rates=RATES)
    event = task_privacy(task).events[View.ONE_SERVER]
    assert event is not None
    own = PldAccountant().epsilon(SampledGaussian(0.1, event.noise_multiplier), 20, task.delta)
    assert own < task_privacy(task).epsilon(View.ONE_SERVER, 20, task.delta)
    said = own_privacy(task, "alice")
    assert said.startswith(", at its own rate 0.1: after 20 rounds epsilon <= ")
    assert own <= float(said.split("<= ")[1].split()[0]) <= own * 1.01
    assert own_privacy(task, "mallory") == ""


def test_a_check_says_what_a_server_that_discards_draws_may_learn() -> None:
    """By the accountant itself, over the rounds that may be lost too; and a figure that says nothing is not shown."""
    from precad.deploy.configuration.check_privacy import promised

    made = small_task(rounds=20, noise_multiplier=12.0)
    event = task_privacy(made).events[View.ONE_SERVER]
    assert event is not None
    most = PldAccountant().epsilon(event, made.most_draws, made.delta)
    assert most > task_privacy(made).epsilon(View.ONE_SERVER, 20, made.delta)
    assert 0.1 < most < 1  # of which three digits are one more than a cent
    assert promised(made).endswith(f"; if it may discard draws, in the end <= {math.ceil(1000 * most) / 1000:.3f}")
    useless = promised(small_task(noise_multiplier=0.01))
    assert useless.count("no useful bound") == 2
    assert "<=" not in useless
