"""Limit noise, rate and clip by single rounds: every pair of a round and a canary is an observation.

The residuals of all observations give an upper limit of the noise multiplier, by chi-squared. The draws of canaries
that are in give a lower limit of the rate, by the binomial law (Clopper and Pearson). What a drawn canary added to its
client's update is known without error. The accountant is evaluated at these limits.

Three assumptions, each with tests that look for what contradicts it. Noise is Gaussian, with one standard deviation and
fresh for each number (`evenness`, `independence`, `common`, `coincidences`). Records are drawn by themselves, in each
round anew (`draws`). What an audit client uploads enters the sum as it is (`arrival`). Composition is the proof's: no
attack here looks for a loss that only several rounds have.

The chance of a false alarm is shared. Three fifths are the limits', and a rare draw leaves its rate the wider one. So
noise and rate have the shares with which their relative widths add up to least, for the printed rate. Where one audit
has several seats, all their limits and alarms hold together. Noise is each seat's own, so that its chances are divided.
Draws are the same from all seats that saw the same rounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.special import ndtri
from scipy.stats import beta, chi2

from precad.dp.accountants.pld import PldAccountant, SampledGaussian
from precad.dp.auditing import arrival
from precad.dp.auditing.coincidences import values_again
from precad.dp.auditing.common import common_noise
from precad.dp.auditing.draws import dependent_draws
from precad.dp.auditing.evenness import coarse_noise, uneven_noise
from precad.dp.auditing.independence import Repetition, repeated_noise
from precad.dp.auditing.observed import Observed
from precad.dp.checks import require_count, require_delta

CLIP_SLACK: Final = 1e-6
"""Relative room above the clip, for rounding from float32."""
_LEAST_NOISE: Final = 0.01
"""Noise multiplier of a figure, at least: without any noise it would be infinite, which JSON cannot hold."""
_OF_TEST: Final = 0.1
"""Share of the chance of a false alarm that each test has: arrival, freshness, evenness, draws."""
_OF_FRESHNESS: Final = 1 / 3
"""Share of freshness that each of its tests has: repetition, parts in common, values that come again."""
_OF_LIMITS: Final = 0.6
"""Share of it that noise and rate have together."""
_POWER: Final = 0.95
"""Chance to find noise that is weaker by `least_deficit`."""
_SPLITS: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits that hold together with the audit's confidence."""

    observations: int
    drawn: int
    noise_at_most: float
    """Noise multiplier of the view."""
    noise_chance: float
    """Chance that it is too small."""
    rate_at_least: float
    """Rate of records in a round of their client."""
    clip_at_least: float
    """Least that a drawn canary added, in units of R; 0 where none was drawn."""
    clip_at_most: float
    """Most that a canary added, in units of R."""
    arrival: tuple[float, float]
    """Interval of the factor that uploads enter the sum with."""
    repetition: Repetition
    unlike: tuple[str, ...] = ()
    """Lines that say how noise or draws are unlike what is assumed of them."""

    def epsilon(self, rounds: int, delta: float, group_size: int = 1) -> float:
        """Return the epsilon of so many rounds at the limits, a lower limit on what is true.

        group_size: records of one person that the printed figure is of together. Each canary is one record.
        """
        if self.rate_at_least == 0 or self.clip_at_least == 0:
            return 0.0
        noise = max(self.noise_at_most / self.clip_at_least, _LEAST_NOISE)
        return PldAccountant().epsilon(SampledGaussian(self.rate_at_least, noise, group_size), rounds, delta)


def limits(observed: Observed, event: SampledGaussian, confidence: float, seats: int = 1, draws: int = 1) -> Limits:
    """Return the limits of one view, of which `event` is printed.

    seats: views of this training whose limits and alarms hold together with this confidence.
    draws: different tables of draws among these.
    Raises: ValueError for a confidence outside (0, 1), or no seat or draws.
    """
    alpha = 1 - confidence
    require_delta(alpha)
    require_count("seats", seats, at_least=1)
    require_count("draws", draws, at_least=1)
    of_test, step = _OF_TEST * alpha / seats, observed.step
    of_each = _OF_FRESHNESS * of_test
    residuals, weights, own = observed.residuals, observed.contributions, observed.own_noise
    n, may_be = residuals.size, observed.present & observed.coins
    drawn, trials = weights[weights > 0], int(may_be.sum())
    of_noise, of_rate = chances(n, trials, event.sampling_rate, alpha, seats, draws)
    unlike = [
        *arrival.uneven(observed, of_test),
        *uneven_noise(residuals, event.noise_multiplier, of_test, step, weights > 0),
        *common_noise(residuals, own, event.noise_multiplier, of_each),
        *(() if own is None else coarse_noise(residuals, step)),
        *(() if own is None else values_again(residuals, own, event.noise_multiplier, step, of_each)),
        *dependent_draws(weights > 0, may_be, _OF_TEST * alpha / draws, observed.clients),
    ]
    return Limits(
        observations=n,
        drawn=len(drawn),
        noise_at_most=math.sqrt(float(np.square(residuals).sum()) / float(chi2.ppf(of_noise, n))),
        noise_chance=of_noise,
        rate_at_least=float(beta.ppf(of_rate, len(drawn), trials - len(drawn) + 1)) if len(drawn) else 0.0,
        clip_at_least=float(drawn.min(initial=math.inf)) if len(drawn) else 0.0,
        clip_at_most=float(np.abs(weights).max()),
        arrival=arrival.overall(observed, of_test),
        repetition=repeated_noise(residuals, own, of_each),
        unlike=tuple(unlike),
    )


def chances(
    observations: int, trials: int, rate: float, alpha: float, seats: int = 1, draws: int = 1
) -> tuple[float, float]:
    """Return the chances of a limit of the noise and of one of the rate that fails. They depend on no score or draw.

    trials: pairs of a round and a canary that could be drawn there, each at `rate`.

    seats: limits of the noise that share the chance.
    draws: limits of the rate that do.
    """
    of_noise = math.sqrt(1 / (2 * observations))
    of_rate = math.sqrt((1 - rate) / (rate * trials)) if rate > 0 and trials else 0.0

    def width(share: float) -> float:
        return -of_noise * float(ndtri(_OF_LIMITS * share * alpha / seats)) - of_rate * float(
            ndtri(_OF_LIMITS * (1 - share) * alpha / draws)
        )

    share = min(_SPLITS, key=width)
    return _OF_LIMITS * share * alpha / seats, _OF_LIMITS * (1 - share) * alpha / draws


def least_deficit(observations: int, chance: float) -> float:
    """Return how far below the printed noise the true one must be to be found so often (`_POWER`), as a share of it.

    Noise is found where a chi-squared variable falls below a limit. That is its quantile at the limit's chance, over
    the square of what is left of the noise.
    """
    level = float(chi2.ppf(chance, observations))
    return 1 - math.sqrt(level / float(chi2.ppf(_POWER, observations)))


def alarms(found: Limits, event: SampledGaussian, rounding: float = 0.0, least: float = 0.0) -> list[str]:
    """Return what contradicts the printed round, a line each. With no fault the list is empty, with the confidence.

    rounding: most that the grid adds to a canary, which the printed sensitivity counts.
    least: what a drawn canary adds at least, or 0. Both are in units of R.
    """
    low, high = found.arrival
    repetition = found.repetition
    noise, rate = event.noise_multiplier, event.sampling_rate
    checks = (
        (
            found.noise_at_most < noise,
            f"noise: expected a multiplier of {noise:.6g}, at most {found.noise_at_most:.6g}",
        ),
        (found.rate_at_least > rate, f"sampling: expected a rate of {rate:.6g}, at least {found.rate_at_least:.6g}"),
        (found.clip_at_most > 1 + rounding + CLIP_SLACK, f"clip: expected at most R, found {found.clip_at_most:.6g} R"),
        (
            0 < found.clip_at_least < least,
            f"clip: expected R of each drawn canary, found {found.clip_at_least:.6g} R",
        ),
        (not low <= 1 <= high, f"arrival: expected a factor of 1 on uploads, found {low:.4g} to {high:.4g}"),
        (repetition.is_found, f"noise: expected fresh draws, found {repetition}"),
    )
    return [*(line for is_wrong, line in checks if is_wrong), *found.unlike]
