"""Canonne, Kamath and Steinke's discrete Gaussian, vectorised: exact, with integers only. A baseline, not our sampler.

P(k) proportional to exp(-k^2 / (2 std^2)). Every step of the scalar algorithm becomes one on the array of coordinates
that are still undecided, so the arrays shrink from step to step. Random bits are AES-128-CTR. The scalar twin is
`tests/dp/discrete_gaussian.py`.

Source: Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy", NeurIPS 2020, Algorithms 1 to 3,
with an integer std and t = std.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from precad.mpc.prg import SYSTEM_BYTES

MAX_STD = 1 << 20
"""Then (|y| - std)^2 fits a word for |y| up to 2^31, and no coordinate is beyond that: that has probability e^-2048."""

CHUNK = 1 << 14
"""Coordinates at a time: the temporaries stay in the cache."""

Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]


class CanonneSampler:
    """Draws with a key of its own."""

    def __init__(self, std: int, key: bytes | None = None) -> None:
        if not 1 <= std <= MAX_STD:
            raise ValueError(f"std: expected 1 to {MAX_STD}, found {std}")
        self._std = std
        self._bits = Cipher(algorithms.AES128(key or SYSTEM_BYTES(16)), modes.CTR(bytes(16))).encryptor()

    def sample(self, size: int) -> Integers:
        """Return `size` independent draws. Algorithm 3: a discrete Laplace of scale std, kept with the right
        probability."""
        parts: list[Integers] = []
        missing = size
        while missing > 0:
            y = self._discrete_laplace(CHUNK)
            kept = y[self._bernoulli_exp((np.abs(y) - self._std) ** 2, 2 * self._std**2)]
            parts.append(kept[:missing])
            missing -= parts[-1].size
        return np.concatenate([np.empty(0, dtype=np.int64), *parts])

    def _discrete_laplace(self, n_tries: int) -> Integers:
        """Return the draws that `n_tries` tries accept, with P(y) proportional to exp(-|y| / std). Algorithm 2 with s =
        1."""
        u = self._below(self._std, n_tries)
        u = u[self._bernoulli_exp_of_fraction(u, self._std)]
        v = np.zeros_like(u)
        going = np.arange(u.size)
        while going.size:
            going = going[self._bernoulli_exp_minus_one(going.size)]
            v[going] += 1
        magnitude, sign = u + self._std * v, self._words(u.size) >> 63  # 0 or -1
        y: Integers = ((magnitude ^ sign) - sign)[(magnitude != 0) | (sign == 0)]
        return y

    def _bernoulli_exp(self, numerator: Integers, denominator: int) -> Booleans:
        """Draw Bernoulli(exp(-numerator / denominator)) for each element. Algorithm 1."""
        alive = np.arange(numerator.size)
        rest = numerator.copy()
        while (above := np.flatnonzero(rest > denominator)).size:  # a factor exp(-1) at a time, until one fails
            is_kept = np.ones(alive.size, dtype=np.bool_)
            is_kept[above] = self._bernoulli_exp_minus_one(above.size)
            rest[above] -= denominator
            alive, rest = alive[is_kept], rest[is_kept]
        result = np.zeros(numerator.size, dtype=np.bool_)
        result[alive] = self._bernoulli_exp_of_fraction(rest, denominator)
        return result

    def _bernoulli_exp_of_fraction(self, numerator: Integers, denominator: int) -> Booleans:
        """Draw Bernoulli(exp(-gamma)) for gamma = numerator / denominator <= 1. True where the first k at which
        Bernoulli(gamma / k) fails is odd."""
        return self._first_failure_is_odd(
            numerator.size, lambda going: self._below(denominator, going.size) < numerator[going]
        )

    def _bernoulli_exp_minus_one(self, n: int) -> Booleans:
        """Draw n times Bernoulli(exp(-gamma)) for gamma = 1."""
        return self._first_failure_is_odd(n, lambda going: np.ones(going.size, dtype=np.bool_))

    def _first_failure_is_odd(self, n: int, bernoulli_gamma: Callable[[Integers], Booleans]) -> Booleans:
        """Tell whether the first failure is odd. All elements are at the same k, and each stays until it fails.
        Bernoulli(gamma / k) is Bernoulli(gamma) and Bernoulli(1 / k)."""
        result = np.zeros(n, dtype=np.bool_)
        going, k = np.arange(n), 1
        while going.size:
            is_one = bernoulli_gamma(going)
            if k > 1:
                is_one &= self._below(k, going.size) == 0
            result[going[~is_one]] = k % 2 == 1
            going, k = going[is_one], k + 1
        return result

    def _below(self, bound: int, n: int) -> Integers:
        """Return n uniform integers in 0..bound-1, by rejection from as many bits as bound - 1 has."""
        mask = (1 << (bound - 1).bit_length()) - 1
        values = self._words(n) & mask
        if mask == bound - 1:
            return values
        while (wrong := np.flatnonzero(values >= bound)).size:
            values[wrong] = self._words(wrong.size) & mask
        return values

    def _words(self, n: int) -> Integers:
        return np.frombuffer(self._bits.update(bytes(8 * n)), dtype=np.int64)
