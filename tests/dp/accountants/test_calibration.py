"""The searches for the least noise and the most rounds, beside a walk through all candidates.

The accountants here are curves of our own: flat, steep, in steps, infinite at first. A search that trusts a slope too
much stops early on one of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pytest

from precad.dp.accountants.calibration import largest, most_rounds, smallest_noise_multiplier
from precad.dp.accountants.pld import Event, Label, SampledGaussian

CURVES: Final[dict[str, Callable[[float, int], float]]] = {
    "root": lambda sigma, rounds: math.sqrt(rounds) / sigma,
    "line": lambda sigma, rounds: rounds / sigma**2,
    "steep": lambda sigma, rounds: math.expm1(rounds / sigma**4) if rounds < 600 * sigma**4 else math.inf,
    "late": lambda sigma, rounds: 0.0 if rounds < 40 * sigma else rounds / sigma,
    "steps": lambda sigma, rounds: math.ceil(rounds / 7) / sigma,
    "then infinite": lambda sigma, rounds: 1e-6 * rounds / sigma if rounds <= 90 * sigma else math.inf,
}
TARGETS = [1e-5, 0.3, 1.0, 7.5, 80.0]


@dataclass
class Curve:
    """An accountant whose epsilon is a formula; counts how often it is asked."""

    formula: Callable[[float, int], float]
    label: Label = Label.BOUND
    asked: int = 0

    def epsilon(self, event: Event, rounds: int, delta: float) -> float:
        self.asked += 1
        return self.formula(event.noise_multiplier, rounds)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize("at_most", [1, 2, 100, 3000])
def test_most_rounds_is_what_counting_finds(name: str, target: float, at_most: int) -> None:
    """One round after another, until the target is exceeded."""
    curve = Curve(CURVES[name])
    counted = itertools.takewhile(lambda n: CURVES[name](1.5, n) <= target, range(1, at_most + 1))
    assert most_rounds(target, SampledGaussian(0.1, 1.5), 1e-5, curve, at_most=at_most) == sum(1 for _ in counted)
    assert curve.asked <= 3 * math.log2(at_most + 1) + 3


@pytest.mark.parametrize("target", [*TARGETS, 1e6])
@pytest.mark.parametrize("name", CURVES)
def test_the_noise_is_enough_and_a_little_less_is_not(name: str, target: float) -> None:
    """To a ten-thousandth, wherever the curve lies."""
    curve, rounds = Curve(CURVES[name]), 50
    found = smallest_noise_multiplier(target, lambda sigma: SampledGaussian(0.1, sigma), rounds, 1e-5, curve)
    assert CURVES[name](found, rounds) <= target
    assert found == 1e-2 or CURVES[name](found / 1.0002, rounds) > target


@pytest.mark.parametrize("last", [*range(10), 99, 100, 101, 1000])
@pytest.mark.parametrize("at_most", [0, 1, 2, 7, 100])
def test_the_largest_number_is_what_counting_finds(last: int, at_most: int) -> None:
    """That of rounds which a budget allows, or of attackers who are tolerated: none at all among them."""
    assert largest(lambda n: n <= last, at_most) == min(last, at_most)


def test_a_target_out_of_reach_is_refused() -> None:
    curve = Curve(lambda sigma, rounds: 1.0 + 1 / sigma)
    with pytest.raises(
        ValueError, match=r"target_epsilon: expected one that a noise multiplier of at most 1e6 reaches, found 0\.5"
    ):
        smallest_noise_multiplier(0.5, lambda sigma: SampledGaussian(0.1, sigma), 10, 1e-5, curve)
