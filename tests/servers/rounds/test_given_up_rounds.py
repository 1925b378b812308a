"""A round of mode `proved` that is given up while its clients prove: nothing more is computed of their uploads.

Failure means: a server holds shares and seeds of a lost round for as long as a pass over all uploads takes (rule S4).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precad.clients.training.conduct import Honest
from precad.clients.upload.proved import RoundUpload, agree, proof_parts
from precad.mpc.proved import check
from precad.mpc.proved.check import ProofCheck
from precad.protos.precad.v1 import aggregator_pb2
from precad.servers.errors import RefusalReason, SubmissionRefusedError
from precad.servers.rounds.proved_form import ProvedForm
from precad.servers.rounds.receiving import Receiving, Upload
from precad.servers.rounds.states import Proving
from tests.harness.harness import ServerInProcess, asynchronous, small_task, until
from tests.servers.rounds.test_order_of_steps import send
from tests.servers.rounds.test_round import both_servers

CLIENTS = ("alice", "bob")
TASK = small_task(CLIENTS, rounds=1, mode="proved", frac_bits=3)
Part = aggregator_pb2.SubmitPart | aggregator_pb2.ProvePart


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


async def stall(intake: Receiving, client: str, parts: Sequence[Part]) -> None:
    """Send half of an upload or a proof, and nothing more."""
    async with intake.upload(client) as upload:
        upload.begin(parts[0].binding, parts[0].statement, parts[0].salt)
        upload.write(parts[0].chunk.data[:7])
        await asyncio.sleep(3600)


async def stall_in(phase: int, client: str, servers: tuple[ServerInProcess, ServerInProcess]) -> None:
    """Stall in the middle of the upload of the next round, or of its proof."""
    queues = [server.sessions.enter(client) for server in servers]
    of_a, of_b = [(await queue.get()).invitation for queue in queues]
    vector = np.ones(TASK.dim, dtype=np.int64)
    made = RoundUpload(vector, *agree(of_a, of_b, TASK), task=TASK, client=client, conduct=Honest())
    holder = servers[made.holder]
    parts = [part async for part in made.parts()]
    if phase == 0:
        await stall(holder.intake, client, parts)
    await send(holder.intake, client, parts)
    told = [(await queue.get()).challenge.challenge for queue in queues]
    assert [made.hears(0, told[0]), made.hears(1, told[1])] == [False, True]
    proof, proving = made.prove(), holder.of_kind(Proving)[-1]
    assert proof is not None
    assert isinstance(proving, Proving)
    await stall(proving.proofs, client, [part async for part in proof_parts(proof)])


@pytest.mark.parametrize("phase", [0, 1], ids=["uploads", "proofs"])
@asynchronous
async def test_what_is_under_way_when_a_round_is_given_up_is_cut_off(tmp_path: Path, phase: int) -> None:
    """S4: its bytes and its salt are of a round that is over, however long the client goes on."""
    begun = list[Upload]()
    async with both_servers(TASK, tmp_path) as servers:
        for server in servers:
            server.link.begin(0, n_phases=2)
        clients = [asyncio.create_task(stall_in(phase, client, servers)) for client in CLIENTS]
        await asyncio.sleep(0)  # they are connected
        rounds = [asyncio.create_task(server.runner.run_round(0)) for server in servers]

        def under_way() -> list[Upload]:
            forms = [server.runner.form for server in servers]
            intakes = [form._proofs if phase else form._uploads for form in forms if isinstance(form, ProvedForm)]
            return [upload for intake in intakes if intake is not None for upload in intake._receiving]

        await until(lambda: len(under_way()) == 2)
        begun += under_way()
        for given_up in rounds:
            given_up.cancel()
        await asyncio.gather(*rounds, return_exceptions=True)
        for server in servers:
            server.runner.close()
        async with asyncio.timeout(10):
            ends = await asyncio.gather(*clients, return_exceptions=True)
    assert [end.reason for end in ends if isinstance(end, SubmissionRefusedError)] == [RefusalReason.LATE] * 2
    assert [(len(upload.payload or b""), upload.salt) for upload in begun] == [(0, b"")] * 2
