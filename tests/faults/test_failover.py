"""A replica waits beside a server on one PostgreSQL; the server dies, and the replica goes on with the task.

What counts as failure is in `tests.faults.deployment`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from precad.protos.tls.identity import Role
from tests.faults.deployment import Processes, assert_nothing_wrong
from tests.harness.harness import small_task
from tests.harness.pki import AGGREGATORS
from tests.harness.postgres_server import postgres

TASK = small_task(("alice", "bob"), rounds=4, client_rate=0.8, gate="native")
LONGER = small_task(("alice", "bob"), rounds=60, client_rate=0.8, gate="native")
SCENARIO_S = 120.0


@pytest.fixture
def url() -> Iterator[str]:
    with postgres() as made:
        yield made


async def until_said(processes: Processes, role: Role, event: str) -> None:
    path = processes.folder / f"{role}.log"
    while not path.exists() or event not in path.read_text():
        await asyncio.sleep(0.05)


async def scenario(processes: Processes, victim: Role, point: str) -> None:
    """Nobody starts anything again."""
    for role in processes.addresses:
        processes.start(role, point=point if role is victim else None)
    await until_said(processes, victim, "replica.leading")
    first = processes.running[victim]
    processes.start(victim)  # the replica
    await until_said(processes, victim, "replica.waiting")
    async with processes.clients():
        while first.exitcode is None:
            await asyncio.sleep(0.02)
        assert first.exitcode == -9, processes.logs()
        await processes.finish()


async def lost_session(processes: Processes, url: str) -> None:
    """A's session is ended, as PostgreSQL does with one whose machine is unreachable. A itself still runs."""
    import psycopg

    victim = AGGREGATORS[0]
    processes.start(*processes.addresses)
    await until_said(processes, victim, "replica.leading")
    first = processes.running[victim]
    processes.start(victim)
    await until_said(processes, victim, "replica.waiting")
    async with processes.clients():
        await processes.until_next_round(limit_s=60)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity JOIN pg_locks USING (pid) "
                "WHERE application_name = 'precad_aggregator_a' AND locktype = 'advisory' AND granted"
            )
        while first.exitcode is None:
            await asyncio.sleep(0.02)
        assert first.exitcode == 4, processes.logs()
        assert "the session is lost" in processes.logs()
        await processes.finish()


@pytest.mark.slow
def test_a_leader_that_loses_its_session_leaves_and_the_replica_goes_on(tmp_path: Path, url: str) -> None:
    pytest.importorskip("psycopg")
    from precad.servers.store.copy import copy_database

    processes = Processes(tmp_path, LONGER, database_url=url)
    try:
        asyncio.run(asyncio.wait_for(lost_session(processes, url), SCENARIO_S))
        for role in AGGREGATORS:
            copy_database(url, role, tmp_path / role)
        assert_nothing_wrong(processes)
    finally:
        processes.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "point"),
    [
        (AGGREGATORS[0], "after-charge"),
        (AGGREGATORS[0], "after-validated"),
        (AGGREGATORS[0], "after-burn-mask"),
        (AGGREGATORS[0], "before-commit"),
        (AGGREGATORS[1], "after-commit"),
        (Role.DEALER, "after-deal"),
    ],
)
def test_a_replica_goes_on_where_the_leader_died(tmp_path: Path, url: str, victim: Role, point: str) -> None:
    pytest.importorskip("psycopg")
    from precad.servers.store.copy import copy_database

    processes = Processes(tmp_path, TASK, database_url=url)
    try:
        asyncio.run(asyncio.wait_for(scenario(processes, victim, point), SCENARIO_S))
        for role in AGGREGATORS:
            assert not (tmp_path / role / "task.sqlite").exists()
            copy_database(url, role, tmp_path / role)
        assert_nothing_wrong(processes)
    finally:
        processes.close()
