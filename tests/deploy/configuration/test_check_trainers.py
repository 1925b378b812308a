"""`precad check` of foreign trainers: which walls of the sandbox this kernel gives, without running foreign code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from precad.clients.errors import TrainerError
from precad.deploy.configuration.check import check_file
from precad.deploy.configuration.demo import demo_config

RAISES = "raise RuntimeError('run by the check')\n"
TWO_THREADS = """#!/bin/sh
exec {python} -I -B -c '
import runpy, sys, threading, time
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")' "$3" "$4" "$5" "$6"
"""
"""The kernel gives a process of two threads no namespace of users."""


def local_run(folder: Path, **client: Any) -> Path:
    """Write a local run with a trainer whose module must not be imported, in an interpreter without namespaces."""
    (folder / "ward.py").write_text(RAISES)
    (folder / "python").write_text(TWO_THREADS.format(python=sys.executable))
    (folder / "python").chmod(0o755)
    raw = demo_config(n_clients=3, rounds=2)
    raw["task"] |= {"algorithm": "user-dp-fedavg", "client_clip": 0.5, "noise_multiplier": 3.0, "client_rate": 1.0}
    raw["client"].pop("attacks")
    raw["client"] |= {"trainer": "ward:train", "trainer_python": str(folder / "python"), **client}
    (folder / "run.toml").write_text(tomli_w.dumps(raw))
    return folder / "run.toml"


def test_a_missing_wall_is_named(tmp_path: Path) -> None:
    """Also for a client whose configuration says that it starts all the same."""
    printed = tmp_path / "printed"
    found = check_file(local_run(tmp_path, trainer_isolation="best-effort", trainer_output=str(printed)))
    assert not printed.exists()  # a check changes nothing
    walls = "network + other processes + keys + writing to files + writing to named pipes + sockets that others make"
    assert found["trainer"].startswith(f"ward:train, NOT from {walls}")


def test_what_the_start_refuses_is_refused(tmp_path: Path) -> None:
    """Without namespaces, where they are required, as they are by default."""
    with pytest.raises(TrainerError, match="grants no namespaces"):
        check_file(local_run(tmp_path))
