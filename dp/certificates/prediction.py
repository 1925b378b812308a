"""How many attackers a model's prediction survives.

The predictor is the argmax over classes of F_c = E[f_c], the expectation, over training, of the confidence in class c
at one test sample. A is its prediction, B the runner-up. What k attackers can do to each F_c is bounded by the privacy
of their influence. While the lower bound for A stays above the upper bound for every other class, the prediction
stands. Three methods, weakest first, all with respect to the same mechanism:

    published   group privacy of one (epsilon, delta) point, epsilon by the accountant of the paper's own tables
                (Xie et al., "Unraveling the Connections between Privacy and Certified Robustness in Federated
                Learning Against Poisoning Attacks", CCS '23)
    pld         the same formula, the best over all points of the proved privacy curve
    exact       the exact law of k sampled units, `precad.dp.accountants.group_mixture`, and
    `precad.dp.certificates.expected_loss`

Threats. `add`: k attackers join the benign clients. `replace`: k benign clients are attackers instead, which is k
removals and then k additions. For (epsilon, delta) formulas that is group distance 2k. The exact pair is not symmetric,
and its 2k-fold version is about additions only, for which a prediction can only become so much rarer. The exact method
therefore bounds the removal and the addition one after the other, each in its own direction.
"""

import enum
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from precad.dp.accountants.calibration import largest
from precad.dp.accountants.group_mixture import Direction, delta_curve
from precad.dp.accountants.pld import Label, SampledGaussian
from precad.dp.accountants.privacy_loss import Array, DeltaCurve
from precad.dp.accountants.side_by_side import XieAccountant
from precad.dp.certificates.expected_loss import robust_bounds
from precad.dp.checks import (
    require_count,
    require_delta,
    require_delta_or_zero,
    require_non_negative,
    require_one_of,
    require_probability,
)

LOSSES: Final = "which rounds are lost depends on nobody's draw"
"""A condition of every certificate of sampled rounds: whoever keeps the rounds with attackers has other odds."""
ENROLLED: Final = "added attackers were enrolled in these trainings, and silent"
"""A condition of those about added attackers: whoever enrols later changes the divisor of the sum."""


class Threat(enum.StrEnum):
    """The way in which k attackers enter a training."""

    ADD = "add"
    """They join the benign clients, all of whom stay."""
    REPLACE = "replace"
    """They take the places of k benign clients."""


class Method(enum.StrEnum):
    """How the number of attackers is bounded, weakest first. See the module."""

    PUBLISHED = "published"
    PLD = "pld"
    EXACT = "exact"


LABELS: Final = {
    Method.PUBLISHED: Label.PUBLISHED_REPRODUCTION,
    Method.PLD: Label.BOUND,
    Method.EXACT: Label.BOUND,
}


def xie_certified_k(FA: float, FB: float, epsilon: float, delta: float) -> float:
    """Return ln[(F_A (e^eps - 1) + delta)/(F_B (e^eps - 1) + delta)] / (2 eps); every k < K is certified.

    (F_A - F_B)/(2 delta) at eps = 0; 0 if F_A <= F_B; infinite if the denominator is 0. A bound if (epsilon, delta)
    is, for k in group distance.
    """
    require_point(FA, FB, epsilon, delta)
    FA, FB = float(FA), float(FB)
    if FA <= FB:
        return 0.0
    if FB == 0 and delta == 0:
        return math.inf
    if epsilon * 1e15 < delta:  # the limit, to rounding
        return (FA - FB) / (2 * delta)
    if epsilon == 0:
        return math.inf
    return float(_certified_numbers(FA, FB, np.asarray([epsilon]), np.asarray([delta]))[0])


def _certified_numbers(FA: float, FB: float, epsilons: Array, deltas: Array) -> Array:
    """K of each point, for F_A > F_B and epsilon > 0: ln(1 + (F_A - F_B) a/(F_B a + delta e^-eps)) / (2 eps) with
    a = 1 - e^-eps. In logarithms, since delta e^-eps underflows beyond epsilon = 700, and K would be infinite."""
    with np.errstate(divide="ignore"):  # the logarithm of zero
        log_a = np.log(-np.expm1(-epsilons))
        log_least = np.logaddexp(np.log(FB) + log_a, np.log(deltas) - epsilons)
        numbers: Array = np.logaddexp(0.0, np.log(FA - FB) + log_a - log_least) / (2 * epsilons)
    return numbers


def certified_integer(K: float, threat: str = "add") -> float:
    """Return the largest integer k with k < K, or 2 k < K to replace: ceil(K) - 1, not below 0. Infinite if K is."""
    require_one_of("threat", threat, tuple(Threat))
    if isinstance(K, bool) or math.isnan(K):
        raise ValueError(f"K: expected a number, found {K!r}")
    if math.inf == K:
        return math.inf
    return max(0, math.ceil(K if threat == "add" else K / 2) - 1)


def best_certified_k(FA: float, FB: float, curve: DeltaCurve) -> float:
    """Return the largest xie_certified_k over all points of a privacy curve, each a guarantee of its own. A bound."""
    FA, FB = float(FA), float(FB)
    at_zero = xie_certified_k(FA, FB, 0.0, float(curve.deltas[0])) if curve.deltas[0] < 1 else 0.0
    if FA <= FB or len(curve.epsilons) == 1:
        return at_zero
    return max(at_zero, float(_certified_numbers(FA, FB, curve.epsilons[1:], curve.deltas[1:]).max()))


@dataclass(frozen=True, slots=True)
class Certificate:
    """`tolerated` attackers of that threat leave the prediction as it is, as surely as `label` says."""

    tolerated: int
    threat: Threat
    method: Method

    @property
    def label(self) -> Label:
        """Return the label; only a BOUND is a guarantee."""
        return LABELS[self.method]

    def __str__(self) -> str:
        if self.tolerated == 0:
            return f"VACUOUS: not one attacker to {self.threat} is tolerated ({self.method}, {self.label})"
        return f"tolerates {self.tolerated} attackers to {self.threat} ({self.method}, {self.label})"


@dataclass(frozen=True, slots=True)
class Training:
    """`rounds` rounds, for an attacking unit: `event.noise_multiplier` is the noise over the unit's clip."""

    event: SampledGaussian
    rounds: int

    def __post_init__(self) -> None:
        require_count("rounds", self.rounds)

    def curve(self, k: int, direction: Direction) -> DeltaCurve:
        """Return the exact influence of k added units, cached."""
        return delta_curve(k, self.event.sampling_rate, self.event.noise_multiplier, self.rounds, direction)

    def one_unit_curve(self) -> DeltaCurve:
        """Return the (epsilon, delta) guarantee of one unit, both directions: the larger delta at each epsilon."""
        first, second = (self.curve(1, direction) for direction in Direction)
        # delta falls with epsilon, so the second's at the last of its epsilons not above ours is not too small
        before = np.searchsorted(second.epsilons, first.epsilons, side="right") - 1
        return DeltaCurve(first.epsilons, np.maximum(first.deltas, second.deltas[before]))


def attacked_bounds(F: float, k: int, training: Training, threat: Threat) -> tuple[float, float]:
    """Return the (lowest, highest) expectation of a quantity in [0, 1] after k attackers, F before.

    Exact method, a bound.
    """
    attacked, benign = (training.curve(k, direction) for direction in Direction)
    if threat is Threat.ADD:
        return robust_bounds(F, 1.0, attacked, benign)
    # first k clients leave, so that what was benign is now the one with more units
    low, high = robust_bounds(F, 1.0, benign, attacked)
    return robust_bounds(low, 1.0, attacked, benign)[0], robust_bounds(high, 1.0, attacked, benign)[1]


def rests_on(training: Training, threat: Threat) -> list[str]:
    """Return what a certificate of a deployment's training rests on."""
    of_draws = [LOSSES] if training.event.sampling_rate < 1 else []
    return [*of_draws, ENROLLED] if threat is Threat.ADD else of_draws


def is_certified(FA: float, FB: float, k: int, training: Training, threat: Threat) -> bool:
    """Tell whether k attackers leave the lowest F_A above the highest F_B. Exact method, a bound."""
    require_point(FA, FB, 0.0, 0.0)
    require_count("k", k)
    return attacked_bounds(FA, k, training, threat)[0] > attacked_bounds(FB, k, training, threat)[1]


def certify(
    FA: float,
    FB: float,
    training: Training,
    *,
    method: Method,
    threat: Threat = Threat.ADD,
    delta: float | None = None,
    at_most: int = 128,
) -> Certificate:
    """Count the attackers that a prediction survives.

    F_A is at most its true confidence; F_B is at least that of any other class.

    `delta` is for the published method, which looks at one point; the other methods take no delta. `at_most` is where
    the search stops: a larger number is not looked for.
    """
    require_point(FA, FB, 0.0, 0.0)
    method, threat = Method(method), Threat(threat)
    if method is Method.EXACT:
        tolerated = largest(lambda k: is_certified(FA, FB, k, training, threat), at_most) if FA > FB else 0
        return Certificate(tolerated, threat, method)
    if method is Method.PLD:
        K = best_certified_k(FA, FB, training.one_unit_curve())
    else:
        if delta is None:
            raise ValueError("delta: expected a value for the published method, found none")
        require_delta(delta)
        epsilon = published_epsilon(training, delta)
        K = xie_certified_k(FA, FB, epsilon, delta) if math.isfinite(epsilon) else 0.0
    return Certificate(int(min(certified_integer(K, threat), at_most)), threat, method)


def certify_all(
    leads: Sequence[tuple[float, float]],
    training: Training,
    *,
    method: Method,
    threat: Threat = Threat.ADD,
    delta: float | None = None,
    at_most: int = 128,
) -> list[Certificate]:
    """Return `certify` of each (F_A, F_B), with few calls.

    With a larger F_A beside an F_B that is no larger no fewer attackers are tolerated. So what one prediction tolerates
    bounds what those above and below it do. Predictions for which both bounds meet need no call of their own.
    """
    for FA, FB in leads:
        require_point(FA, FB, 0.0, 0.0)
    above, below = np.array(leads, dtype=np.float64).reshape(-1, 2).T
    least, most = np.zeros(len(leads), dtype=np.int64), np.full(len(leads), at_most, dtype=np.int64)
    made: dict[int, Certificate] = {}
    for i in _outside_in(np.lexsort((-below, above - below))):
        tolerated = int(least[i])
        if tolerated != most[i] or tolerated not in made:
            found = certify(*leads[i], training, method=method, threat=threat, delta=delta, at_most=at_most)
            tolerated, made[found.tolerated] = found.tolerated, found
            over, under = (above >= above[i]) & (below <= below[i]), (above <= above[i]) & (below >= below[i])
            least[over], most[under] = np.maximum(least[over], tolerated), np.minimum(most[under], tolerated)
    return [made[int(tolerated)] for tolerated in least]


def _outside_in(order: NDArray[np.int64]) -> Iterator[int]:
    """Yield both ends, then the middle of every stretch between two that were yielded."""
    yield from map(int, order[[0, -1]] if len(order) > 1 else order)
    stretches = deque([(0, len(order) - 1)])
    while stretches:
        first, last = stretches.popleft()
        if last - first > 1:
            middle = (first + last) // 2
            yield int(order[middle])
            stretches += [(first, middle), (middle, last)]


def published_epsilon(training: Training, delta: float) -> float:
    """Return epsilon of one unit by the recipe of Xie et al.'s tables. A published reproduction."""
    return XieAccountant().epsilon(training.event, training.rounds, delta)


def require_point(FA: float, FB: float, epsilon: float, delta: float) -> None:
    """Require two probabilities and an (epsilon, delta). Raises: ValueError."""
    require_probability("FA", FA)
    require_probability("FB", FB)
    require_non_negative("epsilon", epsilon)
    require_delta_or_zero(delta)
