"""Trimmed sums as aggregation rules of a training in the clear: `TSGD + Gaussian` and `TSGD + PTR`.

Both take the updates of one Poisson-sampled round, clip each to R, and release one vector, all on the fixed-point grid
with exact noise. Divisors, F and the steps of F come from the nominal number of updates q N, never from how many came.

    TSGD + Gaussian   TSum_F + N(0, (sigma R)^2): adding a vector changes TSum_F by one vector of norm R at most
    TSGD + PTR        `precad.dp.trimmed.propose_test_release`, F up after a failed test, down after a passed one

F after a round is a function of what the round released, and the cost of a round does not depend on F. Any number of
rounds therefore costs what as many equal ones do.

Source: Wang, Mahloujifar, Wang, Jia, Mittal, "Renyi Differential Privacy of Propose-Test-Release and Applications to
Private and Robust Machine Learning", NeurIPS '22. These are Algorithms 2 and 3, with the corrections of
docs/explanation/privacy.md.
"""

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from precad.dp.accountants.pld import PldAccountant, SampledGaussian
from precad.dp.accountants.ptr_event import SampledProposeTestRelease
from precad.dp.checks import require_count, require_positive, require_probability
from precad.dp.noise import rounded_gaussian
from precad.dp.noise.rounded_gaussian import RandomBytes
from precad.dp.trimmed.propose_test_release import ProposeTestRelease, next_trim_count, release
from precad.dp.trimmed.trimmed_sum import require_grid, squared_norm, trimmed_sum

Array = NDArray[np.float64]


class Rule(Protocol):
    """How a round's updates become one vector. Immutable: a round makes the rule of the next."""

    @property
    def event(self) -> SampledGaussian | SampledProposeTestRelease:
        """Return a round as one update meets it."""

    def epsilon(self, rounds: int, delta: float) -> float:
        """Return an upper bound on epsilon of so many rounds, add/remove one update."""

    def aggregate(self, updates: Array, random_bytes: RandomBytes) -> "Aggregate[Any]":
        """Run one round, (m, d) -> (d,), m = 0 included."""


RuleType = TypeVar("RuleType", bound=Rule)


@dataclass(frozen=True, slots=True)
class Aggregate(Generic[RuleType]):
    """Hold what a round releases, all of it public, and the rule of the next round."""

    mean: Array
    """The noisy sum over the nominal q N, shape (d,)."""
    has_passed: bool | None
    """Whether the test of a PTR rule passed; None without a test."""
    next_rule: RuleType


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How a round comes to its updates: each of N with probability q. All of it public."""

    rate: float
    """q."""
    n_enrolled: int
    """N."""

    def __post_init__(self) -> None:
        require_probability("rate", self.rate)
        require_count("n_enrolled", self.n_enrolled, at_least=1)
        if self.rate == 0:
            raise ValueError("rate: expected a number above 0 to average over q N updates, found 0")

    @property
    def nominal(self) -> float:
        """Return q N, the divisor."""
        return self.rate * self.n_enrolled

    def share(self, part: float) -> int:
        """That part of q N as a number of updates, rounded."""
        require_probability("part", part)
        return round(part * self.nominal)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrimmedGaussian:
    """TSGD + Gaussian: the sum without its F longest updates, with noise sigma R."""

    sampling: Sampling
    clip: float
    """R, L2 bound that every update is clipped to."""
    trim_count: int
    """F. The paper: a quarter of the batch, here `sampling.share(0.25)`."""
    noise_multiplier: float
    """sigma."""
    frac_bits: int = 16

    def __post_init__(self) -> None:
        require_grid(self.clip, self.frac_bits)
        require_count("trim_count", self.trim_count)
        require_positive("noise_multiplier", self.noise_multiplier)
        rounded_gaussian.require_std(self.noise_std)

    @property
    def noise_std(self) -> float:
        """Return sigma R, in steps of the grid."""
        return self.noise_multiplier * math.ldexp(self.clip, self.frac_bits)

    @property
    def event(self) -> SampledGaussian:
        """Return a sampled Gaussian: TSum_F has sensitivity R."""
        return SampledGaussian(self.sampling.rate, self.noise_multiplier)

    def epsilon(self, rounds: int, delta: float) -> float:
        """Return epsilon by the default accountant. A bound."""
        return PldAccountant().epsilon(self.event, rounds, delta)

    def aggregate(self, updates: Array, random_bytes: RandomBytes) -> Aggregate[Self]:
        """Run one round. Shape of updates: (m, d), of any norm, clipped here.

        random_bytes  the operating system's generator; a seeded one in experiments only.
        Raises: ValueError for another shape, or a value that is not finite.
        """
        vectors = clip_to_grid(updates, self.clip, self.frac_bits)
        noise = rounded_gaussian.sample(self.noise_std, vectors.shape[1], random_bytes)
        total = trimmed_sum(vectors, self.trim_count) + noise
        return Aggregate(_mean(total, self.frac_bits, self.sampling), None, self)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrimmedPtr:
    """TSGD + PTR with dynamic F."""

    sampling: Sampling
    mechanism: ProposeTestRelease
    """Its trim_count is F of the coming round."""
    step: int
    """By which F moves. The paper: 2 % of the batch, here `max(1, sampling.share(0.02))`."""
    most: int
    """F never rises above."""

    def __post_init__(self) -> None:
        require_count("step", self.step, at_least=1)
        require_count("most", self.most)
        if self.mechanism.trim_count > self.most:
            raise ValueError(f"most: expected at least trim_count = {self.mechanism.trim_count}, found {self.most}")

    @property
    def event(self) -> SampledProposeTestRelease:
        """Return a round as one update meets it, equal in every round, whatever F is."""
        return SampledProposeTestRelease(
            sampling_rate=self.sampling.rate,
            noise_multiplier=self.mechanism.noise_multiplier,
            tau=self.mechanism.tau,
            laplace_scale=self.mechanism.laplace_scale,
            test_failure=self.mechanism.test_failure,
        )

    def epsilon(self, rounds: int, delta: float) -> float:
        """Return a bound on epsilon of so many rounds."""
        return self.event.epsilon(rounds, delta)

    def aggregate(self, updates: Array, random_bytes: RandomBytes) -> Aggregate[Self]:
        """Run one round. Shape of updates: (m, d), of any norm, clipped here. See TrimmedGaussian.aggregate."""
        vectors = clip_to_grid(updates, self.mechanism.clip, self.mechanism.frac_bits)
        found = release(vectors, self.mechanism, random_bytes)
        F = next_trim_count(self.mechanism.trim_count, has_passed=found.has_passed, step=self.step, at_most=self.most)
        next_rule = replace(self, mechanism=replace(self.mechanism, trim_count=F))
        return Aggregate(_mean(found.total, self.mechanism.frac_bits, self.sampling), found.has_passed, next_rule)


def clip_to_grid(updates: Array, clip: float, frac_bits: int) -> NDArray[np.int64]:
    """Project each row onto the ball of radius `clip`, and round towards zero to steps of 2^-f: norms stay <= clip.

    A row that is not finite is zero: an error would tell, with certainty, that it is there.
    Shapes: (m, d) -> (m, d). Raises: ValueError for another shape.
    """
    if updates.ndim != 2:
        raise ValueError(f"updates: expected shape (m, d), found {updates.shape}")
    grid = np.empty(updates.shape, dtype=np.int64)
    for update, whole in zip(updates, grid, strict=True):  # row by row: a pass over one stays in the caches
        whole[:] = _row_on_grid(update.astype(np.float64), clip, frac_bits)
    return grid


def _row_on_grid(row: Array, clip: float, frac_bits: int) -> NDArray[np.int64]:
    """Return one row of `clip_to_grid`, (d,)."""
    if not np.isfinite(row).all():
        return np.zeros(row.shape, dtype=np.int64)
    norm = _norm(row)
    scale = math.ldexp(clip / norm if norm > clip else 1.0, frac_bits)
    whole: NDArray[np.int64] = (row * scale).astype(np.int64)  # towards zero
    if norm > clip * (1 - 1e-9):  # float64 may have left it a rounding error too long
        longest = (Fraction(clip) * (1 << frac_bits)) ** 2
        while squared_norm(whole) > longest:
            whole -= np.sign(whole)
    return whole


def _norm(row: Array) -> float:
    """L2, also where a square overflows or vanishes; infinite where the norm itself overflows, which shrinks the row to
    nothing."""
    with np.errstate(over="ignore"):
        square = float(row @ row)
    if 1e-200 < square < math.inf:
        return math.sqrt(square)
    largest = float(np.abs(row).max(initial=0.0))
    return largest * float(np.linalg.norm(row / largest)) if largest > 0 else 0.0


def _mean(total: NDArray[np.int64], frac_bits: int, sampling: Sampling) -> Array:
    return np.ldexp(total.astype(np.float64), -frac_bits) / sampling.nominal
