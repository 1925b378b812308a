"""Realised participation is no filter: whoever may discard draws or end a task beats "(epsilon(N), delta)".

The adversary is computed exactly (`optional_stopping`), and once more played out by Monte Carlo. Failure of the first
tests would mean that the oracle has no power, so that what it lets pass elsewhere proves nothing.
"""

import math

import numpy as np
import pytest

from precad.dp.accountants.gaussian_dp import eps_from_mu
from precad.dp.accountants.pld import PldAccountant, SampledGaussian, TwoStageSampledGaussian, View
from precad.dp.accountants.task_cost import TaskCost
from precad.dp.ledgers.ledger import Level
from tests.dp.accountants.optional_stopping import Game, true_delta

DELTA = 1e-5


def odometer(event, rounds):
    """epsilon(0), epsilon(1), ...: the figure of the rounds that there were."""
    return [PldAccountant().epsilon(event, n, DELTA) for n in range(rounds + 1)]


@pytest.mark.parametrize(
    ("p", "sigma", "rounds", "expected"),
    [
        (1.0, 10.0, 50, 9.2e-5),
        (1.0, 10.0, 100, 1.13e-4),
        pytest.param(1.0, 10.0, 500, 1.68e-4, marks=pytest.mark.slow),
        pytest.param(1.0, 30.0, 500, 1.45e-4, marks=pytest.mark.slow),
    ],
)
def test_stopping_breaks_the_figure_of_realised_rounds(p, sigma, rounds, expected):
    """The numbers were computed elsewhere, by another programme, and are given to three digits."""
    event = SampledGaussian(p, sigma)
    found = true_delta(event, odometer(event, rounds), may_stop=True, points=8 * rounds + 1600)
    assert found == pytest.approx(expected, rel=6e-3)


@pytest.mark.parametrize(
    ("p", "rounds", "expected"),
    [
        (0.05, 10, 3.255e-5),
        pytest.param(0.05, 50, 6.085e-5, marks=pytest.mark.slow),
        pytest.param(0.25, 50, 9.780e-5, marks=pytest.mark.slow),
    ],
)
def test_stopping_breaks_it_with_sampling_as_well(p, rounds, expected):
    """Within a thousandth of what grids up to 32 times as fine give; Monte Carlo agrees, below."""
    event = SampledGaussian(p, 1.0)
    found = true_delta(event, odometer(event, rounds), may_stop=True)
    assert found == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("sigma", [3.0, 10.0])
def test_without_stopping_the_oracle_is_the_closed_form(sigma):
    """Forty rounds at p = 1 are sqrt(40)/sigma-GDP, whose epsilon at delta is exact."""
    price = eps_from_mu(DELTA, math.sqrt(40) / sigma)
    found = true_delta(SampledGaussian(1.0, sigma), [price] * 41, may_stop=False)
    assert found == pytest.approx(DELTA, rel=2e-3)


@pytest.mark.slow
def test_the_adversary_played_out_gets_what_the_oracle_says():
    """p = .05, sigma = 1, 50 rounds: 2,000,000 trainings that end where the oracle says; five standard errors."""
    event = SampledGaussian(0.05, 1.0)
    prices, n_runs, rng = odometer(event, 50), 2_000_000, np.random.default_rng(7)
    game = Game(event, prices, is_added=True)
    values, grid = game.values(may_stop=True), game.grid()
    loss, gain, running = np.zeros(n_runs), np.zeros(n_runs), np.ones(n_runs, dtype=bool)
    for n in range(1, 51):
        release = rng.normal(size=n_runs) + (rng.random(n_runs) < event.sampling_rate)
        loss += np.log1p(event.sampling_rate * np.expm1(release - 0.5))
        stops = running & (np.interp(loss, grid, game.claim(n) - values[n]) >= -1e-12)
        stops &= loss > prices[n]
        gain[stops] = -np.expm1(prices[n] - loss[stops])
        running &= ~stops
    error = gain.std() / math.sqrt(n_runs)
    assert abs(gain.mean() - values[0][game.points]) < 5 * error
    assert gain.mean() - 5 * error > 4 * DELTA


def test_a_fixed_number_of_rounds_holds_for_every_stopping_rule():
    """The figure that is quoted instead: with the same oracle, the same adversary gets no more than delta."""
    event = SampledGaussian(0.05, 1.0)
    price = PldAccountant().epsilon(event, 50, DELTA)
    assert true_delta(event, [price] * 51, may_stop=True) <= DELTA * (1 + 1e-3)  # the oracle's grid
    assert true_delta(event, [price * 0.99] * 51, may_stop=True) > DELTA * (1 + 1e-3)  # and not much less would do


EVENTS = {View.ONE_SERVER: SampledGaussian(1.0, 5.0), View.CLIENTS_ONLY: SampledGaussian(1.0, 7.0)}
LEVELS = {Level.CLIENT: TwoStageSampledGaussian(0.25, 1.0, 4.0)}


def cost(**changes):
    return TaskCost(**({"events": EVENTS, "delta": DELTA, "every_round": LEVELS, "most_rounds": 30} | changes))


def test_the_most_rounds_are_the_least_that_anything_allows():
    """T and what may be lost; less by a budget, in the view that has it and in the other; a level's limits both."""
    epsilon = PldAccountant().epsilon
    assert (cost().most_draws, cost().most_of_a_client) == (30, 30)
    of_server = cost(budgets={View.ONE_SERVER: epsilon(EVENTS[View.ONE_SERVER], 12, DELTA)})
    assert (of_server.most_draws, of_server.most_of_a_client) == (30, 12)
    assert of_server.view_if_discarded(View.CLIENTS_ONLY) == epsilon(EVENTS[View.CLIENTS_ONLY], 12, DELTA)
    of_client = cost(budgets={Level.CLIENT: epsilon(LEVELS[Level.CLIENT], 7, DELTA)})
    assert (of_client.most_draws, of_client.most_of_a_client) == (7, 7)
    assert of_client.level_if_discarded(Level.CLIENT) == epsilon(LEVELS[Level.CLIENT], 7, DELTA)
    wide = cost(budgets={View.ONE_SERVER: 1e9, Level.CLIENT: 1e9})
    assert (wide.most_draws, wide.most_of_a_client) == (30, 30)


def test_nothing_is_proved_where_nothing_limits_the_rounds():
    """And a budget alone is a limit."""
    unlimited = cost(most_rounds=None)
    assert unlimited.view_if_discarded(View.ONE_SERVER) == math.inf
    assert unlimited.level_if_discarded(Level.CLIENT) == math.inf
    epsilon = PldAccountant().epsilon(EVENTS[View.ONE_SERVER], 12, DELTA)
    assert cost(most_rounds=None, budgets={View.ONE_SERVER: epsilon}).view_if_discarded(View.ONE_SERVER) == epsilon


def test_more_rounds_than_there_can_be_are_counted_all_the_same():
    """A ledger of before, or a server's fault: the figure is never below that of the rounds that there were."""
    epsilon = PldAccountant().epsilon
    assert cost().view_if_discarded(View.ONE_SERVER, 40) == epsilon(EVENTS[View.ONE_SERVER], 40, DELTA)
    assert cost().level_if_discarded(Level.CLIENT, 40) == epsilon(LEVELS[Level.CLIENT], 40, DELTA)
