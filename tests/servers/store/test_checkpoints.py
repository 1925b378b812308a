"""Checkpoints: whole or not there, and the last ones kept."""

from __future__ import annotations

import os
import random
import shutil
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from precad.protos.messages import convert
from precad.protos.tls.identity import Role
from precad.servers.errors import SetupError, StoreError
from precad.servers.store.checkpoints import FILES, Checkpoints
from precad.servers.store.rounds import CommittedRound
from precad.servers.store.state import Model, TaskState
from tests.harness.harness import small_task

MODEL = np.arange(5, dtype=np.float32)
SUM = np.array([-(2**63), -1, 0, 1, 2**63 - 1])


def test_a_checkpoint_comes_back_bit_for_bit(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints", 5)
    checkpoints.save(3, MODEL, SUM)
    reopened = Checkpoints(tmp_path / "checkpoints", 5)
    assert_array_equal(reopened.model(3), MODEL, strict=True)
    assert_array_equal(reopened.noisy_sum(3), SUM, strict=True)


def test_a_checkpoint_is_on_disk_when_it_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole file was synced before `save` returned: the digest of its model leaves right behind that."""
    synced, fdatasync = dict[int, int](), os.fdatasync

    def noted(fd: int) -> None:
        fdatasync(fd)
        synced[os.fstat(fd).st_ino] = os.fstat(fd).st_size

    checkpoints = Checkpoints(tmp_path, 5)
    monkeypatch.setattr(os, "fdatasync", noted)
    checkpoints.save(3, MODEL, SUM)
    written = file_of(tmp_path, 3).stat()
    assert synced == {written.st_ino: written.st_size}


def test_the_last_ones_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, 5)
    for round in (1, 2, 5, 6):
        checkpoints.save(round, MODEL + np.float32(round), SUM)
    assert len(list(tmp_path.iterdir())) == FILES
    for opened in (checkpoints, Checkpoints(tmp_path, 5)):
        assert_array_equal(opened.model(5), MODEL + np.float32(5))
        assert_array_equal(opened.model(6), MODEL + np.float32(6))
        with pytest.raises(SetupError, match="expected the checkpoint of round 1"):
            opened.model(1)


def file_of(folder: Path, round: int) -> Path:
    """Where a checkpoint lies."""
    (path,) = (path for path in folder.iterdir() if round_in(path) == round)
    return path


def round_in(path: Path) -> int | None:
    """Return the round of a checkpoint; None of another file."""
    with suppress(ValueError, EOFError):
        return int(np.load(path)["round"])
    return None


def test_a_file_that_was_overwritten_in_part_is_of_no_round_that_is_kept(tmp_path: Path) -> None:
    """A power failure leaves any of its blocks as they were: here, the first or the last bytes are the new ones.

    What is read of it is whole and of the round that was lost, or of an old one, or refused.
    """
    checkpoints = Checkpoints(tmp_path, 5)
    for round in (1, 2, 3):
        checkpoints.save(round, MODEL + np.float32(round), SUM + round)
    path = file_of(tmp_path, 1)
    old = path.read_bytes()
    checkpoints.save(4, MODEL + np.float32(4), SUM + 4)
    new = path.read_bytes()
    assert len(old) == len(new)
    for cut in {*range(0, len(old), 7), len(old)}:
        for mixed in (new[:cut] + old[cut:], old[:cut] + new[cut:]):
            path.write_bytes(mixed)
            reopened = Checkpoints(tmp_path, 5)
            for round in (1, 4):
                with suppress(SetupError):
                    assert_array_equal(reopened.model(round), MODEL + np.float32(round))
                    assert_array_equal(reopened.noisy_sum(round), SUM + round)
            reopened.keep_only({1, 2, 3})  # round 4 was not committed
            for round in (2, 3):
                assert_array_equal(reopened.model(round), MODEL + np.float32(round))
    reopened.save(5, MODEL, SUM)
    assert file_of(tmp_path, 5) == path


@pytest.mark.parametrize("is_longer", [False, True], ids=["of one length", "of another length"])
def test_a_torn_write_at_any_sector_costs_no_round_that_is_kept(tmp_path: Path, is_longer: bool) -> None:
    """Any sector of 512 bytes may be old or new, and the length old or new: in one run, in one hole, or at random.

    What is read is whole: of the round that was lost, or of the old one. A file that mixes both is refused.
    """
    dim, draw = 300, random.Random(512)
    model = np.arange(dim, dtype=np.float32)
    noisy_sum = np.arange(dim, dtype=np.int64) << 40
    moments = np.ones((1, dim), dtype=np.float32)
    checkpoints = Checkpoints(tmp_path, dim)
    for round in (1, 2, 3):
        checkpoints.save(round, model + np.float32(round), noisy_sum + round, moments if is_longer else None)
    path = file_of(tmp_path, 1)
    old = path.read_bytes()
    checkpoints.save(4, model + np.float32(4), noisy_sum + 4)
    new = path.read_bytes()
    assert (len(old) > len(new)) is is_longer
    n_sectors = -(-len(old) // 512)
    runs = [[sector < cut for sector in range(n_sectors)] for cut in range(n_sectors + 1)]
    holes = [[sector != hole for sector in range(n_sectors)] for hole in range(n_sectors)]
    torn = [[draw.random() < 0.5 for _ in range(n_sectors)] for _ in range(12)]
    for is_new in (*runs, *holes, *torn):
        sectors = [(new if of_new else old)[512 * i : 512 * (i + 1)] for i, of_new in enumerate(is_new)]
        mixed = b"".join(sectors)
        for content in {mixed, mixed[: len(new)]}:
            path.write_bytes(content)
            reopened = Checkpoints(tmp_path, dim)
            for round in (1, 4):
                with suppress(SetupError):
                    assert_array_equal(reopened.model(round), model + np.float32(round))
                    assert_array_equal(reopened.noisy_sum(round), noisy_sum + round)
            for round in (2, 3):
                assert_array_equal(reopened.model(round), model + np.float32(round))


def test_a_checkpoint_leaves_nothing_of_a_longer_file(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, 5)
    for path in tmp_path.iterdir():
        path.write_bytes(b"x" * 5000)
    checkpoints.save(3, MODEL, SUM)
    assert_array_equal(Checkpoints(tmp_path, 5).model(3), MODEL, strict=True)
    assert file_of(tmp_path, 3).stat().st_size < 2000


@pytest.mark.parametrize("n_bytes", [0, 1, 40, 300])
def test_what_a_crash_left_half_written_never_was_one_of_the_last_two(tmp_path: Path, n_bytes: int) -> None:
    """The file of the round that was being written holds only its beginning."""
    checkpoints = Checkpoints(tmp_path, 5)
    for round in (0, 1, 2, 3):
        checkpoints.save(round, MODEL + np.float32(round), SUM)
    half = file_of(tmp_path, 3)
    half.write_bytes(half.read_bytes()[:n_bytes])
    reopened = Checkpoints(tmp_path, 5)
    for round in (1, 2):
        assert_array_equal(reopened.model(round), MODEL + np.float32(round))
    with pytest.raises(SetupError, match="expected the checkpoint of round 3"):
        reopened.model(3)
    reopened.save(4, MODEL + np.float32(4), SUM)
    assert_array_equal(reopened.model(2), MODEL + np.float32(2))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 and no more", b"something else"])
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes) -> None:
    checkpoints = Checkpoints(tmp_path, 5)
    checkpoints.save(0, MODEL, SUM)
    file_of(tmp_path, 0).write_bytes(content)
    for opened in (checkpoints, Checkpoints(tmp_path, 5)):
        with pytest.raises(SetupError, match="expected the checkpoint of round 0"):
            opened.model(0)


def test_moments_come_back_bit_for_bit_and_are_refused_in_another_shape(tmp_path: Path) -> None:
    """None are written or asked for where the servers keep none."""
    moments = np.array([[0.1] * 4 + [1e-30], [3e38, -0.0, 1.0, 2.0, 3.0]], dtype=np.float32)
    Checkpoints(tmp_path, 5, (2, 5)).save(3, MODEL, SUM, moments)
    assert Checkpoints(tmp_path, 5, (2, 5)).moments(3).tobytes() == moments.tobytes()
    with pytest.raises(SetupError, match="expected 1 x 5 values of float32"):
        Checkpoints(tmp_path, 5, (1, 5)).moments(3)
    without = Checkpoints(tmp_path / "without", 5)
    without.save(0, MODEL, SUM)
    assert without.moments(0).shape == (0, 0)
    with pytest.raises(SetupError, match="expected the checkpoint of round 0"):
        Checkpoints(tmp_path / "without", 5, (1, 5)).moments(0)


def test_one_flipped_bit_is_found(tmp_path: Path) -> None:
    """Whichever byte of the stored model it is in: the archive has a checksum."""
    checkpoints = Checkpoints(tmp_path, 5)
    checkpoints.save(0, MODEL, SUM)
    path = file_of(tmp_path, 0)
    content = bytearray(path.read_bytes())
    content[content.index(MODEL.tobytes()) + 7] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(SetupError, match="Bad CRC"):
        checkpoints.model(0)


def test_another_dimension_is_refused(tmp_path: Path) -> None:
    Checkpoints(tmp_path, 5).save(0, MODEL, SUM)
    with pytest.raises(SetupError, match="expected 6 values of float32"):
        Checkpoints(tmp_path, 6).model(0)


def test_a_disk_that_cannot_be_written_leaves_the_last_checkpoints(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    checkpoints = Checkpoints(folder, 5)
    for round in (0, 1):
        checkpoints.save(round, MODEL + np.float32(round), SUM)
    (free,) = {*folder.iterdir()} - {file_of(folder, 0), file_of(folder, 1)}
    free.unlink()
    free.mkdir()  # stands in the way, for root as well
    with pytest.raises(StoreError, match="checkpoint of round 2: nothing was recorded"):
        checkpoints.save(2, MODEL, SUM)
    for round in (0, 1):
        assert_array_equal(checkpoints.model(round), MODEL + np.float32(round))


@pytest.mark.parametrize("deleted", [(0,), (1,), (2,), (0, 1, 2)])
def test_a_file_that_was_deleted_is_made_again(tmp_path: Path, deleted: tuple[int, ...]) -> None:
    """As private as it was. Its turn comes within three rounds, and all others are what they were."""
    checkpoints = Checkpoints(tmp_path, 5)
    for round in (0, 1, 2):
        checkpoints.save(round, MODEL + np.float32(round), SUM)
    for number in deleted:
        file_of(tmp_path, number).unlink()
    for round in (3, 4, 5):
        checkpoints.save(round, MODEL + np.float32(round), SUM)
        assert_array_equal(Checkpoints(tmp_path, 5).model(round), MODEL + np.float32(round))
    assert [path.stat().st_mode & 0o777 for path in tmp_path.iterdir()] == [0o600] * FILES


def test_a_missing_checkpoint_says_what_is_left_to_do(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, 5)
    checkpoints.save(3, MODEL, SUM)
    file_of(tmp_path, 3).unlink()
    with pytest.raises(SetupError, match=r"of round 3 in .*, found none; without a copy of it .* from model\.npy"):
        Checkpoints(tmp_path, 5).model(3)


def test_a_folder_that_was_deleted_is_named(tmp_path: Path) -> None:
    """Not made again while the server runs: the file system may be gone with it."""
    checkpoints = Checkpoints(tmp_path / "checkpoints", 5)
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.raises(
        StoreError, match=r"checkpoint of round 0: nothing was recorded in .*checkpoint-0\.npz: No such"
    ):
        checkpoints.save(0, MODEL, SUM)


def test_deaths_between_checkpoint_and_commit_never_cost_the_last_release(tmp_path: Path) -> None:
    """Again and again, before a round is committed: what nobody committed makes room first."""
    task = small_task(("alice", "bob"), dim=5, rounds=9)
    initial = np.zeros(5, dtype=np.float32)
    number = 0
    for n_committed in (1, 2):
        with ExitStack() as stack:
            state = TaskState.open(stack, tmp_path, task, initial)
            state.store.begin("small-1", Role.AGGREGATOR_A)
            number += 1
            store_round(state, number, MODEL + np.float32(number))
            assert len(state.store.committed()) == n_committed
    last = number
    for _ in range(2 * FILES):
        with ExitStack() as stack:
            state = TaskState.open(stack, tmp_path, task, initial)
            assert_array_equal(state.model.parameters, MODEL + np.float32(last))
            assert_array_equal(state.checkpoints.noisy_sum(last), SUM)
            number += 1
            state.checkpoints.save(number, MODEL - np.float32(number), SUM)


def test_a_checkpoint_of_another_model_than_was_committed_is_refused(tmp_path: Path) -> None:
    """Whole, and of the right round: an older copy of the file, say. Clients would train what nobody released."""
    task, initial = small_task(("alice", "bob"), dim=5, rounds=9), np.zeros(5, dtype=np.float32)
    with ExitStack() as stack:
        state = TaskState.open(stack, tmp_path, task, initial)
        state.store.begin("small-1", Role.AGGREGATOR_A)
        store_round(state, 1, MODEL)
        state.checkpoints.save(1, MODEL + np.float32(1), SUM)
    with ExitStack() as stack, pytest.raises(SetupError, match="the checkpoint of round 1 is another model"):
        TaskState.open(stack, tmp_path, task, initial)


def store_round(state: TaskState, number: int, model: NDArray[np.float32]) -> None:
    """As a round does."""
    state.store.reserve(number)
    state.store.checking(number, chosen=("alice",), active=("alice",))
    state.store.validated(number, accepted=("alice",), rejected=())
    state.ledger.charge(number, ("alice",))
    digest = convert.sha256(convert.model_to_bytes(model))
    committed = CommittedRound(number, ("alice",), ("alice",), (), digest, 0.5, 0.25)
    state.commit(committed, Model.of(model, state.model.past), SUM)
