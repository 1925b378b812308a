"""Noise and draws that are alike everywhere: rates of false alarms on sound ones, and what each test is for."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import hypergeom, norm

from precad.dp.auditing.draws import _least, dependent_draws
from precad.dp.auditing.evenness import coarse_noise, uneven_noise
from precad.dp.auditing.independence import repeated_noise

Array = NDArray[np.float64]


def gaussian(seed: int, shape: tuple[int, int] = (20, 100), std: float = 2.0) -> Array:
    return np.random.default_rng(seed).normal(0, std, shape)


@pytest.mark.parametrize("std", [2.0, 2.5])
def test_gaussian_noise_is_called_uneven_in_at_most_17_of_200_runs(std: float) -> None:
    """At 5 %, of the printed multiplier or of a larger one."""
    assert sum(any(uneven_noise(gaussian(seed, std=std), 2.0, 0.05)) for seed in range(200)) <= 17


def test_rounded_noise_is_called_uneven_in_at_most_17_of_200_runs() -> None:
    """A coarse grid, of half a standard deviation: one of five draws is 0."""
    found = [any(uneven_noise(np.round(gaussian(seed)), 2.0, 0.05, step=1.0)) for seed in range(200)]
    assert sum(found) <= 17


def spiked(noise: Array) -> Array:
    """One of twenty draws is 0, and the others are as much larger: the variance is as printed."""
    noise = noise / math.sqrt(0.95)
    noise[:, ::20] = 0.0
    return noise[:, np.random.default_rng(0).permutation(noise.shape[1])]


def quiet_canary(noise: Array) -> Array:
    noise[:, 3] *= 0.4
    return noise


def quiet_round(noise: Array) -> Array:
    noise[3] *= 0.4
    return noise


def quiet_half(noise: Array) -> Array:
    """The variance of all together is as printed."""
    return noise * np.where(np.arange(len(noise)) % 2 == 0, 0.9, 1.1)[:, None]


def logistic(noise: Array) -> Array:
    """The law of that name and of this variance, by its quantiles."""
    u = norm.cdf(noise / 2.0)
    return np.asarray(np.log(u / (1 - u)) * 2.0 * math.sqrt(3) / math.pi)


def short_tailed(noise: Array) -> Array:
    """In the sum of two servers' noise, the law of one is uniform."""
    return noise / math.sqrt(2) + np.random.default_rng(8).uniform(-math.sqrt(6), math.sqrt(6), noise.shape)


def four_uniforms(noise: Array) -> Array:
    """A sum of four: no draw beyond 3.46 standard deviations, and short tails before."""
    return np.asarray(np.random.default_rng(12).uniform(-1, 1, (4, *noise.shape)).sum(axis=0) * 2.0 * math.sqrt(3) / 2)


def unequal(noise: Array) -> Array:
    """A fifth less at half of the canaries, as chance chose them, and as much more at the others."""
    is_less = np.random.default_rng(13).random(noise.shape[1]) < 0.5
    return noise * np.where(is_less, 0.8, math.sqrt(1.36))


def small_at_few(noise: Array) -> Array:
    return noise * np.where(np.random.default_rng(14).random(noise.shape[1]) < 0.1, 0.7, 1.0)


def of_two_values(noise: Array) -> Array:
    return np.sign(noise) * 2.0


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        (quiet_round, "in round 3 at canary 0 to 332"),
        (quiet_half, "in round 0 to 59, one of 2 at"),
        (logistic, "within 0.5"),
        (short_tailed, "beyond 3 standard deviations"),
        (quiet_canary, "in canary 3"),
        (of_two_values, "beyond 1 standard deviations"),
        (spiked, "near zero"),
        (four_uniforms, "fourth moments of 2.6"),
        (unequal, "canaries with so little noise"),
        (small_at_few, "canaries with so little noise"),
    ],
)
def test_what_a_variance_alone_does_not_show_is_found(fault: object, named: str) -> None:
    assert callable(fault)
    noise = fault(gaussian(1, (60, 333)))
    assert any(named in line for line in uneven_noise(noise, 2.0, 0.01))


def test_noise_that_is_smaller_where_a_canary_was_drawn_is_found() -> None:
    """All together, and every round and canary, have the variance that is printed."""
    drawn = np.random.default_rng(15).random((60, 333)) < 0.25
    noise = gaussian(16, (60, 333)) * np.where(drawn, 0.9, math.sqrt((1 - 0.25 * 0.81) / 0.75))
    assert not list(uneven_noise(noise, 2.0, 0.01))
    (line,) = uneven_noise(noise, 2.0, 0.01, drawn=drawn)
    assert line.endswith("at canaries drawn")


@pytest.mark.parametrize("shape", [(1, 300), (2, 64), (20, 60)])
def test_noise_on_the_coarsest_grid_is_called_uneven_in_at_most_17_of_200_runs(shape: tuple[int, int]) -> None:
    """Eight steps a standard deviation: of one or two rounds, a canary's noise is 0 now and then."""
    found = [any(uneven_noise(np.round(gaussian(seed, shape, 8.0)), 8.0, 0.05, step=1.0)) for seed in range(200)]
    assert sum(found) <= 17


def test_tails_are_judged_by_the_chance_that_nothing_lies_beyond() -> None:
    """(2 Phi(x) - 1)^n, at both sides of an eighth of the level."""
    noise = np.full((1, 1000), 1.0)
    at = float(norm.isf((1 - (0.01 / 8) ** (1 / 1000)) / 2))
    for farthest, is_found in ((at * 0.999, True), (at * 1.001, False)):
        noise[0, 0] = farthest
        assert any("found none of" in line for line in uneven_noise(noise, 1.0, 0.01)) == is_found


def test_noise_of_every_other_step_is_found_and_few_draws_tell_nothing() -> None:
    draws = np.random.default_rng(2).integers(-1000, 1000, (8, 16)).astype(np.float64)
    assert not list(coarse_noise(draws * 0.25, 0.25))
    (line,) = coarse_noise(draws * 0.75, 0.25)
    assert "multiples of 3 steps alone" in line
    assert not list(coarse_noise(draws[:2] * 0.75, 0.25))


def drawn(seed: int, rate: float, shape: tuple[int, int] = (20, 100)) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Draws of canaries whose clients miss a tenth of the rounds."""
    draws = np.random.default_rng(seed)
    may_be = draws.random(shape) < 0.9
    return (draws.random(shape) < rate) & may_be, may_be


def of_four(draws: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Canaries of four clients, one after the other."""
    return np.arange(draws.shape[1]) * 4 // draws.shape[1]


@pytest.mark.parametrize("rate", [0.02, 0.25, 0.9, 1.0])
def test_fresh_draws_are_called_dependent_in_at_most_17_of_200_runs(rate: float) -> None:
    found = [(*drawn(seed, rate), 0.05) for seed in range(200)]
    assert sum(any(dependent_draws(*one, of_four(one[0]))) for one in found) <= 17


def test_draws_that_repeat_exclude_one_another_or_come_together_are_found() -> None:
    """Each has the rate of a quarter, which is as printed."""
    _, all_of_them = np.ones((2, 20, 100), dtype=np.bool_)
    same = np.tile(np.arange(100) % 4 == 0, (20, 1))
    epochs = (np.arange(20)[:, None] + np.arange(100)) % 4 == 0
    together = np.tile((np.arange(20) % 4 == 0)[:, None], (1, 100))
    for draws, named in ((same, "fresh draws"), (epochs, "fresh draws"), (together, "draws of their own")):
        assert any(named in line for line in dependent_draws(draws, all_of_them, 0.01))


def at_two_rates(draws: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Every record has its own rate, 0.15 or 0.35, in all rounds."""
    return draws < np.where(np.arange(draws.shape[1]) % 3 == 0, 0.35, 0.2)


def of_fixed_size(draws: NDArray[np.float64]) -> NDArray[np.bool_]:
    return np.asarray(draws.argsort(axis=1).argsort(axis=1) < draws.shape[1] // 4)


def with_one_always(draws: NDArray[np.float64]) -> NDArray[np.bool_]:
    drawn = draws < 0.25
    drawn[:, 7] = True
    return drawn


def two_by_two(draws: NDArray[np.float64]) -> NDArray[np.bool_]:
    """One coin for two neighbours."""
    return np.repeat(draws[:, ::2] < 0.25, 2, axis=1)


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        (at_two_rates, "totals of each canary that spread by 1."),
        (of_fixed_size, "totals of each round that spread by 0 of"),
        (with_one_always, "in canary 7 for"),
        (two_by_two, "times two records 1 apart"),
    ],
)
def test_draws_of_the_printed_rate_that_are_not_alike_are_found(fault: object, named: str) -> None:
    assert callable(fault)
    drawn = fault(np.random.default_rng(9).random((40, 200)))
    assert any(named in line for line in dependent_draws(drawn, np.ones_like(drawn), 0.0025))


@pytest.mark.parametrize("shape", [(16, 64), (100, 16), pytest.param((40, 500), marks=pytest.mark.slow)])
def test_few_and_many_fresh_draws_are_called_dependent_in_at_most_17_of_200_runs(shape: tuple[int, int]) -> None:
    found = [(*drawn(500 + seed, 0.3, shape), 0.05) for seed in range(200)]
    assert sum(any(dependent_draws(*one, of_four(one[0]))) for one in found) <= 17


def test_a_client_that_never_draws_more_than_its_mean_is_found_and_only_by_its_own_totals() -> None:
    """All four clients' totals vary less; that of a round says it only where there are many rounds."""
    drawn = np.random.default_rng(9).random((20, 400)) < 0.25
    for first in range(0, 400, 100):
        own = drawn[:, first : first + 100]
        own &= np.cumsum(own, axis=1) <= 25
    all_of_them = np.ones_like(drawn)
    (line,) = dependent_draws(drawn, all_of_them, 0.0025, of_four(drawn))
    assert "totals of each client in a round that spread by 0." in line
    assert not list(dependent_draws(drawn, all_of_them, 0.0025))


def test_the_chance_of_common_draws_is_the_hypergeometric_one() -> None:
    """15 of 20 marked among 25 taken of 100, by its sum."""
    found = _least(*(np.array([value]) for value in (15.0, 100.0, 20.0, 25.0)))
    assert found is not None
    assert found[1] == pytest.approx(2 * sum(hypergeom.pmf(k, 100, 20, 25) for k in range(15, 21)), rel=1e-9)


def test_a_vector_that_repeats_itself_and_one_at_two_coordinates_are_found() -> None:
    """In the sum with fresh noise of the other server; one pair of coordinates alone where nothing hides it."""
    tiled = np.tile(gaussian(3, (20, 25)), (1, 4)) + gaussian(4)
    found = repeated_noise(tiled, None, 0.01)
    assert found.is_found
    assert found.where in {f"of canaries {distance} apart" for distance in (25, 50, 75)}
    copied = gaussian(5)
    copied[:, 71] = -copied[:, 30]
    assert repeated_noise(copied, None, 0.01).where == "of canaries 30 and 71"
    own = gaussian(6)
    shared = gaussian(7)
    shared[:, 9] = own[:, 9]
    assert repeated_noise(shared, own, 0.01).where == "of both servers at canary 9"


def test_noise_that_is_read_from_another_place_or_goes_on_in_the_next_round_is_found() -> None:
    """One round has another's noise, seven canaries on. And each has a tenth of the noise before."""
    shifted, fresh = gaussian(10), gaussian(11, (21, 1000))
    shifted[12] = np.roll(shifted[4], 7)
    assert repeated_noise(shifted, None, 0.01).where == "of rounds 4 and 12, 7 canaries apart"
    assert repeated_noise(fresh[1:] + 0.1 * fresh[:-1], None, 0.01).where == "of rounds 1 apart"


@pytest.mark.parametrize("shape", [(2, 64), (8, 60), (40, 2)])
def test_draws_on_a_coarse_grid_are_called_repeated_in_at_most_17_of_200_runs(shape: tuple[int, int]) -> None:
    """Eight steps a standard deviation, the fewest that a task may have: of two rounds many pairs are multiples."""
    noise = [np.round(gaussian(1000 + seed, shape, 8.0)) for seed in range(200)]
    assert sum(repeated_noise(one, None, 0.05).is_found for one in noise) <= 17
