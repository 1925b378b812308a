"""A round of mode `proved` that is given up while its clients prove: nothing more is computed of their uploads.

Failure means: a server holds shares and seeds of a lost round for as long as a pass over all uploads takes (rule S4).
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precad.clients.training.conduct import Honest
from precad.clients.upload.proved import RoundUpload, agree
from precad.mpc.proved import check
from precad.mpc.proved.check import ProofCheck
from precad.servers.rounds.states import Proving
from tests.harness.harness import ServerInProcess, asynchronous, small_task, until
from tests.servers.rounds.test_order_of_steps import send
from tests.servers.rounds.test_round import both_servers

CLIENTS = ("alice", "bob")
TASK = small_task(CLIENTS, rounds=1, mode="proved", frac_bits=3)


async def upload(client: str, servers: tuple[ServerInProcess, ServerInProcess]) -> None:
    """Upload in the next round, and prove nothing."""
    queues = [server.sessions.enter(client) for server in servers]
    of_a, of_b = [(await queue.get()).invitation for queue in queues]
    vector = np.ones(TASK.dim, dtype=np.int64)
    made = RoundUpload(vector, *agree(of_a, of_b, TASK), task=TASK, client=client, conduct=Honest())
    await send(servers[made.holder].intake, client, [part async for part in made.parts()])


@asynchronous
async def test_a_round_that_is_given_up_while_clients_prove_is_erased_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pass over all uploads is about to begin at both servers, and ends before its first tile."""
    project, row_sums = ProofCheck.project, check.row_sums
    begun, passes, may_begin = list[ProofCheck](), list[int](), threading.Event()

    def waits(of: ProofCheck, *arguments: Any) -> None:
        begun.append(of)
        assert may_begin.wait(30)
        project(of, *arguments)

    def noted(shares: Any, *arguments: Any) -> Any:
        passes.append(len(shares))
        return row_sums(shares, *arguments)

    monkeypatch.setattr(ProofCheck, "project", waits)
    monkeypatch.setattr(check, "row_sums", noted)
    async with both_servers(TASK, tmp_path) as servers:
        for server in servers:
            server.link.begin(0, n_phases=2)
        clients = [asyncio.create_task(upload(client, servers)) for client in CLIENTS]
        await asyncio.sleep(0)  # they are connected
        rounds = [asyncio.create_task(server.runner.run_round(0)) for server in servers]
        await until(lambda: len(begun) == 2 and all(server.of_kind(Proving) for server in servers))
        await asyncio.gather(*clients)
        for given_up in rounds:
            given_up.cancel()
        await asyncio.gather(*rounds, return_exceptions=True)
        for server in servers:
            server.runner.close()
        may_begin.set()
        for server in servers:
            await server.runner._ground.in_mpc_thread(lambda: None)
    assert passes == []
    assert not any(of._locked or of._rows for of in begun)
