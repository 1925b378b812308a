"""Parts that numbers of the noise have in common, and values that come again: what is found, and false alarms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.linalg import hadamard
from scipy.stats import chi, chi2, norm, ortho_group

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


ALPHA = 0.05
OF_A_TEST = ALPHA / 5
"""Five kinds of test share the chance of a false alarm."""


def two_rows(cosine: float, n: int = 300) -> Array:
    """Return two rows with a mean square of 1 and this cosine between them, (2, n)."""
    first, other = np.linalg.qr(gaussian(9, (n, 2)))[0].T * math.sqrt(n)
    return np.stack([first, cosine * first + math.sqrt(1 - cosine**2) * other])


def is_said(noise: Array, own: Array | None, words: str, alpha: float = ALPHA) -> bool:
    return any(words in line for line in common_noise(noise, own, 2.0, alpha))


def test_sums_are_said_from_chi_squared_s_quantile_on() -> None:
    """Ten of 40 rows are eight ones; sums of the others are zero. The squares of sums over 8 add up to 80.

    There are nine pieces of 8 columns: all, every other, halves and quarters. Either tail is unlikely.
    """
    others = np.tile(hadamard(8)[1:].astype(float), (5, 1))[:30]
    rows = np.concatenate([np.ones((10, 8)), others])
    exact = 5 * 9 * 2 * float(chi2.sf(80, 40))
    for factor, expected in ((0.99, False), (1.01, True)):
        assert is_said(rows, None, "sums over canary 0 to 7 of each round", factor * exact) == expected


def test_servers_correlation_is_said_from_a_normal_law_s_quantile_on() -> None:
    """Twenty rows of cosine c with the other server's: 20 c over its standard deviation, sqrt(20 / 300)."""
    least = float(norm.isf(OF_A_TEST / 2)) * math.sqrt(20 / 300) / 20
    for cosine, expected in ((least * 0.999, False), (least * 1.001, True), (-least * 1.001, True)):
        ours, theirs = two_rows(cosine)
        assert is_said(np.tile(ours, (20, 1)), np.tile(theirs, (20, 1)), "servers' noise of all rounds") == expected


def test_a_pattern_is_said_from_gordon_s_bound_on() -> None:
    """Two rows of cosine c have the singular values sqrt(300 (1 + c)) and sqrt(300 (1 - c))."""
    deviation = math.sqrt(2 * math.log(1 / OF_A_TEST) * 300 / 298)
    most = (math.sqrt(2) + math.sqrt(300)) * math.sqrt(300) / float(chi(300).mean()) + deviation
    for factor, expected in ((0.9999, False), (1.0001, True)):
        rows = two_rows((factor * most) ** 2 / 300 - 1)
        assert is_said(rows, None, "found a pattern") == expected
        assert is_said(rows.T, None, "found a pattern") == expected


def test_rows_that_cancel_are_said_from_gordon_s_bound_on() -> None:
    """Over the printed multiplier, which is 2."""
    least = math.sqrt(300) - math.sqrt(2) - math.sqrt(2 * math.log(1 / OF_A_TEST))
    for factor, expected in ((1.0001, False), (0.9999, True)):
        rows = 2.0 * two_rows(1 - (factor * least) ** 2 / 300)
        assert is_said(rows, None, "in every combination of rounds") == expected


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


@pytest.mark.parametrize(
    ("std", "shape"), [(8.0, (2, 6, 80)), (500.0, (2, 6, 80)), (STD, (2, 6, 80)), (250.0, (2, 20, 24))]
)
def test_fresh_draws_come_again_in_at_most_17_of_200_runs(std: float, shape: tuple[int, ...]) -> None:
    """On a coarse grid nothing is judged; on a middling one values come again by themselves.

    There are 610 pairs and rounds of 20, of which some would be rare for one: chances add up.
    """
    found = [
        bool(list(values_again(*np.round(gaussian(2000 + seed, shape, std)), std, 1.0, 0.05))) for seed in range(200)
    ]
    assert sum(found) <= 17
