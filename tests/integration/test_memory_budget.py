"""Two rounds of a task whose uploads are longer than its servers' memory, as processes.

Failure means: a peak of resident memory beyond the configured budget, an upload that does not count, or a file left.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from precad.protos.tls.identity import Role
from precad.servers.rounds import memory
from tests.harness import measured_server
from tests.harness.harness import AGGREGATORS, LeashedClient, Pki, asynchronous, free_addresses, read_rounds, small_task
from tests.integration.test_burnt_tuples import deployment_of

CLIENTS = tuple(f"client-{i}" for i in range(6))
ROUNDS = 4


@contextlib.contextmanager
def servers(folder: Path) -> Iterator[dict[Role, subprocess.Popen[bytes]]]:
    """Run the three servers, each in an interpreter of its own: a forked one has pages that it never asked for."""
    processes: dict[Role, subprocess.Popen[bytes]] = {}
    try:
        for role in (Role.DEALER, *AGGREGATORS):
            with (folder / f"{role}.log").open("wb") as log:
                processes[role] = subprocess.Popen(
                    [sys.executable, "-m", measured_server.__name__, str(folder), role],
                    cwd=Path(__file__).parents[2],
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
        yield processes
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["masked", "shares"])
@pytest.mark.parametrize("dim", [5_000_000, 2_500_000], ids=["one-in-memory", "two-in-memory"])
def test_a_servers_memory_stays_within_its_budget(dim: int, mode: str, tmp_path: Path) -> None:
    """The budget has room in memory for one upload of 40 MB, or two of 20 MB. The others wait in the file, and so does
    what the opening makes."""
    task = small_task(CLIENTS, dim=dim, rounds=ROUNDS, mode=mode, submit_timeout_s=200.0)
    least_mb = memory.BASE_MB + memory.BYTES_PER_COORDINATE * dim // memory.MIB + 1
    pki, addresses = Pki.create(tmp_path / "pki", CLIENTS), free_addresses(3)
    deployment = {
        "task": task.model_dump(),
        "pki": str(pki.directory),
        "addresses": dict(zip((*AGGREGATORS, Role.DEALER), addresses, strict=True)),
        "changes": {"memory_budget_mb": least_mb + 40, "max_upload_in_memory_mb": 1000},
    }
    (tmp_path / "deployment.json").write_text(json.dumps(deployment))
    np.save(tmp_path / "initial.npy", np.zeros(dim, dtype=np.float32))
    vector = np.zeros(dim, dtype=np.int64)
    vector[::5000] = 3

    @asynchronous
    async def everybody_takes_part() -> None:
        clients = [LeashedClient(name, deployment_of(task, pki, deployment["addresses"])) for name in CLIENTS]
        await asyncio.gather(*(client.join() for client in clients))
        for _ in range(task.rounds):
            submissions = [client.make(vector, await client.invitation()) for client in clients]
            await asyncio.gather(*(c.submit(s) for c, s in zip(clients, submissions, strict=True)))
        await asyncio.gather(*(client.goodbye() for client in clients))

    with servers(tmp_path) as processes:
        everybody_takes_part()
        assert [process.wait(timeout=60) for process in processes.values()] == [0, 0, 0]
    for role in AGGREGATORS:
        assert [record["accepted"] for record in read_rounds(tmp_path / role)] == [list(CLIENTS)] * ROUNDS
        assert not (tmp_path / role / "uploads.spool").exists()
        peak_mb = int((tmp_path / f"peak-{role}").read_text()) / memory.MIB
        print(f"{mode} {role}: peak {peak_mb:.0f} MiB of {least_mb + 40}")
        assert peak_mb <= least_mb + 40
