"""`precad demo --mode proved` as a user runs it: two servers and clients as processes, and nobody else.

Failure means that a dealer, or a trace of one, is in a run of this mode. Or a malicious client is accepted once, or an
honest one rejected or missing. Or the command line refuses what it offers.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PRECAD = [sys.executable, "-P", "-m", "precad.deploy.cli.main"]


@pytest.mark.slow
def test_the_demo_needs_no_dealer(tmp_path: Path) -> None:
    """Also its configuration can be checked, and run again by itself."""
    folder = tmp_path / "run"
    command = [
        *PRECAD,
        "demo",
        "--mode",
        "proved",
        "--clients",
        "4",
        "--rounds",
        "2",
        "--json",
        "--output",
        str(folder),
    ]
    found = subprocess.run(command, capture_output=True, check=True, timeout=300)
    assert b"takes 8.2e-12 (1 + e^epsilon) of delta" in found.stderr  # 3 (2 + 1) 2^-40: 2 rounds
    assert b"all from epsilon = 14 on" in found.stderr  # log(1e-5 / 8.2e-12 - 1); a whole client's is above
    summary = json.loads(found.stdout)
    assert (summary["mode"], summary["gate"], summary["processes"], summary["rounds"]) == ("proved", None, 6, 2)
    assert set(summary["rejected_clients"]) == {"client-2", "client-3"}
    assert summary["missing"] == 0
    assert (folder / "model.pt").exists()
    assert not [path for path in folder.rglob("*dealer*") if path.suffix != ".html"]
    rounds = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for record in rounds:
        assert {"client-2", "client-3"} & set(record["participants"]) == set(record["rejected"])
        assert (record["bytes"]["dealer_to_a"], record["bytes"]["dealer_to_b"]) == (0, 0)
    checked = subprocess.run([*PRECAD, "check", str(folder / "config.toml")], check=False, timeout=120)
    assert checked.returncode == 0
