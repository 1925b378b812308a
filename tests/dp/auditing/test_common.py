"""Parts that numbers of the noise have in common, and values that come again: what is found, and false alarms."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import ortho_group

from precad.dp.auditing.coincidences import values_again
from precad.dp.auditing.common import common_noise

Array = NDArray[np.float64]
SHAPE = (20, 500)


def gaussian(seed: int, shape: tuple[int, ...] = SHAPE, std: float = 2.0) -> Array:
    return np.random.default_rng(seed).normal(0, std, shape)


def shared_by_canaries(noise: Array) -> Array:
    """A twentieth of the variance is of the whole round. The largest of all pairs of numbers shows nothing of it."""
    return np.sqrt(0.95) * noise + np.sqrt(0.05) * gaussian(50, (len(noise), 1))


def shared_by_rounds(noise: Array) -> Array:
    return np.sqrt(0.8) * noise + np.sqrt(0.2) * gaussian(51, (1, noise.shape[1]))


def one_pattern(noise: Array) -> Array:
    signs = np.where(np.random.default_rng(52).random(noise.shape[1]) < 0.5, -1.0, 1.0)
    return np.sqrt(0.9) * noise + np.sqrt(0.1) * gaussian(53, (len(noise), 1)) * signs


def without_a_sum(noise: Array) -> Array:
    """Leave the sum of all coordinates without any noise."""
    return noise - noise.mean(axis=1, keepdims=True)


def cancelling(noise: Array) -> Array:
    """One combination of rounds that only a random rotation knows has no noise; every single round has it."""
    turn = ortho_group.rvs(len(noise), random_state=54)
    turned = turn @ noise
    turned[0] = 0.0
    return np.asarray(turn.T @ turned)


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        (shared_by_canaries, "sums over canary 0 to 499 of each round"),
        (shared_by_rounds, "sums over round 0 to 19 of each canary"),
        (one_pattern, "a pattern of rounds and canaries"),
        (without_a_sum, "sums over canary 0 to 499 of each round with 0.0"),
        (cancelling, "in every combination of rounds"),
    ],
)
def test_what_many_numbers_have_in_common_is_found(fault: object, named: str) -> None:
    assert callable(fault)
    assert any(named in line for line in common_noise(fault(gaussian(1)), None, 2.0, 0.001))


def test_a_weak_correlation_of_both_servers_is_found_over_all_rounds() -> None:
    own, noise = gaussian(2), gaussian(3)
    mixed = 0.08 * own + np.sqrt(1 - 0.08**2) * noise
    (line,) = common_noise(mixed, own, 2.0, 0.001)
    assert "found a correlation of 0.0" in line
    assert line.endswith("in both servers' noise of all rounds")


@pytest.mark.parametrize("shape", [(20, 100), (3, 96), (1, 300), (30, 12)])
def test_sound_noise_has_nothing_in_common_in_183_of_200_runs(shape: tuple[int, int]) -> None:
    """On the coarsest grid that a task may have, as printed or with more noise in every other round."""
    more = (1 + 0.3 * (np.arange(shape[0]) % 2))[:, None]
    for factor in (1.0, more):
        found = [
            any(common_noise(np.round(factor * gaussian(seed, shape, 8.0)), gaussian(-seed % 10**6, shape), 8.0, 0.05))
            for seed in range(1000, 1200)
        ]
        assert sum(found) <= 17


STD = 65536.0


def integers(seed: int, shape: tuple[int, int] = (8, 600)) -> Array:
    return np.round(gaussian(seed, shape, STD))


def again(residuals: Array, own: Array | None = None, alpha: float = 0.001) -> list[str]:
    return list(values_again(residuals, own, STD, 1.0, alpha))


def test_noise_that_comes_again_in_another_order_is_found() -> None:
    """In a later round, and as the other server's."""
    order = np.random.default_rng(60).permutation(600)
    noise, own = integers(4), integers(5)
    noise[6] = -noise[1, order]
    (line,) = again(noise)
    assert "found 600 values again in rounds 1 and 6 for" in line
    shared = integers(6)
    shared[3] = own[5, order]
    (line,) = again(shared, own)
    assert "of rounds 5 and 3 of two servers" in line


@pytest.mark.parametrize("values", ["a table of 4,096", "half precision"])
def test_noise_of_few_values_is_found(values: str) -> None:
    noise = integers(7)
    if values == "half precision":
        noise = np.round((noise / STD).astype(np.float16).astype(np.float64) * STD)
    else:
        noise = integers(8, (1, 4096))[0, np.random.default_rng(61).integers(0, 4096, noise.shape)]
    assert len(again(noise)) == 1


@pytest.mark.parametrize("std", [8.0, 500.0, STD])
def test_fresh_draws_come_again_in_at_most_17_of_200_runs(std: float) -> None:
    """On a coarse grid nothing is judged; on a middling one values come again by themselves."""
    found = [
        bool(list(values_again(*np.round(gaussian(2000 + seed, (2, 6, 80), std)), std, 1.0, 0.05)))
        for seed in range(200)
    ]
    assert sum(found) <= 17
