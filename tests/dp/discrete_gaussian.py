"""Exact discrete Gaussian, by rejection with integers only.

Source: Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy", NeurIPS 2020, Algorithms 1-3.

The discrete Gaussian has P(k) proportional to exp(-k^2 / (2 std^2)); the rounded one has the mean of the normal
density over [k - 1/2, k + 1/2]. With phi_std the density, Taylor's formula gives that mean as

    phi_std(k) + phi_std''(k) / 24 + ... = phi_std(k) * (1 + (k^2 / std^2 - 1) / (24 std^2) + ...),

and the normalising sum of the discrete one differs from 1 by exp(-2 pi^2 std^2) only. So the laws agree to a
relative 1/(24 std^2) near zero: 2.6e-5 at std = 40, which a test of 10^5 draws cannot see.
"""

import random
from fractions import Fraction


def sample_discrete_gaussian(variance: Fraction, rng: random.Random) -> int:
    """One draw with P(k) proportional to exp(-k^2 / (2 variance)). Algorithm 3."""
    t = int(variance**0.5) + 1
    while True:
        y = _sample_discrete_laplace(t, rng)
        if _bernoulli_exp((abs(y) - variance / t) ** 2 / (2 * variance), rng):
            return y


def _sample_discrete_laplace(t: int, rng: random.Random) -> int:
    """One draw with P(y) proportional to exp(-|y| / t). Algorithm 2 with s = 1."""
    while True:
        u = rng.randrange(t)
        if not _bernoulli_exp(Fraction(u, t), rng):
            continue
        v = 0
        while _bernoulli_exp(Fraction(1), rng):
            v += 1
        magnitude, is_negative = u + t * v, rng.randrange(2) == 1
        if not (is_negative and magnitude == 0):
            return -magnitude if is_negative else magnitude


def _bernoulli_exp(gamma: Fraction, rng: random.Random) -> bool:
    """True with probability exp(-gamma), gamma >= 0. Algorithm 1."""
    while gamma > 1:
        if not _bernoulli_exp(Fraction(1), rng):
            return False
        gamma -= 1
    k = 1
    while rng.randrange(gamma.denominator * k) < gamma.numerator:  # Bernoulli(gamma / k)
        k += 1
    return k % 2 == 1
