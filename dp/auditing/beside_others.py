"""Limit the noise, and how uploads arrive, where updates of other members are in the sum, and are not known.

Real records move the coordinates that everybody's records move. Take the auditor's own uploads out of round t's
released sum, and let r_t be what is left, over the clip R: r_t = n_t + o_t. The others' updates o_t may depend on all
earlier rounds, never on this round's noise n_t.

So |r_t|^2 over the noise's variance is, given what came before, a noncentral chi-squared variable. Such a one is
stochastically at least the central one. By induction over rounds so is the sum, and the usual upper limit of the noise
holds. Others make it larger, never too small.

Whether a record was drawn in round t is independent of r_t, given what came before. So the correlation of draws with
what is left along their records has mean 0. That holds unless uploads enter the sum with a factor other than 1. Few or
rare draws are far from normal. So their correlation is bounded by its own moments (Chernoff), for any number of draws.

Others may pull the harder along a record the later it was drawn, and stop when it looks unlikely. A tilt that is chosen
after the fact would be too small a bound then. So the bound is of a mixture of tilts that are chosen before: its
exponential is a martingale, whatever others do. Source: Robbins, "Statistical methods related to the law of the
iterated logarithm", Ann. Math. Statist. 41 (1970).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import logsumexp
from scipy.stats import chi2

from precad.dp.checks import require_count, require_delta, require_non_negative, require_probability

Array = NDArray[np.float64]

_TILTS: Final = np.exp2(np.arange(-16, 10))
"""Tilts of a sum's law, times R^2, for sums with a standard deviation from 10^-2 to 10^5 R^2. They are equally likely.
A factor of 2 between them costs a normal sum at most 6 %."""


def noise_at_most(energy: float, observations: int, alpha: float) -> float:
    """Return an upper limit of the noise multiplier, too small with a chance of at most alpha.

    energy: the sum of squares of so many residuals, in units of R. Raises ValueError.
    """
    require_non_negative("energy", energy)
    require_count("observations", observations, at_least=1)
    require_delta(alpha)
    return math.sqrt(energy / float(chi2.ppf(alpha, observations)))


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """Hold pairs of a round and a record that may have been drawn there, n of them, in units of R."""

    weights: Array
    """(n,): what each added along its gradient's direction; 0 where it was not drawn."""
    expected: Array
    """(n,): what it adds once it is drawn."""
    left: Array
    """(n,): what is left of the released sum along that direction."""
    uploaded: Array
    """(n,): the auditor's own uploads of the round along that direction."""


def arrival(draws: Draws, rate: float, alpha: float) -> tuple[float, float]:
    """Return an interval of the factor that uploads enter the sum with, which misses 1 with a chance of at most alpha.

    rate: p, with which each was drawn. Without a draw by chance nothing is told. Raises ValueError.
    """
    require_probability("rate", rate)
    require_delta(alpha)
    centred = draws.weights - rate * draws.expected
    moved, moves = float((centred * draws.uploaded).sum()), draws.expected * draws.left
    if moved <= 0 or rate in (0, 1) or not moves.any():
        return -math.inf, math.inf
    factor = 1 + float((centred * draws.left).sum()) / moved
    return factor - _reach(moves, rate, alpha / 2) / moved, factor + _reach(-moves, rate, alpha / 2) / moved


def _reach(moves: Array, rate: float, alpha: float) -> float:
    """Return what the sum of moves of those drawn exceeds its mean by, with a chance of at most alpha.

    Each move may depend on who was drawn before, in any way. The mixture's exponential exceeds 1 / alpha so rarely.
    """
    cumulants = np.array([np.logaddexp(math.log1p(-rate), math.log(rate) + tilt * moves).sum() for tilt in _TILTS])
    goal, mean = math.log(len(_TILTS) / alpha), rate * float(moves.sum())
    at_one_tilt = float(((cumulants + goal) / _TILTS).min())

    def beyond(total: float) -> float:
        return float(logsumexp(_TILTS * total - cumulants)) - goal

    return float(brentq(beyond, mean, at_one_tilt)) - mean
