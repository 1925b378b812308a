"""Test that records are drawn afresh in each round, each by itself.

Given how many records were drawn in all, those of one round are as many balls of an urn: hypergeometric. So are a
record's rounds, and, given two rounds, the records that were drawn in both. So are rounds in which two records were
drawn that are equally far apart. Pieces of records go by turns to one side and to the other. Samples that repeat, that
leave out what was drawn before, that come together, or that prefer some records have the printed rate. Another law of
the loss is theirs, which no rate shows. Chances add up: Bonferroni.

Totals of many rounds, of many records, and of each client in each round spread as binomial ones do. Rates that differ
spread them more, samples of a fixed size, or of a largest one, less. Their index of dispersion is nearly a gamma
variable of its own mean and variance.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.stats import gamma, hypergeom

from precad.dp.checks import require_delta

Array = NDArray[np.float64]
Bits = NDArray[np.bool_]

_WORTH: Final = 3.0
"""Standard deviations from the mean, below which no exact chance is computed: it would be no alarm."""
_N_TESTS: Final = 7
_MOST_LAGS: Final = 64
"""Distances of two records, at most: the shortest ones."""
_ENOUGH: Final = 16
"""Totals, at least, whose dispersion is judged."""
_LEAST_VARIANCE: Final = 4.0
"""Variance of these totals, at least: below, the law of their dispersion is not near enough."""


def dependent_draws(drawn: Bits, may_be: Bits, alpha: float, clients: NDArray[np.int64] | None = None) -> Iterator[str]:
    """Yield how draws depend on one another; nothing, but for a chance of alpha, where they do not.

    drawn: (T, m). may_be: (T, m), whether the record is its client's and the client was in the round. All that may be
    have one rate.
    clients: (m,), whose each record is, from 0; None: not known.
    """
    require_delta(alpha)
    eligible, hit, level = may_be.astype(np.float64), (drawn & may_be).astype(np.float64), alpha / _N_TESTS
    for axis, what in ((1, "round"), (0, "canary")):
        of_all, of_them = eligible.sum(axis=axis), hit.sum(axis=axis)
        yield from _unlike_others(of_them, of_all, what, level)
        yield from _dispersed(of_them, of_all, what, level)
    if clients is not None:
        whose = (clients[:, None] == np.arange(int(clients.max()) + 1)).astype(np.float64)
        yield from _dispersed((hit @ whose).ravel(), (eligible @ whose).ravel(), "client in a round", level)
    yield from _in_two_rounds(hit, eligible, level)
    kept = may_be.any(axis=0)
    yield from _of_neighbours(hit[:, kept], eligible[:, kept], level)


def _unlike_others(found: Array, trials: Array, what: str, level: float) -> Iterator[str]:
    n_total, n_drawn = np.full_like(found, trials.sum()), np.full_like(found, found.sum())
    least = _least(found, n_total, n_drawn, trials)
    if least is not None and least[1] * len(found) < level:
        i = least[0]
        expected = trials[i] * n_drawn[i] / n_total[i]
        yield f"sampling: expected draws of their own, found {found[i]:.0f} in {what} {i} for {expected:.4g}"


def _dispersed(found: Array, trials: Array, what: str, level: float) -> Iterator[str]:
    """Yield whether totals spread otherwise than those of independent draws at one rate."""
    found, trials = found[trials > 0], trials[trials > 0]
    rate = float(found.sum() / trials.sum()) if len(trials) else 0.0
    variances = trials * rate * (1 - rate)
    if len(found) < _ENOUGH or float(variances.min()) < _LEAST_VARIANCE:
        return
    index, freedom = float((np.square(found - trials * rate) / variances).sum()), len(found) - 1
    variance = freedom * (2 + float(((1 - 6 * rate * (1 - rate)) / variances).mean()))
    law = gamma(freedom**2 / variance, scale=variance / freedom)
    if 2 * min(float(law.sf(index)), float(law.cdf(index))) < level:
        yield (
            f"sampling: expected draws of their own, found totals of each {what} that spread by "
            f"{index / freedom:.3g} of what such draws do"
        )


def _in_two_rounds(hit: Array, eligible: Array, level: float) -> Iterator[str]:
    first, second = np.triu_indices(len(hit), k=1)
    common, both = (eligible @ eligible.T)[first, second], (hit @ hit.T)[first, second]
    of_first, of_second = (hit @ eligible.T)[first, second], (eligible @ hit.T)[first, second]
    found = _least(both, common, of_first, of_second)
    if found is not None and found[1] * len(first) < level:
        i = found[0]
        expected = of_first[i] * of_second[i] / common[i]
        yield (
            f"sampling: expected fresh draws, found {both[i]:.0f} records in rounds {first[i]} and {second[i]} for "
            f"{expected:.4g}"
        )


def _of_neighbours(hit: Array, eligible: Array, level: float) -> Iterator[str]:
    """Yield at which distance two records are drawn together. hit, eligible: (T, k), of those that are in."""
    places, counts = np.arange(hit.shape[1]), []
    for lag in range(1, min(len(places) - 1, _MOST_LAGS) + 1):
        one = places[: len(places) - lag]
        one = one[one // lag % 2 == 0]
        both = eligible[:, one] * eligible[:, one + lag]
        left, right = hit[:, one] * both, hit[:, one + lag] * both
        counts.append([float((left * right).sum()), *(float(each.sum()) for each in (both, left, right))])
    if not counts:
        return
    together, total, marked, taken = np.array(counts).T
    found = _least(together, total, marked, taken)
    if found is not None and found[1] * len(counts) < level:
        i = found[0]
        expected = marked[i] * taken[i] / total[i]
        yield (
            f"sampling: expected draws of their own, found {together[i]:.0f} times two records {i + 1} apart for "
            f"{expected:.4g}"
        )


def _least(found: Array, total: Array, marked: Array, taken: Array) -> tuple[int, float] | None:
    """Return the index of the least likely number of marked ones among those taken, and its chance; None for none.

    Both sides count.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = marked * taken / total
        spread = np.sqrt(mean * (1 - marked / total) * (total - taken) / (total - 1))
        far = np.abs(found - mean) / spread
    worth = np.flatnonzero(np.isfinite(far) & (far > _WORTH))
    if not len(worth):
        return None
    parts = [np.rint(each[worth]).astype(np.int64) for each in (found, total, marked, taken)]
    law = hypergeom(*parts[1:])
    chances = 2 * np.minimum(law.sf(parts[0] - 1), law.cdf(parts[0]))
    best = int(chances.argmin())
    return int(worth[best]), float(chances[best])
