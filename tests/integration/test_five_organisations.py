"""Five organisations start a task by kits: as processes of this machine, each with its own folder, commands counted."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.harness.harness import free_addresses
from tests.harness.kits import PARTICIPANTS, SERVERS, Project
from tests.harness.organisations import CLIENTS, ROOT

TIMEOUT_S = 240.0
COMMAND = (sys.executable, "-P", "-m", "precad.deploy.cli.main")


def precad(*arguments: object) -> str:
    """Here, to its end."""
    command = [*COMMAND, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=120)
    return done.stdout + done.stderr


@pytest.mark.slow
def test_five_organisations_train_after_twelve_commands(tmp_path: Path) -> None:
    """All commands of all organisations, starts included. Keys stay with their owners; every upload is accepted."""
    project = Project(tmp_path, precad)
    project.begin(dict(zip((*SERVERS, "lane"), free_addresses(3), strict=True)))
    project.request()
    digest = project.provision()
    project.give_records()
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for participant in PARTICIPANTS:
            project.commands.append(project.join(participant, digest))
            with (tmp_path / f"{participant}.log").open("wb") as log:
                running[participant] = subprocess.Popen(
                    [*COMMAND, *project.commands[-1]], cwd=ROOT, stdout=log, stderr=log
                )
        deadline = time.monotonic() + TIMEOUT_S
        codes = {name: process.wait(max(0.1, deadline - time.monotonic())) for name, process in running.items()}
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    logs = {name: (tmp_path / f"{name}.log").read_text()[-2000:] for name in running}
    assert codes == dict.fromkeys(PARTICIPANTS, 0), logs
    assert len(project.commands) == 12
    a, b = (project.home(server) / server / "state" for server in SERVERS)
    report = json.loads(precad("audit", "log", a, "--against", b, "--json").splitlines()[0])
    assert (report["releases"], report["agreed_releases"], report["interruptions"]) == (3, 3, 0)
    rounds = [json.loads(line) for line in (a / "rounds.jsonl").read_text().splitlines()]
    assert [record["accepted"] for record in rounds] == [list(CLIENTS)] * 3
    private = [path for path in tmp_path.rglob("*") if path.is_file() and b"PRIVATE KEY" in path.read_bytes()]
    at_home = {project.home(name) / name / "key.pem" for name in PARTICIPANTS}
    assert set(private) == {*at_home, project.start / "authority" / "ca.key"}
