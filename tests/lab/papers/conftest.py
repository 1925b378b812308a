"""Experiments that are named no folder write below the one where they are started."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start each test elsewhere than in the repository."""
    monkeypatch.chdir(tmp_path)
