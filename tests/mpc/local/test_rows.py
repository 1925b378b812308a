"""The rows of the no-wrap test: their arithmetic against integers, their distribution against exact probabilities."""

import math
from fractions import Fraction
from functools import cache
from itertools import accumulate, combinations

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy.stats import chi2, norm

from precad.mpc import prg
from precad.mpc.norm_bound import WINDOW
from precad.mpc.prg import Label, Purpose, Seed
from tests.mpc.fixed_randomness import FALSE_ALARM_RATE, seeds
from tests.mpc.ring_strategies import EDGES, as_ring, random_words
from tests.mpc.streams import TILE, project, row_bits, row_signs

LABEL = Label("task", 2)
SEED = Seed(bytes(range(16)))


def slow_rows(seed, dim, n_rows):
    """Return r_ji = s_i u_ji, one Python integer at a time.

    u is bit j of word i, and s is -1 where bit i of the signs is set.
    """
    bits = [int(word) % 2**64 for word in prg.stream(seed, Purpose.ROW_BITS, LABEL, dim)]
    signs = [int(word) % 2**64 for word in prg.stream(seed, Purpose.ROW_SIGNS, LABEL, -(-dim // 64))]
    sign = [-1 if signs[i // 64] >> i % 64 & 1 else 1 for i in range(dim)]
    return [[s * (word >> j & 1) for s, word in zip(sign, bits, strict=True)] for j in range(n_rows)]


def slow_project(x, seed, n_rows):
    """sum_i r_ji x_i over the integers, reduced once."""
    rows = slow_rows(seed, x.shape[1], n_rows)
    return np.stack([as_ring(sum(r * v for r, v in zip(row, c.tolist(), strict=True)) for row in rows) for c in x])


def passes(values):
    """-b <= v < b of the centred representative."""
    return (values >= -WINDOW) & (values < WINDOW)


@pytest.mark.parametrize("dim", [1, 2, 63, 64, 65, 1000, TILE - 1, TILE, TILE + 1, 2 * TILE + 1])
def test_project_is_the_integers_sum_over_signed_rows(dim):
    """Two random ring vectors and 64 rows against one product at a time in Python, at the edges of words and tiles."""
    x = random_words(f"project {dim}", 2, dim)
    x[0, : len(EDGES)] = EDGES[:dim]
    assert_array_equal(project(x, SEED, LABEL, 64), slow_project(x, SEED, 64))


@pytest.mark.parametrize("n_rows", [1, 7, 8, 9, 63])
def test_fewer_rows_are_the_first_of_all_rows(n_rows):
    """Row j depends on bit j of the coordinates' words only."""
    x = random_words("rows", 2, 100)
    assert_array_equal(project(x, SEED, LABEL, n_rows), project(x, SEED, LABEL, 64)[:, :n_rows])


def test_the_largest_limbs_stay_exact():
    """Over three tiles every word that enters a sum is all ones, so every limb is at its maximum."""
    dim = 3 * TILE
    rows = np.array(slow_rows(SEED, dim, 64))
    all_ones = -rows.sum(axis=0).clip(-1, 1)[None, :]
    expected = [sum(r * int(v) for r, v in zip(row, all_ones[0].tolist(), strict=True)) for row in rows.tolist()]
    assert max(expected) < -dim // 2 + 5 * math.sqrt(dim)  # all ones, but for coordinates that no row takes
    assert_array_equal(project(all_ones, SEED, LABEL, 64), [expected])


@pytest.mark.parametrize("dim", [3, 64, TILE + 1])
def test_projections_of_shares_are_shares_of_the_projection(dim):
    """project(x) + project(y) = project(x + y) modulo 2^64."""
    x, y = random_words(f"x {dim}", 3, dim), random_words(f"y {dim}", 3, dim)
    parts = project(x, SEED, LABEL, 64) + project(y, SEED, LABEL, 64)
    assert_array_equal(parts, project(x + y, SEED, LABEL, 64))


def test_clients_of_a_batch_do_not_touch_each_other():
    """Each client's rows are those it would get alone."""
    x = random_words("batch", 5, 70)
    alone = [project(x[i : i + 1], SEED, LABEL, 64)[0] for i in range(5)]
    assert_array_equal(project(x, SEED, LABEL, 64), alone)


def test_another_seed_or_round_gives_other_rows():
    """The rows of a round say nothing of the next round's, even under one seed."""
    x = random_words("fresh", 1, 8)
    values = [project(x, seed, label, 64) for seed in (SEED, Seed(bytes(16))) for label in (LABEL, Label("task", 3))]
    assert len({v.tobytes() for v in values}) == 4


def test_row_bits_and_signs_are_the_bits_of_the_streams():
    """u and s as arrays, against Python's shifts."""
    rows = np.array(slow_rows(SEED, 130, 64))
    signed_bits = row_bits(SEED, LABEL, 130, 64).T.astype(np.int64) * row_signs(SEED, LABEL, 130)
    assert_array_equal(signed_bits, rows)


# Distribution


def test_coefficients_are_a_quarter_a_half_and_a_quarter_in_every_row():
    """65 536 coefficients of each of 64 rows, chi-square with 2 degrees of freedom at 1e-6 over all rows together."""
    dim = 1 << 16
    coefficients = row_bits(SEED, LABEL, dim, 64).T.astype(np.int64) * row_signs(SEED, LABEL, dim)
    expected = np.array([dim / 4, dim / 2, dim / 4])
    for row in coefficients:
        counts = np.array([(row == value).sum() for value in (-1, 0, 1)])
        assert ((counts - expected) ** 2 / expected).sum() < chi2.isf(FALSE_ALARM_RATE / 64, 2)


def test_rows_are_independent_of_each_other_and_of_the_signs():
    """All pairs among 64 rows and the signs agree in half of 65 536 coordinates; 1e-6 over all 2080 pairs."""
    dim = 1 << 16
    columns = [*row_bits(SEED, LABEL, dim, 64).T.astype(bool), row_signs(SEED, LABEL, dim) > 0]
    pairs = list(combinations(columns, 2))
    tolerance = norm.isf(FALSE_ALARM_RATE / 2 / len(pairs)) * math.sqrt(dim) / 2
    assert max(abs(int((u == v).sum()) - dim / 2) for u, v in pairs) < tolerance


def test_neighbouring_coordinates_are_independent():
    """Row bits and signs of coordinates 1 to 128 apart agree half of the time; 1e-6 over all distances and rows."""
    dim = 1 << 16
    columns = [*row_bits(SEED, LABEL, dim, 64).T.astype(bool), row_signs(SEED, LABEL, dim) > 0]
    distances = (1, 2, 63, 64, 65, 128)
    z = norm.isf(FALSE_ALARM_RATE / 2 / (len(columns) * len(distances)))
    for distance in distances:
        for column in columns:
            agreements = int((column[distance:] == column[:-distance]).sum())
            assert abs(agreements - (dim - distance) / 2) < z * math.sqrt(dim) / 2


@pytest.mark.parametrize(("n_seeds", "dim"), [(800, 256), pytest.param(200_000, 1, marks=pytest.mark.slow)])
def test_eight_rows_accept_2_to_the_63_e_i_with_probability_2_to_the_minus_8(n_seeds, dim):
    """At least 200 000 trials, acceptance 2^-8 within 5 sigma (6e-7): correlated rows or biased bits would show.

    A trial is a coordinate i under a seed: 256 coordinates under each of 800 seeds, or one under each of 200 000.
    """
    n, vectors = n_seeds * dim, as_ring([2**63])[0] * np.eye(dim, dtype=np.int64)
    fresh_seeds = seeds(f"2^63 on one of {dim}", n_seeds)
    accepted = sum(int(passes(project(vectors, seed, LABEL, 8)).all(axis=1).sum()) for seed in fresh_seeds)
    assert abs(accepted - n / 256) < 5 * math.sqrt(n / 256 * 255 / 256)


@pytest.mark.parametrize("exponent", [30, 32, 47, 62, 63])
def test_a_row_passes_one_large_coordinate_half_of_the_time(exponent):
    """2^j e_1 with j >= 30: 64 rows under 1000 seeds pass in [0.48, 0.52], which is 10 sigma."""
    x = as_ring([2**exponent, 0, 0])[None, :]
    passed = np.concatenate([passes(project(x, seed, LABEL, 64)) for seed in seeds(f"2^{exponent} e_1", 1000)])
    assert 0.48 < passed.mean() < 0.52


@pytest.mark.parametrize(("norm_exponent", "about"), [(29, 0.84), (30, 0.52), (32, 0.14), (34, 0.035)])
def test_a_row_passes_a_spread_vector_with_the_exact_probability(norm_exponent, about):
    """1024 coordinates of equal size: pass rate over 1500 seeds of 64 rows within 5 sigma of the binomial sum.

    v / size is a sum of 1024 coefficients from {-1, 0, 1}, so Bin(2048, 1/2) - 1024. Rows share their signs. The
    variance of a seed's rate is Var P(pass | s) + E P(1 - P) / 64, with both terms summed exactly over the signs.
    """
    n_seeds, dim, size = 1500, 1024, 2**norm_exponent // 32
    edge = WINDOW // size
    expected = float(Fraction(sum(math.comb(2 * dim, dim + m) for m in range(-edge, edge)), 2 ** (2 * dim)))
    assert expected == pytest.approx(about, abs=0.005)

    weights = np.array([float(Fraction(math.comb(dim, p), 2**dim)) for p in range(dim + 1)])
    given_signs = np.array([_given_signs(dim, edge, p) for p in range(dim + 1)])
    assert weights @ given_signs == pytest.approx(expected)
    variance = weights @ (given_signs - expected) ** 2 + weights @ (given_signs * (1 - given_signs)) / 64

    x = np.full((1, dim), size)
    rates = [passes(project(x, seed, LABEL, 64)).mean() for seed in seeds(f"spread {norm_exponent}", n_seeds)]
    assert abs(np.mean(rates) - expected) < 5 * math.sqrt(variance / n_seeds)


def _given_signs(dim, edge, n_positive):
    """P(row passes | s) of dim equal coordinates: v / size is Bin(dim, 1/2) minus the number of negative signs."""
    first = dim - n_positive - edge
    below = _sums_of_binomials(dim)
    start, end = (min(max(0, k), dim + 1) for k in (first, first + 2 * edge))
    return float(Fraction(below[end] - below[start], 2**dim))


@cache
def _sums_of_binomials(n):
    """Entry k: how many of the subsets of n things have fewer than k, for k = 0, .., n + 1."""
    return [0, *accumulate(math.comb(n, k) for k in range(n + 1))]
