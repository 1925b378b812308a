"""Files that a server keeps: its user alone can read them, whatever the umask and whatever an older version left.

Failure means: a file or folder of a state dir that others can open, or a folder that others write to and that is used.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from precad.protos.tls.identity import Role
from precad.servers.errors import SetupError
from precad.servers.private_files import private_folder, require_unshared
from precad.servers.rounds.uploads import Spool
from precad.servers.store.dealt_parts import DealLedger
from precad.servers.store.folder import (
    open_checkpoints,
    open_ledger,
    open_task_store,
    open_tuple_ledger,
    require_usable,
    restore_records,
    spool_path,
    write_round,
)
from precad.servers.store.rounds import CommittedRound
from tests.harness.harness import small_task

TASK = small_task()
MODEL = np.arange(TASK.dim, dtype=np.float32)


@pytest.fixture(autouse=True)
def generous() -> Iterator[None]:
    """The umask of a user that hides nothing."""
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): f"{stat.S_IMODE(path.stat().st_mode):o}" for path in folder.rglob("*")}


def fill(state_dir: Path) -> dict[str, str]:
    """Everything that a server writes; the modes while its files are open."""
    committed = [CommittedRound(3, ("ada",), ("ada",), (), b"d" * 32, 1.0, 2.0)]
    with (
        open_task_store(state_dir, TASK, MODEL.tobytes()) as store,
        open_ledger(state_dir, TASK),
        open_tuple_ledger(state_dir),
        DealLedger(state_dir / "dealt.sqlite"),
        Spool(spool_path(state_dir), most_bytes=80, memory_bytes=0, max_memory_upload=0) as uploads,
    ):
        store.begin("small-1", Role.AGGREGATOR_A)
        uploads.new(80)
        open_checkpoints(state_dir, TASK).save(3, MODEL, np.zeros(TASK.dim, dtype=np.int64))
        (record,) = restore_records(state_dir, committed, MODEL)
        write_round(state_dir, record, MODEL)
        return modes(state_dir)


def test_whatever_a_server_writes_is_its_users_alone(tmp_path: Path) -> None:
    """While it runs: the databases' logs and the spool are there."""
    private_folder(tmp_path / "new" / "state")
    found = fill(tmp_path / "new" / "state")
    assert {"task.sqlite-wal", "tuples.sqlite-shm", "uploads.spool", "checkpoints/checkpoint-0.npz"} <= found.keys()
    assert found.pop("checkpoints") == "700"
    assert set(found.values()) == {"600"}
    assert stat.S_IMODE((tmp_path / "new" / "state").stat().st_mode) == 0o700


def test_what_an_older_version_left_open_is_closed(tmp_path: Path) -> None:
    """And stays what it is; a file that a link leads to is not ours to change."""
    state_dir, elsewhere = tmp_path / "state", tmp_path / "elsewhere"
    fill(state_dir)
    elsewhere.write_text("")
    (state_dir / "link").symlink_to(elsewhere)
    for path in (state_dir, *state_dir.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o666)
    private_folder(state_dir)
    found = modes(state_dir)
    assert (found.pop("checkpoints"), found.pop("link")) == ("700", "666")
    assert set(found.values()) == {"600"}
    assert stat.S_IMODE(state_dir.stat().st_mode) == 0o700
    assert_array_equal(open_checkpoints(state_dir, TASK).model(3), MODEL)
    assert open_task_store(state_dir, TASK, MODEL.tobytes()).task_id == "small-1"


def test_a_folder_that_is_named_by_a_link_is_closed(tmp_path: Path) -> None:
    """Like any other: whoever can write to it could replace the ledger."""
    folder, link = tmp_path / "volume" / "state", tmp_path / "state"
    fill(folder)
    link.symlink_to(folder)
    for path in (folder, folder / "ledger.jsonl"):
        path.chmod(0o777)
    private_folder(link)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "ledger.jsonl")] == [0o700, 0o700]
    assert link.is_symlink()


def test_a_folder_that_others_write_to_is_refused_and_left(tmp_path: Path) -> None:
    """Like /tmp: made narrow, it would be of no use to the others."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)
    for refuse in (require_usable, require_unshared, private_folder):
        with pytest.raises(
            SetupError, match=r"state_dir: expected a folder of this server alone, found .* of mode 1777"
        ):
            refuse(tmp_path / "shared")
    assert stat.S_IMODE((tmp_path / "shared").stat().st_mode) == 0o1777


def test_the_root_of_a_lent_volume_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change nothing in a folder of another user, with rights of our group. With rights of everybody it is refused."""
    (tmp_path / "volume").mkdir()
    (tmp_path / "volume").chmod(0o2775)
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(tmp_path).st_uid + 1)
    private_folder(tmp_path / "volume")
    assert stat.S_IMODE((tmp_path / "volume").stat().st_mode) == 0o2775
    (tmp_path / "volume").chmod(0o0777)
    with pytest.raises(SetupError, match="of mode 0777"):
        private_folder(tmp_path / "volume")


def test_a_file_in_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match="state_dir: expected a folder to write to"):
        private_folder(tmp_path / "file")
