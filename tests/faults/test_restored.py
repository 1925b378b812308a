"""Folders that are lost, or given back as they were earlier: what docs/guides/runbook.md says of each.

Failure means: a task that goes on although a server's past was undone, or that does not where the runbook says it does.
(The one past that nobody can notice, that of all three servers at once, is not played.)
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from precad.deploy.errors import REFUSED
from precad.protos.tls.identity import Role
from tests.faults.deployment import Processes, assert_nothing_wrong
from tests.harness.harness import small_task
from tests.harness.pki import AGGREGATORS

pytestmark = pytest.mark.slow

A, B = AGGREGATORS
TASK = small_task(("alice", "bob"), rounds=4000, gate="native", batches_ahead=0)
"""Longer than any scenario."""
SHORT = small_task(("alice", "bob"), rounds=40, gate="native")
SCENARIO_S = 120.0


class OverError(Exception):
    """The scenario has seen what it wanted to; its clients need not go on."""


async def commits(processes: Processes, n: int) -> None:
    """Returns when so many more rounds are committed."""
    wanted = processes.n_committed + n
    while processes.n_committed < wanted:
        await asyncio.sleep(0.02)


async def is_refused(processes: Processes, *roles: Role) -> None:
    """These servers end, and not in peace."""
    assert {await processes.wait(role) for role in roles} == {REFUSED}, processes.logs()
    raise OverError


async def an_old_folder(processes: Processes) -> None:
    folder, backup = processes.folder / A, processes.folder / "backup"
    processes.kill(A)
    shutil.copytree(folder, backup)
    processes.start(A)
    await commits(processes, 3)
    processes.kill(A)
    shutil.rmtree(folder)
    shutil.copytree(backup, folder)
    processes.start(A)
    await is_refused(processes, A, B)


async def a_lost_folder(processes: Processes) -> None:
    processes.kill(B)
    shutil.rmtree(processes.folder / B)
    processes.start(B)
    await is_refused(processes, A, B)


async def both_old(processes: Processes) -> None:
    processes.kill(A, B)
    for role in AGGREGATORS:
        shutil.copytree(processes.folder / role, processes.folder / f"backup-{role}")
    processes.start(A, B)
    await commits(processes, 3)
    processes.kill(A, B)
    for role in AGGREGATORS:
        shutil.rmtree(processes.folder / role)
        shutil.copytree(processes.folder / f"backup-{role}", processes.folder / role)
    processes.start(A, B)
    ended = [asyncio.create_task(processes.wait(role)) for role in AGGREGATORS]
    await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
    raise OverError


async def played(processes: Processes, scenario: Callable[[Processes], Coroutine[Any, Any, None]]) -> None:
    """After a few rounds."""
    processes.start(*processes.addresses)
    with contextlib.suppress(OverError):
        async with processes.clients():
            await commits(processes, 3)
            await scenario(processes)


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        (an_old_folder, "was a server given back an old state_dir?"),
        (a_lost_folder, "has a server lost its state_dir?"),
        (both_old, "was dealt to this server before"),
    ],
)
def test_a_past_that_was_undone_is_refused(tmp_path: Path, scenario: Any, words: str) -> None:
    """In these words, by whoever ends first; of two servers that meet, by both."""
    processes = Processes(tmp_path, TASK)
    try:
        asyncio.run(asyncio.wait_for(played(processes, scenario), SCENARIO_S))
        logs = {role: (tmp_path / f"{role}.log").read_text() for role in AGGREGATORS}
        expected = 1 if scenario is both_old else 2
        assert sum(words in log for log in logs.values()) >= expected, processes.logs()
    finally:
        processes.close()


async def a_dealer_without_its_folder(processes: Processes) -> None:
    processes.start(*processes.addresses)
    async with processes.clients():
        await commits(processes, 3)
        processes.kill(Role.DEALER)
        shutil.rmtree(processes.folder / Role.DEALER)
        processes.start(Role.DEALER)
        await processes.finish()


def test_a_dealer_starts_again_with_an_empty_folder(tmp_path: Path) -> None:
    """The task goes on to its end, and no tuple has served twice."""
    processes = Processes(tmp_path, SHORT)
    try:
        asyncio.run(asyncio.wait_for(a_dealer_without_its_folder(processes), SCENARIO_S))
        assert_nothing_wrong(processes)
    finally:
        processes.close()
