"""Aggregation rules against slow twins written from the papers, and examples computed by hand."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize

from precad.clients.errors import ArgumentError
from precad.lab.simulation.rules import (
    RULES,
    Bulyan,
    CoordinateMedian,
    GeometricMedian,
    Krum,
    Mean,
    MultiKrum,
    NormBounding,
    TrimmedMean,
)

PRIVATE = {"tsgd-gaussian", "tsgd-ptr"}
EXACT = sorted(set(RULES) - PRIVATE)


def updates(seed, m, d=3):
    """m random vectors."""
    return np.random.default_rng(seed).normal(size=(m, d))


def slow_scores(rows, f):
    """Krum, in words: of each vector, the squared distances to its m - f - 2 closest others, added up."""
    scores = []
    for i, x in enumerate(rows):
        distances = sorted(sum((a - b) ** 2 for a, b in zip(x, y, strict=True)) for j, y in enumerate(rows) if j != i)
        scores.append(sum(distances[: max(1, len(rows) - f - 2)]))
    return scores


def slow_order(rows, f):
    """From the best to the worst. Two that are closest to each other may tie: content decides."""
    scores = slow_scores(rows, f) if len(rows) > 1 else [0.0]
    return sorted(range(len(rows)), key=lambda i: (scores[i], np.array(rows[i]).tobytes()))


def slow_bulyan(rows, f):
    """Bulyan, in words: Krum again and again; then around the median, coordinate by coordinate."""
    left, chosen = [list(row) for row in rows], []
    while len(chosen) < len(rows) - 2 * f:
        chosen.append(left.pop(slow_order(left, f)[0]))
    result = []
    for column in zip(*chosen, strict=True):
        ordered = sorted(column)
        n = len(ordered)
        median = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
        near = sorted(ordered, key=lambda value: abs(value - median))[: n - 2 * f]
        result.append(sum(near) / len(near))
    return result


@pytest.mark.parametrize("name", EXACT)
def test_every_rule_agrees_with_the_unanimous_and_ignores_the_order(name):
    rule = RULES[name](bound=100.0) if name == "norm-bounding" else RULES[name]()
    assert rule.name == name
    assert_allclose(rule.aggregate(np.tile([1.0, -2.0], (7, 1))), [1.0, -2.0])
    rows = updates(1, 9)
    assert_allclose(rule.aggregate(rows[::-1]), rule.aggregate(rows))


@pytest.mark.parametrize("name", EXACT)
def test_every_rule_refuses_what_is_no_matrix_of_numbers(name):
    for bad in (np.zeros(3), np.zeros((0, 3)), np.full((7, 2), np.nan)):
        with pytest.raises(ArgumentError, match="updates"):
            RULES[name]().aggregate(bad)


@pytest.mark.parametrize("name", sorted(set(EXACT) - {"mean", "norm-bounding"}))
def test_robust_rules_stay_with_the_crowd(name):
    """Eight around (1, .., 1), one at a million: the result is near the crowd; the mean is not."""
    rows = np.vstack([1 + 0.01 * updates(2, 8), np.full((1, 3), 1e6)])
    rule = TrimmedMean(beta=0.2) if name == "trimmed-mean" else RULES[name]()
    assert np.abs(rule.aggregate(rows) - 1).max() < 0.1
    assert np.abs(Mean().aggregate(rows)).max() > 1e5


@given(seed=st.integers(0, 2**32), m=st.integers(4, 9), f=st.integers(0, 2))
def test_krum_is_the_vector_of_least_score(seed, m, f):
    rows = updates(seed, m)
    best = slow_order(rows, f)[: m - f]
    assert_array_equal(Krum(f=f).aggregate(rows), rows[best[0]])
    assert_allclose(MultiKrum(f=f).aggregate(rows), rows[best].mean(axis=0))
    assert_allclose(MultiKrum(f=f, keep=1).aggregate(rows), Krum(f=f).aggregate(rows))


def test_krum_by_hand():
    """0, 1, 3 and 10 on a line, f = 1: one neighbour each, squared distances 1, 1, 4, 49; of the tie, by content."""
    line = np.array([[0.0], [1.0], [3.0], [10.0]])
    assert Krum(f=1).aggregate(line)[0] in (0.0, 1.0)
    assert Krum(f=0).aggregate(line)[0] == 1.0  # two neighbours: 1 + 9, 1 + 4, 4 + 9, 49 + 81


@given(seed=st.integers(0, 2**32), f=st.integers(0, 2))
def test_bulyan_is_its_slow_twin(seed, f):
    rows = updates(seed, 4 * f + 3)
    assert_allclose(Bulyan(f=f).aggregate(rows), slow_bulyan(rows, f))


def test_bulyan_needs_its_quorum():
    with pytest.raises(ArgumentError, match="updates: expected at least 7 for bulyan, found 6"):
        Bulyan(f=1).aggregate(updates(0, 6))


def test_median_and_trimmed_mean_by_hand():
    rows = np.array([[1.0, 9.0], [2.0, -9.0], [4.0, 0.0], [100.0, 1.0]])
    assert_array_equal(CoordinateMedian().aggregate(rows), [3.0, 0.5])
    assert_array_equal(TrimmedMean(beta=0.25).aggregate(rows), [3.0, 0.5])
    assert_array_equal(TrimmedMean(beta=0.2).aggregate(rows), rows.mean(axis=0))  # floor(0.8) = 0 at either end


def test_the_trimmed_mean_cuts_the_share_that_was_written():
    """29 of a hundred at either end; in binary, 0.29 * 100 is less."""
    rows = np.arange(100.0)[:, None] ** 2
    assert_array_equal(TrimmedMean(beta=0.29).aggregate(rows), rows[29:71].mean(axis=0))
    assert_array_equal(TrimmedMean(beta=0.4999999999999999).aggregate(rows[:2]), rows[:2].mean(axis=0))


def test_the_geometric_median_of_a_square_with_an_outlier():
    """The Fermat point of four corners is their centre; of a triangle it is what a general optimiser finds."""
    corners = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    assert_allclose(GeometricMedian().aggregate(corners), [0, 0], atol=1e-9)
    rows = updates(5, 6)
    found = GeometricMedian(iterations=2000, nu=1e-12).aggregate(rows)
    best = minimize(lambda v: np.linalg.norm(rows - v, axis=1).sum(), rows.mean(axis=0), method="Nelder-Mead")
    assert np.linalg.norm(rows - found, axis=1).sum() <= best.fun + 1e-6


def test_norm_bounding_clips_each_and_averages():
    rows = np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    assert_allclose(NormBounding(bound=1.0).aggregate(rows), [(0.6 + 0.3) / 3, (0.8 + 0.4) / 3])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Krum(f=-1), "f: expected an integer of at least 0"),
        (lambda: MultiKrum(keep=0), "keep: expected an integer of at least 1"),
        (lambda: Bulyan(f=1.5), "f: expected an integer of at least"),
        (lambda: TrimmedMean(beta=0.5), "beta: expected a number in"),
        (lambda: GeometricMedian(nu=0.0), "nu: expected a finite number above 0"),
        (lambda: NormBounding(bound=float("nan")), "bound: expected a finite number above 0"),
    ],
)
def test_parameters_without_meaning_are_refused(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()


def test_multi_krum_cannot_keep_more_than_there_are():
    with pytest.raises(ArgumentError, match="updates: expected at least 5, which multi-krum keeps, found 4"):
        MultiKrum(keep=5).aggregate(updates(0, 4))


def test_no_rule_without_noise_claims_privacy():
    assert [RULES[name]().epsilon(10, 1e-5) for name in EXACT] == [None] * len(EXACT)


def test_ties_are_broken_by_content():
    """Two updates of equal score: the same one is taken whatever the order of the rows."""
    rows = [[0.0], [1.0]]
    assert len({float(Krum(f=0).aggregate(np.array(order))[0]) for order in itertools.permutations(rows)}) == 1
