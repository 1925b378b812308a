"""Flower for tests: an interpreter that holds it, and an unmodified app with records on disk."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from precad.clients import records

APP = Path(__file__).resolve().parents[1] / "clients" / "external" / "flower_app"
PYTHON = "PRECAD_FLOWER_PYTHON"
"""Names, in the environment, an interpreter that holds Flower; without it this one is asked."""
MODEL = """
from torch import nn

class Flat(nn.Linear):
    def __init__(self):
        super().__init__(64, 10)

    def forward(self, features):
        return super().forward(features.flatten(1))
"""
"""The model as precad knows it: Flower's app knows its two arrays alone."""


@cache
def _holds_flower(python: str) -> bool:
    return subprocess.run([python, "-I", "-c", "import flwr, numpy"], check=False, capture_output=True).returncode == 0


def flower_python() -> Path:
    """Return an interpreter that holds Flower; skip the test where there is none."""
    python = os.environ.get(PYTHON, sys.executable)
    if not _holds_flower(python):
        pytest.skip(f"{python} holds no Flower: pip install flwr elsewhere, and name its interpreter in {PYTHON}")
    return Path(python)


def write_app(folder: Path, n_sites: int) -> None:
    """Copy the app, put precad's twin of its model beside it, and deal the digits over so many sites on disk."""
    shutil.copytree(APP, folder, dirs_exist_ok=True)
    (folder / "twin.py").write_text(MODEL)
    (folder / "records").mkdir(exist_ok=True)
    train = records.digits().train
    for i in range(n_sites):
        x, y = train.features[i::n_sites].reshape(-1, 64), np.asarray(train.labels[i::n_sites])
        np.savez(folder / "records" / f"site-{i}.npz", x=x, y=y)
