"""A finished demo that two files look at, of which every process wrote down its secrets."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.harness.hostile_folder import hostile_folder

ROOT = Path(__file__).parents[2]
RECORDER = ROOT / "tests" / "harness" / "recorder"
DEMO = ("--clients", "4", "--rounds", "6", "--seed", "1")


@dataclass(frozen=True, slots=True)
class RecordedDemo:
    """One that ended well."""

    folder: Path
    record: Path
    """A file per process, by `recorder/sitecustomize.py`."""
    here: Path
    """The folder that it was run in."""
    stdout: str
    stderr: str


@pytest.fixture(scope="session")
def recorded_demo(tmp_path_factory: pytest.TempPathFactory) -> RecordedDemo:
    """Run the demo once, in a folder that is full of modules with precad's names.

    Whichever process of the tests needs it first runs it: it is a minute's work of eight processes.
    """
    base = tmp_path_factory.getbasetemp()
    base = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "recorded-demo"
    base.mkdir(exist_ok=True)
    folder, record, here, output = (base / name for name in ("run", "record", "here", "output.json"))
    with (base / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not output.exists():
            record.mkdir()
            output.write_text(json.dumps(_run(folder, record, hostile_folder(here))))
    return RecordedDemo(folder, record, here, **json.loads(output.read_text()))


def _run(folder: Path, record: Path, here: Path) -> dict[str, str]:
    """As the installed command: only `python -m` without -P puts the current folder first."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "precad.deploy.cli.main", "demo", *DEMO, "--output", str(folder), "--json"],
        cwd=here,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(RECORDER), str(ROOT)]), "PRECAD_RECORDER": str(record)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {"stdout": done.stdout, "stderr": done.stderr}
