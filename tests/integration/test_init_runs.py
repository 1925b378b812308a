"""Run as processes of this machine what `precad init deployment` writes, with a dealer and without one.

Only addresses, folders, the number of rounds and the patience of processes are changed. `test_separate_hosts` has the
same over hosts of their own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from precad.protos.tls.identity import Role
from tests.harness.harness import free_addresses
from tests.harness.organisations import CLIENTS, NAMES, ROOT, Organisations

ROUNDS = 3
TIMEOUT_S = 240.0
COMMAND = (sys.executable, "-P", "-m", "precad.deploy.cli.main")


def precad(*arguments: object) -> str:
    """Here, to its end."""
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=120).stdout


def prepared(root: Path, *, has_dealer: bool) -> Organisations:
    """Keys, configurations, records and models, by the steps of the runbook. A client makes the initial model."""
    made = Organisations.create(root, has_dealer=has_dealer)
    addresses = free_addresses(2 * len(made.servers) + 1)
    dialled = dict(zip(made.servers, addresses, strict=False))
    listened = {f"0.0.0.0:{NAMES[role].rpartition(':')[2]}": address for role, address in dialled.items()}
    shorter = {"rounds = 10": f"rounds = {ROUNDS}", "3600.0": "120.0"}
    made.write_configs(dialled, {**listened, **shorter, "0.0.0.0:7003": addresses[-1]})
    for role, address in zip(made.servers, addresses[len(dialled) :], strict=False):
        made.config(role).write_text(made.config(role).read_text().replace("127.0.0.1:9464", address))
    for role in (Role.AGGREGATOR_A, Role.AGGREGATOR_B):
        precad("initial-model", made.config(Role.CLIENT), made.folder(role) / "initial.npy")
    for role in (*made.servers, Role.CLIENT):
        precad("check", made.config(role))
    return made


@pytest.mark.slow
@pytest.mark.parametrize("has_dealer", [True, False], ids=["with-a-dealer", "without"])
def test_what_init_wrote_trains_on_the_organisations_own_records(has_dealer: bool, tmp_path: Path) -> None:
    """Every process ends with exit code 0. Both servers wrote down the same releases, and every upload was accepted.

    No log holds a row of a table.
    """
    organisations = prepared(tmp_path, has_dealer=has_dealer)
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, arguments in organisations.commands():
            with (tmp_path / f"{name}.log").open("wb") as log:
                running[name] = subprocess.Popen([*COMMAND, *arguments], cwd=ROOT, stdout=log, stderr=log)
        deadline = time.monotonic() + TIMEOUT_S
        codes = {name: process.wait(max(0.1, deadline - time.monotonic())) for name, process in running.items()}
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    logs = {name: (tmp_path / f"{name}.log").read_text() for name in running}
    assert codes == dict.fromkeys(running, 0), {name: text[-2000:] for name, text in logs.items()}
    assert len(running) == (6 if has_dealer else 5)
    a, b = (organisations.folder(role) / "state" for role in (Role.AGGREGATOR_A, Role.AGGREGATOR_B))
    report = json.loads(precad("audit", "log", a, "--against", b, "--json"))
    assert (report["releases"], report["agreed_releases"], report["interruptions"]) == (ROUNDS, ROUNDS, 0)
    rounds = [json.loads(line) for line in (a / "rounds.jsonl").read_text().splitlines()]
    assert [record["accepted"] for record in rounds] == [list(CLIENTS)] * ROUNDS
    assert np.load(a / "model.npy").tobytes() == np.load(b / "model.npy").tobytes()
    tables = (organisations.folder(Role.CLIENT) / "records").glob("*.csv")
    rows = {row for table in tables for row in table.read_text().splitlines()}
    assert not [row for row in rows if any(row in text for text in logs.values())]
