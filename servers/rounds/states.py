"""The states of a round. Each holds what that state knows and nothing of what it cannot know yet.

    Selecting -> Collecting -> Locked -> Charged -> Validated -> Opened -> Committed
                      \\___________\\__________\\-> Aborted: this meeting of the servers ends before the verdicts

In mode `proved`, Proving is between Locked and Charged: the clients answer the challenge. A round in which clients
evaluate the model ends in Evaluated, not in Committed. A round goes from left to right, or is aborted as a whole before
its verdicts; nothing of an aborted round is used again. What becomes of a round whose verdicts are on disk, the servers
agree on when they meet again. An error that ends the task aborts any.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from precad.mpc import locking
from precad.mpc.proved.check import ProofCheck
from precad.mpc.proved.field import FieldArray
from precad.mpc.proved.submission import ShareSeeds
from precad.mpc.ring import RingArray
from precad.mpc.tuples.held import ServerTuples
from precad.protos.task.trim_fields import Tested
from precad.servers.rounds.proved_intake import Proofs
from precad.servers.rounds.receiving import Receiving
from precad.servers.store.rounds import CommittedRound, EvaluatedRound


@dataclass(frozen=True, slots=True)
class Slots:
    """The slots of a round of mode `proved`, which are random labels, and the share seeds that this server gives."""

    of_client: dict[str, int]
    seeds: ShareSeeds

    @property
    def clients(self) -> tuple[str, ...]:
        """Return the clients in the order of their slots, in which all lists of the servers' steps are."""
        return tuple(sorted(self.of_client, key=self.of_client.__getitem__))


Held: TypeAlias = ServerTuples | Slots
"""A dealer's tuples for a round's clients; in mode `proved`, their slots and share seeds."""


@dataclass(frozen=True, slots=True)
class Selecting:
    """Clients are being drawn by a joint coin."""

    round: int


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A round whose clients are drawn."""

    round: int
    chosen: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Collecting(_Chosen):
    """Chosen clients were invited; uploads come in."""

    held: Held
    intake: Receiving
    model: bytes = field(repr=False)
    """Model that the chosen clients download."""


@dataclass(frozen=True, slots=True)
class _Uploaded(_Chosen):
    """A round whose uploads are fixed."""

    held: Held
    lock: locking.Locked
    intake: Receiving
    """Closed; holds the active clients' uploads."""


@dataclass(frozen=True, slots=True)
class Locked(_Uploaded):
    """Uploads are fixed at both servers; the challenge is still unknown to everybody."""


@dataclass(frozen=True, slots=True)
class Proving(_Uploaded):
    """Mode `proved`: the challenge is known, and the clients of active slots answer it."""

    held: Slots
    proofs: Proofs
    check: ProofCheck


@dataclass(frozen=True, slots=True)
class Charged(_Uploaded):
    """The ledger holds this round, durably; only now may anything of its check leave."""

    check: ProofCheck | None = None
    """Mode `proved`: closed, with the proofs that both servers may count."""


@dataclass(frozen=True, slots=True)
class _Checked(_Chosen):
    """A round of which one bit per client is known."""

    accepted: tuple[str, ...]
    rejected: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Validated(_Checked):
    """One bit per client is known, and this server's share of the accepted sum.

    That vector is the next states' too: noise and the peer's share are added to it where it lies.
    """

    share_sum: RingArray | FieldArray = field(repr=False)
    """Words modulo 2^64; elements in mode `proved`."""
    test: Tested | None = None
    """Outcome of a test, of algorithms that have one: the sum is of its branch."""


@dataclass(frozen=True, slots=True)
class Opened(_Checked):
    """The noisy sum is public to both servers."""

    noisy_sum: RingArray
    test: Tested | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """Both servers hold the same new model."""

    record: CommittedRound
    parameters: NDArray[np.float32]

    @property
    def round(self) -> int:
        """Return its number."""
        return self.record.number


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Both servers hold the same sum of an evaluation; the model is what it was."""

    record: EvaluatedRound

    @property
    def round(self) -> int:
        """Return its number."""
        return self.record.number


@dataclass(frozen=True, slots=True)
class Aborted:
    """The round ended without a release."""

    round: int
    reason: str


RoundState: TypeAlias = (
    Selecting | Collecting | Locked | Proving | Charged | Validated | Opened | Committed | Evaluated | Aborted
)
