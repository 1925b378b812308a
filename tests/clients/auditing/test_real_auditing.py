"""A real audit client: records of its own, coins that stay on its machine, and a file of every update.

What counts as failure:
- a record that its coin leaves out is trained on;
- what the file says of model, records and update is not what the client had;
- a file that was changed, or is of other records, is gone on with.
"""

from __future__ import annotations

import base64
import stat
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from structlog.testing import capture_logs

from precad.clients.auditing.canary_file import header_of, path_of, read
from precad.clients.auditing.real_conduct import RealAuditing
from precad.clients.auditing.real_file import RealContribution, RealSecrets
from precad.clients.errors import ArgumentError, StateFileError
from precad.clients.process import Trainer
from precad.clients.records import Records
from precad.clients.training.conduct import Honest
from precad.protos.task.task import Task
from tests.clients.auditing.test_auditing_clients import FIELDS, D, real
from tests.harness.harness import small_task

HELD = 20
REAL: dict[str, Any] = FIELDS | {
    "clients": {"alice": 20, "own": HELD, "watch": 40, "witness": 20},
    "real_audit_clients": ["own"],
}


@pytest.fixture(scope="module")
def task() -> Task:
    return small_task(**REAL)


def secrets_of(task: Task, folder: Path) -> RealSecrets:
    path, header = path_of(folder, "own", task.digest()), header_of("own", task.digest())
    return read(path, header, RealSecrets.unread(HELD, D))


@pytest.mark.parametrize("is_bytes", [False, True], ids=["float32", "uint8"])
def test_its_update_is_of_the_records_that_coins_leave_in_and_its_file_says_so(tmp_path: Path, is_bytes: bool) -> None:
    """With every record drawn, it is that of a client who has these records alone, bit for bit."""
    task, records = small_task(**REAL | {"record_rate": 1.0}), real(30)
    if is_bytes:
        records = Records((255 * records.features).astype(np.uint8), records.labels)
    trainer = Trainer(
        task=task,
        records={"own": records},
        conducts={"own": RealAuditing("own", task, tmp_path)},
        device="cpu",
    )
    theta = np.random.default_rng(4).normal(0, 0.1, task.dim).astype(np.float32)
    trainer._conducts["own"].on_invitation(7, b"\x01" * 32)
    with capture_logs() as logged:
        uploaded = trainer.train("own", theta)
    trainer.close()

    secrets = secrets_of(task, tmp_path)
    coins, (added,), (kinks,) = secrets.coins, secrets.contributions, secrets.kinks
    assert coins is not None
    assert 0 < coins.sum() < HELD  # else in 2 of 10^6 cases
    alone = Trainer(
        task=task, records={"own": records.take(np.flatnonzero(coins))}, conducts={"own": Honest()}, device="cpu"
    )
    assert_array_equal(uploaded, alone.train("own", theta))
    assert_array_equal(added.uploaded, uploaded[:D])
    assert not uploaded[D:].any()
    assert_array_equal(added.parameters, theta[:D])
    assert (added.n_committed, added.model_digest) == (7, b"\x01" * 32)
    assert_array_equal(secrets.records.labels, records.labels[:HELD])
    assert 0.5 < kinks.most <= 1 + 1e-8
    assert kinks.pairs == 12
    assert not [line for line in logged if "coin" in str(line)]
    assert stat.S_IMODE(path_of(tmp_path, "own", task.digest()).stat().st_mode) == 0o600


def test_kinks_are_tried_before_the_first_second_fourth_and_eighth_update(task: Task, tmp_path: Path) -> None:
    trainer = Trainer(
        task=task, records={"own": real()}, conducts={"own": RealAuditing("own", task, tmp_path)}, device="cpu"
    )
    for t in range(9):
        trainer._conducts["own"].on_invitation(t, bytes([t]) * 32)
        trainer.train("own", np.full(task.dim, 0.01 * t, dtype=np.float32))
    trainer.close()
    secrets = secrets_of(task, tmp_path)
    assert [one.n_committed for one in secrets.contributions] == list(range(9))
    assert len(secrets.kinks) == 4


def test_a_restart_has_the_coins_and_other_records_are_refused(task: Task, tmp_path: Path) -> None:
    def started(records: Records) -> Records:
        conduct = RealAuditing("own", task, tmp_path)
        try:
            return conduct.on_records(records)
        finally:
            conduct.close()

    first, again = started(real()), started(real(25))  # the first 20 of both are the declared ones
    assert len(first) == len(again) < HELD
    assert_array_equal(first.features, real().features[secrets_of(task, tmp_path).coins])
    others = Records(real().features[::-1].copy(), real().labels)
    with pytest.raises(StateFileError, match=r"expected the records that the coins in .* are of"):
        started(others)
    assert len(started(real())) == len(first)


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (real(19), r"task\.clients\.own: expected 20 records to audit with, found 19"),
        (Records(np.zeros((20, 4), dtype=np.int64), np.zeros(20, dtype=np.int64)), "with numbers and one class each"),
        (Records(real().features, np.zeros((20, 3), dtype=np.float32)), "with numbers and one class each"),
    ],
    ids=["too few", "texts", "targets"],
)
def test_records_that_cannot_be_told_apart_are_refused(
    task: Task, tmp_path: Path, records: Records, message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        RealAuditing("own", task, tmp_path).on_records(records)
    assert not list(tmp_path.iterdir())


def packed(words: list[int]) -> str:
    return base64.b64encode(zlib.compress(np.array(words, dtype="<i8").tobytes())).decode()


GOOD: dict[str, Any] = {"n_committed": 0, "model": "ab" * 32, "parameters": "AACAPwAAAAA=", "uploaded": packed([3, -2])}
"""A line with two parameters, 1.0 and 0.0, and two integers."""


@pytest.mark.parametrize(
    "change",
    [
        {"uploaded": packed([3])},
        {"uploaded": packed([3, -2, 1])},
        {"uploaded": packed([0] * 10**6)},
        {"uploaded": "AAAA"},
        {"parameters": "AACAPw=="},
        {"parameters": "AADAfwAAAAA="},
        {"n_committed": 0.5},
        {"model": "xy"},
        {"more": 1},
    ],
    ids=lambda change: next(f"{name} = {str(value)[:16]!r}" for name, value in change.items()),
)
def test_a_line_that_no_client_writes_is_refused(change: dict[str, Any]) -> None:
    assert_array_equal(RealContribution.of(GOOD, 2).uploaded, [3, -2])
    with pytest.raises(ValueError, match=r"expected|hexadecimal|base64"):
        RealContribution.of(GOOD | change, 2)


@pytest.mark.parametrize(
    "change",
    [
        {"coins": "0"},
        {"shape": []},
        {"shape": [-1]},
        {"labels": [1]},
        {"labels": [1, True]},
        {"features": "AACAPw=="},
        {"features": "AADAfwAAAAA="},
        {"more": 1},
    ],
    ids=str,
)
def test_a_first_line_that_no_client_writes_is_refused(change: dict[str, Any]) -> None:
    """Two records of one number."""
    good = {"coins": "01", "shape": [1], "features": "AACAPwAAAAA=", "labels": [1, 0]}
    secrets = RealSecrets.unread(2, 2)
    secrets.take(good)
    assert_array_equal(secrets.records.features, [[1.0], [0.0]])
    with pytest.raises(ValueError, match=r"expected"):
        RealSecrets.unread(2, 2).take(good | change)


@pytest.mark.parametrize("line", [{"pairs": -1, "most": 0.5}, {"pairs": 1, "most": 2}, {"pairs": 1.0, "most": 0.5}])
def test_a_line_of_kinks_that_no_client_writes_is_refused(line: dict[str, Any]) -> None:
    secrets = RealSecrets.unread(2, 2)
    secrets.take({"coins": "01", "shape": [1], "features": "AACAPwAAAAA=", "labels": [1, 0]})
    with pytest.raises(ValueError, match="expected a number of pairs"):
        secrets.take(line)
