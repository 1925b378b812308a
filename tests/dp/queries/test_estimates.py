"""Error bars cover the truth at their level: 1,000 answers of each kind, whose noise is what servers add."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
from scipy.stats import binom, norm

from precad.dp.noise import rounded_gaussian
from precad.dp.queries.encodings import Encoding, Values
from precad.dp.queries.estimates import Rounding, answer
from precad.dp.queries.kinds import Kind

RUNS = 1_000
FALSE_ALARM = 1e-6
"""Chance that a test of coverage fails although the coverage is the level."""
FRAC_BITS = 16
SIGMA = 6.0


def column(n: int = 4_000, seed: int = 3) -> np.ndarray:
    """Return ages, skewed, a few of them beyond the declared bounds."""
    draw = np.random.default_rng(seed)
    return np.round(18 + 130 * draw.beta(2, 5, n))


def noisy_sums(encoding: Encoding, values: np.ndarray) -> np.ndarray:
    """Return what both servers open in each run, (RUNS, k): their rounded draws on the grid."""
    std = SIGMA * 2.0**FRAC_BITS
    draws = [rounded_gaussian.sample(std, RUNS * encoding.dim, os.urandom).reshape(RUNS, -1) for _ in "ab"]
    return encoding.total(values) + np.ldexp(sum(draws).astype(np.float64), -FRAC_BITS)


def truth_of(encoding: Encoding, values: np.ndarray, share: float) -> float:
    """Compute the number asked for from the records, by NumPy alone."""
    clipped = np.clip(values, encoding.low, encoding.high)
    match encoding.kind:
        case Kind.COUNT:
            return float(((encoding.low <= values) & (values <= encoding.high)).sum())
        case Kind.MEAN:
            return float(clipped.mean())
        case Kind.VARIANCE:
            return float(clipped.var())
    return float(np.quantile(clipped, share, method="inverted_cdf"))


def require_coverage(hits: int, level: float, *, at_most: bool = True) -> None:
    """Require a count of hits that a coverage of `level` gives, but for the false-alarm rate on each side."""
    assert hits >= binom.ppf(FALSE_ALARM, RUNS, level)
    assert not at_most or hits <= binom.ppf(1 - FALSE_ALARM, RUNS, level)


@pytest.mark.parametrize("level", [0.8, 0.95])
@pytest.mark.parametrize("kind", [Kind.COUNT, Kind.MEAN, Kind.VARIANCE])
def test_error_bars_cover_at_their_level(kind: Kind, level: float) -> None:
    """At the nominal rate, neither below nor above it."""
    own, values = Encoding(kind=kind, low=20.0, high=100.0, frac_bits=FRAC_BITS), column()
    truth = truth_of(own, values, 0.5)
    found = [answer(own, noisy, math.sqrt(2) * SIGMA, level=level).estimate for noisy in noisy_sums(own, values)]

    require_coverage(sum(e is not None and e.low <= truth <= e.high for e in found), level)


@pytest.mark.parametrize("kind", [Kind.COUNT, Kind.MEAN, Kind.VARIANCE])
def test_a_coarse_grid_of_the_sum_is_covered_too(kind: Kind) -> None:
    """Ten clients with 10,000 records each, nine in ten of one value, whose sums are cut to steps of 1/8.

    Rounded to that grid record by record, no bar of a mean covers it. Bars are at most 15 % longer for it.
    """
    own, rounding = Encoding(kind=kind, low=0.0, high=3.0, frac_bits=3), Rounding(10 / 8)
    values = (np.arange(10_000) % 10 > 0).astype(np.float64)
    truth = truth_of(own, values, 0.5) * (10 if kind is Kind.COUNT else 1)
    cut = np.ldexp(np.trunc(np.ldexp(own.total(values), 3)), -3)
    noise = noisy_sums(own, np.zeros(0))
    found = [answer(own, 10 * cut + drawn, math.sqrt(2) * SIGMA, rounding=rounding).estimate for drawn in noise]

    require_coverage(sum(e is not None and e.low <= truth <= e.high for e in found), 0.95, at_most=False)
    without = answer(own, 10 * cut + noise[0], math.sqrt(2) * SIGMA).estimate
    assert found[0] is not None
    assert without is not None
    assert 1.0 < (found[0].high - found[0].low) / (without.high - without.low) < 1.15


def cut_most(own: Encoding, value: float) -> Values:
    """Return the cut sum of a number of equal records, of those whose last number loses most by the cut."""
    steps = np.ldexp(np.stack([own.total(np.full(n, value)) for n in range(10_000, 10_100)]), own.frac_bits)
    cut = np.trunc(steps)
    return np.ldexp(cut[np.abs(steps - cut)[:, -1].argmax()], -own.frac_bits)


@pytest.mark.parametrize("kind", [Kind.MEAN, Kind.VARIANCE])
def test_what_cutting_takes_of_many_clients_is_covered(kind: Kind) -> None:
    """400 clients whose sums lose nearly a whole step each: without it few bars cover, with it almost every one."""
    own = Encoding(kind=kind, low=0.0, high=3.0, frac_bits=3)
    cut, truth, noise = cut_most(own, 1.0), truth_of(own, np.full(5, 1.0), 0.5), noisy_sums(own, np.zeros(0))

    def covered(rounding: Rounding) -> int:
        found = [answer(own, 400 * cut + one, math.sqrt(2) * SIGMA, rounding=rounding).estimate for one in noise]
        return sum(e is not None and e.low <= truth <= e.high for e in found)

    assert covered(Rounding()) < RUNS / 2
    assert covered(Rounding(400 / 8)) > 0.99 * RUNS


def test_ranks_are_off_by_what_all_clients_cut_together() -> None:
    """A quantile of 4,096 bins is as sharp with a coarse grid as with a fine one, but for a step of each client."""
    own = Encoding(kind=Kind.QUANTILE, low=0.0, high=100.0, frac_bits=5, bins=4096)
    total = own.total(np.random.default_rng(1).uniform(0, 100, 100_000))
    fine, coarse = (answer(own, total, 6.0, rounding=Rounding(50 * 2.0**-f)).estimate for f in (20, 5))
    assert fine is not None
    assert coarse is not None
    assert fine.high - fine.low <= coarse.high - coarse.low <= 1.05 * (fine.high - fine.low) + 100 / 4096


@pytest.mark.parametrize("level", [0.95, 0.999])
def test_a_variance_of_few_records_is_covered_too(level: float) -> None:
    """Where its count is four standard deviations of its noise, all at one end: what a first order covers least."""
    own = Encoding(kind=Kind.VARIANCE, low=20.0, high=100.0, frac_bits=FRAC_BITS)
    values = np.full(round(4 * math.sqrt(2) * SIGMA / own.weights[0]), 100.0)
    found = [answer(own, noisy, math.sqrt(2) * SIGMA, level=level).estimate for noisy in noisy_sums(own, values)]

    require_coverage(sum(e is not None and e.low <= 0.0 <= e.high for e in found), level, at_most=False)


def test_a_mean_of_few_records_is_covered_too() -> None:
    """Fieller's interval needs no large count: here it is two standard deviations of its noise."""
    own = Encoding(kind=Kind.MEAN, low=20.0, high=100.0, frac_bits=FRAC_BITS)
    values = column(n=24)
    truth = truth_of(own, values, 0.5)
    found = [answer(own, noisy, math.sqrt(2) * SIGMA, level=0.8).estimate for noisy in noisy_sums(own, values)]

    require_coverage(sum(e is not None and e.low <= truth <= e.high for e in found), 0.8, at_most=False)


def test_each_bin_is_covered_at_the_level() -> None:
    """Every bin by itself; false alarms of eight bins together."""
    own, values = Encoding(kind=Kind.HISTOGRAM, low=20.0, high=100.0, frac_bits=FRAC_BITS, bins=8), column()
    truth, _ = np.histogram(np.clip(values, 20, 100), bins=8, range=(20, 100))
    found = [answer(own, noisy, math.sqrt(2) * SIGMA).bins for noisy in noisy_sums(own, values)]
    for i in range(8):
        require_coverage(sum(bins[i].low <= truth[i] <= bins[i].high for bins in found), 0.95)


@pytest.mark.parametrize("share", [0.05, 0.5, 0.9])
def test_a_quantile_is_covered_at_least_at_the_level(share: float) -> None:
    """And its error bar says something: it is no longer than a quarter of the bounds."""
    own, values = Encoding(kind=Kind.QUANTILE, low=20.0, high=100.0, frac_bits=FRAC_BITS, bins=80), column()
    truth = truth_of(own, values, share)
    found = [answer(own, noisy, math.sqrt(2) * SIGMA, share=share).estimate for noisy in noisy_sums(own, values)]

    require_coverage(sum(e is not None and e.low <= truth <= e.high for e in found), 0.95, at_most=False)
    assert max(e.high - e.low for e in found if e is not None) <= 20


def test_error_bars_of_no_records_say_nothing() -> None:
    """Bounds of the column; never a division by zero."""
    for kind in (Kind.MEAN, Kind.VARIANCE):
        own = Encoding(kind=kind, low=20.0, high=100.0, frac_bits=FRAC_BITS)
        found = answer(own, np.zeros(own.dim), 1.0).estimate
        assert found is not None
        assert found.high - found.low == (80 if kind is Kind.MEAN else 1600)


@pytest.mark.parametrize(
    ("noisy", "std", "level"), [(np.zeros(3), 1.0, 0.95), (np.zeros(2), 0.0, 0.95), (np.zeros(2), 1.0, 1.0)]
)
def test_impossible_arguments_are_refused(noisy: np.ndarray, std: float, level: float) -> None:
    """Argument, condition and value."""
    with pytest.raises(ValueError, match=r"noisy_sum|noise_std|level"):
        answer(Encoding(kind=Kind.MEAN, low=0.0, high=1.0, frac_bits=8), noisy, std, level=level)


T, CUT = 10.0, 25.0
"""Noise, and how far each number of the sum is off beside it."""


def pushed(combination: np.ndarray, z: float, cut: float) -> np.ndarray:
    """Return what moves a combination of numbers the most: noise of z standard deviations, and all numbers off."""
    return z * T * combination / np.linalg.norm(combination) + cut * np.sign(combination)


@pytest.mark.parametrize("cut", [0.0, CUT])
@pytest.mark.parametrize("level", [0.5, 0.95])
def test_the_error_bar_of_a_mean_reaches_the_truth_at_its_level(level: float, cut: float) -> None:
    """All records at the lower bound, where the sum of both numbers says how far the mean is above it: exactly."""
    encoding = Encoding(kind=Kind.MEAN, low=10.0, high=30.0, frac_bits=FRAC_BITS)
    exact = encoding.total(np.full(100_000, 10.0))
    off = pushed(1 / encoding.weights, norm.isf((1 - level) / 2), cut)
    found = answer(encoding, exact + off, T, rounding=Rounding(cut=cut), level=level).estimate
    assert found.value > 10.0
    assert found.low == pytest.approx(10.0, abs=1e-6)


@pytest.mark.parametrize("cut", [0.0, CUT])
@pytest.mark.parametrize("level", [0.5, 0.95])
def test_the_error_bar_of_a_variance_reaches_the_truth_at_its_level(level: float, cut: float) -> None:
    """All records at the upper bound. A twentieth of the failures are the mean's, so that z is of the others alone."""
    encoding = Encoding(kind=Kind.VARIANCE, low=-1.0, high=1.0, frac_bits=FRAC_BITS)
    exact = encoding.total(np.ones(1_000_000))
    off = pushed(np.array([1.5, -2.0, 1.0]) / encoding.weights, norm.isf(0.95 * (1 - level) / 2), cut)
    found = answer(encoding, exact + off, T, rounding=Rounding(cut=cut), level=level).estimate
    assert found.value > 1e-6
    assert found.low <= 1e-12
    too_far = pushed(np.array([1.5, -2.0, 1.0]) / encoding.weights, 1.05 * norm.isf(0.95 * (1 - level) / 2), 1.1 * cut)
    assert answer(encoding, exact + too_far, T, rounding=Rounding(cut=cut), level=level).estimate.low > 1e-8


@pytest.mark.parametrize("cut", [0.0, CUT])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_the_error_bar_of_a_quantile_has_the_bin_whose_edge_the_level_allows(share: float, cut: float) -> None:
    """The rank at that edge is next to 0. Noise of z, and all that bins are off, do not refute the bins beside it."""
    encoding = Encoding(kind=Kind.QUANTILE, low=0.0, high=10.0, frac_bits=FRAC_BITS, bins=10)
    counts = np.full(10, 10_000.0)
    edge = round(10 * share)  # where that share of the records is below
    combination = np.where(np.arange(10) < edge, 1 - share, -share)
    noise = pushed(combination, norm.isf(0.025), 0.0)
    off = np.zeros(10)
    off[0 if share < 0.5 else -1] = cut if share < 0.5 else -cut  # the bin that counts for more
    above = answer(encoding, counts + 0.999 * (noise + off), T, rounding=Rounding(cut=cut), share=share).estimate
    below = answer(encoding, counts - 0.999 * (noise + off), T, rounding=Rounding(cut=cut), share=share).estimate
    assert above.low < edge < above.high or above.high == edge + 1 > above.low
    assert below.low < edge <= below.high
    assert above.low <= edge <= above.high
    if cut == 0:
        far = answer(encoding, counts + 1.01 * noise, T, share=share).estimate
        assert far.high == edge
