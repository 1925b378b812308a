"""A server whose ledger is lost, or put back from an older copy, does not go on with a round that had been paid for.

Failure means that what a peer has seen of such a round is counted by nobody: a second release within the same budget.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from precad.protos.tls.identity import Role
from precad.servers.errors import SetupError
from precad.servers.store.folder import ledger_path
from precad.servers.store.state import TaskState
from tests.harness.harness import small_task

TASK = small_task(rounds=5, lost_rounds=5)
CLIENTS = ["alice", "bob"]


def opened(stack: ExitStack, folder: Path) -> TaskState:
    return TaskState.open(stack, folder, TASK, np.zeros(TASK.dim, dtype=np.float32))


def attempt(state: TaskState, number: int) -> None:
    """Bring a round to its charge, behind which the first message of its check leaves."""
    state.store.reserve(number)
    state.store.checking(number, chosen=CLIENTS, active=CLIENTS)
    state.charge(number, CLIENTS)


@pytest.mark.parametrize("is_older", [False, True], ids=["lost", "an older copy"])
@pytest.mark.parametrize("is_validated", [True, False], ids=["verdicts known", "verdicts unknown"])
def test_a_server_without_the_charge_of_a_checked_round_does_not_start(
    tmp_path: Path, *, is_older: bool, is_validated: bool
) -> None:
    with ExitStack() as stack:
        state = opened(stack, tmp_path)
        state.store.begin("small-0123456789abcdef", Role.AGGREGATOR_A)
        attempt(state, 0)
        state.store.validated(0, accepted=CLIENTS, rejected=[])
        copy = ledger_path(tmp_path).read_bytes()
        attempt(state, 1)
        if is_validated:  # its noisy share may have left
            state.store.validated(1, accepted=CLIENTS, rejected=[])
    with ExitStack() as stack:
        assert opened(stack, tmp_path).ledger.rounds == {0, 1}
    ledger_path(tmp_path).unlink()
    if is_older:
        ledger_path(tmp_path).write_bytes(copy)
    expected = "round 1 was checked, and the ledger does not hold it" if is_older else "expected the ledger of task"
    with ExitStack() as stack, pytest.raises(SetupError, match=expected):
        opened(stack, tmp_path)


@pytest.mark.parametrize("left", [None, b"", b'{"format":1,'], ids=["none", "empty", "half a line"])
def test_a_server_killed_in_a_check_begins_no_other_ledger(tmp_path: Path, left: bytes | None) -> None:
    """Nothing else says that the round was paid for: it would begin anew, and nobody would count what has left."""
    with ExitStack() as stack:
        state = opened(stack, tmp_path)
        state.store.begin("small-0123456789abcdef", Role.AGGREGATOR_A)
        attempt(state, 0)
    ledger_path(tmp_path).unlink()
    if left is not None:
        ledger_path(tmp_path).write_bytes(left)
    with ExitStack() as stack, pytest.raises(SetupError, match="expected the ledger of task 'small-0123456789abcdef'"):
        opened(stack, tmp_path)
    assert (ledger_path(tmp_path).read_bytes() if ledger_path(tmp_path).exists() else None) == left


def test_a_round_that_never_reached_its_charge_or_that_the_peer_charged_needs_no_line(tmp_path: Path) -> None:
    """A server that is killed before the charge begins the round anew; what the peer alone charged is paid when it is
    met again."""
    with ExitStack() as stack:
        state = opened(stack, tmp_path)
        state.store.begin("small-0123456789abcdef", Role.AGGREGATOR_A)
        state.store.reserve(0)
        state.store.checking(0, chosen=CLIENTS, active=CLIENTS)
        state.store.reserve(1)
        state.store.charged_by_peer(1, CLIENTS)
    with ExitStack() as stack:
        assert opened(stack, tmp_path).ledger.rounds == set()
