"""How often a client uploads for one model: counted on disk before an upload leaves, and known to whoever comes next.

Failure means a client that uploads once more than its configuration says, for one model and number of committed rounds.
That holds after a restart, beside another process, and after a death in the middle of a line.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import resource
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from precad.clients.config import ClientConfig
from precad.clients.errors import ArgumentError, RestoredServersError, StateFileError, UploadLimitError
from precad.clients.process import _evaluating, _uploading
from precad.clients.record_bins import RecordBins
from precad.clients.upload.session import ClientSession
from precad.clients.upload_limit import UploadLimit
from precad.deploy.errors import INVALID_INPUT, REFUSED, exit_code_of
from tests.clients.training.test_held_out import held_out, some, task_of
from tests.harness.harness import small_task

DIGEST, MODEL, OTHER = bytes(32), b"\x01" * 32, b"\x02" * 32


def limit_of(file: Path | None, most: int = 3, digest: bytes = DIGEST) -> UploadLimit:
    return UploadLimit("alice", digest, most=most, file=file)


def n_until_refused(limit: UploadLimit, model: bytes = MODEL, n_committed: int = 0) -> int:
    """How many are counted before the client stops."""
    for n in range(100):
        try:
            limit.require_room(model, n_committed)
            limit.count(model, n_committed)
        except UploadLimitError:
            with pytest.raises(UploadLimitError):
                limit.count(model, n_committed)
            return n
    raise AssertionError("no limit")


@pytest.mark.parametrize("most", [1, 3, 7])
@pytest.mark.parametrize("is_kept", [True, False])
def test_so_many_for_each_model_and_number_of_committed_rounds(tmp_path: Path, most: int, is_kept: bool) -> None:
    """A round may leave the model as it was, and be committed: then it counts anew."""
    limit = limit_of(tmp_path / "alice.uploads" if is_kept else None, most)
    for model, n_committed in ((MODEL, 0), (MODEL, 1), (OTHER, 2), (OTHER, 2**64 - 1)):
        assert n_until_refused(limit, model, n_committed) == most
    assert n_until_refused(limit, MODEL, 0) == 0


def test_a_restart_does_not_begin_anew(tmp_path: Path) -> None:
    file = tmp_path / "state" / "alice.uploads"
    for _ in range(3):
        limit_of(file).count(MODEL, 4)
    with pytest.raises(
        UploadLimitError, match=r"alice stops: .* at most 3 uploads .* found 3 after 4 .*alice\.uploads"
    ):
        limit_of(file).require_room(MODEL, 4)
    assert n_until_refused(limit_of(file, most=5), MODEL, 4) == 2  # what the operator allows counts, and what was done
    assert n_until_refused(limit_of(file, digest=OTHER), MODEL, 4) == 3  # of another task, by the client's own file


@pytest.mark.parametrize("is_kept", [True, False])
def test_servers_that_were_both_put_back_or_begun_anew_get_nothing(tmp_path: Path, is_kept: bool) -> None:
    """Rounds that are committed stay so: with fewer, ledgers lack charges. Another task begins at nought."""
    file = tmp_path / "alice.uploads" if is_kept else None
    limit = limit_of(file)
    for n_committed in (0, 1, 39, 39):
        limit.count(MODEL, n_committed)
    for n_committed in (0, 1, 38):
        for ask in (limit.require_room, limit.require_same_past, limit.count):
            with pytest.raises(
                RestoredServersError,
                match=rf"stops: expected servers that hold the 39 rounds .* found {n_committed}: were both",
            ):
                ask(OTHER, n_committed)
    for ask in (limit.require_room, limit.require_same_past, limit.count):
        with pytest.raises(RestoredServersError, match=r"hold the 39 rounds .* found another model: were both"):
            ask(OTHER, 39)
    limit.count(MODEL, 39)
    limit.count(OTHER, 40)
    if is_kept:
        limit_of(file, digest=OTHER).count(MODEL, 0)


def test_answers_to_evaluations_tell_of_servers_that_were_put_back_and_uploads_do(tmp_path: Path) -> None:
    """In the limits of a client's process, whichever of both came after more rounds. Other clients' do not."""
    task = task_of(rounds=4)
    config = ClientConfig(certificates=tmp_path, authority=tmp_path, state_dir=tmp_path)
    held = held_out(task, alice=some(3))
    for first, second in ((0, 1), (1, 0)):
        (tmp_path / "alice.uploads").unlink(missing_ok=True)
        (tmp_path / "alice.evaluations").unlink(missing_ok=True)
        found = _evaluating("alice", task, config, held, None)
        assert found is not None
        limits = (_uploading("alice", task, config, None), found[1])
        _uploading("bob", task, config, None).count(MODEL, 3)
        limits[first].count(MODEL, 2)
        limits[second].require_room(MODEL, 2)
        for ask in (limits[second].require_room, limits[second].count):
            with pytest.raises(RestoredServersError, match=r"hold the 2 rounds .* found 1: were both"):
                ask(OTHER, 1)


def test_only_its_owner_reads_it(tmp_path: Path) -> None:
    limit_of(tmp_path / "state" / "alice.uploads").count(MODEL, 0)
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "state" / "alice.uploads").stat().st_mode) == 0o600


@pytest.mark.parametrize("n_bytes", range(1, 133, 12))
def test_a_death_in_the_middle_of_a_line_leaves_the_lines_before_it(tmp_path: Path, n_bytes: int) -> None:
    """The torn line is that of the second upload, which has not left: the line is written before."""
    file = tmp_path / "alice.uploads"
    limit_of(file).count(MODEL, 0)
    line = file.read_bytes()
    assert len(line) == 132
    file.write_bytes(line + line[:n_bytes].rstrip(b"\n"))
    assert n_until_refused(limit_of(file)) == 2
    assert file.read_bytes() == 3 * line


def test_another_file_in_its_place_is_not_quoted(tmp_path: Path) -> None:
    """Names that a restore mixes up put the key of the client's bins here."""
    key = RecordBins("alice", bytes(32), bins=2, file=tmp_path / "alice.bins").key
    (tmp_path / "alice.bins").rename(tmp_path / "alice.uploads")
    with pytest.raises(StateFileError, match=r"in line 1 of .*alice\.uploads, found another line") as refused:
        limit_of(tmp_path / "alice.uploads")
    assert key.hex()[:8] not in str(refused.value)


def test_a_damaged_file_is_refused_by_name_and_nothing_is_counted(tmp_path: Path) -> None:
    file = tmp_path / "alice.uploads"
    limit = limit_of(file)
    for _ in range(3):
        limit.count(MODEL, 0)
    file.write_bytes(file.read_bytes().replace(b" 0 ", b" O ", 1))
    for attempt in (lambda: limit.count(MODEL, 0), lambda: limit.require_room(MODEL, 0), lambda: limit_of(file)):
        with pytest.raises(StateFileError, match=r"client\.state_dir: expected .* in line 1 of .*alice\.uploads"):
            attempt()


def test_a_folder_that_cannot_be_written_ends_the_client_before_it_begins(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for file in (tmp_path / "taken" / "alice.uploads", tmp_path / "link", tmp_path):
        with pytest.raises(StateFileError, match=r"client\.state_dir: expected a file .* found") as caught:
            limit_of(file)
        assert exit_code_of(caught.value) == INVALID_INPUT


def test_an_upload_that_cannot_be_counted_is_none(tmp_path: Path) -> None:
    """The disk takes one line and a half. What is there of the second one is no upload."""
    file = tmp_path / "alice.uploads"
    with multiprocessing.get_context("forkserver").Pool(1) as pool:
        n_counted, why = pool.apply(_count_on_a_small_disk, (file,))
    assert (n_counted, why.rpartition(": ")[2]) == (1, "the disk is full")
    assert len(file.read_bytes()) == 200
    assert n_until_refused(limit_of(file)) == 2


def _count_on_a_small_disk(file: Path) -> tuple[int, str]:
    """Calls until one fails, and why."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))
    limit, n = limit_of(file), 0
    try:
        while True:
            limit.count(MODEL, 0)
            n += 1
    except StateFileError as error:
        return n, str(error)


def test_processes_and_threads_share_one_count(tmp_path: Path) -> None:
    """Two processes of one client: together they upload no more often than one."""
    file = tmp_path / "alice.uploads"
    context = multiprocessing.get_context("forkserver")
    with context.Pool(2) as pool, ThreadPoolExecutor(4) as threads:
        theirs = pool.map_async(_n_counted, [file] * 2)
        ours = sum(threads.map(_n_counted, [file] * 4))
        assert ours + sum(theirs.get(60)) == 20
    assert file.read_bytes().count(b"\n") == 20


def test_a_count_is_on_disk_with_its_files_name_when_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut after an upload must not take its line, nor the first line's file."""
    synced, fsync = dict[int, int](), os.fsync

    def noted(fd: int) -> None:
        fsync(fd)
        synced[os.fstat(fd).st_ino] = os.fstat(fd).st_size

    monkeypatch.setattr(os, "fsync", noted)
    file = tmp_path / "alice.uploads"
    limit = limit_of(file)
    assert tmp_path.stat().st_ino in synced
    for _ in range(2):
        limit.count(MODEL, 0)
        assert synced[file.stat().st_ino] == file.stat().st_size > 0


@pytest.mark.parametrize("kind", [fcntl.LOCK_EX, fcntl.LOCK_SH])
def test_a_count_waits_for_whoever_counts(tmp_path: Path, kind: int) -> None:
    """Know what another process has counted by then. Two that read at once would both find room."""
    file = tmp_path / "alice.uploads"
    limit, begun = limit_of(file, most=1), threading.Event()

    def count() -> None:
        begun.set()
        limit.count(MODEL, 0)

    with ThreadPoolExecutor(1) as threads, file.open("ab") as other:
        fcntl.flock(other, kind)
        counting = threads.submit(count)
        assert begun.wait(10)
        time.sleep(0.1)
        other.write(f"{DIGEST.hex()} 0 {MODEL.hex()}\n".encode())
    with pytest.raises(UploadLimitError):
        counting.result()


def _n_counted(file: Path) -> int:
    return n_until_refused(limit_of(file, most=20))


def test_mode_proved_takes_no_more_uploads_than_its_delta_counts() -> None:
    """Rule C3: refused before anything is sent, with the exit code of a wrong configuration."""
    proved, masked = (small_task(["alice", "bob"], mode=mode) for mode in ("proved", "masked"))
    session = {"client": "alice", "addresses": ("a:1", "b:1"), "tls": None, "train": None}
    for task, most in ((proved, 3), (masked, 100)):
        ClientSession(task=task, limit=limit_of(None, most=most), **session)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"client\.uploads_per_model: expected at most 3 .* found 4") as caught:
        ClientSession(task=proved, limit=limit_of(None, most=4), **session)  # type: ignore[arg-type]
    assert exit_code_of(caught.value) == INVALID_INPUT


def test_the_end_of_a_client_is_a_refusal() -> None:
    """Exit code 3, after which service managers do not start it again."""
    limit = limit_of(None, most=1)
    limit.count(MODEL, 0)
    with pytest.raises(UploadLimitError, match="ask both operators") as caught:
        limit.require_room(MODEL, 0)
    assert exit_code_of(caught.value) == REFUSED
