"""A file that is written in one step: the old content or the new, whenever it ends."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from precad.deploy.files.whole import write_whole

KEEPS_WRITING = """
import sys
from pathlib import Path
from precad.deploy.files.whole import write_whole
path = Path(sys.argv[1])
for i in range(10**9):
    write_whole(path, bytes([i % 2]) * 4_000_000)
"""


def test_the_old_content_or_the_new(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_whole(path, b"old")
    write_whole(path, b"new")
    assert [found.name for found in tmp_path.iterdir()] == ["summary.json"]
    assert path.read_bytes() == b"new"


def test_a_full_disk_leaves_the_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "summary.json"
    write_whole(path, b"old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert [found.name for found in tmp_path.iterdir()] == ["summary.json"]


def test_a_killed_process_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    process = subprocess.Popen([sys.executable, "-c", KEEPS_WRITING, str(path)], cwd=Path(__file__).parents[3])
    try:
        deadline = time.monotonic() + 60
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    content = path.read_bytes()
    assert len(content) == 4_000_000
    assert len(set(content)) == 1
