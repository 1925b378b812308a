"""Rounds that did not commit: what a server's store says was asked in them, and who paid.

Failure means: a check that may have been answered is forgotten, or one that never began is held against its clients. It
also means: a round that the other server merely speaks of is charged, or taken for one that it may have committed.
"""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from precad.dp.accountants.task_cost import Level
from precad.dp.task_privacy import task_cost
from precad.mpc.errors import PeerMismatchError
from precad.protos.messages import convert
from precad.protos.task.model_update import updated
from precad.protos.task.task import Task
from precad.protos.tls.identity import Role
from precad.servers.database.dialects import SQLITE
from precad.servers.database.tables import Database
from precad.servers.errors import SetupError, StoreError, TaskRefusedError
from precad.servers.store import audit_log
from precad.servers.store.folder import ledger_path, open_task_store, store_path
from precad.servers.store.rounds import AttemptState, EvaluatedRound, TaskStore, migrations
from precad.servers.store.state import TaskState, require_possible_sum
from precad.servers.task.run import public_reason
from tests.harness.harness import small_task

TASK = small_task(("alice", "bob"), lost_rounds=2)
INITIAL = bytes(4 * TASK.dim)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TaskStore]:
    with open_task_store(tmp_path, TASK, INITIAL) as store:
        store.begin("small-1", Role.AGGREGATOR_A)
        yield store


def test_a_check_that_was_charged_and_did_not_end_has_unknown_verdicts(store: TaskStore, tmp_path: Path) -> None:
    for number in (0, 1):
        store.reserve(number)
        store.checking(number, chosen=("alice", "bob"), active=("bob",))
    before = audit_log.read(store_path(tmp_path))  # of a server that is stopped while the other one is silent
    assert [audit_log.n_unknown_verdicts(before, charged) for charged in (set(), {0}, {0, 1})] == [0, 1, 2]
    store.settle({0})
    store.settle({0})
    (attempt,) = store.attempts()
    assert (attempt.number, attempt.state, attempt.chosen, attempt.active) == (
        0,
        AttemptState.UNKNOWN,
        ("alice", "bob"),
        ("bob",),
    )
    assert store.uncommitted() == {0, 1}
    log = audit_log.read(store_path(tmp_path))
    assert [dict(entry.fields) for entry in log if entry.kind == "unknown"] == [{"round": 0, "clients": ["bob"]}]
    assert audit_log.n_unknown_verdicts(log, {0}) == 1
    assert audit_log.checked(log) == {0}


def lost(state: TaskState, *numbers: int) -> None:
    """Drawn, and no more."""
    for number in numbers:
        state.store.reserve(number)
    state.refresh()


@pytest.mark.parametrize("lost_numbers", [(), (0,), (0, 1), (0, 1, 2)])
def test_no_round_begins_once_as_many_are_lost_as_the_task_says(tmp_path: Path, lost_numbers: tuple[int, ...]) -> None:
    with TaskStateOf(tmp_path) as state:
        lost(state, *lost_numbers)
        if len(lost_numbers) < 2:
            state.require_rounds_left()
        else:
            with pytest.raises(TaskRefusedError, match=r"lost_rounds: expected fewer than 2 .* found [23]"):
                state.require_rounds_left()
    with TaskStateOf(tmp_path) as again:  # as many after another start
        assert again.lost == set(lost_numbers)


def test_charges_of_rounds_that_were_not_drawn_here_are_refused_and_change_nothing(tmp_path: Path) -> None:
    with TaskStateOf(tmp_path) as state:
        lost(state, 0)
        with pytest.raises(PeerMismatchError, match=r"charge of round 7 .*ours never drawn"):
            state.charge_as_well({0: ("alice",), 7: ("alice", "bob")})
        assert state.ledger.rounds == set()
        state.charge_as_well({0: ("alice",)})
        assert state.ledger.participation == {"alice": 1}
        assert [attempt.state for attempt in state.store.attempts()] == [AttemptState.CHARGED]


def test_a_charge_of_a_round_whose_clients_are_not_known_here_is_refused(tmp_path: Path) -> None:
    """A number is charged once its locked uploads are written down: one of the two files was put back."""
    with TaskStateOf(tmp_path) as state:
        lost(state, 0)
        state.ledger.charge(0, ("alice",))
        with pytest.raises(SetupError, match="the ledger holds round 0, of which nothing else is known here"):
            state.refresh()


def test_a_charge_that_the_other_server_tells_of_is_known_here_before_it_is_paid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that dies in between would never start again with a charge of which nothing else is known."""
    with TaskStateOf(tmp_path) as state:
        lost(state, 0)
        with monkeypatch.context() as patch:
            patch.setattr(state.ledger, "charge", lambda *_, **__: (_ for _ in ()).throw(OSError(errno.EIO, "died")))
            with pytest.raises(StoreError, match="charge of round 0"):
                state.charge_as_well({0: ("alice",)})
        assert [attempt.state for attempt in state.store.attempts()] == [AttemptState.CHARGED]


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_charge_whose_fsync_fails_does_not_keep_the_server_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    """Its line is whole in the file, or a power cut takes it; either way every later start finds one story."""
    with TaskStateOf(tmp_path) as state:
        state.store.begin("small-1", Role.AGGREGATOR_A)
        state.store.reserve(0)
        state.store.checking(0, chosen=("alice", "bob"), active=("bob",))
        fsync, at_ledger = os.fsync, os.stat(ledger_path(tmp_path)).st_ino

        def fails(fd: int) -> None:
            if os.fstat(fd).st_ino == at_ledger:
                raise OSError(errno.ENOSPC, "No space left on device")
            fsync(fd)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fails)
            with pytest.raises(StoreError, match="charge of round 0"):
                state.charge(0, ("alice", "bob"))
        state.refresh()  # as the end of the task does
    if is_lost:
        lines = ledger_path(tmp_path).read_bytes().splitlines(keepends=True)
        ledger_path(tmp_path).write_bytes(b"".join(lines[:-1]))
    for _ in range(2):
        with TaskStateOf(tmp_path) as again:
            assert again.ledger.rounds == (set() if is_lost else {0})
            assert [attempt.active for attempt in again.unknown] == ([] if is_lost else [("bob",)])
            assert again.lost == {0}


def test_numbers_that_the_other_server_used_up_alone_are_lost_here_and_never_charged(tmp_path: Path) -> None:
    """A server that catches up is as far as the other one for good, and believes it nothing of what it did alone."""
    with TaskStateOf(tmp_path) as state:
        lost(state, 0)
        state.skip_to(1)
        assert (state.lost, state.store.next_round) == ({0}, 1)
        state.skip_to(2)
        assert (state.lost, state.store.next_round) == ({0, 1}, 2)
    with TaskStateOf(tmp_path) as again:
        assert (again.lost, again.standing.next_round) == ({0, 1}, 2)
        with pytest.raises(PeerMismatchError, match=r"charge of round 1 .*ours never drawn"):
            again.charge_as_well({0: ("alice",), 1: ("alice",)})
        assert again.ledger.rounds == set()


def test_other_clients_than_were_chosen_are_not_charged_at_the_other_servers_word(tmp_path: Path) -> None:
    with TaskStateOf(tmp_path) as state:
        state.store.reserve(0)
        state.store.checking(0, chosen=("alice",), active=("alice",))
        state.ledger.charge(0, ("alice",))
        with pytest.raises(PeerMismatchError, match=r"clients of round 0 .*ours 1 clients, peer's 2 clients$") as error:
            state.charge_as_well({0: ("alice", "bob")})
        assert not any(name in public_reason(Role.AGGREGATOR_A, error.value) for name in TASK.clients)


def validated(state: TaskState, number: int) -> None:
    """Up to the verdicts, with its charge."""
    state.store.reserve(number)
    state.store.checking(number, chosen=("alice",), active=("alice",))
    state.charge(number, ("alice",))
    state.store.validated(number, accepted=("alice",), rejected=())
    state.refresh()


def sum_and_digest(state: TaskState) -> tuple[NDArray[np.int64], bytes]:
    """A possible sum, and of the model that it makes."""
    noisy_sum = np.ones(state.task.dim, dtype=np.int64)
    moved, _ = updated(state.model.parameters, noisy_sum, state.task, state.model.past)
    return noisy_sum, convert.sha256(convert.model_to_bytes(moved))


def test_only_the_last_round_with_verdicts_is_taken_over_and_none_before_a_release(tmp_path: Path) -> None:
    """A server that names an older one would choose which of our shares the model is made of, and in which order."""
    with TaskStateOf(tmp_path) as state:
        assert not state.can_be_level
        state.store.begin("small-1", Role.AGGREGATOR_A)
        for number in (0, 1):
            validated(state, number)
        assert state.can_be_level
        with pytest.raises(PeerMismatchError, match=r"round 0 .*no verdicts"):
            state.take_over(0, *sum_and_digest(state))
        state.take_over(1, *sum_and_digest(state))
        state.refresh()
        assert ([round.number for round in state.committed], state.lost) == ([1], {0})
        assert not state.can_be_level  # though round 0 has verdicts still
        with pytest.raises(PeerMismatchError, match=r"round 0 .*no verdicts"):
            state.take_over(0, *sum_and_digest(state))


@pytest.mark.parametrize(
    "task", [TASK, small_task(("alice", "bob"), lost_rounds=2, mode="proved")], ids=["masked", "proved"]
)
def test_a_round_is_not_taken_over_once_clients_were_drawn_anew_after_it(task: Task, tmp_path: Path) -> None:
    """A server could else take back each lost round that it has used, and have clients drawn without end.

    Rounds that were drawn ahead, while this one was trained, say nothing of it.
    """
    with TaskStateOf(tmp_path, task) as state:
        state.store.begin("small-1", Role.AGGREGATOR_A)
        validated(state, 0)
        lost(state, *range(1, task.draws_ahead + 1))
        assert state.attempt(0).number == 0
        lost(state, task.draws_ahead + 1)
        assert not state.can_be_level
        with pytest.raises(PeerMismatchError, match=r"round 0 .*no verdicts that may still be committed"):
            state.attempt(0)


@pytest.mark.parametrize("mode", ["masked", "proved"])
def test_a_server_that_lost_an_evaluation_is_found_out(mode: str, tmp_path: Path) -> None:
    """Its folder was put back to before one that both had opened: its ledger is short of a charge for good.

    The standings are alike but for a number that the other one used up. One that died in the evaluation goes on.
    """
    evaluation = {"evaluation": "clients", "evaluation_every": 1, "evaluation_noise": 5.0}
    task = small_task(("alice", "bob"), lost_rounds=2, mode=mode, **evaluation)
    with ExitStack() as stack:
        whole, died, put_back, early = (
            stack.enter_context(TaskStateOf(tmp_path / name, task)) for name in ("a", "b", "c", "d")
        )
        for state in (whole, died, put_back, early):
            state.store.begin("small-1", Role.AGGREGATOR_A)
            validated(state, 0)
            state.take_over(0, *sum_and_digest(state))
        for state in (whole, died):
            validated(state, 1)
        whole.take_evaluation(
            EvaluatedRound(1, ("alice",), ("alice",), (), whole.model.digest, 1.0, 1.0, noisy_sum=(1, 2, 3))
        )
        for state, lost_there in ((whole, frozenset()), (died, {1}), (put_back, frozenset())):
            state.refresh()
            assert state.lost == lost_there  # a verdict may have been read in the one that died
        early.store.reserve(1)
        early.refresh()
        early.charge_as_well(whole.charges_told())
        assert early.lost == {1}  # charged as the other one says, so counted at once
        put_back.skip_to(whole.store.next_round)
        died.charge_as_well(whole.charges_told())
        whole.charge_as_well(died.charges_told())
        assert put_back.lost == frozenset()
        with pytest.raises(PeerMismatchError, match=r"charge of round 1 .*old state_dir.*ours never drawn"):
            put_back.charge_as_well(whole.charges_told())


def test_an_evaluation_that_only_the_other_server_began_is_no_lost_round(tmp_path: Path) -> None:
    """Its number is used up here before the commit is known that makes it one of an evaluation."""
    evaluation = {"evaluation": "clients", "evaluation_every": 1, "evaluation_noise": 5.0}
    with TaskStateOf(tmp_path, small_task(("alice", "bob"), lost_rounds=1, **evaluation)) as behind:
        behind.store.begin("small-1", Role.AGGREGATOR_A)
        validated(behind, 0)
        behind.skip_to(2)
        behind.take_over(0, *sum_and_digest(behind))
        assert behind.lost == frozenset()
        behind.require_rounds_left()


def test_a_given_up_evaluation_counts_as_one_in_the_budget_of_a_whole_client(tmp_path: Path) -> None:
    """Whoever breaks it off may have seen whom it drew, and its noise may be less than a training round's."""
    evaluation = {"evaluation": "clients", "evaluation_every": 1, "evaluation_noise": 5.0}
    budget = task_cost(small_task(("alice", "bob"), **evaluation)).of_level(Level.CLIENT, 1, 1)
    task = small_task(("alice", "bob"), epsilon_budget_client=budget, **evaluation)
    with TaskStateOf(tmp_path, task) as state:
        state.store.begin("small-1", Role.AGGREGATOR_A)
        validated(state, 0)
        state.take_over(0, *sum_and_digest(state))
        assert state.why_over_at(1) is None
        state.store.reserve(1)
        state.refresh()
        assert state.why_over_at(2) == "the privacy budget is spent after 1 rounds"


def test_a_sum_that_makes_another_model_than_was_said_is_not_taken_over(tmp_path: Path) -> None:
    """The sum and the digest are both the other server's words, and nothing is committed of two that differ."""
    with TaskStateOf(tmp_path) as state:
        state.store.begin("small-1", Role.AGGREGATOR_A)
        validated(state, 0)
        noisy_sum, digest = sum_and_digest(state)
        before = state.model.digest
        for found, said in ((noisy_sum, before), (noisy_sum, bytes(32)), (2 * noisy_sum, digest)):
            with pytest.raises(PeerMismatchError, match="model after round 0"):
                state.take_over(0, found, said)
        state.refresh()
        assert (state.committed, state.model.digest, state.can_be_level) == ([], before, True)
        assert state.take_over(0, noisy_sum, digest).model_digest == digest


@pytest.mark.parametrize("how", ["reserved", "checking", "charged by the other"])
def test_a_round_without_verdicts_here_was_not_committed_there(tmp_path: Path, how: str) -> None:
    """Our share of its sum had not left: whoever says so made the sum up."""
    with TaskStateOf(tmp_path) as state:
        state.store.reserve(0)
        if how == "checking":
            state.store.checking(0, chosen=("alice",), active=("alice",))
            state.ledger.charge(0, ("alice",))
        state.refresh()
        if how.startswith("charged"):
            state.charge_as_well({0: ("alice",)})
        with pytest.raises(PeerMismatchError, match="no verdicts"):
            state.take_over(0, np.ones(TASK.dim, dtype=np.int64), bytes(32))


def test_a_sum_is_possible_up_to_the_clients_bounds_and_the_noise() -> None:
    """Against the sum of the longest updates and of noise that an honest sum does not reach."""
    bound, root = TASK.client_clip * 2**TASK.frac_bits, np.sqrt(TASK.dim)
    std = TASK.noise_std_on_grid
    longest = 2 * bound + np.sqrt(2) * std * (root + 9)
    axis = np.eye(1, TASK.dim, dtype=np.int64)[0]
    require_possible_sum(axis * int(longest), TASK, 2)
    with pytest.raises(TaskRefusedError, match="opened sum"):
        require_possible_sum(axis * int(longest + 3 * std), TASK, 2)
    with pytest.raises(TaskRefusedError, match="opened sum"):
        require_possible_sum(-(axis * int(longest)), TASK, 0)
    with pytest.raises(TaskRefusedError, match="opened sum"):
        require_possible_sum(np.full(TASK.dim, -(2**63), dtype=np.int64), TASK, 2)


def test_a_store_of_the_first_version_keeps_its_rounds(tmp_path: Path) -> None:
    """Its tables, made by that version's statements."""
    path, names = tmp_path / "task.sqlite", '["alice"]'
    with Database(path, lambda sql: migrations(sql)[:1]) as old, old.transaction() as run:
        run("INSERT INTO task VALUES (1, 'small-1', ?, ?)", (b"c", b"m"))
        run("INSERT INTO round (number, state) VALUES (0, 'reserved')")
        run(f"INSERT INTO round VALUES (1, 'validated', '{names}', '{names}', '[]', NULL, NULL, NULL)")
        run(f"INSERT INTO round VALUES (2, 'committed', '{names}', '{names}', '[]', ?, 0.5, 0.25)", (b"d",))
    with TaskStore(path, config_digest=b"c", initial_model_digest=b"m") as store:
        assert [round.number for round in store.committed()] == [2]
        assert [(attempt.number, attempt.state) for attempt in store.attempts()] == [(1, AttemptState.VALIDATED)]
        assert store.uncommitted() == {0, 1}


def test_a_store_of_another_task_is_refused_unchanged(tmp_path: Path) -> None:
    """An older program may still have to end that task."""
    path = tmp_path / "task.sqlite"
    with Database(path, lambda sql: migrations(sql)[:1]) as old, old.transaction() as run:
        run("INSERT INTO task VALUES (1, 'small-1', ?, ?)", (b"c", b"m"))
    with pytest.raises(SetupError, match="other parameters"):
        TaskStore(path, config_digest=b"x", initial_model_digest=b"m")
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    connection.close()
    assert len(migrations(SQLITE)) > 1


class TaskStateOf:
    """A server's state in a folder, for as long as the context lasts."""

    def __init__(self, folder: Path, task: Task = TASK) -> None:
        self._folder, self._task = folder, task

    def __enter__(self) -> TaskState:
        self._stack = AsyncExitStack()
        return TaskState.open(self._stack, self._folder, self._task, np.zeros(self._task.dim, dtype=np.float32))

    def __exit__(self, *_: object) -> None:
        asyncio.run(self._stack.aclose())
