"""The worst attack on one prediction, simulated: what no certificate may be beaten by, and none can be better than.

Attackers push by +1 whenever they are drawn; benign units that they replace pushed by -1. A training is its released
values, each round's sum of the drawn pushes with noise of standard deviation sigma. The predictor says A unless a
statistic exceeds a threshold, which is when the training looks attacked. The threshold is set so that A is said in a
share F_A of the benign trainings. By Neyman and Pearson, the log likelihood ratio is the statistic whose predictor
gives way to these attackers soonest, at that F_A. With many rounds the sum of all releases, nearly as good a statistic,
is drawn at once.

Experiments only, hence the plain generator. Rates are of `n_draws` trainings, drawn anew for each of them, and within
`radius` of the truth but for probability `failure` each (Hoeffding).
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from precad.dp.accountants.renyi import log_binomial_weights
from precad.dp.certificates.monte_carlo import hoeffding_radius
from precad.dp.certificates.prediction import Threat, Training
from precad.dp.checks import require_count, require_probability

Array = NDArray[np.float64]

_MOST_ROUNDS_APART: Final = 3  # with more, the statistic is the sum of all releases
_TABLE: Final = 4001


@dataclass(frozen=True, slots=True)
class SimulatedAttack:
    """Hold what k attackers did to a prediction: shares of trainings, each to `radius`."""

    k: int
    benign: float
    """Share of the benign trainings that predict A. The threshold makes the truth at least F_A, but for `failure`."""
    attacked: float
    """Share of the attacked trainings that predict A. The attack succeeded if this share is below one half."""
    radius: float
    failure: float

    @property
    def has_surely_succeeded(self) -> bool:
        """Tell whether the prediction changed, but for probability 2 `failure`."""
        return self.attacked + self.radius < 0.5


def simulate(
    k: int, FA: float, training: Training, threat: Threat, *, n_draws: int, failure: float, seed: int
) -> SimulatedAttack:
    """Simulate k attackers against the predictor that is most easily changed by them, among two classes and with this
    F_A.

    Raises: ValueError unless F_A leaves room for the radius, F_A + radius < 1.
    """
    require_count("k", k, at_least=1)
    require_probability("FA", FA)
    require_count("n_draws", n_draws, at_least=1)
    radius = hoeffding_radius(n_draws, failure)
    if not FA + radius < 1:
        raise ValueError(f"FA: expected a number below 1 - radius = {1 - radius}, found {FA}")
    rng = np.random.default_rng(seed)
    threat = Threat(threat)

    def statistic(*, is_attacked: bool) -> Array:
        return _statistic(k, training, threat, n_draws, rng, is_attacked=is_attacked)

    threshold = float(np.quantile(statistic(is_attacked=False), FA + radius))
    benign = float(np.mean(statistic(is_attacked=False) <= threshold))
    attacked = float(np.mean(statistic(is_attacked=True) <= threshold))
    return SimulatedAttack(k, benign, attacked, radius, failure)


def attackers_that_succeed(
    FA: float, training: Training, threat: Threat, *, at_least: int, n_draws: int, failure: float, seed: int
) -> SimulatedAttack:
    """Return the attack with the fewest attackers from `at_least` on that surely succeeded: no certificate reaches it.

    Raises: ValueError for a training that nobody is ever drawn for, and as `simulate`.
    """
    require_count("at_least", at_least, at_least=1)
    if training.event.sampling_rate == 0 or training.rounds == 0:
        raise ValueError(f"training: expected rounds in which attackers are drawn, found {training}")

    def succeeds(k: int) -> SimulatedAttack | None:
        found = simulate(k, FA, training, threat, n_draws=n_draws, failure=failure, seed=seed + k)
        return found if found.has_surely_succeeded else None

    low, high = at_least - 1, at_least
    while (found := succeeds(high)) is None:
        low, high = high, high + max(1, high // 4)
    while high - low > 1:
        middle = (low + high) // 2
        if (sooner := succeeds(middle)) is not None:
            high, found = middle, sooner
        else:
            low = middle
    return found


def _statistic(
    k: int, training: Training, threat: Threat, n: int, rng: np.random.Generator, *, is_attacked: bool
) -> Array:
    """Draw the statistic of n trainings, shape (n,)."""
    q, sigma, T = training.event.sampling_rate, training.event.noise_multiplier, training.rounds
    sign = 1 if is_attacked else (-1 if threat is Threat.REPLACE else 0)
    if T > _MOST_ROUNDS_APART:
        return sign * rng.binomial(k * T, q, size=n) + math.sqrt(T) * sigma * rng.standard_normal(n)
    x = np.linspace(-k - 9 * sigma, k + 9 * sigma, _TABLE)
    ratio = _log_mixture(x, k, q, sigma, 1)
    if threat is Threat.REPLACE:
        ratio = ratio - _log_mixture(x, k, q, sigma, -1)
    total = np.zeros(n)
    for _ in range(T):
        released = sign * rng.binomial(k, q, size=n) + sigma * rng.standard_normal(n)
        total += np.interp(released, x, ratio)
    return total


def _log_mixture(x: Array, k: int, q: float, sigma: float, sign: int) -> Array:
    """Return ln sum_j Bin(k, q)(j) e^{(2 s j x - j^2)/(2 sigma^2)}: the sum of k units at s = +-1, from none."""
    j = np.arange(k + 1, dtype=np.float64)[:, None]
    weights = np.asarray(log_binomial_weights(k, q))[:, None] if q < 1 else np.where(j == k, 0.0, -np.inf)
    exponents: Array = weights + j * (sign * x - j / 2) / sigma**2
    found: Array = np.logaddexp.reduce(exponents, axis=0)
    return found
