"""The vectorised baseline has the discrete Gaussian's law, so that what it is timed for is the right thing."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2

from precad.lab.bench.canonne import MAX_STD, CanonneSampler


@pytest.mark.parametrize("std", [1, 3])
def test_frequencies_are_those_of_the_discrete_gaussian(std):
    """Chi-square over 2 * 10^5 draws with a fixed key; a right sampler fails with probability 10^-6."""
    draws = CanonneSampler(std, key=bytes(16)).sample(200_000)
    k = np.arange(-4 * std, 4 * std + 1)
    all_k = np.arange(-40 * std, 40 * std + 1)
    expected = draws.size * np.exp(-(k**2) / (2 * std**2)) / np.exp(-(all_k**2) / (2 * std**2)).sum()
    observed = np.array([(draws == value).sum() for value in k])

    assert ((observed - expected) ** 2 / expected).sum() < chi2.isf(1e-6, k.size)


def test_standard_deviation_at_the_size_that_is_measured():
    """Within five standard errors at std = 2^17 and 10^5 draws."""
    std, n = 1 << 17, 100_000
    draws = CanonneSampler(std, key=bytes(16)).sample(n)

    assert draws.size == n
    assert abs(draws.std() / std - 1) < 5 / (2 * n) ** 0.5
    assert abs(draws.mean()) < 5 * std / n**0.5


@pytest.mark.parametrize("std", [0, MAX_STD + 1])
def test_std_outside_the_range_is_refused(std):
    """Beyond it a square would not fit a word."""
    with pytest.raises(ValueError, match="std: expected 1 to"):
        CanonneSampler(std)


def test_no_draw():
    """An empty vector is a vector."""
    assert CanonneSampler(2).sample(0).size == 0
