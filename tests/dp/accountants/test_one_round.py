"""One round's loss on its grid: rates so small that a library's rounding errors would be all that there is."""

import math

import numpy as np
import pytest

from precad.dp.accountants.composed import composed_epsilon
from precad.dp.accountants.gaussian_dp import eps_from_mu
from precad.dp.accountants.one_round import MOST_POINTS, grid_step, largest_loss, loss_of
from precad.dp.accountants.pld import PldAccountant, SampledGaussian

SLOW = pytest.mark.slow
"""A quick row is of the same kind: of as many rounds, or of a grid as long, by the same loss distribution."""
SMALL_RATES = [
    *((1e-4, 1.0), pytest.param(1e-5, 0.7, marks=SLOW), (1e-6, 1.0), (1e-6, 0.4)),
    *((1e-7, 0.15), (1e-7, 2.0)),
]


@pytest.mark.parametrize(("rate", "sigma"), [*SMALL_RATES, (1e-3, 0.7), (0.05, 1.0), (0.5, 0.3)])
def test_masses_sum_to_one_on_a_grid_that_memory_holds(rate: float, sigma: float) -> None:
    """In either direction, but for an excess that a thousand rounds do not make a part in a thousand.

    Nearly nothing is lost beyond the loss that the grid's length is taken from.
    """
    event = SampledGaussian(rate, sigma)
    loss = loss_of(event, 1.0, grid_step(event))
    for part in (loss._pmf_remove, loss._pmf_add):
        masses = np.asarray(part._probs)
        assert len(masses) <= 2.1 * MOST_POINTS
        assert masses.sum() + part._infinity_mass == pytest.approx(1.0, abs=1e-6)
    assert loss.get_delta_for_epsilon(largest_loss(event)) < 1e-14


@pytest.mark.parametrize(
    ("rate", "rounds", "delta"), [(1e-5, 10**6, 1e-6), pytest.param(3e-6, 10**6, 1e-5, marks=SLOW), (1e-4, 10**5, 1e-7)]
)
def test_so_many_rounds_cost_what_the_central_limit_says(rate: float, rounds: int, delta: float) -> None:
    """mu = p sqrt(T (e^{1/sigma^2} - 1)), the limit, is close by: the losses of a round have skewness below 7."""
    mu = rate * math.sqrt(rounds * math.expm1(1.0))
    found = PldAccountant().epsilon(SampledGaussian(rate, 1.0), rounds, delta)
    assert found == pytest.approx(eps_from_mu(delta, mu), rel=0.03)


def test_a_task_of_small_rates_beside_one_of_little_noise() -> None:
    """The one asks for a fine grid, the other for a long one. Both together cost at least the other alone."""
    small, loud = (SampledGaussian(1e-6, 1.0), 10**4), (SampledGaussian(0.5, 0.2), 3)
    together, alone = composed_epsilon([small, loud], 1e-5), composed_epsilon([loud], 1e-5)
    assert alone <= together <= alone + 0.02
