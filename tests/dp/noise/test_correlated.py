"""Correlated noise against dense matrices, brute force over participations, exact integers, and its covariance."""

from __future__ import annotations

import itertools
import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import norm

from precad.dp.accountants.pld import PldAccountant, SampledGaussian
from precad.dp.noise import rounded_gaussian
from precad.dp.noise.correlated import MOST_BANDS, SCALE_BITS, Strategy, correlate

SCALE = 1 << SCALE_BITS
LIBRARY = json.loads((Path(__file__).parent / "minsep_sensitivities.json").read_text())


def squared_sensitivity(
    strategy: Strategy, rounds: int, separation: int, participations: int | None = None
) -> Fraction:
    """The largest ||C x||^2, exactly, over x of norm at most 1 in each participation and 0 elsewhere.

    Participations are at least `separation` >= b rounds apart; None: as many as fit. Columns of two of them have no row
    in common, and only get shorter toward the end, so the earliest places are the worst.
    """
    starts = range(0, rounds, separation)[:participations]
    total = sum(sum(c * c for c in strategy.coefficients[: rounds - start]) for start in starts)
    return Fraction(total, SCALE**2)


def dense(strategy: Strategy, rounds: int) -> NDArray[np.float64]:
    """C over 2^m, (T, T)."""
    found = np.zeros((rounds, rounds))
    for k, c in enumerate(strategy.coefficients[:rounds]):
        found += np.diag(np.full(rounds - k, c / SCALE), -k)
    return found


def outputs(strategy: Strategy, draws: NDArray[np.int64]) -> NDArray[np.int64]:
    """n_t of every round of one block, (T, d), from Z_t, (T, d)."""
    found: list[NDArray[np.int64]] = []
    for draw in draws.copy():
        correlate(draw, found[: -strategy.n_bands : -1], strategy)
        found.append(draw)
    return np.array(found)


def covariance_misses(found: NDArray[np.int64], expected: NDArray[np.float64], *, errors: float) -> int:
    """Count the pairs of rounds whose second moment, of (T, n) of mean 0, is so many standard errors off."""
    moments = found.astype(np.float64) @ found.T.astype(np.float64) / found.shape[1]
    of_one = np.diag(expected)
    standard_error = np.sqrt((np.outer(of_one, of_one) + expected**2) / found.shape[1])
    return int((np.abs(moments - expected) > errors * standard_error).sum())


def test_coefficients_are_the_binomial_series_rounded() -> None:
    """(1 - x)^(-2/3) by the gamma function; each falls, the first is 2^m."""
    found = np.array(Strategy.banded(MOST_BANDS).coefficients)
    exact = [math.exp(math.lgamma(k + 2 / 3) - math.lgamma(2 / 3) - math.lgamma(k + 1)) for k in range(MOST_BANDS)]
    assert np.abs(found - SCALE * np.array(exact)).max() <= 0.5 + 1e-6
    assert found[0] == SCALE
    assert (np.diff(found) < 0).all()


def _settings() -> list[tuple[int, int, int]]:
    """Fifty of (rounds, bands, separation) with few enough patterns to try all of them."""
    found = [
        (rounds, bands, separation)
        for bands in (1, 2, 3, 4, 5, 7)
        for separation in (bands, bands + 1, bands + 3)
        for rounds in (4, 9, 12)
    ]
    return found[:50]


@pytest.mark.parametrize(("rounds", "bands", "separation"), _settings())
def test_no_pattern_of_participations_moves_more(rounds: int, bands: int, separation: int) -> None:
    """Every set of rounds at least so far apart, with every choice of signs, by the dense matrix."""
    strategy, worst = Strategy.banded(bands), 0.0
    matrix = dense(strategy, rounds)
    for k in range(1, -(-rounds // separation) + 1):
        signs = np.array([(1.0, *others) for others in itertools.product((1.0, -1.0), repeat=k - 1)]).T
        for places in itertools.combinations(range(rounds), k):
            if all(b - a >= separation for a, b in itertools.pairwise(places)):
                moved = matrix[:, places] @ signs
                worst = max(worst, float((moved * moved).sum(axis=0).max()))
    assert float(squared_sensitivity(strategy, rounds, separation)) == pytest.approx(worst, rel=1e-9)


def test_sensitivities_are_those_of_a_maintained_library() -> None:
    """Sixty settings of rounds, bands, separation and participations, to 1e-9; the file names the version."""
    assert len(LIBRARY["settings"]) == 60
    for rounds, bands, separation, participations, expected in LIBRARY["settings"]:
        found = squared_sensitivity(Strategy.banded(bands), rounds, separation, participations)
        assert float(found) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("rounds", "bands", "loss"), LIBRARY["losses"])
def test_the_error_of_prefix_sums_is_within_1_percent_of_a_librarys_optimum(
    rounds: int, bands: int, loss: float
) -> None:
    """The optimum's mean squared error times its squared norm, beside ours by the dense matrix; its bands are free."""
    strategy = Strategy.banded(bands)
    sums = np.cumsum(np.linalg.inv(dense(strategy, rounds))[:, 0])
    ours = float(strategy.squared_norm) * np.cumsum(sums**2).mean()
    assert 1 - 1e-6 <= math.sqrt(ours / loss) < 1.01


@pytest.mark.parametrize("bands", [1, 2, 10, 20, 64])
def test_long_trainings_cost_a_whole_column_each_time(bands: int) -> None:
    """k ||c||^2 / 4^m where no column is cut, by the dense matrix and exactly; less where one is."""
    strategy, k = Strategy.banded(bands), 4
    rounds = k * bands
    moved = dense(strategy, rounds)[:, ::bands].sum(axis=1)
    found = squared_sensitivity(strategy, rounds, bands)
    assert float(found) == pytest.approx(float(moved @ moved), rel=1e-9)
    assert found == k * strategy.squared_norm
    assert squared_sensitivity(strategy, rounds, bands, 2) == 2 * strategy.squared_norm
    if bands > 1:
        assert squared_sensitivity(strategy, rounds - 1, bands) < found


def test_columns_that_overlap_are_refused() -> None:
    with pytest.raises(ValueError, match=f"n_bands: expected at most {MOST_BANDS}"):
        Strategy.banded(MOST_BANDS + 1)
    with pytest.raises(ValueError, match="coefficients: expected a fall from"):
        Strategy((SCALE, SCALE + 1))
    with pytest.raises(ValueError, match="past: expected at most 1"):
        correlate(np.zeros(3, dtype=np.int64), [np.zeros(3, dtype=np.int64)] * 2, Strategy.banded(2))


@pytest.mark.parametrize(("sigma", "k"), [(1.0, 1), (8.0, 20), (30.0, 7)])
def test_epsilon_is_that_of_a_gaussian_whose_means_are_the_norms_apart(sigma: float, k: int) -> None:
    """delta(epsilon) of N(0, 1) and N(mu, 1), inverted by bisection, mu^2 = k ||c||^2 / 4^m / sigma^2."""
    strategy, delta = Strategy.banded(10), 1e-5
    mu = math.sqrt(k * sum((c / SCALE) ** 2 for c in strategy.coefficients)) / sigma

    def excess(epsilon: float) -> float:
        return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)) - delta

    one = SampledGaussian(1.0, strategy.multiplier_of_a_round(sigma))
    assert PldAccountant().epsilon(one, k, delta) == pytest.approx(brentq(excess, 0, 200), abs=1e-6)
    assert Strategy.banded(1).multiplier_of_a_round(sigma) == sigma
    assert Fraction(strategy.multiplier_of_a_round(sigma)) ** 2 * strategy.squared_norm <= Fraction(sigma) ** 2


def test_a_release_is_a_function_of_past_releases_and_of_the_gaussian_mechanism() -> None:
    """The proof's identity, in exact integers: r_t from (Z_t + (C x)_t) and r_(t-1), .. alone, for x of any size."""
    random, strategy, rounds, dim = np.random.default_rng(3), Strategy.banded(4), 13, 500
    draws = random.integers(-(2**40), 2**40, size=(rounds, dim))
    x = random.integers(-(2**24), 2**24, size=(rounds, dim))
    released = x + outputs(strategy, draws)
    for t in range(rounds):
        mechanism = draws[t] + sum(c * x[t - k] for k, c in enumerate(strategy.coefficients) if k <= t)
        known = sum(c * released[t - k] for k, c in enumerate(strategy.coefficients) if 0 < k <= t)
        assert_array_equal(released[t], (mechanism - known + SCALE // 2) // SCALE)


def test_outputs_are_read_piece_by_piece_and_floors_are_toward_minus_infinity() -> None:
    """Against Python's integers, one coordinate at a time, over more coordinates than one piece."""
    random, strategy, dim = np.random.default_rng(4), Strategy.banded(3), (1 << 14) + 7
    draw, first, second = random.integers(-(2**30), 2**30, size=(3, dim))
    expected = draw.copy()
    correlate(expected, [first, second], strategy)
    _, c1, c2 = strategy.coefficients
    for i in random.integers(0, dim, size=200):
        exact = int(draw[i]) - c1 * int(first[i]) - c2 * int(second[i]) + SCALE // 2
        assert expected[i] == exact // SCALE


def test_prefix_sums_have_two_fifths_of_the_error_at_equal_epsilon() -> None:
    """T = 200, b = 10, 20 participations: .41 by the square root's bands, less by ours; and near the best bands."""
    rounds, bands = 200, 10
    independent = math.sqrt(np.arange(1, rounds + 1).mean())

    def error(matrix: NDArray[np.float64]) -> float:
        sums = np.tril(np.ones((rounds, rounds))) @ np.linalg.inv(matrix)
        return float(np.linalg.norm(matrix[:, 0])) * math.sqrt((sums**2).sum(axis=1).mean()) / independent

    ours, root, best = Strategy.banded(bands), np.zeros((rounds, rounds)), np.zeros((rounds, rounds))
    of_root = [math.comb(2 * k, k) / 4**k for k in range(bands)]
    of_best = [1.0, 0.633, 0.540, 0.490, 0.455, 0.428, 0.404, 0.381, 0.357, 0.330]
    for k in range(bands):
        root += np.diag(np.full(rounds - k, of_root[k]), -k)
        best += np.diag(np.full(rounds - k, of_best[k]), -k)
    assert error(root) == pytest.approx(0.405, abs=0.002)
    assert error(dense(ours, rounds)) == pytest.approx(0.3805, abs=0.0005)
    assert error(dense(ours, rounds)) < 1.02 * error(best)


@pytest.mark.parametrize("n", [40_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_covariance_is_that_of_the_inverse_matrix(n: int) -> None:
    """Every pair of 12 rounds over n coordinates within 4 standard errors, across a block that begins anew."""
    strategy, std, rounds, begins_anew = Strategy.banded(4), 40.0, 12, 7
    stream = np.random.Generator(np.random.PCG64(17)).bytes
    draws = np.array([rounded_gaussian.sample(std * SCALE, n, stream) for _ in range(rounds)])
    found = np.concatenate([outputs(strategy, draws[:begins_anew]), outputs(strategy, draws[begins_anew:])])
    expected = np.zeros((rounds, rounds))
    for block in (slice(0, begins_anew), slice(begins_anew, rounds)):
        inverse = np.linalg.inv(dense(strategy, block.stop - block.start))
        expected[block, block] = (std**2 + 1 / 12) * inverse @ inverse.T  # 1/12: what the floor adds
    assert covariance_misses(found, expected, errors=4.0) == 0
    expected[0, 1] *= 0.9
    assert covariance_misses(found, expected, errors=4.0) > 0


def test_reach_bounds_the_rows_of_the_inverse() -> None:
    for bands, rounds in ((1, 50), (2, 7), (10, 300), (64, 400)):
        strategy = Strategy.banded(bands)
        rows = np.linalg.inv(dense(strategy, rounds))
        two, one = strategy.reach(rounds)
        for found, exact in ((two, np.linalg.norm(rows, axis=1).max()), (one, np.abs(rows).sum(axis=1).max())):
            assert exact <= found <= exact * (1 + 1e-5)


@pytest.mark.parametrize("noise", [0.3, 1.0, 7.7, 1234.5])
def test_a_rounds_multiplier_is_never_rounded_up(noise: float) -> None:
    """In fractions, for every number of bands: its square times that of the norm is within the square of the noise."""
    for n_bands in range(1, MOST_BANDS + 1):
        strategy = Strategy.banded(n_bands)
        exact = Fraction(sum(c * c for c in strategy.coefficients), strategy.coefficients[0] ** 2)
        found = Fraction(strategy.multiplier_of_a_round(noise))
        assert (1 - Fraction(1, 10**12)) * Fraction(noise) ** 2 < found**2 * exact <= Fraction(noise) ** 2
