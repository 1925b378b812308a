"""A bound that two servers learn: the numbers that follow from a task, and what a sum does to model and bound.

Failure means that two implementations would hold different models, or that an upload could be longer than C. It also
means that another noise is on the updates or on their count than is accounted.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from pydantic import ValidationError

from precad.protos.task.model_update import Past, updated
from precad.protos.task.quantile import LARGEST_LOG_RATIO, QuantileRule, count_noise, moved
from precad.protos.task.task import Task
from tests.harness.harness import small_task

LEARNT = {"algorithm": "user-dp-fedavg", "update_clipping": "private-quantile"}


def learning_task(**changes: Any) -> Task:
    """q n = 2.7, C = 1.3, sigma = 2, sigma_b = 3; 23 parameters."""
    values = {"client_rate": 0.9, "client_clip": 1.3, "noise_multiplier": 2.0, "quantile_noise": 3.0, "quantile": 0.8}
    return small_task(**{**LEARNT, **values, **changes})


def rule_of(task: Task) -> QuantileRule:
    assert task.quantile_rule is not None
    return task.quantile_rule


def test_the_bound_is_the_same_number_on_every_machine() -> None:
    """C e^lambda with the exponential correctly rounded, by a library of its own with 60 digits, and one product."""
    rule = rule_of(learning_task())
    generator = np.random.default_rng(4)
    ratios = [0.0, *generator.uniform(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO, 500).astype(np.float32)]
    with mpmath.workdps(60):
        expected = [1.3 * float(mpmath.exp(mpmath.mpf(float(ratio)))) for ratio in ratios]
    assert [rule.bound(float(ratio)) for ratio in ratios] == expected
    for end in (1, -1):
        assert rule.bound(float(np.float32(end * LARGEST_LOG_RATIO))) == pytest.approx(1.3 * 1024.0**end, rel=1e-6)


@pytest.mark.parametrize("log_ratio", [math.nan, math.inf, -7.0, 7.0])
def test_a_bound_out_of_its_range_is_refused(log_ratio: float) -> None:
    with pytest.raises(ValueError, match=r"learnt bound: expected \|lambda\| <= 6\.931, found"):
        rule_of(learning_task()).bound(log_ratio)


@pytest.mark.parametrize(("clip", "multiplier", "noise"), [(1.3, 2.0, 3.0), (0.01, 1.0, 0.501), (900.0, 3.0, 500.0)])
def test_update_and_count_share_one_bound(clip: float, multiplier: float, noise: float) -> None:
    """a lies on the grid and is cut to it from C z / (2 sigma_b); a^2 + r^2 = C^2, to float64's rounding, by fractions.
    So z'^-2 + (2 sigma_b)^-2 = z^-2 with z' = z C / r and the 2 sigma_b = z C / a that there are on the grid."""
    rule = rule_of(learning_task(client_clip=clip, noise_multiplier=multiplier, quantile_noise=noise))
    steps = Fraction(rule.unit) * 2**16
    exact = Fraction(clip) * Fraction(multiplier) / (2 * Fraction(noise)) * 2**16
    assert steps.denominator == 1
    assert exact - 1 < steps <= exact * (1 + Fraction(1, 2**50))
    whole = Fraction(rule.unit) ** 2 + Fraction(rule.room) ** 2
    assert abs(whole / Fraction(clip) ** 2 - 1) < Fraction(1, 2**50)
    of_updates, of_count = multiplier * clip / rule.room, multiplier * clip / rule.unit
    assert of_updates**-2 + of_count**-2 == pytest.approx(multiplier**-2, rel=1e-12)
    assert of_count == pytest.approx(2 * noise, rel=2.0**-16 / rule.unit * 1.01)


def test_the_default_of_the_counts_noise_is_that_of_the_source_or_leaves_most_to_the_updates() -> None:
    assert count_noise(100.0, 3.0) == 5.0
    assert count_noise(100.0, 5.0) == 6.0
    assert rule_of(learning_task(quantile_noise=None)).count_noise == 2.4
    many = dict.fromkeys((f"c{i}" for i in range(200)), 1)
    assert rule_of(learning_task(clients=many, quantile_noise=None)).count_noise == 0.9 * 200 / 20


def test_the_bound_follows_the_share_of_updates_within_it() -> None:
    """lambda - rate (b - gamma), b = 1/2 + count / (2 q n): all of 10 clients within, none, and half of them."""
    how = {"expected_clients": 10.0, "quantile": 0.7, "rate": 0.2}
    assert moved(0.5, 10.0, **how) == pytest.approx(0.5 - 0.2 * 0.3)
    assert moved(0.5, -10.0, **how) == pytest.approx(0.5 + 0.2 * 0.7)
    assert moved(0.5, 0.0, **how) == pytest.approx(0.5 + 0.2 * 0.2)
    assert moved(0.5, 1e9, **how) == -LARGEST_LOG_RATIO
    assert moved(0.5, -1e9, **how) == LARGEST_LOG_RATIO


def test_a_sum_moves_the_model_in_units_of_the_bound_and_then_the_bound() -> None:
    """Number by number in Python's floats, in the order of operations that docs/reference/protocol.md has."""
    task, generator = learning_task(), np.random.default_rng(9)
    rule = rule_of(task)
    vector = generator.standard_normal(24).astype(np.float32)
    total = generator.integers(-(2**40), 2**40, 24)
    total[-1] = 123_456
    factor = (0.3 / (0.9 * 3)) * (rule.bound(float(vector[-1])) / rule.room)
    expected = [
        np.float32(float(theta) + int(y) * 2.0**-16 * factor) for theta, y in zip(vector[:-1], total[:-1], strict=True)
    ]
    share = 0.5 + 123_456 * 2.0**-16 / rule.unit / (2 * (0.9 * 3))
    got, _ = updated(vector, total, task, Past.first(task))
    assert_array_equal(got[:-1], np.array(expected))
    assert got[-1] == np.float32(float(vector[-1]) - 0.2 * (share - 0.8))
    assert got.dtype == np.float32


def test_the_model_is_all_but_the_last_number() -> None:
    assert (learning_task().dim, learning_task().n_parameters) == (24, 23)
    assert small_task().n_parameters == 24


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"update_clipping": "flat"}, "quantile needs update_clipping = 'private-quantile', found 'flat'"),
        (
            {"update_clipping": "per-layer", "quantile": 0.5, "quantile_noise": 1.0},
            "quantile_noise needs update_clipping",
        ),
        ({"quantile_noise": 1.0}, "quantile_noise: .* expected more than half of noise_multiplier, 1, found 1"),
        (
            {  # the next float64 above the half, where a rounds to C
                "noise_multiplier": 7.088563172904598,
                "quantile_noise": math.nextafter(7.088563172904598 / 2, 4.0),
                "client_clip": 23.758621215820312,
            },
            "quantile_noise: .* expected more than half of noise_multiplier, 3.5",
        ),
        (
            {"quantile_noise": 1e8},
            "quantile_noise: expected .* of at least 1, what counts a client, found quantile_noise 1e[+]08",
        ),
        ({"quantile": 1.0}, "less than 1"),
        ({"quantile_rate": 0.0}, "greater than 0"),
        ({"dim": 1}, "dim: expected at least 2, the last one being the learnt bound, found 1"),
        (
            {"algorithm": "ins-dp-fedavg"},
            "update_clipping is of user-dp-fedavg and tsgd-ptr and tsgd-gaussian and fedavg and krum",
        ),
    ],
)
def test_what_cannot_be_learnt_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        learning_task(**changes)


def test_an_algorithm_without_the_servers_noise_learns_no_bound() -> None:
    """The field that is wrong is named, not the noise on a count that nobody asked for."""
    with pytest.raises(ValidationError, match="update_clipping: expected a fixed bound with algorithm 'fedavg'"):
        small_task(**LEARNT | {"algorithm": "fedavg"}, noise_multiplier=0.0)
