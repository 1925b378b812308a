"""A task whose processes are killed, frozen and thawed at random moments, hundreds of times.

    python -m tests.faults.chaos FOLDER --kills 500 --rounds 1000 --mode proved

Ends with exit code 0 when the task has come to its end with that many kills and nothing of what
`tests.faults.deployment` names is wrong. It then prints one line of JSON. Some disturbances hit right away, while the
servers may still be on their way up, and some in the middle of rounds. A draw decides which, so that kills and rounds
advance together. The seed of the draws is in a failure's text; the moments that they hit are the machine's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from precad.protos.task.task import Task
from precad.protos.tls.identity import Role
from precad.servers.store import audit_log
from precad.servers.store.folder import store_path
from tests.faults.deployment import Processes, assert_nothing_wrong
from tests.harness.harness import small_task
from tests.harness.pki import AGGREGATORS

CLIENT: Final = "a client"
FROZEN: Final = "frozen"
VICTIMS: Final[tuple[tuple[tuple[Role, ...], float], ...]] = (
    ((AGGREGATORS[0],), 0.35),
    ((AGGREGATORS[1],), 0.35),
    ((Role.DEALER,), 0.1),
    (AGGREGATORS, 0.1),
    ((*AGGREGATORS, Role.DEALER), 0.1),
)
LONGEST_LIFE_S, LONGEST_DEATH_S, LONGEST_WAIT_S = 0.5, 0.5, 20.0
SUBMIT_TIMEOUT_S: Final = 1.0
"""Also of proofs."""
TRAINING_S: Final = 0.05
MANY: Final = 1_000_000
"""Lost rounds, and uploads for one model: the deaths shall end nothing here."""
N_LEFT: Final = 5
"""Rounds at the end that nobody disturbs."""
P_CLIENT, P_FREEZE, P_LONG = 0.1, 0.15, 0.05
"""The probabilities that a disturbance is a client's death, that it is a freeze, and that a freeze is a long one."""
SHORT_FREEZE_S, LONG_FREEZE_S = 2 * SUBMIT_TIMEOUT_S, 15.0
"""At most. The longest cross the deadline of a round and of a link (`precad.protos.tls.transport.PING_TIMEOUT_S`)."""


async def chaos(processes: Processes, n_kills: int, draw: random.Random) -> Counter[str]:
    """Kills until there were enough, or the task is almost over. What was done to whom, and how often."""
    done: Counter[str] = Counter()
    rounds = processes.task.rounds
    processes.start(*processes.addresses)
    async with processes.clients():
        while (n := _kills(done)) < n_kills:
            if is_ahead(n, n_kills, processes.n_committed, rounds):
                await processes.until_next_round(limit_s=LONGEST_WAIT_S)
                await asyncio.sleep(draw.uniform(0.0, LONGEST_LIFE_S))
            else:
                await asyncio.sleep(draw.uniform(0.0, LONGEST_DEATH_S))
            if processes.n_committed >= rounds - N_LEFT:
                break
            codes = {role: process.exitcode for role, process in processes.running.items()}
            assert set(codes.values()) == {None}, f"a server ended by itself: {codes}"  # nobody starts it again
            await disturb(processes, draw, done)
        await processes.finish()
    return done


def is_ahead(n_killed: int, n_kills: int, n_committed: int, rounds: int) -> bool:
    """Return whether the next kill waits for a round. All kills are over shortly before the last rounds."""
    return n_killed * max(1, rounds - 2 * N_LEFT) >= n_committed * n_kills


async def disturb(processes: Processes, draw: random.Random, done: Counter[str]) -> None:
    """One death, or a freeze."""
    kind = draw.random()
    there = [(roles, weight) for roles, weight in VICTIMS if processes.addresses.keys() >= set(roles)]
    (victims,) = draw.choices([roles for roles, _ in there], [weight for _, weight in there])
    if kind < P_CLIENT:
        processes.restart_client(draw.choice(sorted(processes.task.clients)))
        done[CLIENT] += 1
    elif kind < P_CLIENT + P_FREEZE:
        seconds = draw.uniform(0.0, LONG_FREEZE_S if draw.random() < P_LONG else SHORT_FREEZE_S)
        processes.signal(signal.SIGSTOP, *victims)
        await asyncio.sleep(seconds)
        processes.signal(signal.SIGCONT, *victims)
        done[FROZEN] += len(victims)
    else:
        processes.kill(*victims)
        done.update(victims)
        await asyncio.sleep(draw.uniform(0.0, LONGEST_DEATH_S))
        processes.start(*victims)


def _kills(done: Counter[str]) -> int:
    return sum(n for what, n in done.items() if what not in {CLIENT, FROZEN})


def task_of(mode: str, n_rounds: int, limit_s: float) -> Task:
    """Return the task that runs under fire."""
    of_mode: dict[str, Any] = {"gate": "native"}
    if mode == "proved":
        of_mode = {"mode": mode, "frac_bits": 16, "proof_timeout_s": SUBMIT_TIMEOUT_S}
    return small_task(
        ("alice", "bob", "carol"),
        rounds=n_rounds,
        lost_rounds=MANY,
        client_rate=0.7,
        submit_timeout_s=SUBMIT_TIMEOUT_S,
        registration_timeout_s=limit_s,
        **of_mode,
    )


def run(
    folder: Path, *, n_rounds: int, n_kills: int, limit_s: float, mode: str = "masked"
) -> dict[str, int | float | str]:
    """A task under fire, and what it left: nothing wrong. What was done."""
    seed, started = random.SystemRandom().randrange(2**32), time.monotonic()
    task = task_of(mode, n_rounds, limit_s)
    processes = Processes(folder, task, training_s=TRAINING_S, uploads_per_model=MANY)
    try:
        done = asyncio.run(asyncio.wait_for(chaos(processes, n_kills, random.Random(seed)), limit_s))
        assert_nothing_wrong(processes)
    except BaseException as error:
        error.add_note(f"seed {seed}\n{processes.logs()}")
        raise
    finally:
        processes.close()
    log = audit_log.read(store_path(folder / AGGREGATORS[0]))
    n_interrupted = sum(entry.kind == "interrupted" for entry in log)
    return {
        **{str(what): n for what, n in sorted(done.items())},
        "mode": mode,
        "kills": _kills(done),
        "rounds": n_rounds,
        "interruptions that A noted": n_interrupted,
        "seconds": round(time.monotonic() - started, 1),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description="A task under fire.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--mode", choices=("masked", "proved"), default="masked")
    parser.add_argument("--limit-s", type=float, default=3500.0)
    asked = parser.parse_args(arguments)
    asked.folder.mkdir(parents=True, exist_ok=True)
    found = run(asked.folder, n_rounds=asked.rounds, n_kills=asked.kills, limit_s=asked.limit_s, mode=asked.mode)
    os.write(1, (json.dumps(found) + "\n").encode())
    assert int(found["kills"]) >= asked.kills, f"the task was over after {found['kills']} kills of {asked.kills}"


if __name__ == "__main__":
    main()
