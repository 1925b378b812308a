"""An adversary that gets every bit of one server's views of two inputs, and says whether they differ.

It is told of half of the rounds which input they had, and guesses for the others. Correct code fails on one in 10^6
choices of the fixed randomness (`tests.mpc.fixed_randomness`).
"""

from __future__ import annotations

import numpy as np
from scipy.stats import binom, norm

from tests.harness.examples import IS_THOROUGH
from tests.mpc.fixed_randomness import FALSE_ALARM_RATE

N_ROUNDS = 400 if IS_THOROUGH else 80


def bits(data: bytes):
    return np.unpackbits(np.frombuffer(data, dtype=np.uint8))


def tells_apart(first, second) -> bool:
    """Whether single bits are more often one under either input, or a linear rule guesses the input of new rounds."""
    ones = np.array([first.sum(axis=0), second.sum(axis=0)])
    share = ones.sum(axis=0) / (2 * N_ROUNDS)
    spread = np.sqrt(np.maximum(share * (1 - share), 1e-12) * 2 / N_ROUNDS)
    z = np.abs(ones[0] - ones[1]) / N_ROUNDS / spread
    if z.max() > norm.isf(FALSE_ALARM_RATE / 4 / z.size):
        return True
    half = N_ROUNDS // 2
    known, unknown = np.concatenate([first[:half], second[:half]]), np.concatenate([first[half:], second[half:]])
    truth, centre = np.repeat([1.0, -1.0], half), known.mean(axis=0)
    kernel = (known - centre) @ (known - centre).T
    weights = np.linalg.solve(kernel + 10.0 * np.eye(len(known)), truth)
    guesses = np.sign((unknown - centre) @ ((known - centre).T @ weights))
    return bool((guesses == truth).sum() > binom.isf(FALSE_ALARM_RATE / 4, 2 * half, 0.5))
