"""Whom servers tell the challenge of mode `proved`, whose proof they await, and whom they charge.

Failure means: a client that is gone by then holds a round up for the whole of proof_timeout_s. Or a silent one does
for longer than its phase has. Or one whose upload is not locked hears a challenge that it cannot answer.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from precad.clients.training.conduct import Honest
from precad.clients.upload.proved import RoundUpload, agree
from precad.dp.ledgers.ledger import verified_charges
from precad.protos.precad.v1 import aggregator_pb2
from precad.servers.errors import SubmissionRefusedError
from precad.servers.store import audit_log
from precad.servers.store.folder import ledger_path, store_path
from tests.harness.harness import AGGREGATORS, ServerInProcess, asynchronous, small_task
from tests.servers.rounds.test_order_of_steps import prove, send
from tests.servers.rounds.test_round import both_servers

CLIENTS = ("alice", "bob", "carol")
TASK = small_task(CLIENTS, rounds=1, mode="proved", frac_bits=3, proof_timeout_s=60.0)
SOON_S = 20.0

Servers = tuple[ServerInProcess, ServerInProcess]
Queues = list["asyncio.Queue[aggregator_pb2.ClientEvent]"]


async def invited(client: str, servers: Servers, queues: Queues) -> RoundUpload:
    """Return what a client would upload to the next round."""
    queues.extend(server.sessions.enter(client) for server in servers)
    of_a, of_b = [(await queue.get()).invitation for queue in queues]
    vector = np.ones(TASK.dim, dtype=np.int64)
    return RoundUpload(vector, *agree(of_a, of_b, TASK), task=TASK, client=client, conduct=Honest())


async def upload_and_leave(client: str, servers: Servers) -> None:
    """Hang up at both servers once the upload is taken, before anything is locked."""
    upload = await invited(client, servers, [])
    await send(servers[upload.holder].intake, client, [part async for part in upload.parts()])
    for server in servers:
        server.sessions.leave(client)
        server.intake.hung_up(client)


async def upload_nonsense(client: str, servers: Servers, queues: Queues) -> None:
    """Stay connected after an upload that is refused."""
    upload = await invited(client, servers, queues)
    parts = [part async for part in upload.parts()]
    parts[0].salt = bytes(32)
    with pytest.raises(SubmissionRefusedError, match="wrong_digest"):
        await send(servers[upload.holder].intake, client, parts)


@asynchronous
async def test_who_is_gone_or_not_locked_hears_no_challenge_and_is_not_awaited(tmp_path: Path) -> None:
    """All three are charged: who sent nothing that counts was drawn all the same. The check is about two of them."""
    queues: Queues = []
    async with both_servers(TASK, tmp_path) as servers:
        for server in servers:
            server.link.begin(0, n_phases=2)
        clients = [
            asyncio.create_task(prove("alice", servers)),
            asyncio.create_task(upload_and_leave("bob", servers)),
            asyncio.create_task(upload_nonsense("carol", servers, queues)),
        ]
        await asyncio.sleep(0)  # they are connected
        async with asyncio.timeout(SOON_S):
            records = await asyncio.gather(*(server.runner.run_round(0) for server in servers))
            await asyncio.gather(*clients)
    assert [(record.accepted, record.missing) for record in records] == [(("alice",), ("bob", "carol"))] * 2
    assert [queue.qsize() for queue in queues] == [0, 0]
    for role in AGGREGATORS:
        assert verified_charges(ledger_path(tmp_path / role)) == {0: list(CLIENTS)}
        checked = [entry for entry in audit_log.read(store_path(tmp_path / role)) if entry.kind == "checking"]
        assert [sorted(entry.fields["active"]) for entry in checked] == [["alice", "bob"]]


@pytest.mark.parametrize("phase", ["submit", "proof"])
@asynchronous
async def test_who_is_silent_holds_a_round_up_for_the_time_of_that_phase(phase: str, tmp_path: Path) -> None:
    """And was told that time. Rounds before this one were lost: none is committed, whatever the round's number."""
    times = {"submit_timeout_s": 60.0, "proof_timeout_s": 60.0, f"{phase}_timeout_s": 0.5}
    task = small_task(CLIENTS, rounds=1, mode="proved", frac_bits=3, **times)

    async def take_part(servers: Servers) -> None:
        queues = [server.sessions.enter("alice") for server in servers]
        of_a, of_b = [(await queue.get()).invitation for queue in queues]
        assert (of_a.round, of_a.n_committed, of_a.deadline_s) == (7, 0, task.submit_timeout_s)
        if phase == "proof":
            vector = np.ones(task.dim, dtype=np.int64)
            upload = RoundUpload(vector, *agree(of_a, of_b, task), task=task, client="alice", conduct=Honest())
            await send(servers[upload.holder].intake, "alice", [part async for part in upload.parts()])
            assert (await queues[0].get()).challenge.deadline_s == task.proof_timeout_s

    async with both_servers(task, tmp_path) as servers:
        for server in servers:
            server.link.begin(7, n_phases=2)
        client = asyncio.create_task(take_part(servers))
        await asyncio.sleep(0)  # it is connected
        async with asyncio.timeout(SOON_S):
            records = await asyncio.gather(*(server.runner.run_round(7) for server in servers))
            await client
    assert [(record.accepted, record.rejected) for record in records] == [((), ())] * 2
