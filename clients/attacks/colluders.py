"""Attackers that make their upload of others' updates: all seeing in a simulation, colluders in a deployment too."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from precad.clients.attacks.attack import Attack, Knowledge, Vector, within
from precad.clients.checks import is_number, require_positive, shown
from precad.clients.errors import ArgumentError, NoVictimError
from precad.clients.training.distances import squared_distances

Sight = Literal["everybody", "colluders"]
Direction = Literal["std", "unit", "sign"]


@dataclass(frozen=True, slots=True)
class AllSeeing(Attack):
    """Base of attackers that make their upload of a round's updates, of which there must be some.

    With `sees = "everybody"` these are the honest clients' updates, which a simulation alone can hand out. With
    `"colluders"` they are what the round's attackers themselves would upload if they were honest. They estimate by
    those what the others upload, as Baruch et al. do. A deployment's attackers share them in a folder.
    """

    is_crafted: ClassVar[bool] = True
    needs_company: ClassVar[bool] = True

    sees: Sight = field(default="everybody", kw_only=True)
    """`everybody` or `colluders`: whose updates it knows."""

    def __post_init__(self) -> None:
        if self.sees not in get_args(Sight):
            raise ArgumentError(f"sees: expected one of {', '.join(get_args(Sight))}, found {self.sees}")

    @property
    def is_omniscient(self) -> bool:
        """See Attack."""
        return self.sees == "everybody"

    def craft(self, known: Knowledge) -> Vector:
        """Return the crafted vector, brought into the ball. Raises NoVictimError where there are no updates to see."""
        seen = known.honest if self.is_omniscient else known.own
        if len(seen) == 0:
            raise NoVictimError(self.name)
        return within(self.crafted(replace(known, honest=seen), seen.mean(axis=0)), known.bound)

    @abstractmethod
    def crafted(self, known: Knowledge, mean: Vector) -> Vector:
        """Return what it would upload if nobody bounded it; `mean` is mu, the mean of `known.honest`."""


@dataclass(frozen=True, slots=True)
class ALittleIsEnough(AllSeeing):
    """Every attacker uploads mu - z sd, coordinate by coordinate, over the honest updates.

    z is the largest with which enough honest clients lie farther from mu than the attackers. For m attackers of n
    clients, Phi(z) = (n - m - s) / (n - m) with s = floor(n / 2 + 1) - m. In the source the attackers estimate mu and
    sd from their own records, which is `sees = "colluders"`.
    Source: Baruch, Baruch and Goldberg, "A Little Is Enough: Circumventing Defenses For Distributed Learning", NeurIPS
    '19, Algorithm 3.
    """

    name: ClassVar[str] = "alie"

    z: float | None = None
    """In place of the formula."""

    def __post_init__(self) -> None:
        AllSeeing.__post_init__(self)
        if self.z is not None and (not is_number(self.z) or not 0 <= self.z < math.inf):
            raise ArgumentError(f"z: expected a finite number of at least 0, found {shown(self.z)}")

    def crafted(self, known: Knowledge, mean: Vector) -> Vector:
        """Return mu - z sd."""
        z = largest_z(known.n_clients, known.n_attackers) if self.z is None else self.z
        shifted: Vector = mean - z * np.std(known.honest, axis=0)
        return shifted


def largest_z(n: int, m: int) -> float:
    """Return z_max for n clients, m of them attackers: 0 where no honest supporter is needed or none can be had."""
    if n <= m:
        return 0.0
    supporters = n // 2 + 1 - m
    share = (n - m - supporters) / (n - m)
    return max(0.0, float(ndtri(share))) if 0 < share < 1 else 0.0


@dataclass(frozen=True, slots=True)
class _Reaching(AllSeeing):
    """An attack that goes as far as the bound C lets it, or as `reach` says where there is none."""

    reach: float = 10.0

    def __post_init__(self) -> None:
        AllSeeing.__post_init__(self)
        require_positive("reach", self.reach)


@dataclass(frozen=True, slots=True)
class MaximalDirection(_Reaching):
    """Upload -C s / ||s||, s the sum of the honest updates. No other vector in the ball takes more from the
    round's progress along s.

    Where nobody bounds updates it takes `reach` times the longest honest update for C.
    Source: our derivation (Cauchy-Schwarz).
    """

    name: ClassVar[str] = "adaptive"

    def crafted(self, known: Knowledge, mean: Vector) -> Vector:
        """Return the antipode of the honest sum, on the sphere."""
        total = known.honest.sum(axis=0)
        norm = float(np.linalg.norm(total))
        if norm == 0:
            return np.zeros_like(known.update)
        opposite: Vector = total * (-_radius(known, self.reach) / norm)
        return opposite


def _radius(known: Knowledge, reach: float) -> float:
    """Return C, or `reach` times the longest honest update where nobody bounds updates."""
    return reach * float(np.linalg.norm(known.honest, axis=1).max()) if math.isinf(known.bound) else known.bound


@dataclass(frozen=True, slots=True)
class FangTrim(AllSeeing):
    """Upload, in coordinate j, a uniform draw beyond the honest updates, against the sign of the honest mean.

    The draw is between the honest updates' extreme e_j on that side and the point beyond it. That point is factor * e_j
    or e_j / factor, whichever is farther out. Every attacker draws its own, so that they hide one another from
    trimming. The source attacks models, here it is updates.
    Source: Fang, Cao, Jia and Gong, "Local Model Poisoning Attacks to Byzantine-Robust Federated Learning", USENIX
    Security '20, trimmed mean, full knowledge, b = 2.
    """

    name: ClassVar[str] = "fang-trim"

    factor: float = 2.0
    """The source's b."""

    def __post_init__(self) -> None:
        AllSeeing.__post_init__(self)
        if not is_number(self.factor) or not 1 < self.factor < math.inf:
            raise ArgumentError(f"factor: expected a finite number above 1, found {shown(self.factor)}")

    def crafted(self, known: Knowledge, mean: Vector) -> Vector:
        """Return a draw of its own."""
        goes_up = mean > 0
        extreme = np.where(goes_up, known.honest.min(axis=0), known.honest.max(axis=0))
        is_outward = np.where(goes_up, extreme <= 0, extreme >= 0)  # from zero, so that a factor goes farther
        beyond = np.where(is_outward, extreme * self.factor, extreme / self.factor)
        share = known.random.uniform(size=extreme.shape)
        drawn: Vector = extreme + share * (beyond - extreme)
        return drawn


@dataclass(frozen=True, slots=True)
class InnerProductManipulation(AllSeeing):
    """Every attacker uploads -epsilon times the mean of the honest updates. (This epsilon is no privacy parameter.)

    It takes a small epsilon against Krum, one above (n - m) / m against the mean.
    Source: Xie, Koyejo and Gupta, "Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product Manipulation", UAI
    '19, Sec. 4.
    """

    name: ClassVar[str] = "inner-product"

    factor: float = 0.5
    """The source's epsilon."""

    def __post_init__(self) -> None:
        AllSeeing.__post_init__(self)
        require_positive("factor", self.factor)

    def crafted(self, known: Knowledge, mean: Vector) -> Vector:
        """Return -epsilon * mean."""
        return -self.factor * mean


@dataclass(frozen=True, slots=True)
class MinMax(AllSeeing):
    """Every attacker uploads mu + gamma p with the largest gamma for which

        max_i ||mu + gamma p - x_i|| <= max_ij ||x_i - x_j||,   x the honest updates, mu their mean.

    p is -sd, -mu / ||mu|| or -sign(mu). Each i bounds gamma by a quadratic, which is solved where the source bisects.
    Source: Shejwalkar and Houmansadr, "Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses for
    Federated Learning", NDSS '21, equation (8), AGR-agnostic.
    """

    name: ClassVar[str] = "min-max"

    direction: Direction = "std"
    """p: the source's inverse standard deviation, unit vector or sign."""

    def __post_init__(self) -> None:
        AllSeeing.__post_init__(self)
        if self.direction not in get_args(Direction):
            raise ArgumentError(f"direction: expected one of {', '.join(get_args(Direction))}, found {self.direction}")

    def crafted(self, known: Knowledge, mean: Vector) -> Vector:
        """Return mu + gamma p; mu itself where the honest updates leave no room."""
        p = self._perturbation(known.honest, mean)
        return mean + largest_gamma(known.honest, mean, p) * p

    def _perturbation(self, honest: NDArray[np.float64], mean: Vector) -> Vector:
        if self.direction == "std":
            spread: Vector = np.std(honest, axis=0)
            return -spread
        if self.direction == "sign":
            return -np.sign(mean)
        norm = float(np.linalg.norm(mean))
        return -mean / norm if norm > 0 else mean


def largest_gamma(honest: NDArray[np.float64], mean: Vector, p: Vector) -> float:
    """Return the largest gamma >= 0 with ||mean + gamma p - x_i||^2 <= max_ij ||x_i - x_j||^2 for all i; 0 if p = 0."""
    squared_p = float(p @ p)
    if squared_p == 0:
        return 0.0
    widest = float(squared_distances(honest).max())
    away = mean - honest
    b, c = away @ p, (away**2).sum(axis=1) - widest  # gamma^2 p.p + 2 gamma b + c <= 0
    roots = (-b + np.sqrt(np.maximum(b**2 - squared_p * c, 0.0))) / squared_p
    return max(0.0, float(roots.min()))


@dataclass(frozen=True, slots=True)
class StatOpt(_Reaching):
    """Every attacker uploads mu + gamma p, p = -sign(mu), mu the honest mean, with the largest gamma that passes.

    What passes here is what is within the norm bound C; where there is none, `reach` times the longest honest update.
    It is tailored to the rule, and called STAT-OPT in Xie et al., CCS '23.
    Source: Shejwalkar and Houmansadr, "Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses for
    Federated Learning", NDSS '21.
    """

    name: ClassVar[str] = "stat-opt"

    def crafted(self, known: Knowledge, mean: Vector) -> Vector:
        """Return mu + gamma p."""
        p = -np.sign(mean)
        return mean + self.gamma(known, mean, p) * p

    def gamma(self, known: Knowledge, mean: Vector, p: Vector) -> float:
        """Return the larger root of ||mu + gamma p|| = C, or 0."""
        squared_p, b, c = float(p @ p), float(mean @ p), float(mean @ mean) - _radius(known, self.reach) ** 2
        if squared_p == 0:
            return 0.0
        return max(0.0, (-b + math.sqrt(max(0.0, b**2 - squared_p * c))) / squared_p)
