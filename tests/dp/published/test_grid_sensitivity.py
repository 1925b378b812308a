"""Lengths after rounding: vectors of the worst content, rounded by rules that are written out here."""

import math
from collections.abc import Callable
from typing import Final

import numpy as np
import pytest

from precad.dp.published.grid_sensitivity import fixed_point_client_bound, fixed_point_record_sensitivity

D, F = 9, 4
STEP: Final = 2.0**-F
NEXT_TO: Final = 1e-9
"""How far from a point where a rule jumps the worst vectors are."""
RULES: Final[dict[str, Callable[[np.ndarray], np.ndarray]]] = {
    "nearest": np.rint,
    "toward_zero": np.trunc,
    "floor": np.floor,
    "stochastic_shared": lambda steps: np.ceil(steps - 0.25),  # of a draw that is equal at every coordinate
}


def grown_by(rule: Callable[[np.ndarray], np.ndarray], other: Callable[[np.ndarray], np.ndarray] | None) -> float:
    """Return how much farther apart rounding puts two vectors at most; with no other, how much longer makes one."""
    places = np.concatenate([np.arange(-2, 3, 0.25) + shift for shift in (-NEXT_TO, 0.0, NEXT_TO)])
    first = places[:, None] * np.ones(D)
    if other is None:
        return float((np.linalg.norm(rule(first), axis=1) - np.linalg.norm(first, axis=1)).max()) * STEP
    apart = np.linalg.norm(rule(first)[:, None] - other(first)[None], axis=2)
    before = np.linalg.norm(first[:, None] - first[None], axis=2)
    return float((apart - before).max()) * STEP


@pytest.mark.parametrize("rule", RULES)
def test_a_record_is_moved_by_a_step_of_each_coordinate(rule):
    """Which the worst two vectors reach."""
    found = fixed_point_record_sensitivity(3.0, D, F, rule) - 3.0
    assert found == pytest.approx(grown_by(RULES[rule], RULES[rule]), abs=1e-6)


def test_draws_of_their_own_move_a_record_by_two():
    found = fixed_point_record_sensitivity(3.0, D, F, "stochastic_independent") - 3.0
    assert found == pytest.approx(grown_by(np.floor, np.ceil), abs=1e-6)


@pytest.mark.parametrize("rule", ["nearest", "toward_zero", "floor"])
def test_a_client_is_longer_by_what_the_rule_adds(rule):
    """Half a step, none, or one of each coordinate: sqrt(d) times that, and the worst vector reaches it."""
    found = fixed_point_client_bound(3.0, D, F, rule) - 3.0
    assert found == pytest.approx(grown_by(RULES[rule], None), abs=1e-6)


@pytest.mark.parametrize("rule", ["stochastic", "stochastic_shared", "stochastic_independent"])
def test_a_client_that_draws_is_longer_by_a_step(rule):
    """Any coordinate may go either way: away from zero at worst."""
    found = fixed_point_client_bound(3.0, D, F, rule) - 3.0
    assert found == pytest.approx(grown_by(lambda steps: np.sign(steps) * np.ceil(np.abs(steps)), None), abs=1e-6)
    assert found == pytest.approx(math.sqrt(D) * STEP)
