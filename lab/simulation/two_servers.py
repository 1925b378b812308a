"""Algorithm 1, lines 4 and 5, in one process: which uploads are short enough, and the sum of those.

    cleartext   the exact integer norm, computed in the clear
    mpc         both servers' real program, two threads over an in-memory channel, with a dealer's tuples; in mode
                `proved` with the clients' real proofs instead

The protocol's theorem says that both accept the same uploads but for the chance that a check errs. The sums are equal
as integers (tests/integration/test_reference_round.py, tests/lab/simulation/test_training.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from precad.deploy.oversight.proved_audit import proved_round
from precad.mpc import fixed_point, ring, sharing, validation
from precad.mpc.channel import MemoryChannel, run_pair
from precad.mpc.gate_names import make_gate
from precad.mpc.locking import lock_list
from precad.mpc.parameters import Mode
from precad.mpc.prg import Label
from precad.mpc.ring import RingArray
from precad.mpc.robust.krum import least_scores
from precad.mpc.robust.proposal import MARGIN_BITS, Proposal
from precad.mpc.tuples.dealt import deal
from precad.mpc.tuples.held import BatchShape, ServerTuples
from precad.protos.task.task import Task
from precad.protos.task.trim_fields import Tested
from precad.servers.rounds.dealt_blocks import blocks_of
from precad.servers.rounds.krum_sum import selected_sum
from precad.servers.rounds.trimmed_sum import sum_of_shortest, tested_sum


@dataclass(frozen=True, slots=True, eq=False)
class Checked:
    """Hold what both servers know before the noise."""

    accepted: tuple[str, ...]
    rejected: tuple[str, ...]
    total: RingArray
    """The sum of the accepted uploads, modulo 2^64, (d,). The longest are missing after a passed test, or always where
    the algorithm drops them. Krum's rule adds those that it chooses."""
    test: Tested | None = None
    """Outcome of the test, where the task has one."""


@dataclass(frozen=True, slots=True)
class Proposed:
    """Hold what a round's test depends on beside the uploads."""

    trim_count: int
    """F."""
    noise: tuple[int, int]
    """Each server's, on the margin."""


class TwoServers(Protocol):
    """One way to check and add up a round's uploads."""

    def check_and_sum(self, t: int, uploads: Mapping[str, RingArray], proposed: Proposed | None = None) -> Checked:
        """Check and sum the uploads of round t. Clients in the order of `uploads`. proposed: of a task with a test."""


class CleartextServers:
    """The round in the clear."""

    def __init__(self, task: Task, *, has_validation: bool = True) -> None:
        self._task = task
        self._has_validation = has_validation
        self._dim = task.dim

    def check_and_sum(self, t: int, uploads: Mapping[str, RingArray], proposed: Proposed | None = None) -> Checked:
        """Check and sum exactly, whatever the uploads are."""
        accepted = [client for client, upload in uploads.items() if self._fits(upload)]
        test = None if proposed is None else self._tested([uploads[client] for client in accepted], proposed)
        kept = accepted
        count = test.trim_count if test is not None and test.has_passed else self._task.dropped_count
        if count is not None:
            kept = sorted(accepted, key=lambda client: fixed_point.exact_squared_norm(uploads[client]))  # stable
            kept = kept[: max(0, len(kept) - count)]
        elif (choice := self._task.krum_rule) is not None and accepted:
            chosen = least_scores([uploads[client] for client in accepted], choice.krum(len(accepted)))
            kept = [accepted[i] for i in chosen]
        total = np.zeros(self._dim, dtype=np.int64)
        for client in kept:
            total += uploads[client]
        return Checked(tuple(accepted), tuple(c for c in uploads if c not in set(accepted)), total, test)

    def _tested(self, accepted: Sequence[RingArray], proposed: Proposed) -> Tested:
        """Return the noisy margin, and whether it passes."""
        rule, bound = self._task.trim_rule, self._task.norm_bound
        assert rule is not None  # of a task with a test
        threshold = Proposal(bound, self._task.trim_tau).threshold
        exceeding = sum(fixed_point.exact_squared_norm(upload) > threshold for upload in accepted)
        noisy = (max(0, proposed.trim_count - exceeding) << MARGIN_BITS) + sum(proposed.noise)
        return rule.tested(noisy, proposed.trim_count)

    def _fits(self, upload: RingArray) -> bool:
        if not self._has_validation:
            return True
        if (cut := self._task.convex_set) is not None:
            return cut.holds(upload)
        return fixed_point.exact_squared_norm(upload) <= self._task.norm_check.threshold


class MpcServers:
    """Runs the steps of `precad.servers.rounds.dealt_form` from the lock to the sum, both servers in this process.

    Uploads are whole vectors in memory, and no function of the sum is computed. The randomness of the MPC is fresh: no
    result depends on it.
    """

    def __init__(self, task: Task) -> None:
        """Raises GateUnavailableError."""
        self._task, self._gate = task, make_gate(task.gate)

    def check_and_sum(self, t: int, uploads: Mapping[str, RingArray], proposed: Proposed | None = None) -> Checked:
        """Mask or split every upload, lock, validate, test, and reconstruct the sum that is released."""
        task, clients = self._task, tuple(uploads)
        blocks = blocks_of(task, self._gate, len(clients))
        further = (task.rules.keeps_some, task.rules.selects, tuple(task.layer_sizes))
        shape = BatchShape("simulation", t, clients, task.dim, blocks, *further)
        dealt = deal(shape)
        tuples = (ServerTuples(0, shape, dealt[0]), ServerTuples(1, shape, dealt[1]))
        held: tuple[dict[str, RingArray], dict[str, RingArray]] = ({}, {})
        for client, upload in uploads.items():
            label = shape.label(client)
            if task.wire_mode is Mode.MASKED:
                seeds = (tuples[0].hand_out_mask_seed(client), tuples[1].hand_out_mask_seed(client))
                held[0][client] = held[1][client] = sharing.mask(upload, seeds, label)
            else:
                seed, held[1][client] = sharing.split(upload, label)
                held[0][client] = sharing.expand_share(seed, label, task.dim)
        bindings = {c: hashlib.sha256(ring.to_bytes(held[0][c]) + ring.to_bytes(held[1][c])).digest() for c in clients}

        def server(channel: MemoryChannel) -> tuple[validation.Validated, Tested | None]:
            own, mine = held[channel.party], tuples[channel.party]
            locked = lock_list(bindings, shape.label(), shape.clients, channel)
            if not task.checks_norms:
                if task.wire_mode is Mode.MASKED:
                    return validation.accept_all(locked.active, own, mine), None
                return validation.accept_all_shares(locked.active, own, task.dim), None
            reveal = validation.reveal if task.wire_mode is Mode.MASKED else validation.reveal_and_open
            revealed = reveal(locked, own, mine, channel)
            checked = validation.validate(revealed, mine, task.update_set, self._gate, channel)
            validation.compare_verdicts(checked, channel)
            share, test = checked.accepted_share_sum, None
            if (choice := task.krum_rule) is not None:
                share = selected_sum(choice, checked, revealed.opened, mine, self._gate, channel)
            elif (count := task.dropped_count) is not None:
                share = sum_of_shortest(task, count, checked, revealed.opened, mine, self._gate, channel)
            elif proposed is not None:
                rule, noise, F = task.trim_rule, proposed.noise[channel.party], proposed.trim_count
                assert rule is not None  # of a task with a test
                share, test = tested_sum(task, rule, F, checked, revealed.opened, mine, self._gate, noise, channel)
            return replace(checked, accepted_share_sum=share), test

        (a, test), (b, _) = run_pair(server)
        return Checked(a.accepted, a.rejected, sharing.reconstruct(a.accepted_share_sum, b.accepted_share_sum), test)


class ProvedServers:
    """Both servers of mode `proved`, from the lock to the accepted sum, and the clients' proofs."""

    def __init__(self, task: Task) -> None:
        self._sizes = task.proof_sizes

    def check_and_sum(self, t: int, uploads: Mapping[str, RingArray], proposed: Proposed | None = None) -> Checked:
        """Share every upload, lock, prove, validate, and reconstruct the sum of the accepted."""
        found = proved_round(uploads, Label("simulation", t), self._sizes)
        accepted, rejected = (
            tuple(client for client, is_valid in found.verdicts.items() if is_valid is wanted)
            for wanted in (True, False)
        )
        return Checked(accepted, rejected, found.total)


def mpc_servers(task: Task) -> TwoServers:
    """Return both servers' real program, of the task's mode. Raises GateUnavailableError."""
    return ProvedServers(task) if task.is_proved else MpcServers(task)
