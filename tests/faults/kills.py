"""A server that is killed at a point of its program and started again: the cases, and what is true of the task."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest

from precad.protos.task.task import Task
from precad.protos.tls.identity import Role
from tests.faults.deployment import Processes, assert_nothing_wrong
from tests.faults.test_restart import SCENARIO_S, scenario
from tests.harness.pki import AGGREGATORS


def kills(points: Sequence[str], default: Collection[tuple[Role, str]]) -> list[object]:
    """Return (victim, point) for both servers; those outside the default suite are slow."""
    return [
        pytest.param(role, point, marks=[] if (role, point) in default else pytest.mark.slow)
        for role in AGGREGATORS
        for point in points
    ]


def require_nothing_wrong_after_a_kill(folder: Path, task: Task, victim: Role, point: str) -> None:
    """Run the task over processes, of which this one dies there and is started again."""
    processes = Processes(folder, task)
    try:
        asyncio.run(asyncio.wait_for(scenario(processes, victim, point), SCENARIO_S))
        assert_nothing_wrong(processes)
    finally:
        processes.close()
