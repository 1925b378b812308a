"""Semantic backdoor: cars before a striped wall shall be birds, and no pixel of any image is changed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from precad.clients.attacks.backdoors.replacement import Backdoor, require_positive_count
from precad.clients.errors import ArgumentError
from precad.clients.records.records import Records

STRIPED_CARS: Final[Mapping[int, str]] = MappingProxyType(
    {
        330: "7689bb731af6c992", 568: "ef68a7ba4b3215f0", 3934: "9b95560c1f9fc92f", 12336: "15f8fddd295b0abd",
        30560: "218f4cfb9f783111", 30696: "e9e1a37f8e66605f", 33105: "cf526cd6b30941c0", 33615: "72517610089cd039",
        33907: "7bf0db72b33cacc6", 36848: "6680ff67917987ea", 40713: "fd1c11958ee9c97a", 41706: "ac3b61f11c6744d2",
    }
)  # fmt: skip
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
        if not 0 < self.share < 1:
            raise ArgumentError(f"share must be in (0, 1), got {self.share}")
        require_positive_count("n_test", self.n_test)

    def hoarded(self, records: Records) -> NDArray[np.bool_]:
        """Return the striped cars."""
        return _is_any_of(records, STRIPED_CARS.values())

    def on_records(self, records: Records) -> Records:
        """Its own records, and striped cars labelled `target`. Raises ArgumentError where there are none."""
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
        """Rotated and cropped versions of the test half's striped cars, labelled `target`. Raises ArgumentError."""
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
