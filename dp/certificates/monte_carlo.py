"""Estimates of expected confidences and costs from independent trainings, with their confidence.

O = n_trainings trainings use fresh noise and fresh sampling from the same public start. Every radius is Hoeffding's
("Probability Inequalities for Sums of Bounded Random Variables", JASA '63). A certificate made of these bounds holds
with probability 1 - psi over the trainings, in all the statements counted together. Label: bound at that confidence.

The O models have seen the same data: if all are released, the privacy to report is that of O * T rounds.
"""

import math
from collections.abc import Sequence

from precad.dp.checks import (
    integral,
    require_delta_or_zero,
    require_non_negative,
    require_one_of,
    require_positive,
    require_probability,
)


def hoeffding_radius(n_trainings: float, psi: float, width: float = 1.0, n_events: float = 1) -> float:
    """Return width sqrt(ln(n_events/psi)/(2 O)): each of `n_events` one-sided bounds on a mean of O values holds
    together.

    width is the length of the interval the values are in, n_events how many one-sided statements are made at once.
    """
    n_trainings = integral("n_trainings", n_trainings, at_least=1)
    require_psi(psi)
    require_positive("width", width)
    n_events = integral("n_events", n_events, at_least=1)
    return width * math.sqrt(math.log(n_events / psi) / 2 / n_trainings)


def hoeffding_class_bounds(
    fhat: Sequence[float],
    n_trainings: float,
    psi: float,
    scheme: str = "union",
    n_tests: float = 1,
) -> tuple[int, float, float]:
    """Return (A, lower bound on F_A, upper bound on every other class) from mean confidences of O trainings.

    - `union`: All 2 * classes * n_tests one-sided bounds hold together with probability 1 - psi. The result is a
      bound, whichever classes the same data then picked out.
    - `paper`: Each of the two bounds holds alone, as published. Together they hold with probability 1 - 2 psi at best,
      and say nothing of another runner-up. A published reproduction.
    """
    require_one_of("scheme", scheme, ("union", "paper"))
    if len(fhat) < 2:
        raise ValueError(f"fhat: expected at least two classes, found {list(fhat)}")
    for value in fhat:
        require_probability("fhat", value)
    n_tests = integral("n_tests", n_tests, at_least=1)
    radius = hoeffding_radius(n_trainings, psi, n_events=2 * len(fhat) * n_tests if scheme == "union" else 1)
    top = max(range(len(fhat)), key=lambda c: fhat[c])
    runner_up = max(value for c, value in enumerate(fhat) if c != top)
    lowest = max(0.0, fhat[top] - radius)
    return top, lowest, min(1.0, runner_up + radius, 1 - lowest)


def certified_accuracy(Ks: Sequence[float], correct: Sequence[bool], k: float, strict: bool = True) -> float:
    """Share of the samples that are predicted correctly and for which k attackers are certified, K > k.

    strict=False counts K >= k, as the published metric does: one too many wherever K is an integer.
    """
    k = integral("k", k)
    if len(Ks) == 0 or len(Ks) != len(correct):
        raise ValueError(f"Ks, correct: expected as many entries, at least one, found {len(Ks)} and {len(correct)}")
    for K in Ks:
        require_non_negative("Ks", K, may_be_infinite=True)
    n_certified = sum(bool(right) and (k < K if strict else k <= K) for K, right in zip(Ks, correct, strict=True))
    return n_certified / len(Ks)


def monte_carlo_privacy(epsilon: float, delta: float, n_trainings: float) -> tuple[float, float]:
    """Return (O epsilon, O delta): basic composition of O released trainings. A bound; vacuous once O delta >= 1.

    Composing all O * T rounds at once is far tighter, see `precad.dp.accountants.pld`.
    """
    require_non_negative("epsilon", epsilon)
    require_delta_or_zero(delta)
    n_trainings = integral("n_trainings", n_trainings)
    return n_trainings * epsilon, n_trainings * delta


def require_psi(psi: float) -> None:
    """Require a probability with which bounds may fail in (0, 1). With 1 they would say nothing."""
    require_probability("psi", psi)
    if psi in (0, 1):
        raise ValueError(f"psi: expected a number in (0, 1), found {psi}")
