"""The binary correlations that a round uses up: its check's, then of what the task does with the checked updates."""

from __future__ import annotations

from precad.mpc.gate import top_bits
from precad.mpc.gate.top_bits import Gate
from precad.mpc.robust import krum, proposal, trimming
from precad.mpc.robust.proposal import Proposal
from precad.mpc.tuples.correlations import Block
from precad.protos.task.task import Task


def blocks_of(task: Task, gate: Gate, n_clients: int) -> tuple[Block, ...]:
    """Return the binary correlations of a round of so many clients: its check's, then of its test or its choice."""
    if not task.checks_norms:
        return ()
    of_check = top_bits.blocks(gate, n_clients, task.update_set.low_bits)
    if (rule := task.krum_rule) is not None:
        return (*of_check, *krum.blocks(gate, n_clients, rule.krum(n_clients)))
    if task.rules.drops:
        return (*of_check, *trimming.blocks(gate, n_clients, task.norm_bound))
    if not task.rules.trims:
        return of_check
    return (*of_check, *proposal.blocks(gate, n_clients, Proposal(task.norm_bound, task.trim_tau)))
