"""Epsilon of a composed, sampled Gaussian by another way than the accountants': Fourier inversion of its loss.

Losses are neither put on a grid nor convolved. One round's characteristic function is a quadrature over the output.
Its T-th power is that of T rounds. Gil-Pelaez' formula gives the loss' tails under both distributions:
delta = P(L > epsilon) - e^epsilon Q(L > epsilon).
"""

import functools
import math

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

Array = NDArray[np.float64]

_OUTPUTS = np.linspace(-14.0, 15.0, 3001)
_STEP, _COARSE, _FINE = 1 / 50, 30, 50
_FREQUENCIES = (np.arange(_COARSE * _FINE) + 0.5) * _STEP
"""Half-way points: aliasing starts at losses of 314, and the integrand is finite in all of them."""


@functools.cache
def epsilon(sampling_rate: float, sigma: float, rounds: int, delta: float) -> float:
    """Return the larger epsilon, between 0.5 and 12, of both directions of add/remove; the sensitivity is 1."""
    return max(_epsilon(sampling_rate, sigma, rounds, delta, sign) for sign in (1, -1))


def _epsilon(p: float, sigma: float, rounds: int, delta: float, sign: int) -> float:
    without = np.exp(-(_OUTPUTS**2) / (2 * sigma**2))
    ratio = 1 - p + p * np.exp((2 * _OUTPUTS - 1) / (2 * sigma**2))
    without /= without.sum()
    upper, lower = (without * ratio, without) if sign > 0 else (without, without * ratio)
    loss = sign * np.log(ratio)
    of_upper, of_lower = (_transform(weights / weights.sum(), loss) ** rounds for weights in (upper, lower))

    def excess(at: float) -> float:
        return _tail(of_upper, at) - math.exp(at) * _tail(of_lower, at) - delta

    return float(brentq(excess, 0.5, 12.0, xtol=1e-9))


def _transform(weights: Array, loss: Array) -> NDArray[np.complex128]:
    """Return the sums of weights e^{iuL}. Each u is a coarse and a fine part, so that few exponentials make all."""
    coarse = np.exp(1j * np.outer(np.arange(_COARSE) * _FINE * _STEP, loss))
    fine = np.exp(1j * np.outer((np.arange(_FINE) + 0.5) * _STEP, loss))
    found: NDArray[np.complex128] = ((coarse * weights) @ fine.T).ravel()
    return found


def _tail(transform: NDArray[np.complex128], at: float) -> float:
    terms = np.imag(np.exp(-1j * _FREQUENCIES * at) * transform) / _FREQUENCIES
    return 0.5 + float(terms.sum()) * (_FREQUENCIES[1] - _FREQUENCIES[0]) / math.pi
