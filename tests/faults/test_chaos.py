"""Servers are killed with SIGKILL at random moments, one or several at once, hundreds of times in one task.

What counts as failure is in `tests.faults.deployment`. The seed of the draws is in a failure's text; the moments that
they hit are the machine's.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from pathlib import Path

import pytest

from protos.identity import Role
from servers import audit_log
from servers.state_dir import store_path
from tests.faults.deployment import Processes, assert_nothing_wrong
from tests.integration.harness import small_task
from tests.integration.pki import AGGREGATORS

N_KILLS = int(os.environ.get("PRECAD_CHAOS_KILLS", "500"))
N_ROUNDS = int(os.environ.get("PRECAD_CHAOS_ROUNDS", "3000"))
VICTIMS: tuple[tuple[tuple[Role, ...], float], ...] = (
    ((AGGREGATORS[0],), 0.35),
    ((AGGREGATORS[1],), 0.35),
    ((Role.DEALER,), 0.1),
    (AGGREGATORS, 0.1),
    ((*AGGREGATORS, Role.DEALER), 0.1),
)
LONGEST_LIFE_S, LONGEST_DEATH_S, LONGEST_WAIT_S = 0.5, 0.5, 20.0


async def chaos(processes: Processes, n_kills: int, draw: random.Random) -> Counter[Role]:
    """Kills until there were enough, or the task is over. How often each role died."""
    kills: Counter[Role] = Counter()
    processes.start(*processes.addresses)
    async with processes.clients():
        while kills.total() < n_kills:
            if draw.random() < 0.5:  # in the middle of rounds; else while the servers may still be on their way up
                await processes.until_next_round(limit_s=LONGEST_WAIT_S)
            await asyncio.sleep(draw.uniform(0.0, LONGEST_LIFE_S))
            if processes.n_committed >= processes.task.rounds - 5:
                break
            (victims,) = draw.choices([roles for roles, _ in VICTIMS], [weight for _, weight in VICTIMS])
            processes.kill(*victims)
            kills.update(victims)
            await asyncio.sleep(draw.uniform(0.0, LONGEST_DEATH_S))
            processes.start(*victims)
        await processes.finish()
    return kills


def run(folder: Path, *, n_rounds: int, n_kills: int, limit_s: float) -> Counter[Role]:
    """A task under fire, and what it left."""
    seed = random.SystemRandom().randrange(2**32)
    processes = Processes(
        folder, small_task(("alice", "bob", "carol"), rounds=n_rounds, client_rate=0.7, gate="native")
    )
    try:
        kills = asyncio.run(asyncio.wait_for(chaos(processes, n_kills, random.Random(seed)), limit_s))
        assert_nothing_wrong(processes)
    except BaseException as error:
        error.add_note(f"seed {seed}\n{processes.logs()}")
        raise
    finally:
        processes.close()
    return kills


def test_a_few_random_kills(tmp_path: Path) -> None:
    """The same program as below, in the default suite."""
    kills = run(tmp_path, n_rounds=60, n_kills=5, limit_s=120.0)
    assert kills.total() >= 3


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_hundreds_of_random_kills(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every invariant is checked from the databases, ledgers and audit logs of both servers."""
    kills = run(tmp_path, n_rounds=N_ROUNDS, n_kills=N_KILLS, limit_s=3500.0)
    log = audit_log.read(store_path(tmp_path / AGGREGATORS[0]))
    with capsys.disabled():
        n_interrupted = sum(entry.kind == "interrupted" for entry in log)
        print(f"\n{kills.total()} kills ({dict(kills)}), {N_ROUNDS} rounds, {n_interrupted} interruptions noted by A")
