"""Checkpoints: whole or not there, and the last ones kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from servers.checkpoints import KEPT, Checkpoints
from servers.errors import SetupError, StoreError

MODEL = np.arange(5, dtype=np.float32)
SUM = np.array([-(2**63), -1, 0, 1, 2**63 - 1])


def test_a_checkpoint_comes_back_bit_for_bit(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints", 5)
    checkpoints.save(3, MODEL, SUM)
    reopened = Checkpoints(tmp_path / "checkpoints", 5)
    assert_array_equal(reopened.model(3), MODEL, strict=True)
    assert_array_equal(reopened.noisy_sum(3), SUM, strict=True)


def test_the_last_ones_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, 5)
    for round in (1, 2, 5, 6):
        checkpoints.save(round, MODEL + np.float32(round), SUM)
    assert len(list(tmp_path.iterdir())) == KEPT
    assert_array_equal(checkpoints.model(5), MODEL + np.float32(5))
    with pytest.raises(SetupError, match="expected the checkpoint of round 2"):
        checkpoints.model(2)


def test_what_a_crash_left_half_written_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "round-00000004.tmp").write_bytes(b"half")
    checkpoints = Checkpoints(tmp_path, 5)
    assert not list(tmp_path.iterdir())
    with pytest.raises(SetupError, match="expected the checkpoint of round 4"):
        checkpoints.model(4)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 and no more", b"something else"])
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes) -> None:
    checkpoints = Checkpoints(tmp_path, 5)
    checkpoints.save(0, MODEL, SUM)
    checkpoints.path(0).write_bytes(content)
    with pytest.raises(SetupError, match="expected the checkpoint of round 0"):
        checkpoints.model(0)


def test_one_flipped_bit_is_found(tmp_path: Path) -> None:
    """Whichever byte of the stored model it is in: the archive has a checksum."""
    checkpoints = Checkpoints(tmp_path, 5)
    checkpoints.save(0, MODEL, SUM)
    content = bytearray(checkpoints.path(0).read_bytes())
    content[content.index(MODEL.tobytes()) + 7] ^= 1
    checkpoints.path(0).write_bytes(bytes(content))
    with pytest.raises(SetupError, match="Bad CRC"):
        checkpoints.model(0)


def test_another_dimension_is_refused(tmp_path: Path) -> None:
    Checkpoints(tmp_path, 5).save(0, MODEL, SUM)
    with pytest.raises(SetupError, match="expected 6 values of float32"):
        Checkpoints(tmp_path, 6).model(0)


def test_a_disk_that_cannot_be_written_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints", 5)
    checkpoints.save(0, MODEL, SUM)
    checkpoints.path(1).with_suffix(".tmp").mkdir()  # stands in the way, for root as well
    with pytest.raises(StoreError, match="checkpoint of round 1: nothing was recorded"):
        checkpoints.save(1, MODEL, SUM)
    assert_array_equal(checkpoints.model(0), MODEL)
