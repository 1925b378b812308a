"""Propose-test-release by two servers: each adds a whole server's noise, to its share of the margin and of the sum.

Servers follow the protocol. Each knows its own noise, so against it the other's alone must do: Laplace noise of scale
b, Gaussian noise of sigma R. Against clients both count. The sum of both Laplace draws passes the test. Its tail:

    P(L_A + L_B > t) = e^{-t/b} (1 + t / (2b)) / 2,   t >= 0,

so the threshold is that t at which this is delta0; it is above the b ln(1/(2 delta0)) of one draw.

**Against one server**, a round is that of `precad.dp.accountants.ptr_loss` with one server's b and sigma and this
delta0. Let n be what the server knows of its own noise. Where both margins are 0, the test passes with probability
p(n), and p(n) is delta0 on average over n. Let c be 1 with probability p(n), given n: then c ~ Bernoulli(delta0). The
release is made of (n, c, s, g) as there. n has one law on either side. Given c, nothing else depends on it. So the
likelihood ratio of (n, c, s, g) is that of (c, s, g). (P, Q) have the same loss. Where a margin is positive, n is one
more constant that the noisy margin is moved by.

**Against clients** the same holds with sqrt(2) sigma; the second Laplace draw is post-processing of the first.

Which clients were drawn is known to servers, and may be known to clients (`precad.dp.task_privacy`). So a round that a
client takes part in is not amplified. Adding or removing a client means that its update is there or is zero. Our
derivation.
"""

import math
from dataclasses import dataclass
from typing import Final

from precad.dp.accountants.pld import View
from precad.dp.accountants.ptr_event import SampledProposeTestRelease
from precad.dp.accountants.ptr_privacy import ptr_threshold
from precad.dp.trimmed.propose_test_release import ProposeTestRelease

MARGIN_BITS: Final = 20
"""Bits of the noisy margin behind the point; equal to `precad.mpc.robust.proposal.MARGIN_BITS`."""
_ROUNDING: Final = 1.0
"""Steps of the grid that two rounded draws may be above the two in the reals."""


@dataclass(frozen=True, slots=True)
class JointProposeTestRelease:
    """One server's part in a round: its noise, and what both conclude from the opened margin."""

    mechanism: ProposeTestRelease
    """Its tau below 1; laplace_scale and noise_multiplier are of one server's noise, test_failure of both together."""

    def __post_init__(self) -> None:
        if self.mechanism.tau >= 1:
            raise ValueError(f"tau: expected a number below 1 for a test by two servers, found {self.mechanism.tau}")

    @property
    def threshold(self) -> float:
        """Return what the noisy margin must exceed, in clients."""
        return joint_threshold(self.mechanism.laplace_scale, self.mechanism.test_failure)

    @property
    def margin_scale(self) -> float:
        """Return the scale of one server's noise on the margin, in steps of 2^-20."""
        return math.ldexp(self.mechanism.laplace_scale, MARGIN_BITS)

    def has_passed(self, noisy_margin: int) -> bool:
        """Tell whether an opened margin, in steps of 2^-20, passes. Passing means that it did so in the reals, too."""
        return noisy_margin > math.ldexp(self.threshold, MARGIN_BITS) + _ROUNDING

    def noise_std(self, *, has_passed: bool) -> float:
        """Return what each server's noise on the sum is, in steps of the grid: sigma R, or tau of it once passed."""
        return self.mechanism.noise_std(has_passed=has_passed)

    def event(self, view: View) -> SampledProposeTestRelease:
        """Return a round as a client that was drawn meets it, against this adversary."""
        n_servers = 1 if view is View.ONE_SERVER else 2
        return SampledProposeTestRelease(
            sampling_rate=1.0,
            noise_multiplier=math.sqrt(n_servers) * self.mechanism.noise_multiplier,
            tau=self.mechanism.tau,
            laplace_scale=self.mechanism.laplace_scale,
            test_failure=self.mechanism.test_failure,
        )


def joint_threshold(b: float, delta0: float) -> float:
    """Return a t with P(L_A + L_B > t) <= delta0, for two Laplace draws of scale b, to 2^-40 of the least.

    By bisection on the tail's closed form, at its upper end.
    """
    low = ptr_threshold(b, delta0) / b  # one draw needs less
    high, wanted = 2 * low + 2, math.log(2 * delta0)
    while _log_twice_tail(high) > wanted:
        high *= 2
    while high - low > high * 2.0**-40:
        middle = (low + high) / 2
        low, high = (middle, high) if _log_twice_tail(middle) > wanted else (low, middle)
    return b * high * (1 + 2.0**-40)


def _log_twice_tail(t: float) -> float:
    """ln(2 P(L_A + L_B > t)) at b = 1, t >= 0."""
    return math.log1p(t / 2) - t
