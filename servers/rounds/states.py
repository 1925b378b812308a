"""The states of a round. Each holds what that state knows and nothing of what it cannot know yet.

    Selecting -> Collecting -> Locked -> Charged -> Validated -> Opened -> Committed
                      \\___________\\__________\\__________\\_________-> Aborted (any of them)

A round goes from left to right or is aborted as a whole; nothing of an aborted round is used again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from precad.mpc import validation
from precad.mpc.ring import RingArray
from precad.mpc.tuples.held import ServerTuples
from precad.servers.rounds.intake import Intake
from precad.servers.store.rounds import CommittedRound


@dataclass(frozen=True, slots=True)
class Selecting:
    """Clients are being drawn by a joint coin."""

    round: int


@dataclass(frozen=True, slots=True)
class Collecting:
    """Chosen clients were invited; uploads come in."""

    round: int
    chosen: tuple[str, ...]
    tuples: ServerTuples
    intake: Intake
    model: bytes = field(repr=False)
    """Model that the chosen clients download."""


@dataclass(frozen=True, slots=True)
class Locked:
    """Uploads are fixed at both servers; the challenge is still unknown to everybody."""

    round: int
    chosen: tuple[str, ...]
    tuples: ServerTuples
    lock: validation.Locked
    intake: Intake
    """Closed; holds the active clients' uploads."""


@dataclass(frozen=True, slots=True)
class Charged:
    """The ledger holds this round, durably; only now may anything of its check leave."""

    round: int
    chosen: tuple[str, ...]
    tuples: ServerTuples
    lock: validation.Locked
    intake: Intake


@dataclass(frozen=True, slots=True)
class Validated:
    """One bit per client is known, and this server's share of the accepted sum.

    That vector is the next states' too: noise and the peer's share are added to it where it lies.
    """

    round: int
    chosen: tuple[str, ...]
    accepted: tuple[str, ...]
    rejected: tuple[str, ...]
    share_sum: RingArray = field(repr=False)


@dataclass(frozen=True, slots=True)
class Opened:
    """The noisy sum is public to both servers."""

    round: int
    chosen: tuple[str, ...]
    accepted: tuple[str, ...]
    rejected: tuple[str, ...]
    noisy_sum: RingArray


@dataclass(frozen=True, slots=True)
class Committed:
    """Both servers hold the same new model."""

    record: CommittedRound
    parameters: NDArray[np.float32]

    @property
    def round(self) -> int:
        """Its number."""
        return self.record.number


@dataclass(frozen=True, slots=True)
class Aborted:
    """The round ended without a release."""

    round: int
    reason: str


RoundState: TypeAlias = Selecting | Collecting | Locked | Validated | Charged | Opened | Committed | Aborted
