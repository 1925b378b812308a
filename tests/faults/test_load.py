"""A thousand clients enrolled and connected, two hundred of them uploading 10^5 coordinates at the same moment.

It happens once within the servers' limits, and once with limits so low that most calls are told to come back.

Failure means one of these:
- a client that is not answered, or an update that is lost or counted twice;
- a server that tells nobody to come back although its limits are met;
- a server whose resident memory grows with the number of clients that want to upload.

How long an acknowledgement takes is printed, not asserted: the clients share the servers' cores.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from precad.clients.upload.model_cache import ModelCache
from precad.clients.upload.session import ClientSession
from precad.protos.task.task import Task
from precad.protos.tls.identity import Role
from precad.servers.store.rounds import CommittedRound
from tests.faults.deployment import Processes, assert_nothing_wrong, committed
from tests.harness.harness import free_addresses, small_task
from tests.harness.pki import AGGREGATORS

MIB = 1 << 20
TOKEN = "a-token-of-tests-0123456789"
LOW: dict[str, Any] = {"max_uploads": 2, "max_downloads": 1, "max_upload_in_memory_mb": 0}
"""Two uploads at once, which lie on disk: what memory holds is what is coming in."""
GROWTH_MIB = 96
"""The MiB that a server's memory may grow by from the first acknowledged upload on, with LOW.

It covers two uploads' messages of at most 4 MiB twice over, models, and what the allocator keeps. 200 uploads of 10^5
coordinates would be 153 MiB.
"""


class Timed(ClientSession):
    """A session that remembers how long each of its uploads waited for both acknowledgements."""

    waits: list[float]

    async def _take_part(self, stubs, work, invitation) -> None:  # type: ignore[no-untyped-def] # as its base
        started = time.monotonic()
        await super()._take_part(stubs, work, invitation)
        self.waits.append(time.monotonic() - started)


@dataclass
class Load:
    """Hold what was seen of one task under load."""

    waits: list[float] = field(default_factory=list)
    """Seconds from an invitation to the acknowledgement."""
    before: dict[Role, int] = field(default_factory=dict)
    peaks: dict[Role, int] = field(default_factory=dict)
    """Bytes of resident memory at the peak: until the first upload was acknowledged, and in the end."""
    pushed_back: dict[Role, Counter[str]] = field(default_factory=dict)
    """Calls that were told to come back, by limit, as the server's metrics say."""


def peak_of(pid: int) -> int:
    """Bytes of resident memory at the peak."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def look(load: Load, role: Role, text: str) -> None:
    """Notes what a server's metrics say."""
    counts: Counter[str] = Counter()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "precad_calls_pushed_back_total":
                counts[sample.labels["limit"]] = int(sample.value)
    load.pushed_back[role] = +counts
    if role in load.peaks and not load.waits:
        load.before[role] = load.peaks[role]


async def watch(processes: Processes, ports: dict[Role, str], load: Load) -> None:
    """Until it is cancelled."""
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as http:
        while True:
            for role, process in processes.running.items():
                if process.exitcode is None and process.pid is not None:
                    load.peaks[role] = max(load.peaks.get(role, 0), peak_of(process.pid))
            for role, port in ports.items():
                try:
                    async with http.get(f"http://{port}/metrics") as answer:
                        look(load, role, await answer.text())
                except aiohttp.ClientError:
                    pass  # not up yet, or not any more
            await asyncio.sleep(0.1)


async def under_load(processes: Processes, ports: dict[Role, str]) -> Load:
    """The whole task."""
    task, load = processes.task, Load()
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
        session.waits = load.waits
        sessions.append(asyncio.create_task(session.run()))
    watching = asyncio.create_task(watch(processes, ports, load))
    try:
        await asyncio.gather(*sessions)
        await processes.finish()
    finally:
        for task_ in (watching, *sessions):
            task_.cancel()
        await asyncio.gather(watching, *sessions, return_exceptions=True)
    return load


def crowd(n_clients: int, rate: float, dim: int) -> Task:
    """A task of so many clients."""
    return small_task(
        [f"client-{i:04}" for i in range(n_clients)],
        rounds=2,
        client_rate=rate,
        dim=dim,
        gate="native",
        submit_timeout_s=600.0,
        registration_timeout_s=600.0,
    )


def loaded(folder: Path, task: Task, **limits: Any) -> Load:
    """Runs the task; every chosen client's update must be in its round, once."""
    token = folder / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    ports = dict(zip(AGGREGATORS, free_addresses(2), strict=True))
    processes = Processes(
        folder,
        task,
        own={role.value: {"operations_listen": port, "operations_token": str(token)} for role, port in ports.items()},
        **limits,
    )
    try:
        load = asyncio.run(asyncio.wait_for(under_load(processes, ports), 1500.0))
        assert_nothing_wrong(processes)
        rounds = committed(folder, task, AGGREGATORS[0])
        assert all(r.accepted == r.chosen for r in rounds)
        assert len(load.waits) == uploads_of(rounds) > 0
    finally:
        processes.close()
    return load


def uploads_of(rounds: list[CommittedRound]) -> int:
    """Accepted in all of them."""
    return sum(len(r.accepted) for r in rounds)


def report(task: Task, load: Load) -> str:
    """For people."""
    p50, p99 = np.quantile(load.waits, [0.5, 0.99])
    peaks = {role.value: f"{peak / MIB:.0f} MiB" for role, peak in load.peaks.items()}
    pushed_back = {role.value: dict(counts) for role, counts in load.pushed_back.items()}
    return (
        f"\n{len(task.clients)} clients, {len(load.waits)} uploads of {task.dim} in {task.rounds} rounds on "
        f"{os.cpu_count()} cores: acknowledged after {p50:.2f} s (median), {p99:.2f} s (p99); peaks {peaks}; "
        f"told to come back {pushed_back}"
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_clients_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Within the default limits: no upload fails, and the sum is that of every chosen client's update."""
    task = crowd(1000, 0.2, 100_000)
    load = loaded(tmp_path, task)
    with capsys.disabled():
        print(report(task, load))
    assert all(load.peaks[role] < 1500 * MIB for role in AGGREGATORS), load.peaks
    assert set(load.pushed_back) == set(AGGREGATORS)


@pytest.mark.parametrize(
    ("n_clients", "rate", "dim"),
    [
        pytest.param(20, 1.0, 300_000, id="small", marks=pytest.mark.slow),  # three messages an upload
        pytest.param(1000, 0.2, 100_000, id="full", marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
    ],
)
def test_more_clients_than_there_is_room_for(
    n_clients: int,
    rate: float,
    dim: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Many are told to come back, do, and every upload is counted; what memory holds is bounded by the limits."""
    task = crowd(n_clients, rate, dim)
    load = loaded(tmp_path, task, **LOW)
    with capsys.disabled():
        print(report(task, load))
    assert load.pushed_back[AGGREGATORS[0]]["uploads"] > 0
    for role in AGGREGATORS:
        assert load.peaks[role] - load.before[role] < GROWTH_MIB * MIB, (load.before, load.peaks)
