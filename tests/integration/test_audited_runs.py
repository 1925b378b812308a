"""Audits of `precad run` by the command line: a run that was killed and continued, and folders that are handed over.

What counts as failure:
- a restart draws coins anew, or the audit takes an update of a lost round for that of a committed one;
- folders that operators hand over give other figures than the run's own.
"""

from __future__ import annotations

import json
import math
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from precad.clients.auditing.canary_file import path_of
from precad.deploy.configuration import sections as configuration
from precad.deploy.errors import SUCCESS
from precad.deploy.run_files.folder import RunFolder
from precad.servers.store import audit_log
from precad.servers.store.canary_noise import WRITE_EVERY_S
from precad.servers.store.folder import store_path
from tests.integration.test_faults import PRECAD
from tests.integration.test_resumed_runs import Command
from tests.lab.auditing.planted import CONFIG

pytestmark = pytest.mark.slow
ROUNDS = 120


def audit(*arguments: object) -> dict[str, Any]:
    """Return the command's report."""
    command = [*PRECAD, "audit", "privacy", *map(str, arguments), "--json"]
    found: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return found


def test_a_run_that_was_killed_twice_keeps_its_coins_and_is_not_accused(tmp_path: Path) -> None:
    raw = CONFIG | {"task": CONFIG["task"] | {"rounds": ROUNDS, "lost_rounds": 20, "submit_timeout_s": 20.0}}
    run = Command(tmp_path / "run.toml", RunFolder(tmp_path / "run"))
    run.config.write_text(tomli_w.dumps(raw))
    run.start()
    run.stop_after(20, signal.SIGKILL)
    secret = next((run.folder.root / "clients").glob("watch-*.canaries"))
    coins = secret.read_text().splitlines()[1]
    for n_rounds in (60, None):
        time.sleep(1.0)  # children of a killed run end by themselves
        run.start("--resume")
        code, stderr = run.stop_after(n_rounds, signal.SIGKILL) if n_rounds else run.end()
    assert code == SUCCESS, stderr

    task = configuration.load(run.folder.config).task
    assert path_of(run.folder.root / "clients", "watch", task.digest()) == secret
    lines = secret.read_text().splitlines()
    assert lines[1] == coins
    released = audit_log.releases(audit_log.read(store_path(run.folder.state_dir("a"))))
    assert len(released) == ROUNDS <= len(lines) - 2
    found = audit("--run", run.folder.root)
    assert found["rounds"] == ROUNDS
    assert [seat["participation"] for seat in found["seats"]] == [found["seats"][0]["participation"], ROUNDS]
    fastest = min(json.loads(line)["seconds_total"] for line in run.folder.metrics.read_text().splitlines())
    of_a_kill = math.ceil(1 + WRITE_EVERY_S / fastest)  # rounds whose noise was to be written next
    assert ROUNDS - 2 * of_a_kill <= found["seats"][0]["participation"] <= ROUNDS
    given = ("--server", run.folder.root / "b", "--server", run.folder.root / "a", "--clients")
    assert audit(run.folder.config, *given, run.folder.root / "clients")["seats"] == found["seats"]
