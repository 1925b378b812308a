"""Propose-test-release: a sum with little noise if that is safe, with enough noise if not.

Propose that TSum_F has local sensitivity tau R. Test, with Laplace noise, how many vectors would have to change for
that to be false. If the test passes, release the trimmed sum with noise for tau R; if not, the full sum with noise for
R. The noisy margin is released too. Cost: `precad.dp.accountants.ptr_privacy`.

Source: Wang, Mahloujifar, Wang, Jia, Mittal, "Renyi Differential Privacy of Propose-Test-Release and Applications to
Private and Robust Machine Learning", NeurIPS '22. Everything is on the fixed-point grid and the noise is
exact. The release is thus post-processing of the release in the reals that the theorems are about.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from precad.dp.accountants.ptr_privacy import ptr_threshold
from precad.dp.checks import require_count, require_positive
from precad.dp.noise import rounded_gaussian, rounded_laplace
from precad.dp.noise.rounded_gaussian import RandomBytes
from precad.dp.trimmed.trimmed_sum import require_grid, squared_norm, trimmed_sum

_MARGIN_BITS = 20  # of the noisy margin, after the point


@dataclass(frozen=True, kw_only=True, slots=True)
class ProposeTestRelease:
    """The mechanism's public parameters."""

    clip: float
    """R: L2 bound on every vector."""
    frac_bits: int
    """f: vectors are integers in steps of 2^-f."""
    tau: float
    """Proposed sensitivity as a share of R, in (0, 1]. At 1 the proposal is always right."""
    trim_count: int
    """F: vectors dropped by the trimmed sum. From the nominal batch size, never from the realised one."""
    laplace_scale: float
    """b: of the noise on the margin, whose sensitivity is one."""
    test_failure: float
    """delta0: probability of passing the test although the margin is zero."""
    noise_multiplier: float
    """sigma1: noise on the full sum over R. The trimmed sum gets tau times that."""

    def __post_init__(self) -> None:
        require_grid(self.clip, self.frac_bits)
        if isinstance(self.tau, bool) or not 0 < self.tau <= 1:
            raise ValueError(f"tau: expected a number in (0, 1], a share of the clip, found {self.tau}")
        require_count("trim_count", self.trim_count)
        require_positive("noise_multiplier", self.noise_multiplier)
        ptr_threshold(self.laplace_scale, self.test_failure)
        for has_passed in (False, True):
            rounded_gaussian.require_std(self.noise_std(has_passed=has_passed))

    def noise_std(self, *, has_passed: bool) -> float:
        """Return the released sum's noise, in steps of the grid: sigma1 R, or tau times that for the trimmed sum."""
        return self.noise_multiplier * math.ldexp(self.clip, self.frac_bits) * (self.tau if has_passed else 1.0)

    @property
    def grid_clip(self) -> Fraction:
        """Return R in steps of the grid."""
        return Fraction(self.clip) * (1 << self.frac_bits)


@dataclass(frozen=True, slots=True)
class Release:
    """Hold what leaves the mechanism, all of it public."""

    total: NDArray[np.int64]
    """Noisy sum in steps of 2^-f, trimmed if `has_passed`. Shape (d,)."""
    noisy_margin: float
    """Infinite, and free, at tau = 1."""
    has_passed: bool


def release(vectors: NDArray[np.int64], rule: ProposeTestRelease, random_bytes: RandomBytes) -> Release:
    """Run the mechanism once. Shape of vectors: (m, d), m = 0 included; each of norm at most R.

    Raises: ValueError if a vector is longer than R.
    """
    squares = [squared_norm(vector) for vector in vectors]
    longest = rule.grid_clip**2
    if any(square > longest for square in squares):
        found = math.sqrt(max(squares)) / 2**rule.frac_bits
        raise ValueError(f"vectors: expected norms of at most {rule.clip}, found {found}")
    noisy_margin, has_passed = _test(squares, rule, random_bytes)
    total = trimmed_sum(vectors, rule.trim_count if has_passed else 0, squares)
    noise = rounded_gaussian.sample(rule.noise_std(has_passed=has_passed), vectors.shape[1], random_bytes)
    return Release(total + noise, noisy_margin, has_passed)


def _test(squares: list[int], rule: ProposeTestRelease, random_bytes: RandomBytes) -> tuple[float, bool]:
    """(noisy margin, whether it exceeds the threshold). On a grid of 2^-20, rounded so that delta0 still holds."""
    if rule.tau == 1:
        return math.inf, True
    proposed = (rule.grid_clip * Fraction(rule.tau)) ** 2
    margin = max(0, rule.trim_count - sum(square > proposed for square in squares))
    noise = rounded_laplace.sample(math.ldexp(rule.laplace_scale, _MARGIN_BITS), random_bytes)
    noisy = (margin << _MARGIN_BITS) + noise
    threshold = math.ldexp(ptr_threshold(rule.laplace_scale, rule.test_failure), _MARGIN_BITS)
    # The draw in the reals was within 1/2 of the rounded one, and must have exceeded the threshold by itself.
    return math.ldexp(noisy, -_MARGIN_BITS), noisy > threshold + 0.5


def next_trim_count(trim_count: int, *, has_passed: bool, step: int, at_most: int) -> int:
    """Return the dynamic F: up by `step` after a failed test, down after a passed one, within 0 .. at_most.

    step and at_most come from the nominal batch size qN. The paper's appendix states the opposite in one place; a
    margin that was too small calls for dropping more vectors.
    """
    require_count("trim_count", trim_count)
    require_count("step", step, at_least=1)
    require_count("at_most", at_most)
    return max(0, trim_count - step) if has_passed else min(at_most, trim_count + step)
