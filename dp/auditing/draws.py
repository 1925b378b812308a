"""Test that records are drawn afresh in each round, each by itself.

Given how many records were drawn in all, those of one round are as many balls of an urn: hypergeometric. So are, given
two rounds, the records that were drawn in both. Samples that repeat, that leave out what was drawn before, or that come
together have the printed rate. Another law of the loss is theirs, which no rate shows. Chances add up: Bonferroni.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.stats import hypergeom

from precad.dp.checks import require_delta

Array = NDArray[np.float64]
Bits = NDArray[np.bool_]

_WORTH: Final = 3.0
"""Standard deviations from the mean, below which no exact chance is computed: it would be no alarm."""


def dependent_draws(drawn: Bits, may_be: Bits, alpha: float) -> Iterator[str]:
    """Yield how draws depend on one another; nothing, but for a chance of alpha, where they do not.

    drawn: (T, m). may_be: (T, m), whether the record is its client's and the client was in the round. All that may be
    have one rate.
    """
    require_delta(alpha)
    eligible, hit = may_be.astype(np.float64), (drawn & may_be).astype(np.float64)
    of_rounds, n_total, n_drawn = eligible.sum(axis=1), float(eligible.sum()), float(hit.sum())
    found = _least(hit.sum(axis=1), np.full(len(hit), n_total), np.full(len(hit), n_drawn), of_rounds)
    if found is not None and found[1] * len(hit) < alpha / 2:
        t = found[0]
        expected = of_rounds[t] * n_drawn / n_total
        yield f"sampling: expected draws of their own, found {hit[t].sum():.0f} in round {t} for {expected:.4g}"
    first, second = np.triu_indices(len(hit), k=1)
    common, both = (eligible @ eligible.T)[first, second], (hit @ hit.T)[first, second]
    of_first, of_second = (hit @ eligible.T)[first, second], (eligible @ hit.T)[first, second]
    found = _least(both, common, of_first, of_second)
    if found is not None and found[1] * len(first) < alpha / 2:
        i = found[0]
        expected = of_first[i] * of_second[i] / common[i]
        yield (
            f"sampling: expected fresh draws, found {both[i]:.0f} records in rounds {first[i]} and {second[i]} for "
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
