"""Test that numbers of the noise have no part in common: weak correlation of many, which no single pair shows.

Let X be the noise of T rounds at m canaries, each row over its length, times sqrt(m). Rounds and canaries with more
noise than others are no fault, so lengths say nothing here.

* A part that all canaries of a round have adds up. Let columns be over their lengths, too. (1/k) (sum over k of a
  row)^2 has mean 1. Its moments are at most those of a squared normal, as the direction of a Gaussian vector is
  independent of its length. So the sum over rounds is judged by chi-squared's law. Likewise a part that all rounds have
  at a canary, with columns in place of rows. Sums of few rows are 0 on a coarse grid, so small ones are judged in many.
* A part in any other pattern, g_t v_j, lengthens the largest singular value. Its mean is at most that of a Gaussian
  matrix, sqrt(T) + sqrt(m), over the mean length of a Gaussian row over sqrt(m). It is beyond its mean by x with a
  chance of at most exp(-x^2 (m - 2) / (2 m)) (Gordon; Herbst, on a product of spheres).
* Rounds whose noise cancels in some combination have a small singular value. Over the printed standard deviation, that
  of (T, m) Gaussians is at least sqrt(m) - sqrt(T) in the mean. It is x below that with a chance of at most
  exp(-x^2 / 2). More noise makes it larger.
* Two servers' noise of all rounds, each row over its length, has nothing in common either. Each row's product is
  bounded by a normal law of variance 1 / m, as sums above.

Chances add up: Bonferroni.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np
from scipy.special import gammaln, ndtr
from scipy.stats import chi2

from precad.dp.auditing.parts import Array, Parts
from precad.dp.checks import require_delta, require_positive

_N_TESTS: Final = 5
_LEAST: Final = 8
"""Numbers, at least, of which a sum is judged; and sums, at least, that are judged to be too small."""


def common_noise(residuals: Array, own_noise: Array | None, noise: float, alpha: float) -> Iterator[str]:
    """Yield what numbers of the noise have in common; nothing, but for a chance of alpha, where they are independent.

    residuals, own_noise: (T, m), as one server sees the other's noise and its own; None for clients.
    noise: the printed multiplier.
    """
    require_positive("noise", noise)
    require_delta(alpha)
    level = alpha / _N_TESTS
    for table, what, others in ((residuals, "canary", "round"), (residuals.T, "round", "canary")):
        yield from _of_sums(table, what, others, level)
    yield from () if own_noise is None else _of_servers(residuals, own_noise, level)
    yield from _of_patterns(residuals if len(residuals) <= residuals.shape[1] else residuals.T, noise, level)


def _of_sums(table: Array, what: str, others: str, level: float) -> Iterator[str]:
    """Yield the piece of each row whose sums are least likely. table: rows of `others`, columns of `what`."""
    rows, columns = table.shape
    if columns < _LEAST:
        return
    pieces = Parts.pieces(columns)
    unit = _of_unit_mean(_of_unit_mean(table.T).T)
    totals = [float(np.square(unit[:, piece].sum(axis=1)).sum()) / len(range(columns)[piece]) for piece in pieces]
    smaller = chi2.cdf(totals, rows) if rows >= _LEAST else 1.0
    chances = 2 * np.minimum(chi2.sf(totals, rows), smaller)
    best = int(np.argmin(chances))
    if chances[best] * len(pieces) < level:
        yield (
            f"noise: expected nothing in common, found sums over {Parts.words(what, pieces[best])} of each {others} "
            f"with {totals[best] / rows:.3g} of the variance of independent draws"
        )


def _of_servers(residuals: Array, own_noise: Array, level: float) -> Iterator[str]:
    """Yield whether two servers' noise is correlated over all rounds."""
    rows, columns = residuals.shape
    if columns < _LEAST:
        return
    products = (_of_unit_mean(residuals) * _of_unit_mean(own_noise)).sum()
    far = float(products) / math.sqrt(rows * columns)
    if 2 * float(ndtr(-abs(far))) < level:
        yield (
            f"noise: expected nothing in common, found a correlation of {far / math.sqrt(rows * columns):.3g} in both "
            "servers' noise of all rounds"
        )


def _of_patterns(table: Array, noise: float, level: float) -> Iterator[str]:
    """Yield whether rows have a pattern in common, or cancel. table: (k, n), k <= n."""
    k, n = table.shape
    if k < 2 or n < _LEAST:
        return
    reach = math.sqrt(-2 * math.log(level))
    unit = _of_unit_mean(table)
    mean_length = math.sqrt(2) * math.exp(float(gammaln((n + 1) / 2) - gammaln(n / 2)))
    most = (math.sqrt(k) + math.sqrt(n)) * math.sqrt(n) / mean_length + reach * math.sqrt(n / (n - 2))
    longest = math.sqrt(float(np.linalg.eigvalsh(unit @ unit.T)[-1]))
    if longest > most:
        yield (
            f"noise: expected nothing in common, found a pattern of rounds and canaries with a singular value of "
            f"{longest:.4g}, at most {most:.4g}"
        )
    least = math.sqrt(n) - math.sqrt(k) - reach
    scaled = table / noise
    shortest = math.sqrt(max(float(np.linalg.eigvalsh(scaled @ scaled.T)[0]), 0.0))
    if shortest < least:
        yield (
            f"noise: expected a multiplier of {noise:.6g} in every combination of rounds, found a singular value of "
            f"{shortest:.4g} over it, at least {least:.4g}"
        )


def _of_unit_mean(rows: Array) -> Array:
    """Return each row with a mean square of 1; zeros stay."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows * math.sqrt(rows.shape[1]) / np.where(lengths > 0, lengths, 1.0))
