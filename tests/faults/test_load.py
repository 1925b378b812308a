"""A thousand clients enrolled and connected, two hundred of them uploading 10^5 coordinates at the same moment.

Failure means: a client that is not answered, an update that is lost or counted twice, a server whose resident memory
passes the limit. How long an acknowledgement takes is printed, not asserted: the clients share the servers' cores.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from pathlib import Path

import numpy as np
import pytest

from clients.session import ClientSession, ModelCache
from protos.identity import Role
from servers.task_store import CommittedRound
from tests.faults.deployment import Processes, assert_nothing_wrong, committed
from tests.integration.harness import small_task
from tests.integration.pki import AGGREGATORS

MIB = 1 << 20


class Timed(ClientSession):
    """A session that remembers how long each of its uploads waited for both acknowledgements."""

    waits: list[float]

    async def _take_part(self, stubs, invitation) -> None:  # type: ignore[no-untyped-def] # as its base
        started = time.monotonic()
        await super()._take_part(stubs, invitation)
        self.waits.append(time.monotonic() - started)


def peak_of(pid: int) -> int:
    """Bytes of resident memory at the peak."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


async def under_load(processes: Processes, waits: list[float]) -> dict[Role, int]:
    """The whole task. Each server's peak memory, looked at while it ran."""
    task = processes.task
    processes.start(*processes.addresses)
    cache = ModelCache()
    sessions = []
    for client in task.clients:
        session = Timed(
            client=client,
            task=task,
            addresses=(processes.addresses[AGGREGATORS[0]], processes.addresses[AGGREGATORS[1]]),
            tls=processes.pki.tls(client),
            train=lambda parameters, client=client: processes.update(client),
            connect_timeout_s=300.0,
            cache=cache,
        )
        session.waits = waits
        sessions.append(asyncio.create_task(session.run()))
    peaks: dict[Role, int] = {}

    async def watch() -> None:
        while True:
            for role, process in processes.running.items():
                if process.exitcode is None and process.pid is not None:
                    peaks[role] = max(peaks.get(role, 0), peak_of(process.pid))
            await asyncio.sleep(0.2)

    watching = asyncio.create_task(watch())
    try:
        await asyncio.gather(*sessions)
        await processes.finish()
    finally:
        for task_ in (watching, *sessions):
            task_.cancel()
        await asyncio.gather(watching, *sessions, return_exceptions=True)
    return peaks


def uploads_of(rounds: list[CommittedRound]) -> int:
    """Accepted in all of them."""
    return sum(len(r.accepted) for r in rounds)


@pytest.mark.parametrize(
    ("n_clients", "rate", "dim", "limit_mb"),
    [
        pytest.param(40, 0.5, 1_000, 1500, id="small"),
        pytest.param(1000, 0.2, 100_000, 1500, id="full", marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
    ],
)
def test_many_clients_at_once(
    n_clients: int, rate: float, dim: int, limit_mb: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No upload fails, and the sum is that of every chosen client's update."""
    task = small_task(
        [f"client-{i:04}" for i in range(n_clients)],
        rounds=2,
        client_rate=rate,
        dim=dim,
        gate="native",
        submit_timeout_s=600.0,
        registration_timeout_s=600.0,
    )
    processes = Processes(tmp_path, task)
    waits: list[float] = []
    try:
        peaks = asyncio.run(asyncio.wait_for(under_load(processes, waits), 1500.0))
        assert_nothing_wrong(processes)
        rounds = committed(tmp_path, task, AGGREGATORS[0])
        assert all(r.accepted == r.chosen for r in rounds)
        assert len(waits) == uploads_of(rounds)
    finally:
        processes.close()
    for role in AGGREGATORS:
        assert peaks[role] < limit_mb * MIB, peaks
    with capsys.disabled():
        p50, p99 = np.quantile(waits, [0.5, 0.99])
        shown = {role.value: f"{peak / MIB:.0f} MiB" for role, peak in peaks.items()}
        print(
            f"\n{n_clients} clients, {len(waits)} uploads of {dim} in {len(rounds)} rounds on {os.cpu_count()} cores: "
            f"acknowledged after {p50:.2f} s (median), {p99:.2f} s (p99); peaks {shown}"
        )
