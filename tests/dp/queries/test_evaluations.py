"""Figures of a model on held-out records: every record within the ball, and error bars at their rate."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
from numpy.typing import NDArray

from precad.dp.queries.encodings import ROW_BITS
from precad.dp.queries.estimates import Estimate, Rounding
from precad.dp.queries.evaluations import EvaluationEncoding

ENCODING = EvaluationEncoding(loss_bound=4.0, frac_bits=12)
Values = NDArray[np.float64]


def held_out(n: int, right: float, rng: np.random.Generator) -> tuple[Values, Values]:
    """Return what a model did with n records: whether each is right, and its loss, some beyond the bound."""
    return (rng.random(n) < right).astype(np.float64), rng.gamma(2.0, 0.8, n)


def test_no_record_weighs_more_than_one() -> None:
    """Whatever its share and loss are, and rounded to the grid of records."""
    corners = np.array([0.0, 0.3, 1.0])
    losses = np.array([0.0, 1.7, 4.0, 1e30, math.inf, -math.inf, math.nan, -5.0])
    right, each = (found.ravel() for found in np.meshgrid(corners, losses))
    rows = ENCODING.rows(right, each)
    assert np.linalg.norm(rows, axis=1).max() <= 1
    assert (np.ldexp(rows, ROW_BITS) % 1 == 0).all()
    assert np.linalg.norm(ENCODING.rows(np.ones(1), np.full(1, 4.0))) > 1 - 2**-9


def test_the_weights_make_the_largest_error_bar_least() -> None:
    """Beside all others on the sphere, by a grid search."""

    def error(a: float) -> float:
        return math.sqrt(1 / a**2 + 1 / (1 - 2 * a**2))

    best = min(error(a) for a in np.linspace(0.01, 0.7, 10_000))
    fine = EvaluationEncoding(loss_bound=1.0, frac_bits=40).weights
    assert error(float(fine[1])) == pytest.approx(best, rel=1e-6)
    assert best == pytest.approx(1 + math.sqrt(2), rel=1e-6)


def test_without_noise_the_figures_are_the_records() -> None:
    """Beside the means of what was given, the loss clipped to 4."""
    right, losses = held_out(500, 0.8, np.random.default_rng(1))
    found = ENCODING.figures(ENCODING.total(right, losses), 1e-6)
    assert found.records.value == pytest.approx(500, rel=1e-9)
    assert found.accuracy.value == pytest.approx(right.mean(), abs=1e-3)
    assert found.loss.value == pytest.approx(np.minimum(losses, 4).mean(), abs=2e-3)


def test_counts_alone_give_the_sum_of_the_rows() -> None:
    """But for the rounding of each row; and never more than one for each record, whatever the counts are."""
    right, losses = held_out(500, 0.8, np.random.default_rng(1))
    given = ENCODING.total_of(float(right.sum()), 500, float(np.minimum(losses, 4).sum()))
    assert given == pytest.approx(ENCODING.total(right, losses), abs=500 * 2.0**-12)
    for correct in (0.0, 250.5, 500.0):
        for loss in (-5.0, 0.0, 700.0, 1e300, math.inf, -math.inf, math.nan):
            assert np.linalg.norm(ENCODING.total_of(correct, 500, loss)) <= 500
            for bound in (5e-324, 1e307):  # a client that raises tells of its loss
                hostile = EvaluationEncoding(loss_bound=bound, frac_bits=12)
                assert np.linalg.norm(hostile.total_of(correct, 500, loss)) <= 500


def covered(n_times: int, *, n: int, noise: float, level: float = 0.95) -> dict[str, float]:
    """Return how often each error bar covers the truth, over so many draws of the noise."""
    rng = np.random.default_rng(7)
    right, losses = held_out(n, 0.7, rng)
    fine = EvaluationEncoding(loss_bound=4.0, frac_bits=30)
    total, truth = (
        fine.total(right, losses),
        {"accuracy": right.mean(), "loss": np.minimum(losses, 4).mean(), "records": n},
    )
    hits = dict.fromkeys(truth, 0)
    for _ in range(n_times):
        figures = fine.figures(total + rng.normal(0, noise, 3), noise, level=level).named()
        for name, value in truth.items():
            hits[name] += figures[name].low <= value <= figures[name].high
    return {name: found / n_times for name, found in hits.items()}


@pytest.mark.parametrize(("n", "noise"), [(2_000, 20.0), (60, 12.0)])
@pytest.mark.parametrize("level", [0.8, 0.95])
def test_error_bars_cover_the_truth_at_their_rate(n: int, noise: float, level: float) -> None:
    """Over 1,000 draws, within five standard deviations of the rate; few records in much noise too."""
    slack = 5 * math.sqrt(level * (1 - level) / 1_000)
    for found in covered(1_000, n=n, noise=noise, level=level).values():
        assert found == pytest.approx(level, abs=slack)


def test_a_coarse_grid_of_the_sum_is_covered_too() -> None:
    """400 clients with some 25,000 records of one loss each, whose sums are cut toward zero to steps of 1/8.

    The number of records is one where the loss loses nearly a whole step. Without that few bars of the loss cover it.
    """
    coarse, noise = EvaluationEncoding(loss_bound=4.0, frac_bits=3), 6.0
    numbers = range(25_000, 25_040)
    steps = 8 * np.stack([coarse.total(np.ones(n), np.full(n, 0.3)) for n in numbers])
    most = int(np.abs(steps - np.trunc(steps))[:, 2].argmax())
    cut, draws = np.trunc(steps[most]) / 8, np.random.default_rng(3).normal(0, noise, (1_000, 3))

    def covered(rounding: Rounding) -> dict[str, int]:
        found = [coarse.figures(400 * cut + draw, noise, rounding=rounding).named() for draw in draws]
        truths = {"accuracy": 1.0, "loss": 0.3, "records": 400 * numbers[most]}
        return {name: sum(one[name].low <= is_so <= one[name].high for one in found) for name, is_so in truths.items()}

    assert covered(Rounding())["loss"] < 500
    assert min(covered(Rounding(400 / 8)).values()) > 900


def test_a_count_that_may_be_zero_says_nothing() -> None:
    """Rather than a ratio of noise."""
    found = ENCODING.figures(np.array([0.5, 0.2, -0.1]), 3.0)
    assert found.accuracy == Estimate(0.5, 0.0, 1.0)
    assert found.loss == Estimate(2.0, 0.0, 4.0)
    assert found.records.low < 0 < found.records.high


def test_a_bar_is_as_long_as_the_noise_says() -> None:
    """By the first order: z t / n times sqrt(1 / a^2 + y^2 / b^2), halved for the accuracy."""
    n, noise, weights = 100_000, 10.0, ENCODING.weights
    right = (np.arange(n) < 0.9 * n).astype(np.float64)
    found = ENCODING.figures(ENCODING.total(right, np.zeros(n)), noise).accuracy
    reach = NormalDist().inv_cdf(0.975) * noise / n * math.hypot(1 / weights[1], 0.8 / weights[0]) / 2
    assert (found.high - found.low) / 2 == pytest.approx(reach, rel=1e-3)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match=r"noisy_sum: expected shape \(3,\), found \(2,\)"):
        ENCODING.figures(np.zeros(2), 1.0)
    with pytest.raises(ValueError, match="noise_std"):
        ENCODING.figures(np.zeros(3), 0.0)
    with pytest.raises(ValueError, match="level"):
        ENCODING.figures(np.zeros(3), 1.0, level=1.0)
    with pytest.raises(ValueError, match="loss_bound"):
        EvaluationEncoding(loss_bound=0.0, frac_bits=12)


@pytest.mark.parametrize("cut", [0.0, 25.0])
@pytest.mark.parametrize("level", [0.5, 0.95])
def test_the_error_bars_of_a_share_reach_the_truth_at_their_level(level: float, cut: float) -> None:
    """A model that is wrong about all records. The sum of both numbers over their weights says how far it is from that.

    Noise of z standard deviations and all numbers off move that sum the most; the bound of what is off is for any sum.
    """
    std, n = 10.0, 200_000
    exact = ENCODING.total(np.zeros(n), np.zeros(n))
    combination = 1 / ENCODING.weights * [1, 1, 0]
    length = float(np.linalg.norm(combination))
    noise = NormalDist().inv_cdf((1 + level) / 2) * std * combination / length
    for off, is_reached in ((cut * np.sign(combination), True), (cut * math.sqrt(2) * combination / length, False)):
        found = ENCODING.figures(exact + noise + off, std, rounding=Rounding(cut=cut), level=level).accuracy
        assert found.value > 0
        assert found.low <= 1e-9
        far = ENCODING.figures(exact + 1.02 * noise + 1.02 * off, std, rounding=Rounding(cut=cut), level=level).accuracy
        assert is_reached or far.low > 1e-7
