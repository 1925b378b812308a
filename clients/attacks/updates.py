"""Attackers that change their update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from precad.clients.attacks.attack import Attack, Knowledge, Vector
from precad.clients.checks import require_finite, require_positive
from precad.clients.errors import ArgumentError
from precad.clients.training.conduct import Conduct
from precad.mpc.ring import RingArray
from precad.protos.task.task import Task


@dataclass(frozen=True, slots=True)
class NoAttack(Attack):
    """Upload the honest update in its honest encoding, without noise of its own.

    A deployment has no such client: there, `none` is a client that follows the protocol.
    """

    name: ClassVar[str] = "none"

    def encode(self, update: Vector, task: Task) -> RingArray:
        """See `Conduct.encode`."""
        return Conduct.encode(self, update, task)


@dataclass(frozen=True, slots=True)
class GradientNoise(Attack):
    """Uploads update + N(0, std^2 I).

    Source: Blanchard, El Mhamdi, Guerraoui and Stainer, "Machine Learning with Adversaries: Byzantine Tolerant Gradient
    Descent", NeurIPS '17, Sec. 4. They propose Gaussian vectors of standard deviation 200, without the update.
    """

    name: ClassVar[str] = "gradient-noise"

    std: float = 200.0
    """Standard deviation of each coordinate's noise."""

    def __post_init__(self) -> None:
        require_positive("std", self.std)

    def on_update(self, update: Vector) -> Vector:
        """Add fresh noise."""
        return update + np.random.default_rng().normal(0.0, self.std, update.shape)

    def craft(self, known: Knowledge) -> Vector:
        """Add noise that repeats with the simulation."""
        return known.update + known.random.normal(0.0, self.std, known.update.shape)


_CAST: Final = -(2**63)
"""The 64-bit integer that processors make of a NaN ("integer indefinite"); the ring has no NaN of its own."""


@dataclass(frozen=True, slots=True)
class NotANumber(Attack):
    """Every coordinate is -2^63.

    Each of its squares is 2^126, which is zero modulo 2^64: the norm check of Sec. 4.3 in the paper, taken literally
    over Z_2^64, accepts. The servers' rows are 0 or 2^63 each with probability one half, and 2^63 is refused.
    Source: our derivation.
    """

    name: ClassVar[str] = "nan"

    def on_encoded(self, encoded: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `Attack.on_encoded`."""
        return np.full_like(encoded, _CAST)


@dataclass(frozen=True, slots=True)
class ScaledModelReplacement(Attack):
    """Uploads gamma * update. The norm check is what stops it.

    To turn the global model theta_t into theta*, an attacker of weight w uploads (theta* - theta_t) / (eta w). With
    theta* on the line through its own update, that is the update times a factor, here gamma.
    Source: PRECAD, Sec. 3.2.
    """

    name: ClassVar[str] = "scaled"

    gamma: float = 100.0
    """Factor on the honest update. 100 puts the norm beyond C unless the honest norm is below C / 100."""

    def __post_init__(self) -> None:
        require_finite("gamma", self.gamma)

    def on_update(self, update: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return gamma * update, not projected."""
        return self.gamma * update


@dataclass(frozen=True, slots=True)
class SignFlip(Attack):
    """Uploads -factor * update: with factor 1 a bit flip that no norm check can see.

    Source: Li, Xu, Chen, Giannakis and Ling, "RSA: Byzantine-Robust Stochastic Aggregation Methods", AAAI '19.
    """

    name: ClassVar[str] = "sign-flip"

    factor: float = 1.0

    def __post_init__(self) -> None:
        require_positive("factor", self.factor)

    def on_update(self, update: Vector) -> Vector:
        """Return -factor * update."""
        return -self.factor * update


_FORGED: Final = (2**32, 3 * 2**32)
"""Ring values whose squares, 2^64 and 9 * 2^64, are both zero modulo 2^64."""


@dataclass(frozen=True, slots=True)
class WrapAround(Attack):
    """Overwrites the first two coordinates of the encoded update by 2^32 and 3 * 2^32.

    With 16 fractional bits these are steps of 65 536 and 196 608. x.x modulo 2^64 does not see the two. It equals x.x
    of the honest update without its first two coordinates, hence still <= C^2 2^32. The check of Sec. 4.3 in the
    paper, taken literally over Z_2^64, accepts; the servers' test against wrap-around rejects.
    Source: our derivation.
    """

    name: ClassVar[str] = "wrap"

    def on_encoded(self, encoded: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the forged vector. Raises: ArgumentError below two coordinates."""
        if encoded.shape[0] < len(_FORGED):
            raise ArgumentError(
                f"update: expected at least {len(_FORGED)} coordinates for wrap-around, found {encoded.shape[0]}"
            )
        forged = encoded.copy()
        forged[: len(_FORGED)] = _FORGED
        return forged
