"""A client pays each upload from its holder's ledger: before it leaves, once for each, and with other processes.

Failure means an upload that nobody paid, or a sum over the limit that the holder set.
"""

from __future__ import annotations

import math
import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from precad.clients.errors import ArgumentError, HolderLimitReachedError, StateFileError, UploadLimitError
from precad.clients.holder_limit import HolderLimit
from precad.clients.payments import Payments, payments_of
from precad.clients.upload_limit import UploadLimit
from precad.deploy.errors import INVALID_INPUT, REFUSED, exit_code_of
from precad.dp.accountants.gaussian_dp import eps_from_mu
from precad.dp.accountants.pld import SampledGaussian
from precad.dp.ledgers.holder import read
from precad.dp.task_privacy import upload_events
from precad.protos.task.proved_fields import ETA_OF_AN_UPLOAD
from tests.harness.harness import small_task

MODEL = b"\x01" * 32


def limit_of(folder: Path, **changes: Any) -> HolderLimit:
    """Return a limit that some thirty uploads of the task fit."""
    return HolderLimit(**{"ledger": folder / "of-{client}", "limit_epsilon": 4.0, **changes})


def task_of(**changes: Any) -> Any:
    return small_task(**{"noise_multiplier": 4.0, **changes})


def n_paid(payments: Payments) -> int:
    """Pay until the holder's limit is reached. Return how many uploads were paid."""
    for n in range(1000):
        try:
            payments.pay()
        except HolderLimitReachedError:
            return n
    raise AssertionError("no limit")


def test_an_upload_that_cannot_be_paid_does_not_leave(tmp_path: Path) -> None:
    """Each upload pays, also one for a model that was asked for before: servers that lose rounds pay no less."""
    payments = Payments(task_of(), "alice", limit_of(tmp_path))
    uploads = UploadLimit("alice", bytes(32), most=3, file=tmp_path / "alice.uploads", payer=payments)
    room = payments.uploads_left()
    assert 6 < room < 200
    for n_committed in range(room // 3):
        for _ in range(3):
            uploads.require_room(MODEL, n_committed)
            uploads.count(MODEL, n_committed)
        with pytest.raises(UploadLimitError):
            uploads.count(MODEL, n_committed)
    for n_committed in range(1000, 1000 + room % 3):
        uploads.count(MODEL, n_committed)
    assert payments.uploads_left() == 0
    with pytest.raises(
        HolderLimitReachedError, match=r"client\.holder\.limit_epsilon: .*'alice'.* <= 4 at delta"
    ) as told:
        uploads.require_room(MODEL, 2000)
    with pytest.raises(HolderLimitReachedError):
        uploads.count(MODEL, 2000)
    assert exit_code_of(told.value) == REFUSED
    account, _ = read(tmp_path / "of-alice")
    assert len(account.lines) == room
    assert account.epsilon <= 4


def test_asking_for_room_makes_no_file(tmp_path: Path) -> None:
    """Whoever only checks a configuration leaves nothing behind."""
    payments = Payments(task_of(), "alice", limit_of(tmp_path / "new"))
    payments.require_room()
    assert payments.uploads_left() > 0
    assert not (tmp_path / "new").exists()


def _pay_all(folder: Path, client: str, results: Any) -> None:
    results.put(n_paid(Payments(task_of(), client, limit_of(folder, ledger=folder / "shared"))))


def test_processes_that_pay_at_once_stay_within_one_limit(tmp_path: Path) -> None:
    """Three processes on one file: together as many as one alone."""
    alone = Payments(task_of(), "alice", limit_of(tmp_path)).uploads_left()
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    others = [context.Process(target=_pay_all, args=(tmp_path, name, results)) for name in ("alice", "bob", "carol")]
    for other in others:
        other.start()
    counts = [results.get(timeout=60) for _ in others]
    for other in others:
        other.join()
    assert sum(counts) == alone
    assert len(read(tmp_path / "shared")[0].lines) == alone


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"limit_epsilon": 5.0}, "client.holder.limit_epsilon: expected 4, with which .* began, found 5"),
        ({"delta": 1e-6}, "client.holder.delta: expected 1e-05, with which .* began, found 1e-06"),
        ({"records_per_person": 2}, "client.holder.records_per_person: expected 1, with which .* began, found 2"),
    ],
)
def test_a_limit_is_fixed_for_the_life_of_its_file(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    """An operator in a hurry cannot raise it in the configuration alone."""
    Payments(task_of(), "alice", limit_of(tmp_path)).pay()
    before = (tmp_path / "of-alice").read_bytes()
    changed = Payments(task_of(), "alice", limit_of(tmp_path, **changes))
    for use in (changed.require_room, changed.uploads_left, changed.pay):
        with pytest.raises(StateFileError, match=message) as told:
            use()
        assert exit_code_of(told.value) == INVALID_INPUT
    assert (tmp_path / "of-alice").read_bytes() == before


def test_a_ledger_that_is_damaged_or_cannot_be_written_stops_uploads(tmp_path: Path) -> None:
    """With its name and the reason; nothing of a record is in the file, so nothing can be in the message."""
    (tmp_path / "of-alice").write_bytes(b"no ledger\n")
    with pytest.raises(StateFileError, match=r"client\.holder\.ledger: expected a ledger .*of-alice, line 1"):
        Payments(task_of(), "alice", limit_of(tmp_path)).pay()
    (tmp_path / "of-bob").mkdir()
    with pytest.raises(StateFileError, match=r"client\.holder\.ledger: .*of-bob: Is a directory"):
        Payments(task_of(), "bob", limit_of(tmp_path)).require_room()


@pytest.mark.parametrize("length", [0, 1, 20, -1])
def test_a_ledger_whose_maker_died_before_its_first_line_begins_anew(tmp_path: Path, length: int) -> None:
    """Or is about to write it: two tasks may pay for the first time at once. Another file's beginning is refused."""
    payments, file = Payments(task_of(), "alice", limit_of(tmp_path)), tmp_path / "of-alice"
    payments.pay()
    first = file.read_bytes().splitlines(keepends=True)[0]
    file.write_bytes(first[:length])
    assert payments.uploads_left() > 1
    assert file.read_bytes() == first[:length]
    payments.pay()
    assert file.read_bytes().startswith(first)
    assert len(read(file)[0].lines) == 1
    file.write_bytes(b"x" + first[:-1])
    with pytest.raises(StateFileError, match="line 1: this is not the beginning of a holder's ledger"):
        payments.pay()


def test_several_clients_need_a_file_each(tmp_path: Path) -> None:
    """And a limit that no round fits is refused by its field."""
    clients = ["alice", "bob"]
    assert payments_of(task_of(), clients, None) == {}
    assert list(payments_of(task_of(), clients, limit_of(tmp_path))) == clients
    with pytest.raises(ArgumentError, match=r"client\.holder\.ledger: expected \{client\} in the name, as 2 clients"):
        payments_of(task_of(), clients, limit_of(tmp_path, ledger=tmp_path / "one"))
    with pytest.raises(ArgumentError, match=r"client\.holder\.limit_epsilon: expected room for a round"):
        payments_of(task_of(), ["alice"], limit_of(tmp_path, limit_epsilon=0.001, delta=1e-200))


def test_what_an_upload_costs_a_person(tmp_path: Path) -> None:
    """A record is drawn at its rate, a group with the holder's size, and a whole client's update changes by 2 C."""
    event, times = upload_events(small_task(), 3)
    assert event is not None
    assert (event.sampling_rate, event.group_size, times) == (0.5, 3, 1)

    of_client, _ = upload_events(small_task(algorithm="user-dp-fedavg", record_rate=1.0, noise_multiplier=6.0), 3)
    assert of_client == SampledGaussian(1.0, 3.0)
    assert upload_events(small_task(algorithm="ins-dp-fedavg", local_steps=4), 1)[1] == 4
    without = small_task(algorithm="non-private", noise_multiplier=0.0)
    assert upload_events(without, 1) == (None, 1)
    with pytest.raises(HolderLimitReachedError):
        Payments(without, "alice", limit_of(tmp_path)).require_room()


def test_noise_that_others_share_protects_nobody_from_these_others(tmp_path: Path) -> None:
    """For one server and all other clients an upload has the client's own draw alone, sigma R / sqrt(tau).
    Without sampling, n uploads are then (sqrt(n tau) / sigma)-Gaussian, and no more are paid than the limit has room
    for."""
    clients = {f"c{i:02}": 100 for i in range(20)}
    changes: dict[str, Any] = {"clients": clients, "record_rate": 1.0, "client_rate": 1.0, "client_clip": 400.0}
    task = task_of(algorithm="distributed-dp", non_colluding=16, noise_multiplier=16.0, **changes)
    event, times = upload_events(task, 1)
    assert event is not None
    assert times == 1
    assert event.noise_multiplier == pytest.approx(4.0, rel=1e-3)
    n = n_paid(Payments(task, "c00", limit_of(tmp_path)))
    assert 2 <= n < 30
    assert eps_from_mu(1e-5, math.sqrt(n) / event.noise_multiplier) <= 4.0
    assert eps_from_mu(1e-5, math.sqrt(2 * n) / event.noise_multiplier) > 4.0  # the filter gives up less than half


def test_a_function_of_the_sum_has_no_room_by_the_word_of_operators(tmp_path: Path) -> None:
    """A server may sum what is 256 times as long as its task says, so a factor that is declared buys no upload."""
    changes: dict[str, Any] = {"sum_function": "own:amplify", "sum_function_sha256": "0" * 64}
    for algorithm in ("precad", "user-dp-fedavg"):
        task = task_of(algorithm=algorithm, sum_function_factor=1.0, **changes)
        assert upload_events(task, 1) == (None, 1)
        payments = Payments(task, "alice", limit_of(tmp_path))
        for use in (payments.require_room, payments.pay):
            with pytest.raises(HolderLimitReachedError):
                use()


def test_mode_proved_takes_its_part_of_delta_for_each_upload(tmp_path: Path) -> None:
    """As theorem 2 has it, upload by upload, and a task's own slack is the sum over all that it may ask for."""
    task = task_of(mode="proved")
    payments = Payments(task, "alice", limit_of(tmp_path))
    payments.pay()
    assert read(tmp_path / "of-alice")[0].lines[0].payment.slack == ETA_OF_AN_UPLOAD
    assert task.delta_slack == 3 * (task.rounds + 1) * task.upload_slack
