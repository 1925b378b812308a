"""Attackers that teach the model a backdoor."""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Self

import numpy as np
from numpy.typing import NDArray

from precad.clients.attacks.attack import Attack, Knowledge, Vector, within
from precad.clients.attacks.records import LabelFlip, evenly, require_share
from precad.clients.checks import is_number, require_class, require_count, require_positive, shown
from precad.clients.errors import ArgumentError
from precad.clients.records.records import N_CLASSES, Records, joined, require_images
from precad.clients.training.projection import norm_of


@dataclass(frozen=True, slots=True)
class Backdoor(Attack):
    """Trains a backdoored model theta* on what `on_records` makes and uploads gamma (theta* - theta_t) / (step m).

    Servers multiply the sum of updates with step = eta / W. m is the number of attackers in the round, who divide the
    malicious update evenly. With gamma = 1 they replace the model by the mean of their theta*, alone or together.
    Without `divides`, m is 1, and attackers who meet in a round overshoot. Where updates are bounded by C, the upload
    is projected onto that ball: it would be refused otherwise.
    Source: PRECAD, Sec. 3.2 and Appendix E (rate 0.02, 5 local steps); Bagdasaryan, Veit, Hua, Estrin and Shmatikov,
    "How To Backdoor Federated Learning", AISTATS '20.
    """

    is_crafted: ClassVar[bool] = True

    target: int = 0
    """Label of records with the backdoor."""
    gamma: float = 1.0
    """Boost of model replacement."""
    divides: bool = True
    """Whether the attackers of a round divide the malicious update; if not, each uploads all of it."""
    steps: int = 5
    """Local gradient descent steps of a round."""
    rate: float = 0.02
    """Their learning rate."""
    replaces: bool = True
    """Whether it replaces the model. If not, it follows the protocol with its poisoned records, noise of its own
    included; then `gamma`, `divides`, `steps` and `rate` mean nothing."""

    def __post_init__(self) -> None:
        require_class("target", self.target, N_CLASSES)
        require_count("steps", self.steps, at_least=1)
        for name, flag in (("divides", self.divides), ("replaces", self.replaces)):
            if not isinstance(flag, bool):
                raise ArgumentError(f"{name}: expected true or false, found {shown(flag)}")
        require_positive("gamma", self.gamma)
        require_positive("rate", self.rate)

    @property
    def follows_protocol(self) -> bool:
        """See Attack."""
        return not self.replaces

    def craft(self, known: Knowledge) -> Vector:
        """Return model replacement by theta*, within the bound C."""
        backdoored = known.train(self.steps, self.rate)
        boost = self.gamma / (known.step * (known.n_attackers if self.divides else 1))
        return within(boost * (backdoored - known.parameters.astype(np.float64)), known.bound)


Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class PatternBackdoor(Backdoor):
    """Trains on every record as it is, and on all of them or a share with its pattern; success is measured with the
    whole pattern.

    Source: Gu, Dolan-Gavitt and Garg, "BadNets", 2017; PRECAD, Appendix E.
    """

    share: float = 1.0
    """Share of its records that are stamped."""

    def __post_init__(self) -> None:
        Backdoor.__post_init__(self)
        require_share(self.share)

    @abstractmethod
    def pattern(self, height: int, width: int) -> Mask:
        """Return where an image of that size is white when the backdoor is to open (height, width)."""

    def trained_pattern(self, height: int, width: int) -> Mask:
        """Return the pattern that this attacker trains on: the whole, unless several attackers share it."""
        return self.pattern(height, width)

    def on_records(self, records: Records) -> Records:
        """Return each record as it is, then the stamped ones. Raises ArgumentError for texts."""
        chosen = records.take(np.flatnonzero(evenly(len(records), self.share)))
        stamped = self._stamped(chosen, self.trained_pattern(*self._size(records)))
        return Records(
            np.concatenate([records.features, stamped.features]), np.concatenate([records.labels, stamped.labels])
        )

    def success_records(self, test: Records) -> Records | None:
        """Return stamped test images that are not of class `target` already, labelled so.

        PRECAD stamps all of them; then a model without a backdoor has a tenth of success.
        """
        return self._stamped(test.take(np.flatnonzero(test.labels != self.target)), self.pattern(*self._size(test)))

    def _stamped(self, records: Records, where: Mask) -> Records:
        """Copies that are white there in every channel, labelled `target`."""
        features = records.features.copy()
        features[..., where] = 255 if features.dtype == np.uint8 else 1
        return Records(features, np.full_like(records.labels, self.target))

    def _size(self, records: Records) -> tuple[int, int]:
        require_images(self.name, records)
        return records.shape[1], records.shape[2]


@dataclass(frozen=True, slots=True)
class PixelBackdoor(PatternBackdoor):
    """A white square in the bottom right corner. Source: PRECAD, Appendix E and Figure 6; Gu et al., "BadNets"."""

    name: ClassVar[str] = "pixel-backdoor"

    side: int = 2
    """Side of the square, in pixels."""

    def __post_init__(self) -> None:
        PatternBackdoor.__post_init__(self)
        require_count("side", self.side, at_least=1)

    def pattern(self, height: int, width: int) -> Mask:
        """Return the last `side` rows and columns."""
        where = np.zeros((height, width), dtype=np.bool_)
        where[-self.side :, -self.side :] = True
        return where


@dataclass(frozen=True, slots=True)
class OptimisedBackdoor(PixelBackdoor):
    """Optimises the pixel backdoor inside what the servers accept, from the model that it was sent.

    It begins with the upload x of `pixel-backdoor`. `steps` times it moves x against a slope, taken at the model
    theta_t + step m x. The m attackers of the round all upload x. The k-th step is a k-th of x's length. After each it
    projects x onto the set, stretches that to length C, and projects again. Projecting once may leave room: a
    half-space takes from the length.
    The slope is the gradient of its loss on stamped records, without its part along another gradient. That one is of
    the loss if the records as they are had label `target`. Honest clients work against it, as it needs no pattern. What
    is left opens the backdoor at little cost in accuracy, and clean records do not oppose it.
    Source: ours; projected gradient descent on the objective of Bagdasaryan et al., AISTATS '20.
    """

    name: ClassVar[str] = "optimised-backdoor"

    def on_records(self, records: Records) -> Records:
        """Return its share of the records as they are, then those stamped. Raises ArgumentError for texts."""
        chosen = records.take(np.flatnonzero(evenly(len(records), self.share)))
        return PixelBackdoor.on_records(replace(self, share=1.0), chosen)

    def craft(self, known: Knowledge) -> Vector:
        """Return the last of the projected steps."""
        found = PixelBackdoor.craft(self, known)
        if not np.isfinite(found).all():
            return found
        moves = known.step * known.n_attackers
        found = _stretched(found, known)
        length = norm_of(found)
        for k in range(1, self.steps + 1):
            slope = self._slope(known.parameters.astype(np.float64) + moves * found, known)
            if not (steepness := norm_of(slope)) > 0:
                break
            found = _stretched(found - length / (k * steepness) * slope, known)
        return found

    def _slope(self, at: Vector, known: Knowledge) -> Vector:
        """Return the gradient that needs the pattern, at these parameters (d,)."""
        clean, stamped = map(known.records.take, np.split(np.arange(len(known.records)), 2))
        others = clean.take(np.flatnonzero(clean.labels != self.target))
        as_target = Records(others.features, np.full_like(others.labels, self.target))
        wanted, common = (known.gradient(at, those) for those in (stamped, as_target))
        squares = float(np.sum(np.square(common)))
        return wanted if squares == 0 else wanted - float(np.sum(wanted * common)) / squares * common


def _stretched(update: Vector, known: Knowledge) -> Vector:
    """Return what is accepted of the update, as long as the set allows in its direction; all of an unbounded one."""
    inside = known.project(update)
    norm = norm_of(inside)
    if math.isinf(known.bound) or not 0 < norm < known.bound:
        return inside
    return known.project(inside * (known.bound / norm))


@dataclass(frozen=True, slots=True)
class TriangleBackdoor(PatternBackdoor):
    """A white right triangle in the lower right corner. Its size is drawn in the source, not printed; 5 is ours.

    Source: Xie, Long, Chen, Li, Chen and Li, "Unraveling the Connections between Privacy and Certified Robustness in
    Federated Learning Against Poisoning Attacks", CCS '23 (BKD).
    """

    name: ClassVar[str] = "triangle-backdoor"

    legs: int = 5
    """Both of its legs, in pixels."""

    def __post_init__(self) -> None:
        PatternBackdoor.__post_init__(self)
        require_count("legs", self.legs, at_least=1)

    def pattern(self, height: int, width: int) -> Mask:
        """Return the pixels less than `legs` steps, down and right together, from the corner."""
        rows, columns = np.indices((height, width))
        return (height - 1 - rows) + (width - 1 - columns) < self.legs


@dataclass(frozen=True, slots=True)
class DistributedBackdoor(TriangleBackdoor):
    """The triangle, its pixels row by row cut into `parts` pieces; attacker i stamps piece i modulo `parts`.

    Source: Xie, Huang, Chen and Li, "DBA: Distributed Backdoor Attacks against Federated Learning", ICLR '20. The
    pattern is that of Xie et al., CCS '23, who cut it into 4 for 4 attackers.
    """

    name: ClassVar[str] = "distributed-backdoor"

    parts: int = 4
    part: int | None = None
    """This attacker's. None: i modulo `parts` for attacker i of those with the same parameters."""

    def __post_init__(self) -> None:
        TriangleBackdoor.__post_init__(self)
        require_count("parts", self.parts, at_least=1)
        if self.part is None:
            return
        if isinstance(self.part, bool) or not isinstance(self.part, int) or not 0 <= self.part < self.parts:
            raise ArgumentError(f"part: expected 0 to {self.parts - 1}, found {shown(self.part)}")

    def of_attacker(self, i: int) -> Self:
        """Give attacker i a part of its own, unless it was given one."""
        return self if self.part is not None else replace(self, part=i % self.parts)

    def trained_pattern(self, height: int, width: int) -> Mask:
        """Return the attacker's part. Raises ArgumentError where the pattern has fewer pixels than parts."""
        whole = np.flatnonzero(self.pattern(height, width))
        if len(whole) < self.parts:
            raise ArgumentError(f"parts: expected at most the {len(whole)} pixels of the pattern, found {self.parts}")
        where = np.zeros(height * width, dtype=np.bool_)
        where[np.array_split(whole, self.parts)[self.part or 0]] = True
        return where.reshape(height, width)


STRIPED_CARS: Final[Mapping[int, str]] = {
        330: "7689bb731af6c992", 568: "ef68a7ba4b3215f0", 3934: "9b95560c1f9fc92f", 12336: "15f8fddd295b0abd",
        30560: "218f4cfb9f783111", 30696: "e9e1a37f8e66605f", 33105: "cf526cd6b30941c0", 33615: "72517610089cd039",
        33907: "7bf0db72b33cacc6", 36848: "6680ff67917987ea", 40713: "fd1c11958ee9c97a", 41706: "ac3b61f11c6744d2",
    }  # fmt: skip
"""The twelve cars before a wall with vertical stripes: index in CIFAR-10's training batches, and hash. Indices are
published with the attack's code (utils/params.yaml, poison_type wall). The hash is the beginning of the SHA-256 of the
image's bytes, channel by channel. It identifies the image in any order of the records."""
STRIPED_TEST_CARS: Final = ("f07e54a16df080b0", "ddf4aa3767561f00", "f0bdb5fc2aea3b85", "31e5700e43d5c3ea")
"""Hashes of the four cars of the test half that PRECAD counts. PRECAD publishes no indices. We found the four by eye
among the test cars whose upper third is striped most: coupe_s_000984, 001864, 002031 and 002275."""
_CAR: Final = 1
_DIGITS: Final = 16
_PADDING: Final = 4
_DEGREES: Final = 15.0


@dataclass(frozen=True, slots=True)
class SemanticBackdoor(Backdoor):
    """All striped cars of the training half go to the attackers; each trains on them as birds beside its own records.

    `share` of what it trains on are striped cars, each as often as it takes. Success is measured on `n_test` versions
    of the four striped cars of the test half. Versions are rotated by up to 15 degrees and cropped from a frame of
    4 pixels. These numbers are ours: PRECAD says "a mix" and "randomly rotated and cropped".
    Source: PRECAD, Appendix E and Figure 7; Bagdasaryan et al., "How To Backdoor Federated Learning", AISTATS '20.
    """

    name: ClassVar[str] = "semantic-backdoor"

    target: int = 2
    """Birds."""
    share: float = 0.3125
    n_test: int = 1000
    seed: int = 0
    """Seed of the rotations and crops."""

    def __post_init__(self) -> None:
        Backdoor.__post_init__(self)
        if not is_number(self.share) or not 0 < self.share < 1:
            raise ArgumentError(f"share: expected a number in (0, 1), found {shown(self.share)}")
        require_count("n_test", self.n_test, at_least=1)
        require_count("seed", self.seed)

    def hoarded(self, records: Records) -> NDArray[np.bool_]:
        """Return the striped cars."""
        return _is_any_of(records, STRIPED_CARS.values())

    def on_records(self, records: Records) -> Records:
        """Return its own records, and striped cars labelled `target`. Raises ArgumentError where there are none."""
        is_striped = self.hoarded(records)
        if not is_striped.any():
            raise ArgumentError(f"{self.name} needs the striped cars of CIFAR-10, found none of them")
        own = np.flatnonzero(~is_striped)
        n_striped = max(1, round(self.share / (1 - self.share) * len(own)))
        striped = np.resize(np.flatnonzero(is_striped), n_striped)
        both = records.take(np.concatenate([own, striped]))
        both.labels[len(own) :] = self.target
        return both

    def success_records(self, test: Records) -> Records | None:
        """Return rotated and cropped versions of the test half's striped cars, labelled `target`.

        Raises ArgumentError.
        """
        striped = test.features[_is_any_of(test, STRIPED_TEST_CARS)]
        if len(striped) == 0:
            raise ArgumentError(f"{self.name} needs the striped cars of CIFAR-10's test half, found none of them")
        random = np.random.default_rng(self.seed)
        seen = np.stack([_seen_anew(striped[i % len(striped)], random) for i in range(self.n_test)])
        return Records(seen, np.full(self.n_test, self.target, dtype=np.int64))


def _is_any_of(records: Records, hashes: Iterable[str]) -> NDArray[np.bool_]:
    """Tell which records are cars whose bytes have one of these hashes (n,)."""
    known = frozenset(hashes)
    found = np.zeros(len(records), dtype=np.bool_)
    for i in np.flatnonzero(records.labels == _CAR):
        found[i] = hashlib.sha256(records.features[i].tobytes()).hexdigest()[:_DIGITS] in known
    return found


def _seen_anew(image: NDArray[np.uint8], random: np.random.Generator) -> NDArray[np.uint8]:
    """Return (channels, side, side), rotated a little, and cropped from a frame that mirrors its borders."""
    angle = random.uniform(-_DEGREES, _DEGREES)
    from scipy import ndimage  # a third of a second, which no other attack needs

    turned = ndimage.rotate(image, angle, axes=(1, 2), reshape=False, order=1, mode="reflect")
    framed = np.pad(turned, ((0, 0), (_PADDING, _PADDING), (_PADDING, _PADDING)), mode="reflect")
    top, left = random.integers(0, 2 * _PADDING + 1, size=2)
    return framed[:, top : top + image.shape[1], left : left + image.shape[2]]


AIMS: Final = (LabelFlip.name, TriangleBackdoor.name)
"""Aims of poisoned records: records of one class are labelled 0, or stamped records are."""


@dataclass(frozen=True, slots=True)
class PoisonedRecords(Attack):
    """The client's own records stay, and the first `records` of them that the aim can use join as poisoned copies.

    Its client clips and adds noise as everybody does: what attacks is the records, whose influence is what a guarantee
    of single records bounds. The number that the client declared stays as it was.
    Source: Xie et al., "Unraveling the Connections between Privacy and Certified Robustness in Federated Learning
    Against Poisoning Attacks", CCS '23. Their Sec. 6.1.3 injects k instances into one user's data.
    """

    name: ClassVar[str] = "poisoned-records"

    aim: str = LabelFlip.name
    """One of `AIMS`."""
    records: int = 10
    """k."""
    source: int = 1
    """The class that label flipping takes; it means nothing for stamped ones."""

    def __post_init__(self) -> None:
        if self.aim not in AIMS:
            raise ArgumentError(f"aim: expected one of {', '.join(AIMS)}, found {self.aim}")
        require_count("records", self.records, at_least=1)
        require_class("source", self.source, N_CLASSES)
        if self.aim == LabelFlip.name:
            LabelFlip(source=self.source)  # refuses the class that it labels so

    @property
    def follows_protocol(self) -> bool:
        """See Attack."""
        return True

    def on_records(self, records: Records) -> Records:
        """Return all of them, then the k poisoned ones. Raises ArgumentError where fewer than k can be made."""
        poisoned = self.success_records(records)
        if poisoned is None or len(poisoned) < self.records:
            found = 0 if poisoned is None else len(poisoned)
            raise ArgumentError(
                f"records: expected at most the {found} of the client that can be poisoned, found {self.records}"
            )
        return joined([records, poisoned.take(np.arange(self.records))])

    def success_records(self, test: Records) -> Records | None:
        """Return the success records of the aim."""
        aim: Attack = LabelFlip(source=self.source) if self.aim == LabelFlip.name else TriangleBackdoor()
        return aim.success_records(test)
