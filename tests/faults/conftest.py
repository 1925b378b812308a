"""Room for simulated deployments, in which each transition is synchronized to disk."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

MEMORY: Final = Path("/dev/shm")


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """In memory where there is a file system for it."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None, prefix="precad-simulation-") as folder:
        yield Path(folder)
