"""A server is killed at each transition that it writes down, started again, and the task goes on.

Failure means what `tests.faults.deployment` names, or a restart that hangs. How long it takes until the server is in a
round again (or ends, where none is left) is printed, not asserted. That time is without imports and compiling, which
the test's processes share and every other process does once. Those are measured and printed for themselves.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precad.protos.task.task import Task
from precad.protos.tls.identity import Role
from tests.faults.deployment import Processes, assert_nothing_wrong
from tests.faults.server_main import AGGREGATOR_POINTS, POINTS, POINTS_OF_PROVED, PROVED_POINTS
from tests.harness.harness import small_task
from tests.harness.pki import AGGREGATORS

ADAM = {"server_optimizer": "adam", "learning_rate_schedule": "cosine", "decay_rounds": 3}
TASK = small_task(("alice", "bob"), rounds=4, client_rate=0.8, gate="native", **ADAM)
"""Each step depends on the sums of all rounds before, and on how many they are."""
PROVED = small_task(("alice", "bob"), rounds=4, mode="proved", frac_bits=16, **ADAM)
"""Both clients are drawn in each round, so that each server holds one slot and is seeded for the other."""
SCENARIO_S = 120.0
A, B = AGGREGATORS
DEFAULT = {(A, "before-charge"), (A, "after-checkpoint"), (A, "after-commit"), (A, "before-finished")}
DEFAULT_OF_PROVED = {(B, "after-opened")}
"""In the default suite; everything else is slow."""


def cases() -> list[object]:
    """(task, role, point)."""
    return [
        pytest.param(task, role, point, marks=[] if (role, point) in default else pytest.mark.slow)
        for task, points, default in ((TASK, POINTS, DEFAULT), (PROVED, POINTS_OF_PROVED, DEFAULT_OF_PROVED))
        for role in AGGREGATORS
        for point in points
    ]


def named(value: object) -> str | None:
    """The mode, for a test's name."""
    return value.mode if isinstance(value, Task) else None


@pytest.fixture(scope="module")
def durations(pytestconfig: pytest.Config) -> Iterator[dict[str, float]]:
    """Seconds by case; what they come to is printed after the last one."""
    seconds: dict[str, float] = {}
    yield seconds
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    if seconds and capture is not None:
        slowest = max(seconds, key=seconds.__getitem__)
        median = statistics.median(seconds.values())
        text = (
            f"\n{len(seconds)} restarts: in a round again after {median:.2f} s (median), at most "
            f"{seconds[slowest]:.2f} s ({slowest}); imports and compiling of a process of its own: "
            f"{seconds_of_loading():.2f} s"
        )
        with capture.global_and_fixture_disabled():
            print(text)


def seconds_of_loading() -> float:
    """An interpreter that imports and compiles what an aggregator's does, and ends."""
    program = (
        "import precad.servers.aggregator, precad.mpc.kernels.local, precad.mpc.kernels.gate, precad.mpc.kernels.field"
    )
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[2])
    return time.monotonic() - started


async def scenario(processes: Processes, victim: Role, point: str) -> float:
    """Seconds from the restart until the server is in a round, or has ended."""
    for role in processes.addresses:
        processes.start(role, point=point if role is victim else None)
    async with processes.clients():
        assert await processes.wait(victim) == -9, processes.logs()
        n_before, restarted = len(processes.marks(victim)), time.time()
        processes.start(victim)
        await processes.finish()
    reached = [seconds for name, seconds in processes.marks(victim)[n_before:] if name != "started"]
    return min(reached) - restarted


def test_a_learnt_bound_survives_the_death_of_a_server(tmp_path: Path) -> None:
    """A dies when a round is committed at B, and goes on.

    Both clients say that they are as often within the bound as not, while four of five shall be. So lambda rises by 0.2
    (0.8 - 0.5) a round, and with it the step; nobody adds noise.
    """
    learnt = {"algorithm": "user-dp-fedavg", "update_clipping": "private-quantile", "quantile": 0.8}
    processes = Processes(tmp_path, small_task(("alice", "bob"), rounds=3, gate="native", **learnt))
    try:
        asyncio.run(asyncio.wait_for(scenario(processes, AGGREGATORS[0], "after-commit"), SCENARIO_S))
        assert_nothing_wrong(processes)
        model = np.load(tmp_path / AGGREGATORS[1] / "model.npy")
    finally:
        processes.close()
    assert model[-1] == pytest.approx(3 * 0.2 * 0.3, rel=1e-6)
    steps = [math.exp(t * 0.2 * 0.3) for t in range(3)]
    room = math.sqrt(1 - (1 / 2.4) ** 2)  # sigma_b = 1.2, the least
    assert model[0] == pytest.approx(0.3 / 2 * 0.5 / room * sum(steps), rel=1e-4)


@pytest.mark.parametrize("points", [AGGREGATOR_POINTS, PROVED_POINTS], ids=["a dealer's modes", "proved"])
def test_every_point_is_a_function_of_the_program(points: Mapping[str, tuple[Any, str, int]]) -> None:
    """Else its cases, which are slow, would kill nobody."""
    assert [name for name, (owner, function, _) in points.items() if not callable(getattr(owner, function, None))] == []


@pytest.mark.parametrize(("task", "victim", "point"), cases(), ids=named)
def test_killed_at_a_transition_and_started_again(
    tmp_path: Path, task: Task, victim: Role, point: str, durations: dict[str, float]
) -> None:
    """The round in flight is completed with the same content, or given up on both servers and followed by another."""
    processes = Processes(tmp_path, task)
    try:
        seconds = asyncio.run(asyncio.wait_for(scenario(processes, victim, point), SCENARIO_S))
        durations[f"{task.mode} {victim} {point}"] = seconds
        assert_nothing_wrong(processes)
        assert not any("over_alone" in processes.log(role) for role in AGGREGATORS)  # they part together
    finally:
        processes.close()
