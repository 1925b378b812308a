"""A server is killed at each transition that it writes down, started again, and the task goes on.

What counts as failure is in `tests.faults.deployment`.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from protos.identity import Role
from tests.faults.deployment import Processes, assert_nothing_wrong
from tests.faults.server_main import POINTS
from tests.integration.harness import small_task
from tests.integration.pki import AGGREGATORS

TASK = small_task(("alice", "bob"), rounds=4, client_rate=0.8, gate="native")
SCENARIO_S = 120.0
DEFAULT = {"before-charge", "after-charge", "after-checkpoint", "after-commit"}
"""At A in the default suite; everything else is slow."""


def cases() -> list[object]:
    """(role, point)."""
    return [
        pytest.param(role, point, marks=[] if role is AGGREGATORS[0] and point in DEFAULT else pytest.mark.slow)
        for role in AGGREGATORS
        for point in POINTS
    ]


async def scenario(processes: Processes, victim: Role, point: str) -> float:
    """Seconds from the restart to the end of the task."""
    for role in processes.addresses:
        processes.start(role, point=point if role is victim else None)
    async with processes.clients():
        assert await processes.wait(victim) == -9, processes.logs()
        restarted = time.monotonic()
        processes.start(victim)
        await processes.finish()
        return time.monotonic() - restarted


@pytest.mark.parametrize(("victim", "point"), cases())
def test_killed_at_a_transition_and_started_again(tmp_path: Path, victim: Role, point: str) -> None:
    """The round in flight is completed with the same content, or given up on both servers and followed by another."""
    processes = Processes(tmp_path, TASK)
    try:
        asyncio.run(asyncio.wait_for(scenario(processes, victim, point), SCENARIO_S))
        assert_nothing_wrong(processes)
    finally:
        processes.close()
