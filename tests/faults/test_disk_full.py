"""From a certain write on, the files of one server grow no more; later there is room again.

RLIMIT_FSIZE is the full disk: every write to every file fails, of one process, without a mount.

Failure means another exit code or message than documented, a traceback, or a state that is not continued when there is
room. It also means what `tests.faults.deployment` names. (The file of spooled uploads costs the upload alone:
tests/servers/rounds/test_uploads_on_disk.py.)
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from precad.deploy.errors import INVALID_INPUT, REFUSED
from precad.protos.tls.identity import Role
from tests.faults.deployment import Processes, assert_nothing_wrong
from tests.harness.harness import small_task, until
from tests.harness.pki import AGGREGATORS

A, B = AGGREGATORS
TASK = small_task(("alice", "bob"), rounds=4, client_rate=0.8, gate="native")
SCENARIO_S = 120.0
FILES = {
    "reserve": "task.sqlite: nothing was recorded",
    "burn-mask": "tuples.sqlite: nothing was recorded",
    "burn-check": "tuples.sqlite: nothing was recorded",
    "validated": "task.sqlite: nothing was recorded",
    "charge": "ledger: the charge of round",
    "checkpoint": "checkpoint of round",
    "commit": "task.sqlite: nothing was recorded",
    "record": "record of round",
}
"""The write that meets the full disk, and what the server says as it ends."""
DEFAULT = {(A, "charge")}


def cases() -> list[object]:
    """(role, write)."""
    return [
        pytest.param(role, write, marks=[] if (role, write) in DEFAULT else pytest.mark.slow)
        for role in AGGREGATORS
        for write in FILES
    ]


async def full_and_free_again(processes: Processes, victim: Role, write: str, words: str, *, all_end: bool) -> None:
    """The victim ends as documented; with room again, the task goes on to its end."""
    for role in processes.addresses:
        processes.start(role, point=f"full-{write}" if role is victim else None)
    async with processes.clients():
        ended = processes.addresses if all_end else [victim]
        for role in ended:
            assert await processes.wait(role) == REFUSED, (role, processes.logs())
        await until(lambda: words in processes.log(victim))
        assert "Traceback" not in processes.log(victim)
        processes.start(*ended)
        await processes.finish()


@pytest.mark.parametrize(("victim", "write"), cases())
def test_a_full_disk_ends_the_server_and_costs_nothing_else(tmp_path: Path, victim: Role, write: str) -> None:
    """The other processes wait for it."""
    processes = Processes(tmp_path, TASK)
    try:
        scenario = full_and_free_again(processes, victim, write, FILES[write], all_end=False)
        asyncio.run(asyncio.wait_for(scenario, SCENARIO_S))
        assert_nothing_wrong(processes)
    finally:
        processes.close()


def test_a_dealer_whose_disk_is_full_ends_the_task(tmp_path: Path) -> None:
    """It cannot hand out what it cannot record, and says so to both servers."""
    processes = Processes(tmp_path, TASK)
    try:
        words = "dealt.sqlite: nothing was recorded"
        scenario = full_and_free_again(processes, Role.DEALER, "deal", words, all_end=True)
        asyncio.run(asyncio.wait_for(scenario, SCENARIO_S))
        assert_nothing_wrong(processes)
    finally:
        processes.close()


@pytest.mark.parametrize("role", [A, Role.DEALER])
def test_a_disk_that_is_full_at_the_start_is_said_before_anything_happens(tmp_path: Path, role: Role) -> None:
    """An invalid state_dir, exit code 2."""
    processes = Processes(tmp_path, TASK)
    try:
        processes.start(role, point="full-start")
        code = asyncio.run(asyncio.wait_for(processes.wait(role), SCENARIO_S))
        assert code == INVALID_INPUT, processes.logs()
    finally:
        processes.close()
