"""Limits where updates of others are in the sum: against simulated rounds whose others may do anything beforehand."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom, chi2

from precad.dp.auditing.beside_others import Draws, _reach, arrival, noise_at_most

Array = NDArray[np.float64]
ROUNDS, D, RUNS = 8, 40, 400
MOST_OF_RUNS = int(binom.ppf(1 - 1e-6, RUNS, 0.05))
"""At a level of 5 %, more of 400 runs than these are above with a chance of 10^-6."""


def nothing(last: Array, draws: np.random.Generator) -> Array:
    return np.zeros(D)


def cancels(last: Array, draws: np.random.Generator) -> Array:
    """Others take the noise of the round before out of this one: they see its model."""
    return -last


def anything(last: Array, draws: np.random.Generator) -> Array:
    return draws.normal(0, 3, D) + 2 * last


@pytest.mark.parametrize("others", [nothing, cancels, anything])
def test_the_limit_is_too_small_in_at_most_a_twentieth_of_runs(others: Callable[..., Array]) -> None:
    """Whatever others do with what was released before; and without others it is of the chi-squared law."""
    draws, too_small = np.random.default_rng(1), 0
    for _ in range(RUNS):
        energy, last = 0.0, np.zeros(D)
        for _ in range(ROUNDS):
            noise = draws.normal(0, 1.5, D)
            left = noise + others(last, draws)
            energy, last = energy + float(left @ left), noise
        too_small += noise_at_most(energy, ROUNDS * D, 0.05) < 1.5
    assert too_small <= MOST_OF_RUNS
    if others is nothing:
        assert too_small >= RUNS * 0.05 - 6 * math.sqrt(RUNS * 0.05)
    assert noise_at_most(320.0, 320, 0.05) == pytest.approx(math.sqrt(320 / chi2.isf(0.95, 320)))


def rounds(factor: float, rate: float, draws: np.random.Generator) -> Draws:
    """Ten unlike records in 60 rounds, beside noise of 2 R and others who pull along the records' directions."""
    expected = np.tile(np.linspace(0.4, 1.6, 10), (60, 1))
    weights = (draws.random((60, 10)) < rate) * expected
    left = (factor - 1) * weights + draws.normal(0.7, 2.0, weights.shape)
    return Draws(weights.ravel(), expected.ravel(), left.ravel(), weights.ravel())


def test_few_rare_draws_of_unlike_records_are_accused_no_more_often() -> None:
    """At 2 %. By the normal law it would be one run of twenty: the sum of a few draws has long tails."""
    draws, missed = np.random.default_rng(3), 0
    for _ in range(1000):
        left = draws.normal(size=30) * np.exp(draws.normal(size=30))
        weights = (draws.random(30) < 0.05).astype(np.float64)
        low, high = arrival(Draws(weights, np.ones(30), left, 5 * weights), 0.05, 0.02)
        missed += not low <= 1 <= high
    assert missed <= int(binom.ppf(1 - 1e-4, 1000, 0.02))


def test_the_bound_of_a_sum_is_above_its_exact_quantile_and_near_it() -> None:
    """A binomial number of 200 equal moves is drawn. At both sides the bound is 1.35 to 1.66 of the quantile."""
    for rate in (0.05, 0.5):
        for sign, exact in ((1.0, binom.isf(0.005, 200, rate)), (-1.0, -binom.ppf(0.005, 200, rate))):
            quantile = exact - sign * 200 * rate
            assert quantile <= _reach(np.full(200, sign), rate, 0.005) <= 1.7 * quantile


@pytest.mark.parametrize("rate", [0.05, 0.5])
def test_others_who_stop_pulling_when_it_looks_unlikely_accuse_no_more_often(rate: float) -> None:
    """They know who was drawn, pull the harder from round to round, and stop at the bound: at 5 %, of 200 runs.

    Tilts that are chosen after the fact are exceeded in 16 and 22 %.
    """
    draws, exceeded = np.random.default_rng(4), 0
    for _ in range(200):
        drawn, moves = draws.random(30) < rate, 1.5 ** np.arange(30.0)
        for n in range(4, 30):
            if (drawn[:n] - rate) @ moves[:n] > _reach(moves[:n], rate, 0.05):
                moves[n:] = 0.0
                break
        exceeded += (drawn - rate) @ moves > _reach(moves, rate, 0.05)
    assert exceeded <= int(binom.ppf(1 - 1e-4, 200, 0.05))


@pytest.mark.parametrize("rate", [0.05, 0.5])
def test_uploads_arrive_whole_however_others_pull(rate: float) -> None:
    """The interval misses 1 in at most a twentieth of runs; a plain regression would be moved by the others' 0.7."""
    draws = np.random.default_rng(2)
    found = [arrival(rounds(1.0, rate, draws), rate, 0.05) for _ in range(RUNS)]
    assert sum(not low <= 1 <= high for low, high in found) <= MOST_OF_RUNS
    turned = [arrival(rounds(-2.0, rate, draws), rate, 0.05) for _ in range(50)]
    assert sum(high < 1 for _, high in turned) >= 45


def test_who_was_drawn_is_centred_by_what_each_would_have_added() -> None:
    """Half of each kind of record are drawn, so that others who pull along one kind the harder tell nothing."""
    expected, others = np.array([2.0, 2.0, 0.5, 0.5]), np.array([1.0, 1.0, 3.0, 3.0])
    weights = expected * [1, 0, 1, 0]
    low, high = arrival(Draws(weights, expected, others, weights), 0.5, 0.05)
    assert (low + high) / 2 == pytest.approx(1.0, abs=1e-12)
    assert low < 1 < high


def test_nothing_is_told_without_chance() -> None:
    certain = Draws(np.ones(3), np.ones(3), np.zeros(3), np.ones(3))
    assert arrival(certain, 1.0, 0.05) == (-math.inf, math.inf)
    assert arrival(Draws(*(np.zeros(0) for _ in range(4))), 0.5, 0.05) == (-math.inf, math.inf)


@pytest.mark.parametrize(
    ("energy", "observations", "alpha", "message"),
    [(-1.0, 1, 0.05, "energy"), (1.0, 0, 0.05, "observations"), (1.0, 1, 0.0, "delta")],
)
def test_arguments_are_checked(energy: float, observations: int, alpha: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        noise_at_most(energy, observations, alpha)
