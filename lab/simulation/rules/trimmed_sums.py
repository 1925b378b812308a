"""TSGD + Gaussian and TSGD + PTR: private sums without the longest updates.

The mechanisms are `precad.dp.trimmed.aggregation`'s. Here they are rules of a training, one of whose updates is a
client's. What they prove depends on how clients come to a round. The round's rate and the number of clients are
therefore parameters, and a training of which they are not true is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from precad.clients.errors import ArgumentError
from precad.dp.trimmed.aggregation import Sampling, TrimmedGaussian, TrimmedPtr
from precad.dp.trimmed.propose_test_release import ProposeTestRelease
from precad.lab.simulation.rules.rule import AggregationRule, Updates, Vector
from precad.mpc.prg import SYSTEM_BYTES, RandomBytes

FRAC_BITS = 16


@dataclass(kw_only=True, slots=True)
class _TrimmedSum(AggregationRule):
    """Hold what both rules have in common."""

    rate: float
    """q: each client is in a round with this probability. The task's."""
    n_enrolled: int
    """N: the task's clients."""
    clip: float = 1.0
    """R: L2 bound that every update is clipped to."""
    noise_multiplier: float = 1.0
    """sigma: noise of the full sum over R."""
    trim: float = 0.25
    """F as a part of q N; with PTR, of the first round."""
    mechanism: TrimmedGaussian | TrimmedPtr = field(init=False)
    """Mechanism of the coming round."""

    def _sampling(self) -> Sampling:
        return Sampling(rate=self.rate, n_enrolled=self.n_enrolled)

    def aggregate(self, updates: Updates, random_bytes: RandomBytes = SYSTEM_BYTES) -> Vector:
        """Return the noisy sum over q N; m = 0 included. Sets F of the next round."""
        found = self.mechanism.aggregate(updates, random_bytes)
        self.mechanism = found.next_rule
        return found.mean

    def epsilon(self, rounds: int, delta: float) -> float:
        """Bound the epsilon of one client, add or remove, in so many rounds."""
        return self.mechanism.epsilon(rounds, delta)

    def require_training(self, client_rate: float, n_clients: int) -> None:
        """See AggregationRule: the guarantee is that of `rate` and `n_enrolled`."""
        for name, ours, theirs in (("rate", self.rate, client_rate), ("n_enrolled", self.n_enrolled, n_clients)):
            if ours != theirs:
                raise ArgumentError(f"{name} of the rule {self.name!r}: expected the task's {theirs}, found {ours}")


@dataclass(kw_only=True, slots=True)
class TsgdGaussian(_TrimmedSum):
    """The sum without its F longest updates, with noise sigma R."""

    name: ClassVar[str] = "tsgd-gaussian"

    def __post_init__(self) -> None:
        sampling = self._sampling()
        self.mechanism = TrimmedGaussian(
            sampling=sampling,
            clip=self.clip,
            trim_count=sampling.share(self.trim),
            noise_multiplier=self.noise_multiplier,
            frac_bits=FRAC_BITS,
        )


@dataclass(kw_only=True, slots=True)
class TsgdPtr(_TrimmedSum):
    """Trimmed sum with noise for tau R where a noisy test allows it, and F moving with the tests' outcomes.

    Source: as `precad.dp.trimmed.aggregation`; the paper moves F by 2 % of the batch.
    """

    name: ClassVar[str] = "tsgd-ptr"

    tau: float = 0.1
    """Proposed sensitivity of the trimmed sum as a share of R."""
    laplace_scale: float = 2.0
    """b: noise of the test."""
    test_failure: float = 1e-7
    """delta0: chance that a test passes which should not."""
    step: float = 0.02
    """By which part of q N F moves, one update at least."""

    def __post_init__(self) -> None:
        sampling = self._sampling()
        trim_count = sampling.share(self.trim)
        self.mechanism = TrimmedPtr(
            sampling=sampling,
            mechanism=ProposeTestRelease(
                clip=self.clip,
                frac_bits=FRAC_BITS,
                tau=self.tau,
                trim_count=trim_count,
                laplace_scale=self.laplace_scale,
                test_failure=self.test_failure,
                noise_multiplier=self.noise_multiplier,
            ),
            step=max(1, sampling.share(self.step)),
            most=max(trim_count, int(sampling.nominal)),
        )

    def state(self) -> tuple[int, ...]:
        """Return F of the coming round."""
        assert isinstance(self.mechanism, TrimmedPtr)  # __post_init__ made it
        return (self.mechanism.mechanism.trim_count,)

    def restore(self, state: tuple[int, ...]) -> None:
        """See AggregationRule."""
        assert isinstance(self.mechanism, TrimmedPtr)
        if len(state) != 1:
            raise ArgumentError(f"state: expected F of the rule {self.name!r}, found {len(state)} numbers")
        mechanism = replace(self.mechanism.mechanism, trim_count=state[0])
        self.mechanism = replace(self.mechanism, mechanism=mechanism)
