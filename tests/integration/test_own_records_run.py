"""`precad run` on a table and a model of the user's own, over real processes.

Its twin without processes is tests/deploy/configuration/test_own_sources.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.hospital import hospital

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_a_local_run_in_a_folder_that_has_our_names(tmp_path: Path) -> None:
    """Four clients train on parts of one CSV file. Folders `clients`, `mpc` and so on beside it are never imported."""
    hospital(tmp_path, "my_model", rounds=4)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "precad.deploy.cli.main", "run", "task.toml", "--output", "out", "--json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["rounds"], summary["accepted"], summary["rejected"], summary["missing"]) == (4, 16, 0, 0)
    assert summary["accuracy"] > 0.8
    logs = "".join(log.read_text() for log in sorted((tmp_path / "out" / "logs").glob("*.log")))
    assert "client.finished" in logs
    rows = (tmp_path / "patients.csv").read_text().splitlines()[1:]
    assert [row for row in rows if row in logs] == []
