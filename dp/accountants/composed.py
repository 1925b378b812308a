"""Bound what rounds of several tasks cost one unit together.

Rounds of different tasks compose like those of one. Without sampling all are one Gaussian release, whose multiplier s
has 1 / s^2 = sum of n / s_i^2, and epsilon is in closed form. With sampling, loss distributions on one grid are
composed by dp_accounting, pessimistic throughout, as `precad.dp.accountants.pld` does for one task. A round that takes
place only with some probability, for all to see, loses nothing with the rest of it. Epochs of bins count beside other
kinds of rounds as one release each, as if everybody knew a record's bin.

Rounds without sampling may be chosen one after the other, each for what was released before, up to a limit that was
fixed before. Source: Smith and Thakurta, "Fully Adaptive Composition for Gaussian Differential Privacy", arXiv
2210.17520. Where sampled rounds are among them, their kinds and numbers are to be fixed before.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Final

from precad.dp.accountants.bins_event import BinnedGaussian
from precad.dp.accountants.gaussian import gaussian_epsilon
from precad.dp.accountants.one_round import MOST_POINTS, grid_step, largest_loss, loss_of
from precad.dp.accountants.pld import (
    SMALLEST_MULTIPLIER,
    Event,
    Label,
    PldAccountant,
    SampledGaussian,
    TwoStageSampledGaussian,
    renyi_epsilon,
    tractable,
)
from precad.dp.accountants.ptr_event import SampledProposeTestRelease
from precad.dp.checks import require_count, require_delta

if TYPE_CHECKING:
    from dp_accounting.pld import privacy_loss_distribution

Gaussian = SampledGaussian | TwoStageSampledGaussian
Rounds = tuple[Event | None, int]
"""A kind of round, and how many there were. None: a round costs everything."""
_MOST_WHOLE: Final = 20.0**2
"""The largest sum of 1 / s^2 over rounds without sampling on a grid, which would be long or coarse beyond it. There
their cost, over 200, is added to that of all other rounds, each at half of delta."""
_MOST_INFINITE: Final = 0.5
"""The largest probability of an infinite loss that is composed further: at no delta below it is there an epsilon."""
_LEAST_STEP: Final = 1e-5
"""Step of the common grid, at least. A kind of round that spreads less is counted with more loss than it has."""
_LEAST_STEP_OF_TESTS: Final = 1e-4
"""Likewise beside rounds of propose-test-release, whose losses reach as far as Laplace noise lets them."""


def composed_epsilon(rounds: Iterable[Rounds], delta: float) -> float:
    """Return an epsilon with which all these rounds together are (epsilon, delta)-DP. Proved; zero for no rounds."""
    require_delta(delta)
    counts: Counter[Event] = Counter()
    for event, n in rounds:
        require_count("rounds", n)
        if n and event is None:
            return math.inf
        if isinstance(event, BinnedGaussian):
            counts[event] += event.whole(n)  # each task begins epochs of its own
        elif n and event is not None and _visible(event) > 0 and _one_stage(event).sampling_rate > 0:
            counts[event] += n
    counts = +counts
    if len(counts) <= 1:
        return max((PldAccountant().epsilon(event, n, delta) for event, n in counts.items()), default=0.0)
    counts = _of_known_rounds(counts)
    ordered = sorted(counts.items(), key=lambda item: (type(item[0]).__name__, astuple(item[0])))
    return _epsilon(tuple(ordered), delta)


@dataclass(frozen=True, slots=True)
class Beside:
    """A PrivacyAccountant that counts `n` rounds of `event` beside those that it is asked for."""

    event: Event
    n: int

    @property
    def label(self) -> Label:
        """Say that its figures are proved."""
        return Label.BOUND

    def epsilon(self, event: Event, rounds: int, delta: float) -> float:
        """See PrivacyAccountant."""
        return composed_epsilon([(event, rounds), (self.event, self.n)], delta)


def _of_known_rounds(counts: Counter[Event]) -> Counter[Event]:
    """Return the same with each epoch as one round that a record is in for all to see, which costs at least as much."""
    found: Counter[Event] = Counter()
    for event, n in counts.items():
        if isinstance(event, BinnedGaussian):
            found[SampledGaussian(1.0, event.noise_multiplier, event.group_size)] += event.epochs(n)
        else:
            found[event] += n
    return found


def _visible(event: Event) -> float:
    """Return the probability with which a round takes place, for all to see."""
    return event.selection_rate if isinstance(event, TwoStageSampledGaussian) else 1.0


def _one_stage(event: Event) -> SampledGaussian | SampledProposeTestRelease:
    """Return a round that takes place."""
    assert not isinstance(event, BinnedGaussian)  # which counts by epochs
    if isinstance(event, TwoStageSampledGaussian):
        return SampledGaussian(event.record_rate, event.noise_multiplier, event.group_size)
    return event


def _bounded(event: Gaussian) -> tuple[SampledGaussian, float]:
    """Return a tractable round that loses as much or more, and the probability with which it takes place."""
    one_stage = _one_stage(event)
    assert isinstance(one_stage, SampledGaussian)  # of events with Gaussian noise alone
    found, visible = tractable(one_stage), _visible(event)
    return found, 1.0 if found.noise_multiplier < SMALLEST_MULTIPLIER else visible


def _is_whole(event: SampledGaussian, visible: float) -> bool:
    return visible == 1 and event.sampling_rate == 1


def _is_unsampled(event: Event) -> bool:
    return isinstance(event, Gaussian) and _is_whole(*_bounded(event))


@functools.lru_cache(maxsize=4096)
def _epsilon(counts: tuple[tuple[Event, int], ...], delta: float) -> float:
    """Return epsilon of at least two kinds of rounds."""
    bounded = [(*_bounded(event), n) for event, n in counts if isinstance(event, Gaussian)]
    tested = [(event, n) for event, n in counts if isinstance(event, SampledProposeTestRelease)]
    unsampled = [(event.noise_multiplier, n) for event, visible, n in bounded if _is_whole(event, visible)]
    whole = math.fsum(n / sigma / sigma for sigma, n in unsampled)  # a square of next to no noise would be 0
    sampled = [one for one in bounded if not _is_whole(one[0], one[1])]
    if not sampled and not tested:
        return gaussian_epsilon(whole**-0.5, delta)
    if whole > _MOST_WHOLE:
        others = composed_epsilon([one for one in counts if not _is_unsampled(one[0])], delta / 2)
        return gaussian_epsilon(whole**-0.5, delta / 2) + others
    from precad.dp.accountants.privacy_loss import ROUNDING_PER_ROUND

    n_rounds = 1 + sum(n for *_, n in sampled) + sum(n for _, n in tested)
    left = delta - 2 * ROUNDING_PER_ROUND * n_rounds
    found = math.inf
    if left > 0 and (loss := _composed(tuple(sampled), tuple(tested), whole)) is not None:
        found = float(loss.get_epsilon_for_delta(left))
    if left >= delta / 2 or tested:
        return found
    kinds = (*sampled, *([(SampledGaussian(1.0, whole**-0.5), 1.0, 1)] if whole else []))
    return min(found, renyi_epsilon(kinds, delta))


@functools.lru_cache(maxsize=1)
def _composed(
    sampled: tuple[tuple[SampledGaussian, float, int], ...],
    tested: tuple[tuple[SampledProposeTestRelease, int], ...],
    whole: float,
) -> privacy_loss_distribution.PrivacyLossDistribution | None:
    """Compose all kinds of rounds. The last result is kept: `precad.dp.accountants.slack` asks it at several deltas.

    None where tests hide next to nothing: more often than not, the loss of one of their rounds is infinite.
    """
    unsampled = [(SampledGaussian(1.0, whole**-0.5), 1.0, 1)] if whole else []
    longest = max((largest_loss(event) for event, *_ in (*sampled, *unsampled)), default=0.0)
    least = _LEAST_STEP_OF_TESTS if tested else _LEAST_STEP
    step = max(min((grid_step(event) for event, *_ in sampled), default=0.0), least, longest / MOST_POINTS)
    losses = [_loss(event, visible, step).self_compose(n) for event, visible, n in (*sampled, *unsampled)]
    for event, n in tested:
        loss, infinite = _loss_of_tests(event, step)
        if infinite >= 1 or -math.expm1(n * math.log1p(-infinite)) > _MOST_INFINITE:
            return None
        losses.append(loss.self_compose(n))
    return functools.reduce(lambda one, other: one.compose(other), losses)


_loss = functools.lru_cache(maxsize=8)(loss_of)


def _loss_of_tests(
    event: SampledProposeTestRelease, step: float
) -> tuple[privacy_loss_distribution.PrivacyLossDistribution, float]:
    """Return that of a round of propose-test-release: our own loss distribution, as the library holds one.

    Beside it, the larger probability of both directions that the loss is infinite.
    """
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution

    from precad.dp.accountants.ptr_loss import one_round_on_grid

    parts = (event.sampling_rate, event.noise_multiplier, event.tau, event.laplace_scale, event.test_failure)

    both = [one_round_on_grid(*parts, step, is_reversed=is_reversed) for is_reversed in (False, True)]
    added, removed = (pld_pmf.DensePLDPmf(step, found.lowest, found.mass, found.infinite, True) for found in both)
    return privacy_loss_distribution.PrivacyLossDistribution(added, removed), max(found.infinite for found in both)
