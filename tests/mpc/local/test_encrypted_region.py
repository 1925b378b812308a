"""Bytes on disk under a key of the process: what is read is what was written, and the disk says nothing of it.

Failure means a byte that reads as another, a read that a neighbour's write changed, or something of the clear on disk.
It also means a byte of a key stream that covered two bytes at different times.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

from precad.mpc.errors import MalformedMessageError
from precad.mpc.local import encrypted_region
from precad.mpc.local.encrypted_region import BLOCK, EncryptedRegion

KEY = bytes(range(16))


@pytest.fixture
def file(tmp_path: Path):
    with (tmp_path / "spool").open("w+b", buffering=0) as opened:
        yield opened


def region(file: BinaryIO, n_bytes: int, offset: int = 0, **kwargs) -> EncryptedRegion:
    file.truncate(max(offset + n_bytes, Path(file.name).stat().st_size))
    return EncryptedRegion(file, n_bytes, offset=offset, **kwargs)


def test_the_disk_holds_aes_ctr_of_version_and_position(file: BinaryIO) -> None:
    """A second implementation: block 0 was written over once, block 1 never, and pieces were cut anywhere."""
    data = np.random.default_rng(1).bytes(BLOCK + 100)
    made = region(file, len(data), 7, random_bytes=lambda n: KEY[:n])
    made.append(data[:5])
    made.append(data[5 : BLOCK + 37])
    made.append(data[BLOCK + 37 :])
    made.overwrite(0, memoryview(data[:BLOCK]))
    streams = [
        Cipher(algorithms.AES128(KEY), modes.CTR(version.to_bytes(8, "big") + bytes(8))).encryptor()
        for version in (1, 0)
    ]
    whole = [stream.update(data) for stream in streams]
    assert Path(file.name).read_bytes() == bytes(7) + whole[0][:BLOCK] + whole[1][BLOCK:]
    assert made.read(0, len(data)) == data


def test_every_region_has_a_key_of_its_own(file: BinaryIO) -> None:
    """Write one upload twice: nothing on disk says so."""
    data = bytes(4096)
    for offset in (0, 4096):
        region(file, 4096, offset).append(data)
    on_disk = Path(file.name).read_bytes()
    blocks = {on_disk[i : i + 16] for i in range(0, 8192, 16)}
    assert len(blocks) == 512  # equal ones: probability 2**-111


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_appends_overwrites_and_reads_are_those_of_a_bytearray(data, tmp_path_factory) -> None:
    """Compare with a bytearray, in blocks of 32 bytes, in a file whose other bytes nobody may touch.

    The test keeps all that the disk ever held of every byte. While a byte's block has one version, that is one value,
    so its byte of key stream covered one byte.
    """
    with pytest.MonkeyPatch.context() as patch, (tmp_path_factory.mktemp("r") / "f").open("w+b", buffering=0) as file:
        patch.setattr(encrypted_region, "BLOCK", 32)
        n, offset = data.draw(st.integers(0, 150)), data.draw(st.integers(0, 20))
        file.truncate(offset + n + 9)
        made, model = EncryptedRegion(file, n, offset=offset), bytearray(n)
        end = 0
        while end < n:
            piece = data.draw(st.binary(min_size=1, max_size=n - end))
            made.append(piece)
            model[end : end + len(piece)] = piece
            end += len(piece)
        history: dict[tuple[int, int], set[int]] = {}
        remember(history, made, Path(file.name).read_bytes()[offset:])
        for _ in range(data.draw(st.integers(0, 6))):
            start = data.draw(st.integers(0, n))
            piece = data.draw(st.binary(max_size=n - start))
            made.overwrite(start, memoryview(piece))
            model[start : start + len(piece)] = piece
            low = data.draw(st.integers(0, n))
            high = data.draw(st.integers(low, n))
            assert made.read(low, high - low) == model[low:high]
            remember(history, made, Path(file.name).read_bytes()[offset:])
        assert made.read(0, n) == model
        assert all(len(held) == 1 for held in history.values())
        content = Path(file.name).read_bytes()
        assert content[:offset] == bytes(offset)
        assert content[offset + n :] == bytes(9)


def remember(history: dict[tuple[int, int], set[int]], made: EncryptedRegion, on_disk: bytes) -> None:
    """By byte and version of its block."""
    for i in range(len(made)):
        history.setdefault((i, int(made._versions[i // 32])), set()).add(on_disk[i])


def test_what_is_written_over_is_under_another_stream(file: BinaryIO) -> None:
    """Two contents of the disk at different times: their difference is not the difference of the clear, anywhere.
    False alarm: 16 equal bytes of independent streams in 4096 / 16 places, 2**-120."""
    made = region(file, 4096)
    first, second = bytes(4096), bytes([255]) * 4096
    made.append(first)
    before = Path(file.name).read_bytes()
    made.overwrite(0, memoryview(second))
    after = Path(file.name).read_bytes()
    differences = bytes(x ^ y for x, y in zip(before, after, strict=True))
    assert bytes([255]) * 16 not in {differences[i : i + 16] for i in range(0, 4096, 16)}


def test_a_file_that_was_cut_is_refused(file: BinaryIO) -> None:
    made = region(file, 100)
    made.append(bytes(100))
    file.truncate(90)
    assert made.read(0, 90) == bytes(90)
    with pytest.raises(MalformedMessageError, match="ends at byte 90, 10 bytes too early"):
        made.read(50, 50)
    with pytest.raises(MalformedMessageError):
        EncryptedRegion(file, 100)


def test_nothing_is_printed_but_the_length(file: BinaryIO) -> None:
    assert repr(region(file, 24, random_bytes=lambda n: KEY[:n])) == "EncryptedRegion(24 bytes)"
