"""The folder of an aggregator: what it refuses before it starts.

Failure means: a server that starts and fails later for what it could have seen, or a refusal that leaves something.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from precad.dp.ledgers.earlier import earlier_tasks
from precad.protos.messages import convert
from precad.protos.tls.identity import Role
from precad.servers.errors import SetupError
from precad.servers.store import audit_log
from precad.servers.store.folder import (
    ledger_path,
    load_initial_model,
    open_ledger,
    open_task_store,
    require_usable,
    restore_records,
    store_path,
    write_round,
)
from precad.servers.store.rounds import CommittedRound, TaskStore
from tests.harness.harness import small_task

TASK = small_task()


def test_a_folder_that_is_not_there_is_made_with_the_ledger_and_not_before(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    require_usable(folder)
    assert not folder.parent.exists()
    open_ledger(folder, TASK).close()
    assert ledger_path(folder).exists()


def test_a_folder_with_a_ledger_alone_is_refused(tmp_path: Path) -> None:
    """Nobody knows what of it was released."""
    open_ledger(tmp_path, TASK).close()
    before = ledger_path(tmp_path).read_bytes()
    with pytest.raises(SetupError, match=r"state_dir: expected task\.sqlite beside the ledger of an earlier task"):
        require_usable(tmp_path)
    assert ledger_path(tmp_path).read_bytes() == before


def test_a_folder_that_the_version_before_began_is_refused_by_name_and_left_as_it_was(tmp_path: Path) -> None:
    """With the digest that this task had there, by the text of the protocol of that version."""
    fields = json.loads(TASK.canonical())
    for added in ("lost_rounds", "accept_weak_wire_form"):
        del fields[added]
    text = "precad/v1\n" + json.dumps(fields, sort_keys=True, separators=(",", ":"))
    initial = bytes(4 * TASK.dim)
    digests = {"config_digest": hashlib.sha256(text.encode()).digest(), "initial_model_digest": convert.sha256(initial)}
    with TaskStore(store_path(tmp_path), **digests) as store:
        store.begin("small-1", Role.AGGREGATOR_A)
    message = (
        r"state_dir: expected a folder of protocol precad/v1\.1, found 'small-1', which was begun under precad/v1 \(.*"
        r"task\.sqlite\): finish it with the version of precad that began it, or begin a new task in empty folders"
    )
    with pytest.raises(SetupError, match=message):
        open_task_store(tmp_path, TASK, initial)
    with TaskStore(store_path(tmp_path), **digests) as store:
        assert store.task_id == "small-1"


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"learning_rate": 0.7}, "other parameters"),
        ({"name": "other"}, "other parameters"),
        ({}, "another initial model"),
    ],
)
def test_a_folder_of_another_task_is_refused(changes: dict[str, Any], what: str, tmp_path: Path) -> None:
    with open_task_store(tmp_path, TASK, bytes(4 * TASK.dim)) as store:
        store.begin("small-1", Role.AGGREGATOR_A)
    initial = bytes(4 * TASK.dim) if changes else b"\x01" + bytes(4 * TASK.dim - 1)
    with pytest.raises(SetupError, match=f"expected a folder of this task, found 'small-1', which has {what}"):
        open_task_store(tmp_path, small_task(**changes), initial)


def test_the_other_servers_folder_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    """When the servers meet again, too: `begin` is what a meeting calls."""
    with open_task_store(tmp_path, TASK, bytes(4 * TASK.dim)) as store:
        store.require_role(Role.AGGREGATOR_B)  # nobody began a task yet
        store.begin("small-1", Role.AGGREGATOR_A)
        store.begin("small-1", Role.AGGREGATOR_A)
    before = audit_log.read(store_path(tmp_path))
    with open_task_store(tmp_path, TASK, bytes(4 * TASK.dim)) as store:
        message = r"expected the folder of aggregator-b, found that of aggregator-a \("
        with pytest.raises(SetupError, match=message):
            store.begin("small-1", Role.AGGREGATOR_B)
    assert audit_log.read(store_path(tmp_path)) == before


@pytest.mark.parametrize("inside", [(), ("below",)])
def test_a_file_in_place_of_a_folder_is_refused(inside: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match="state_dir: expected a folder to write to"):
        require_usable((tmp_path / "file").joinpath(*inside))


def test_an_initial_model_is_read(tmp_path: Path) -> None:
    model = np.arange(TASK.dim, dtype=np.float32)
    np.save(tmp_path / "model.npy", model)
    assert_array_equal(load_initial_model(tmp_path / "model.npy", TASK), model)


@pytest.mark.parametrize(
    "model",
    [
        np.zeros(TASK.dim, dtype=np.float64),
        np.zeros(TASK.dim + 1, dtype=np.float32),
        np.zeros((1, TASK.dim), dtype=np.float32),
        np.full(TASK.dim, np.nan, dtype=np.float32),
    ],
    ids=["float64", "longer", "a matrix", "not a number"],
)
def test_another_initial_model_is_refused(model: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "model.npy", model)
    with pytest.raises(SetupError, match=f"initial_model: expected {TASK.dim} finite float32 values"):
        load_initial_model(tmp_path / "model.npy", TASK)


def test_a_learnt_bound_starts_where_the_task_says(tmp_path: Path) -> None:
    """Its number comes last in the initial model, and is 0."""
    task = small_task(algorithm="user-dp-fedavg", update_clipping="private-quantile")
    model = np.ones(TASK.dim, dtype=np.float32)
    model[-1] = 0.0
    np.save(tmp_path / "model.npy", model)
    assert_array_equal(load_initial_model(tmp_path / "model.npy", task), model)
    np.save(tmp_path / "model.npy", np.ones(TASK.dim, dtype=np.float32))
    with pytest.raises(SetupError, match=r"initial_model: expected 0 beyond the model's \d+ parameters"):
        load_initial_model(tmp_path / "model.npy", task)


@pytest.mark.parametrize("content", [None, b"", b"PK", b"\x80\x04."], ids=["none", "empty", "zip", "pickle"])
def test_what_is_no_array_is_no_initial_model(content: bytes | None, tmp_path: Path) -> None:
    """A pickle is not opened."""
    path = tmp_path / "model.npy"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SetupError, match=r"initial_model: expected a \.npy file"):
        load_initial_model(path, TASK)


@pytest.mark.parametrize(
    "damage", [b"\xff\xfe\xff", bytes(64), b'{"round": "1", "chosen": 7}', b'{"round"', b"[" * 5000]
)
def test_a_damaged_record_is_written_again_from_what_is_known(damage: bytes, tmp_path: Path) -> None:
    """Replace what a crash of the system left in place of the last line; the line before it keeps its timings."""
    model = np.zeros(4, dtype=np.float32)
    committed = [CommittedRound(t, ("ada", "bob"), ("ada",), ("bob",), b"d" * 32, 1.0, 2.0) for t in (0, 1)]
    first = replace(committed[0], seconds={"collect": 1.5})
    write_round(tmp_path, first, model)
    with (tmp_path / "rounds.jsonl").open("ab") as file:
        file.write(damage)
    for _ in range(2):
        assert restore_records(tmp_path, committed, model) == [first, committed[1]]


@pytest.mark.parametrize("kept", [0, 40, -1], ids=["empty", "torn", "without its end"])
def test_a_ledger_that_a_crash_left_without_its_first_line_begins_with_earlier_tasks(kept: int, tmp_path: Path) -> None:
    """It holds nothing yet, so it counts no others than those that are named."""
    with open_ledger(tmp_path / "before", TASK) as before:
        before.charge(0, ["alice"])
    earlier = earlier_tasks([(ledger_path(tmp_path / "before"), 5)])
    with open_ledger(tmp_path / "whole", TASK, earlier):
        whole = ledger_path(tmp_path / "whole").read_bytes()
    torn = ledger_path(private_folder_at(tmp_path / "torn"))
    torn.write_bytes(whole[:kept])
    torn.chmod(0o600)
    with open_ledger(torn.parent, TASK, earlier):
        assert torn.read_bytes() == whole


def private_folder_at(path: Path) -> Path:
    path.mkdir(mode=0o700)
    return path


def test_a_folder_that_cannot_be_looked_at_is_refused(tmp_path: Path) -> None:
    """As one below somebody else's is, for a user that is not root."""
    with pytest.raises(SetupError, match=r"^state_dir: expected a folder to write to, found .*: File name too long$"):
        require_usable(tmp_path / ("x" * 300))
