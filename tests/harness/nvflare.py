"""NVFLARE for tests: an interpreter that holds it."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

PYTHON = "PRECAD_NVFLARE_PYTHON"
"""Names, in the environment, an interpreter that holds NVFLARE; without it this one is asked."""


@cache
def _holds(python: str, modules: str) -> bool:
    return subprocess.run([python, "-I", "-c", f"import {modules}"], check=False, capture_output=True).returncode == 0


def nvflare_python(*, also: str = "numpy") -> Path:
    """Return an interpreter that holds NVFLARE and another module; skip the test where there is none."""
    python = os.environ.get(PYTHON, sys.executable)
    if not _holds(python, f"nvflare.client, {also}"):
        pytest.skip(f"{python} holds no NVFLARE and {also}: pip install nvflare elsewhere, and name it in {PYTHON}")
    return Path(python)
