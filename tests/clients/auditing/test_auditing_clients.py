"""An audit client: canaries for records, coins that stay on its machine, and a file of what it added.

What counts as failure:
- a coin is drawn anew by a restart, or is readable by others, or is in a log line or a representation;
- what the file says was added is not what was uploaded;
- a file that was changed, or of another task, is gone on with.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from structlog.testing import capture_logs

from precad.clients.auditing.canary_file import Canaries, Contribution, header_of, path_of, read
from precad.clients.auditing.conduct import Auditing
from precad.clients.config import ClientConfig
from precad.clients.errors import ArgumentError, StateFileError
from precad.clients.process import Trainer
from precad.clients.records import Records
from precad.clients.training.conduct import Honest
from precad.deploy.conducts import conducts_of
from precad.deploy.errors import ConfigError
from precad.mpc import fixed_point
from precad.protos.task.task import Task
from tests.harness.harness import small_task

SHAPE = (1, 8, 8)
D, M = 4810, 60
FIELDS: dict[str, Any] = {
    "clients": {"alice": 20, "watch": 40, "witness": 20},
    "audit_clients": ["watch", "witness"],
    "model": "mlp",
    "dim": D + M,
    "record_rate": 0.5,
    "record_clip": 1.0,
    "client_clip": 7.0,
    "mode": "masked",
}


@pytest.fixture(scope="module")
def task() -> Task:
    return small_task(**FIELDS)


def empty() -> Records:
    return Records(np.zeros((0, *SHAPE), dtype=np.float32), np.zeros(0, dtype=np.int64))


def real(n: int = 20) -> Records:
    draws = np.random.default_rng(3)
    return Records(draws.random((n, *SHAPE), dtype=np.float32), np.arange(n) % 10)


def trainer_of(task: Task, folder: Path, *clients: str) -> Trainer:
    auditing = {client: Auditing(client, task, folder) for client in clients if client in task.audit_clients}
    return Trainer(
        task=task,
        records={client: empty() if client in auditing else real() for client in clients},
        conducts={client: auditing.get(client, Honest()) for client in clients},
        device="cpu",
    )


def secrets_of(task: Task, folder: Path, client: str) -> Canaries:
    held = task.clients[client]
    return read(path_of(folder, client, task.digest()), header_of(client, task.digest()), Canaries(M, held))


def test_an_audit_clients_update_is_its_drawn_canaries_and_its_file_says_so(task: Task, tmp_path: Path) -> None:
    """Through the real sampler, automatic differentiation, clip and encoding; beside a client that trains."""
    trainer = trainer_of(task, tmp_path, "alice", "watch", "witness")
    theta = np.random.default_rng(4).normal(0, 1, task.dim).astype(np.float32)
    found = {}
    for client in task.clients:
        trainer._conducts[client].on_invitation(7, b"\x01" * 32)
        found[client] = fixed_point.decode(trainer.train(client, theta), task.frac_bits)
    trainer.close()

    secrets = secrets_of(task, tmp_path, "witness")
    (added,) = secrets.contributions
    assert secrets.coins is not None
    own = found["witness"][D + 40 :]
    assert not found["witness"][: D + 40].any()
    assert not own[~secrets.coins].any()
    assert set(np.round(own, 4)) == {0.0, -1.0}
    assert_array_equal(fixed_point.decode(added.uploaded, task.frac_bits), own)
    assert (added.n_committed, added.model_digest) == (7, b"\x01" * 32)
    assert_array_equal(added.head, theta[D:])
    assert found["alice"][:D].any()
    assert not found["alice"][D:].any()


def test_a_process_of_honest_clients_adds_nothing_at_canaries_and_trains_as_ever(task: Task, tmp_path: Path) -> None:
    """Without a head: bit for bit the update of a task that nobody audits."""
    plain = small_task(**FIELDS | {"clients": {"alice": 20, "bob": 1}, "audit_clients": [], "dim": D, "record_rate": 1})
    audited = small_task(**FIELDS | {"record_rate": 1.0})
    theta = np.random.default_rng(4).normal(0, 1, audited.dim).astype(np.float32)
    update = trainer_of(audited, tmp_path, "alice").update("alice", theta)

    assert_array_equal(update[:D], trainer_of(plain, tmp_path, "alice").update("alice", theta[:D]))
    assert update.shape == (D + M,)
    assert not update[D:].any()
    assert not list(tmp_path.iterdir())


def test_coins_are_drawn_once_for_their_owners_eyes_alone(task: Task, tmp_path: Path) -> None:
    """A restart has the same; another task, or client, has others. 40 fair coins are all alike in 1 of 10^12 cases."""
    folder, umask = tmp_path / "state", os.umask(0)
    try:
        with capture_logs() as logged:
            first = started("watch", task, folder)
            again = started("watch", task, folder)
            other = started("watch", small_task(**FIELDS | {"rounds": 9}), folder)
    finally:
        os.umask(umask)
    assert_array_equal(first, again)
    assert len({tuple(first.tolist()), tuple(other.tolist())}) == 2
    assert 0 < first.sum() < 40
    files = list(folder.iterdir())
    assert len(files) == 2
    assert {stat.S_IMODE(path.stat().st_mode) for path in (folder, *files)} == {0o700, 0o600}
    assert not logged
    assert "coins" not in repr(Canaries(M, 40, first))


def started(client: str, task: Task, folder: Path) -> np.ndarray:
    """Start a client, stop it, and return its coins."""
    conduct = Auditing(client, task, folder)
    conduct.on_records(empty())
    conduct.close()
    coins = read(
        path_of(folder, client, task.digest()), header_of(client, task.digest()), Canaries(M, task.clients[client])
    ).coins
    assert coins is not None
    return coins


def test_a_file_that_others_could_read_is_narrowed_before_coins_are_drawn(task: Task, tmp_path: Path) -> None:
    path = path_of(tmp_path, "watch", task.digest())
    path.touch(0o644)
    started("watch", task, tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_process_that_died_within_a_line_goes_on_from_the_line_before(task: Task, tmp_path: Path) -> None:
    coins, path = started("watch", task, tmp_path), path_of(tmp_path, "watch", task.digest())
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"n_committed":0,"mod')
    assert_array_equal(started("watch", task, tmp_path), coins)
    assert path.read_bytes() == whole


def _another_coin(line: bytes) -> bytes:
    return line.replace(b'"0', b'"1', 1) if b'"0' in line else line.replace(b'"1', b'"0', 1)


@pytest.mark.parametrize(
    "changed",
    [
        lambda lines: [lines[0], _another_coin(lines[1])],
        lambda lines: [lines[0].replace(b"watch", b"other"), lines[1]],
        lambda lines: [b"{}\n", *lines[1:]],
    ],
    ids=["a coin", "the client", "no header"],
)
def test_a_file_that_was_changed_is_refused_without_a_word_of_its_coins(
    task: Task, tmp_path: Path, changed: Callable[[list[bytes]], list[bytes]]
) -> None:
    coins, path = started("watch", task, tmp_path), path_of(tmp_path, "watch", task.digest())
    path.write_bytes(b"".join(changed(path.read_bytes().splitlines(keepends=True))))
    with pytest.raises(StateFileError, match=r"client\.state_dir: expected a file of canaries") as raised:
        Auditing("watch", task, tmp_path).on_records(empty())
    assert "".join("1" if coin else "0" for coin in coins)[1:9] not in str(raised.value)


def test_two_processes_never_have_one_file(task: Task, tmp_path: Path) -> None:
    held = Auditing("watch", task, tmp_path)
    held.on_records(empty())
    with pytest.raises(StateFileError, match="expected a file of canaries"):
        Auditing("watch", task, tmp_path).on_records(empty())
    held.close()


def test_texts_and_attacks_are_refused(task: Task, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="features: expected numbers for canaries"):
        Auditing("watch", task, tmp_path).on_records(Records(np.zeros((1, 4), dtype=np.int64), np.zeros(1, np.int64)))
    config = ClientConfig(certificates=tmp_path, authority=tmp_path, attacks={"watch": "scaled"})
    with pytest.raises(ConfigError, match=r"client\.attacks\.watch: expected none of an audit client, found 'scaled'"):
        conducts_of(task.clients, config, task)


GOOD: dict[str, Any] = {"n_committed": 0, "model": "ab" * 32, "head": "AACAPwAAAAA=", "uploaded": [1, -2, 3]}
"""A line with two canaries' numbers, 1.0 and 0.0, and three integers."""


@pytest.mark.parametrize(
    "change",
    [
        {"uploaded": [1, 2]},
        {"uploaded": [1, 2, 2**63]},
        {"uploaded": [1, 2, True]},
        {"uploaded": "123"},
        {"head": "AACAPw=="},
        {"head": "AADAfwAAAAA="},
        {"head": "!"},
        {"n_committed": 0.5},
        {"model": "xy"},
        {"more": 1},
    ],
    ids=lambda change: next(f"{name} = {value!r}" for name, value in change.items()),
)
def test_a_line_that_no_client_writes_is_refused(change: dict[str, Any]) -> None:
    """Sealed or not: too few, too large, not finite, of another type."""
    assert_array_equal(Contribution.of(GOOD, 2, 3).head, [1.0, 0.0])
    with pytest.raises(ValueError, match=r"expected|hexadecimal|base64"):
        Contribution.of(GOOD | change, 2, 3)
