"""A file of sealed lines: what is cut off, what is refused, and that a failed write ends it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from precad.dp.errors import LedgerCorruptedError
from precad.dp.ledgers.lines import FIRST_CHAIN, Fields, seal
from precad.dp.ledgers.sealed_file import SealedFile, is_open

HEADER: Fields = {"format": 1, "of": "a test"}


def opened(path: Path | None) -> tuple[SealedFile, list[Fields]]:
    """Return the file, and what it gave of its lines."""
    found: list[Fields] = []
    return SealedFile(path, HEADER, found.append, "a test's file"), found


def test_lines_are_read_back_with_the_same_chain(tmp_path: Path) -> None:
    file, _ = opened(tmp_path / "lines")
    file.append({"n": 1})
    file.append({"n": 2})
    file.close()
    again, found = opened(tmp_path / "lines")
    again.close()

    assert found == [{"n": 1}, {"n": 2}]
    first, chain = seal(HEADER, FIRST_CHAIN)
    second, chain = seal({"n": 1}, chain)
    third, chain = seal({"n": 2}, chain)
    assert (tmp_path / "lines").read_bytes() == first + second + third
    assert again.chain == chain


def test_every_cut_of_the_file_is_opened_with_its_complete_lines(tmp_path: Path) -> None:
    """A crash may leave any beginning of what was written."""
    file, _ = opened(tmp_path / "lines")
    file.append({"n": 1})
    file.close()
    whole = (tmp_path / "lines").read_bytes()
    header_ends = whole.index(b"\n") + 1
    for n_bytes in range(len(whole)):
        (tmp_path / "cut").write_bytes(whole[:n_bytes])
        cut, found = opened(tmp_path / "cut")
        cut.close()
        assert found == []
        assert (tmp_path / "cut").read_bytes() == whole[:header_ends]


def test_a_file_is_open_from_its_opening_to_its_end(tmp_path: Path) -> None:
    """Whoever asks changes nothing, and leaves it to be opened."""
    file, _ = opened(tmp_path / "lines")
    assert is_open(tmp_path / "lines")
    file.close()
    assert not is_open(tmp_path / "lines")
    opened(tmp_path / "lines")[0].close()


def test_another_files_beginning_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b'{"format":2')
    with pytest.raises(LedgerCorruptedError, match="not the beginning of a test's file"):
        opened(tmp_path / "lines")

    assert (tmp_path / "lines").read_bytes() == b'{"format":2'


@pytest.mark.parametrize("failing", ["write", "fsync"])
def test_a_failed_write_closes_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    """Nothing may follow it, since what reached the disk is unknown then."""
    file, _ = opened(tmp_path / "lines")
    chain = file.chain

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, failing, full)
        with pytest.raises(OSError, match="No space left"):
            file.append({"n": 1})
    with pytest.raises(OSError, match="a test's file is closed"):
        file.append({"n": 2})

    assert (file.is_closed, file.chain) == (True, chain)


def test_without_a_path_the_chain_alone_is_kept() -> None:
    file, _ = opened(None)
    file.append({"n": 1})

    assert file.chain == seal({"n": 1}, FIRST_CHAIN)[1]
