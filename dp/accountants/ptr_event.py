"""A round of propose-test-release as one unit meets it, and what such rounds cost."""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass
from typing import ClassVar

from precad.dp.checks import keep_as_floats, require_positive, require_probability


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledProposeTestRelease:
    """One round, for one update: it takes part with probability `sampling_rate`; the rest as in ProposeTestRelease.

    The noisy margin, which is released too, is part of what a round costs.
    """

    sampling_rate: float
    noise_multiplier: float
    tau: float
    laplace_scale: float
    test_failure: float
    group_size: ClassVar[int] = 1

    def __post_init__(self) -> None:
        require_probability("sampling_rate", self.sampling_rate)
        for name in ("noise_multiplier", "tau", "laplace_scale", "test_failure"):
            require_positive(name, getattr(self, name))
        keep_as_floats(self, "sampling_rate", "noise_multiplier", "tau", "laplace_scale", "test_failure")

    def epsilon(self, rounds: int, delta: float) -> float:
        """Bound epsilon of so many rounds: by loss distributions, or by Renyi divergences where those say less."""
        return _epsilon(self, rounds, delta)


@functools.lru_cache(maxsize=4096)
def _epsilon(event: SampledProposeTestRelease, rounds: int, delta: float) -> float:
    from precad.dp.accountants.ptr_loss import pld_eps_ptr
    from precad.dp.accountants.ptr_privacy import eps_ptr_rounds
    from precad.dp.accountants.renyi_accounting import OrderGridWarning

    parts = (event.sampling_rate, event.noise_multiplier, event.tau, event.laplace_scale, event.test_failure)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OrderGridWarning)  # no news where the other bound is the smaller
        by_renyi = eps_ptr_rounds(*parts, rounds, delta)
    return min(by_renyi, pld_eps_ptr(*parts, rounds, delta))
