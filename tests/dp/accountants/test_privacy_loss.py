"""Our own loss distribution beside sums that are written out: of few losses, of two far apart, and of two laws."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
from scipy.stats import binom

from precad.dp.accountants.privacy_loss import DeltaCurve, LossDistribution

EPSILONS = (-1.0, 0.0, 0.05, 0.31, 1.0, 2.4)


def hockey_stick(losses: np.ndarray, mass: np.ndarray, infinite: float, epsilon: float) -> float:
    """By its definition, E[(1 - e^(epsilon - L))+] and what is infinite."""
    return infinite + float((mass * np.maximum(0.0, 1 - np.exp(epsilon - losses))).sum())


@pytest.mark.parametrize("rounds", [1, 2, 3, 7])
@pytest.mark.parametrize("lowest", [-4, 0, 2])
def test_rounds_of_few_losses_are_convolved(rounds: int, lowest: int) -> None:
    """Most of the mass is at the ends, as no Gaussian has it, and a part of it is infinite."""
    mass, step, infinite = np.array([0.3, 0.05, 0.0, 0.1, 0.02, 0.48]), 0.25, 0.05
    found = LossDistribution(step, lowest, mass, infinite).composed(rounds)
    together = functools.reduce(np.convolve, [mass] * rounds)
    losses = step * (rounds * lowest + np.arange(len(together)))
    for epsilon in EPSILONS:
        exact = hockey_stick(losses, together, 1 - (1 - infinite) ** rounds, epsilon)
        assert exact - 1e-15 <= found.delta(epsilon) <= exact + 1e-12 * rounds


@pytest.mark.parametrize(("rounds", "p"), [(700, 0.5), (3000, 0.02), (1000, 0.999)])
def test_a_long_grid_is_cut_where_next_to_nothing_is_left(rounds: int, p: float) -> None:
    """Two losses a thousand steps apart: a binomial law, on a grid of up to three million points before the cut."""
    mass, step = np.zeros(1001), 1e-4
    mass[[0, -1]] = 1 - p, p
    found = LossDistribution(step, -500, mass, 0.0).composed(rounds)
    losses = step * (1000 * np.arange(rounds + 1) - 500 * rounds)
    law = binom.pmf(np.arange(rounds + 1), rounds, p)
    assert len(found.mass) < 0.6 * 1000 * rounds
    mean = float(law @ losses)
    for epsilon in (mean - 1.0, mean, mean + 1.0, mean + 3.0):
        exact = hockey_stick(losses, law, 0.0, epsilon)
        assert exact - 1e-13 <= found.delta(epsilon) <= exact + 1e-9


@pytest.mark.parametrize("lowest", [-7, -3, 0, 4])
def test_a_round_that_is_seen_to_take_place_or_not(lowest: int) -> None:
    """A loss that is above zero, below it, or both; with the rest of the probability it is zero."""
    mass, step, infinite = np.array([0.2, 0.3, 0.1, 0.3]), 0.25, 0.1
    found = LossDistribution(step, lowest, mass, infinite).mixed(0.4)
    losses = step * (lowest + np.arange(4))
    for epsilon in EPSILONS:
        exact = 0.4 * hockey_stick(losses, mass, infinite, epsilon) + 0.6 * max(0.0, 1 - math.exp(epsilon))
        assert found.delta(epsilon) == pytest.approx(exact, abs=1e-15)


@pytest.mark.parametrize("lowest", [-9, -2, 0, 3])
def test_the_curve_and_its_inverse_are_those_of_the_definition(lowest: int) -> None:
    """At points of the grid and between them; epsilon is 0 from the delta on that 0 has, infinite below the rest."""
    mass, step, infinite = np.array([0.1, 0.25, 0.2, 0.15, 0.2, 0.05]), 0.5, 0.05
    loss = LossDistribution(step, lowest, mass, infinite)
    losses, curve = step * (lowest + np.arange(6)), loss.curve()
    assert curve.epsilons[0] == 0
    assert len(curve.epsilons) == 1 + int((losses > 0).sum())
    for epsilon, delta in zip(curve.epsilons, curve.deltas, strict=True):
        assert delta == pytest.approx(hockey_stick(losses, mass, infinite, epsilon), abs=1e-15)
    highest = max(float(losses[-1]), 0.0)
    for epsilon in np.linspace(0.01, 0.99, 17) * highest:
        delta = hockey_stick(losses, mass, infinite, epsilon)
        assert loss.epsilon(delta) == pytest.approx(epsilon, abs=1e-9)
    assert loss.epsilon(min(hockey_stick(losses, mass, infinite, 0.0) + 1e-9, 0.999)) == 0
    assert loss.epsilon(infinite - 1e-9) == math.inf


def test_two_laws_of_three_values_cost_no_less_on_the_grid() -> None:
    """Masses between two grid points go to both. All of P and Q is kept, so delta at a grid point is exact."""
    p, q = np.array([0.2, 0.35, 0.45]), np.array([0.5, 0.3, 0.2])
    exact, step = np.log(p / q), 0.25
    lowest = math.floor(exact.min() / step)
    places = np.floor(exact / step).astype(int) - lowest
    of_p, of_q = (np.bincount(places, law, 12) for law in (p, q))
    found = LossDistribution.connect_dots(step, lowest, of_p, of_q, 0.0)
    assert found.mass.sum() + found.infinite == pytest.approx(1.0, abs=1e-15)
    for i in range(-8, 12):
        assert found.delta(step * i) == pytest.approx(hockey_stick(exact, p, 0.0, step * i), abs=1e-15)
        assert found.delta(step * (i + 0.5)) >= hockey_stick(exact, p, 0.0, step * (i + 0.5)) - 1e-15
    cut = LossDistribution.connect_dots(step, lowest + 2, of_p[2:], of_q[2:], float(of_p[:2].sum()))
    for epsilon in (-2.0, -0.3, 0.1, 0.6):
        assert cut.delta(epsilon) >= hockey_stick(exact, p, 0.0, epsilon) - 1e-15
    short = LossDistribution.connect_dots(
        step, lowest, *(np.append(law[:4], law[4:].sum()) for law in (of_p, of_q)), 0.0
    )
    assert short.mass.sum() + short.infinite == pytest.approx(1.0, abs=1e-15)
    for i in range(-8, lowest + 5):  # as far as the grid reaches nothing is lost
        assert short.delta(step * i) == pytest.approx(hockey_stick(exact, p, 0.0, step * i), abs=1e-15)


@pytest.mark.parametrize(("n", "most"), [(10, 20), (100, 7), (101, 10), (4097, 4096)])
def test_a_thinned_curve_has_points_of_the_whole_and_both_ends(n: int, most: int) -> None:
    curve = DeltaCurve(np.arange(n) / 7, np.exp(-np.arange(n) / 50))
    thinned = curve.thinned(most)
    assert len(thinned.epsilons) <= most + 1
    assert (thinned.epsilons[0], thinned.epsilons[-1]) == (curve.epsilons[0], curve.epsilons[-1])
    assert set(zip(thinned.epsilons, thinned.deltas, strict=True)) <= set(
        zip(curve.epsilons, curve.deltas, strict=True)
    )
