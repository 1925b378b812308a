"""Bounds on rounding, against exact integers and 50 digits."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from mpmath import mp, mpf
from numpy.typing import NDArray

from precad.dp.accountants import masses
from precad.dp.accountants.balls_in_bins import BallsInBins, _composed
from precad.dp.accountants.gaussian import gaussian_epsilon
from precad.dp.accountants.masses import Masses, lognormal, mixed, nothing, power, times

Array = NDArray[np.float64]


def on_bits(values: Array, bits: int) -> tuple[Masses, list[int]]:
    """Return masses of so many bits after the point, which float64 holds, and what they are times 2^bits."""
    words = [round(math.ldexp(float(value), bits)) for value in values / values.sum()]
    return Masses(np.array([math.ldexp(word, -bits) for word in words]), 0.0), words


def off(found: Array, words: list[int], bits: int) -> float:
    """Return how far all masses together are off, exactly."""
    exact = (abs(mpf(float(one)) - mpf(word) / mpf(2) ** bits) for one, word in zip(found, words, strict=True))
    return float(sum(exact))


def convolved(one: list[int], other: list[int]) -> list[int]:
    """By integers, as far as the first reaches."""
    return [int(v) for v in np.convolve(np.array(one, dtype=object), np.array(other, dtype=object))[: len(one)]]


@pytest.mark.parametrize("spread", [0.0, 3.0, 200.0], ids=["one point", "few points", "many points"])
def test_a_product_is_off_by_no_more_than_its_bound_says(spread: float) -> None:
    """Take 1024 points. The bound is of the size of what happens, within a factor of 2000."""
    draws, n = np.random.default_rng(1), 1024
    shape = np.exp(-0.5 * (np.arange(n) / spread) ** 2) if spread else np.eye(n)[3]
    (one, first), (other, second) = (on_bits(shape * draws.uniform(0.5, 1.5, n), 50) for _ in range(2))
    with mp.workdps(60):
        found = times(one, other)
        actual = off(found.values, convolved(first, second), 100)
    assert actual <= found.error < 1e-12
    if spread > 3:
        assert found.error < 2000 * actual


def test_a_sum_of_many_inherits_what_its_parts_are_off_by() -> None:
    """Eleven, of masses of 8 bits that are off by a known amount."""
    draws, n = np.random.default_rng(2), 256
    exact, words = on_bits(draws.uniform(0.0, 1.0, n) * np.exp(-np.arange(n) / 5), 16)
    moved = exact.values.copy()
    moved[7] += 1e-9
    total = words
    for _ in range(10):
        total = convolved(total, words)
    with mp.workdps(120):
        found = power(Masses(moved, 1e-9), 11)
        assert 1e-10 < off(found.values, total, 11 * 16) <= found.error < 1.2e-8
        assert off(power(exact, 11).values, total, 11 * 16) <= power(exact, 11).error < 1e-12


def test_a_sum_of_nothing_and_a_mixture() -> None:
    one = Masses(np.array([0.25, 0.75]), 1e-3)
    assert power(one, 0).values.tolist() == nothing(2).values.tolist() == [1.0, 0.0]
    found = mixed(one, nothing(2), 0.5)
    assert found.values.tolist() == [0.625, 0.375]
    assert 5e-4 <= found.error < 5.1e-4


def exact_lognormal(step: float, n: int, sigma: float) -> tuple[list[mpf], list[mpf]]:
    """The masses at the points, and each times its point, by differences of functions with 50 digits."""
    s, points = mpf(sigma), [mpf(step) * i for i in range(n)]
    z = [-mpmath.inf if point == 0 else mpmath.log(point) * s + 1 / (2 * s) for point in points]
    below, mean = ([mpmath.ncdf(one - by) for one in z] for by in (mpf(0), 1 / s))
    found = [mpf(0)] * len(points)
    for i in range(len(points) - 1):
        mass = below[i + 1] - below[i]
        upper = (mean[i + 1] - mean[i] - points[i] * mass) / points[1]
        found[i] += mass - upper
        found[i + 1] += upper
    return found, [mass * point for mass, point in zip(found, points, strict=True)]


@pytest.mark.parametrize(
    ("sigma", "top", "n"),
    [(0.25, 1e9, 64), (0.7, 40.0, 400), (1.0, 20.0, 1000), (4.0, 2.5, 2000), (200.0, 1.05, 2000)],
)
def test_a_lognormal_variables_masses_are_off_by_no_more_than_their_bound_says(
    sigma: float, top: float, n: int
) -> None:
    """Cells that are wide and narrow in z, of which the last are some thousand steps from 0."""
    with mp.workdps(50):
        for found, exact in zip(lognormal(top / n, n, sigma), exact_lognormal(top / n, n, sigma), strict=True):
            actual = float(sum(abs(mpf(float(a)) - b) for a, b in zip(found.values, exact, strict=True)))
            assert actual <= found.error < 1e-9 * max(1.0, float(found.values.sum()))


def test_differences_alone_would_be_off_by_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """And their bound says so: this is why narrow cells are integrated."""
    step = 2.5 / 2000
    integrated, _ = lognormal(step, 2000, 4.0)
    monkeypatch.setattr(masses, "_NARROW", 0.0)
    found, _ = lognormal(step, 2000, 4.0)
    with mp.workdps(50):
        exact, _ = exact_lognormal(step, 2000, 4.0)
        actual = float(sum(abs(mpf(float(a)) - b) for a, b in zip(found.values, exact, strict=True)))
    assert integrated.error < 1e-12 < actual <= found.error


def test_what_rounding_may_move_is_taken_out_of_delta() -> None:
    """A delta below it gives the figure of a participation that is known."""
    one = BallsInBins(bins=20, noise_multiplier=1.0)
    lost = _composed(20, 1.0, 20).rounding
    assert 1e-13 < lost < 1e-10
    assert one.epsilon(20, 0.9 * lost) == gaussian_epsilon(1.0, 0.9 * lost)
    of_losses = float(_composed(20, 1.0, 20).losses.get_epsilon_for_delta(999 * lost))
    assert one.epsilon(20, 1000 * lost) == of_losses < gaussian_epsilon(1.0, 1000 * lost)
