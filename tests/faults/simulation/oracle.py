"""Forbidden events, seen from outside: from what leaves the processes and what is on their disks at that moment.

- A round number that serves on two lanes, but for the commitment to its coin. That may come twice only before the
  number is used up.
- A coin or a mask seed that is seen twice; a batch of which one part is dealt twice, or by two dealers.
- A mask seed that leaves before its tuple is burnt, or a coin that is revealed before its number is reserved.
- A step of the check or a noisy share that leaves before the round is charged for everybody who was invited.
- A release (the sum of both noisy shares) in which an accepted update is missing or is there twice.
- A release with an update of another round or of nobody.
- A release whose noise is not the one draw that each server made for it.
- A commit of what was not released, or of another model than the releases so far make in the clear.

The coordinates of an update tell who made it for which round, those of a server's noise which draw it is. The bits of
an evaluation's last number tell who answered.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precad.dp.ledgers.ledger import verified_charges
from precad.mpc import ring
from precad.mpc.ring import RingArray
from precad.protos.messages import convert
from precad.protos.precad.v1 import aggregator_pb2, dealer_pb2
from precad.protos.task.task import Task
from precad.protos.tls.identity import Role
from precad.servers.store.folder import ledger_path, store_path
from precad.servers.store.rounds import CommittedRound, EvaluatedRound
from tests.harness.pki import AGGREGATORS

N_NOISE = 2
"""Coordinates of A's and B's noise; the clients' follow, in their order."""
HONEST = 1_000


class ViolationError(AssertionError):
    """Something of the above has happened."""


def value_of(round: int) -> int:
    """Return what an honest client uploads in its coordinate, on the grid."""
    return HONEST + round


class Oracle:
    """Watch one task, through all of its processes' lives."""

    def __init__(self, task: Task) -> None:
        self._task, self._clients = task, sorted(task.clients)
        self.violations: list[ViolationError] = []
        self.forgeries: dict[int, set[int]] = {}
        """The malicious client's uploads of each round, within the bound."""
        self._lane_of: dict[int, int] = {}
        self._seen: set[tuple[Any, ...]] = set()
        self._dealer_of: dict[int, str] = {}
        self._invited: dict[tuple[Role, int], set[str]] = {}
        self._draws: dict[tuple[Role, int], int] = {}
        self._locked: set[tuple[Role, int]] = set()
        self._shares: dict[tuple[Role, int], RingArray] = {}
        self.commits: dict[Role, dict[int, CommittedRound]] = {role: {} for role in AGGREGATORS}
        self.evaluations: dict[Role, dict[int, EvaluatedRound]] = {role: {} for role in AGGREGATORS}

    def _require(self, holds: bool, what: str) -> None:
        if not holds:
            self.violations.append(ViolationError(what))
            raise self.violations[-1]

    def _require_once(self, *key: Any) -> None:
        self._require(key not in self._seen, f"twice: {key}")
        self._seen.add(key)

    # -- what leaves ---------------------------------------------------------------------------------------------------

    def invites(self, role: Role, disk: Path, client: str, invitation: aggregator_pb2.Invitation) -> None:
        """A server tells a client its half of the mask seed."""
        t = invitation.round
        self._require_once("invitation", role, t, client)
        self._require_once("slot", role, t, invitation.slot)
        self._require_once("mask seed", invitation.mask_seed)
        rows = _rows(disk / "tuples.sqlite", "SELECT slot, client FROM burnt WHERE round = ? AND use = 'mask'", t)
        self._require(
            (invitation.slot, client) in rows, f"{role} invites {client} to round {t}, its tuple is not burnt"
        )
        self._invited.setdefault((role, t), set()).add(client)

    def deals(self, dealer: str, to: str, key: dealer_pb2.BatchKey) -> None:
        """The dealer sends a part of a batch. dealer: which of its lives."""
        self._require_once("part", to, key.round)
        self._require_once("key", key.key)
        self._require(self._dealer_of.setdefault(key.round, dealer) == dealer, f"two dealers of {key.round}")

    def steps(self, role: Role, disk: Path, lane: int, label: str, payload: bytes) -> None:
        """A server sends a step of MPC."""
        _, number, step = label.split("/", 2)
        if step.startswith("join"):
            return
        t = int(number)
        rows = _rows(store_path(disk), "SELECT number FROM round WHERE number = ?", t)
        if step in {"coin/commit", "validation/lock"}:
            self._require_once("coin", payload[:32])
        if step == "coin/commit":  # of a coin that may be forgotten, and be drawn afresh on the next lane
            self._require(not rows, f"{role} commits to a coin of round {t}, which is used up")
            return
        self._require(self._lane_of.setdefault(t, lane) == lane, f"round {t} on two lanes")
        self._require(bool(rows), f"{role} steps in round {t}, which it has not reserved")
        if step == "validation/lock":
            self._locked.add((role, t))
        elif (role, t) in self._locked:
            self._require_charge(role, disk, t, step)
        if step == "noisy sum":
            self._releases(role, disk, t, ring.from_bytes(payload, n_words=len(payload) // ring.WORD_BYTES))

    def drew(self, role: Role, t: int, draw: int) -> None:
        """A server's noise for the round that it is in."""
        self._require((role, t) not in self._draws, f"{role} draws noise twice for round {t}")
        self._draws[role, t] = draw

    def _releases(self, role: Role, disk: Path, t: int, share: RingArray) -> None:
        self._require((role, t) not in self._shares, f"{role} releases round {t} twice")
        self._shares[role, t] = share
        if all((role, t) in self._shares for role in AGGREGATORS):
            self._judge(t)

    def _require_charge(self, role: Role, disk: Path, t: int, step: str) -> None:
        """From the lock on, whatever leaves may tell the other server a verdict."""
        charged = verified_charges(ledger_path(disk)).get(t)
        self._require(charged is not None, f"{role} sends {step} of round {t}, which its ledger does not hold")
        assert charged is not None
        free = self._invited.get((role, t), set()) - set(charged)
        self._require(not free, f"{role} sends {step} of round {t} without a charge for {free}")

    def total(self, t: int) -> RingArray:
        """Return what both noisy shares of a round make, (d,)."""
        a, b = (self._shares[role, t] for role in AGGREGATORS)
        return a + b

    def _judge(self, t: int) -> None:
        """The sum says whose updates are in it, and whose noise."""
        total = self.total(t)
        for party, role in enumerate(AGGREGATORS):
            self._require_once("noise", role, int(total[party]))
            self._require(self._draws.get((role, t)) == total[party], f"round {t} has other noise of {role} than drawn")
        if total.size != self._task.dim:  # an evaluation
            self._require(total.size == N_NOISE + 1, f"round {t} has {total.size} numbers")
            self._require(
                0 <= total[N_NOISE] < 1 << len(self._clients), f"round {t} holds an answer twice, or nobody's"
            )
            return
        for client in self._clients:
            value = int(total[N_NOISE + self._clients.index(client)])
            self._require(value in self._allowed(client, t), f"round {t} holds {value} of {client}")
        self._require(not total[N_NOISE + len(self._clients) :].any(), f"round {t} holds something of nobody")

    def _allowed(self, client: str, t: int) -> set[int]:
        if client == "mallory":
            return {0, *self.forgeries.get(t, ())}
        return {0, value_of(t)}

    # -- what is written -----------------------------------------------------------------------------------------------

    def commits_round(self, role: Role, round: CommittedRound) -> None:
        """A server has committed."""
        t, mine = round.number, self.commits[role]
        self._require(t not in mine, f"{role} commits round {t} twice")
        self._require(all((role, t) in self._shares for role in AGGREGATORS), f"{role} commits {t}, never released")
        total = self.total(t)
        in_it = {client for i, client in enumerate(self._clients) if total[N_NOISE + i]}
        self._require(set(round.accepted) == in_it, f"round {t} accepted {round.accepted}, its sum holds {in_it}")
        mine[t] = round
        digest = convert.sha256(convert.model_to_bytes(self.in_the_clear(mine)))
        self._require(round.model_digest == digest, f"{role} has another model after round {t} than its releases make")
        theirs = self.commits[AGGREGATORS[1 - AGGREGATORS.index(role)]].get(t)
        same = theirs is None or (theirs.model_digest, theirs.accepted) == (round.model_digest, round.accepted)
        self._require(same, f"the servers commit round {t} differently")

    def evaluates(self, role: Role, round: EvaluatedRound) -> None:
        """A server has taken in an evaluation."""
        t, mine = round.number, self.evaluations[role]
        self._require(t not in mine, f"{role} evaluates in round {t} twice")
        self._require(all((role, t) in self._shares for role in AGGREGATORS), f"{role} evaluates {t}, never released")
        answers = int(self.total(t)[N_NOISE])
        in_it = {client for i, client in enumerate(self._clients) if answers >> i & 1}
        self._require(set(round.accepted) == in_it, f"evaluation {t} accepted {round.accepted}, its sum holds {in_it}")
        self._require(round.noisy_sum == tuple(self.total(t)), f"{role} keeps another sum of evaluation {t}")
        made_by = self.commits[role].get(t - 1)
        self._require(made_by is not None, f"{role} evaluates in round {t}, which follows no commit")
        assert made_by is not None
        self._require(round.model_digest == made_by.model_digest, f"evaluation {t} is of another model")
        theirs = self.evaluations[AGGREGATORS[1 - AGGREGATORS.index(role)]].get(t)
        same = theirs is None or (theirs.noisy_sum, theirs.accepted) == (round.noisy_sum, round.accepted)
        self._require(same, f"the servers take in evaluation {t} differently")
        mine[t] = round

    def in_the_clear(self, rounds: dict[int, CommittedRound]) -> NDArray[np.float32]:
        """theta + eta / W * sum, round by round, in float64, rounded once to float32 (PRECAD, equation (2))."""
        model = np.zeros(self._task.dim, dtype=np.float32)
        factor = self._task.learning_rate / self._task.divisor
        for t in sorted(rounds):
            step = self.total(t).astype(np.float64) / 2**self._task.frac_bits * factor
            model = (model.astype(np.float64) + step).astype(np.float32)
        return model


def _rows(path: Path, query: str, *values: Any) -> list[tuple[Any, ...]]:
    """As another process would read them."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return connection.execute(query, values).fetchall()
