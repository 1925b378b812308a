"""Give tests of kits a copy of the organisations that their file's fixture `made` has set up once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.harness.kits import Project, precad


@pytest.fixture
def digest(made: tuple[Path, str]) -> str:
    """Return the project's digest."""
    return made[1]


@pytest.fixture
def project(made: tuple[Path, str], tmp_path: Path) -> Project:
    """Return a copy to make mistakes in."""
    shutil.copytree(made[0], tmp_path / "one")
    return Project(tmp_path / "one", precad)
