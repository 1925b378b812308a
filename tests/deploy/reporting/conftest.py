"""Folders that reports are of: one of a deployment, and two of simulations."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.harness.run_folders import (
    ATTACKED,
    deployed,
    simulated,
)


@pytest.fixture(scope="module")
def simulations(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """PRECAD under attack, two seeds; the same without privacy. Tests copy what they change."""
    root = tmp_path_factory.mktemp("simulations")
    plain = ATTACKED | {"simulation": ATTACKED["simulation"] | {"algorithm": "non-private"}}
    return simulated(root / "attacked", ATTACKED, seeds=2), simulated(root / "plain", plain)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return deployed(tmp_path_factory.mktemp("deployment") / "run")


@pytest.fixture
def run(deployment: Path, tmp_path: Path) -> Path:
    """One of the test's own."""
    return shutil.copytree(deployment, tmp_path / "run")
