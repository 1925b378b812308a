"""Put the privacy loss of one round on a grid, as dp_accounting's distributions are.

The library takes the mass between two grid points from a difference of deltas. A step far below the losses leaves
rounding errors of float64 in each. Negative ones are dropped, so that the masses sum to more than one, and a million
rounds to nothing that means anything. Our own loss distribution only divides the mass of each interval, and takes such
rounds over.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Protocol

from precad.dp.accountants.precad_client import participation_quantile

if TYPE_CHECKING:
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution

    from precad.dp.accountants.group_mixture import Direction

MOST_POINTS: Final = 1 << 20
"""Points of a grid, about: a longer one takes gigabytes to compose."""
_N_SIGMAS: Final = 10.0
"""Beyond them lies less than e^-50 of a Gaussian of mass one: there the library cuts off."""
_CUT: Final = 1e-18
"""Chance of drawing more of a group, which counts as infinite loss."""
_MOST_EXCESS: Final = 1e-6
"""Mass beyond one that the library's rounding may add to a round."""


class Sampled(Protocol):
    """Hold what a round is for some records of a client that takes part, as a `SampledGaussian` does."""

    @property
    def sampling_rate(self) -> float:
        """Return the probability with which each of the records enters."""
        ...

    @property
    def noise_multiplier(self) -> float:
        """Return the noise over what one record can change."""
        ...

    @property
    def group_size(self) -> int:
        """Return how many records are added or removed together."""
        ...


def largest_loss(event: Sampled) -> float:
    """Return a loss beyond which nearly nothing lies, where the records are added: at least the grid's end."""
    k, p, sigma = event.group_size, event.sampling_rate, event.noise_multiplier
    if k > 1:
        k = max(1, participation_quantile(k, p, _CUT))
    at_the_end = k * (k / 2 + _N_SIGMAS * sigma) / sigma**2
    if event.group_size > 1 or p == 1:
        return at_the_end
    with_record, without = math.log(p) + at_the_end, math.log1p(-p)
    return max(with_record, without) + math.log1p(math.exp(-abs(with_record - without)))


def grid_step(event: Sampled) -> float:
    """Return the step of the privacy loss grid: 0.03 of the standard deviation of one round's loss, 1e-3 at most.

    The loss of a round spreads by about p sqrt(e^{1/sigma^2} - 1). Rounding up by much less than that keeps
    epsilon within 2e-3 of the exact value. A step of 1e-9 or more stays above the rounding error of the losses. Where
    the grid would have more than MOST_POINTS, the step is larger, and epsilon less tight.
    """
    spread = event.sampling_rate * math.sqrt(math.expm1(event.noise_multiplier**-2))
    return max(min(0.03 * spread, 1e-3), 1e-9, largest_loss(event) / MOST_POINTS)


def loss_of(event: Sampled, visible: float, step: float) -> privacy_loss_distribution.PrivacyLossDistribution:
    """Return the loss of one round on a grid of that step, for adding and for removing the unit.

    The round takes place with probability `visible`, for all to see. Losses are rounded towards more.
    """
    from dp_accounting.pld import privacy_loss_distribution

    excess = largest_loss(event) / step * 2.0**-53 / step
    if event.group_size > 1 or visible < 1 or excess > _MOST_EXCESS:
        return _loss_of_mixture(event, visible, step)
    return privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=event.noise_multiplier,
        sampling_prob=event.sampling_rate,
        value_discretization_interval=step,
        pessimistic_estimate=True,
        neighboring_relation=privacy_loss_distribution.NeighborRel.ADD_OR_REMOVE_ONE,
    )


def _loss_of_mixture(event: Sampled, visible: float, step: float) -> privacy_loss_distribution.PrivacyLossDistribution:
    """Return our own loss distribution, as the library holds one."""
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution

    from precad.dp.accountants.group_mixture import Direction, one_round_on_grid

    def pmf(direction: Direction) -> pld_pmf.PLDPmf:
        found = one_round_on_grid(event.group_size, event.sampling_rate, event.noise_multiplier, direction, step)
        found = found if visible == 1 else found.mixed(visible)
        return pld_pmf.DensePLDPmf(step, found.lowest, found.mass, found.infinite, True)

    with_group, without = pmf(Direction.ATTACKED_VS_BENIGN), pmf(Direction.BENIGN_VS_ATTACKED)
    return privacy_loss_distribution.PrivacyLossDistribution(with_group, without)
