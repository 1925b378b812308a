"""Servers that keep others waiting: one that deviates towards clients alone, and a dealer that deals nothing.

Failure means a client that ends as if its task were done. It also means one that keeps its share seed, or trains and
uploads, for a round that is long over. And it means servers that wait for a dealer beyond `step_timeout_s`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from precad.clients.errors import TaskEndedError
from precad.clients.upload import session
from precad.protos.precad.v1 import aggregator_pb2, common_pb2, dealer_pb2
from precad.servers.dealer import DealerServicer
from tests.harness.harness import LeashedClient, asynchronous, free_addresses, running, small_task, until
from tests.harness.pki import Pki
from tests.integration.deviating_proved import Deviant, Plan
from tests.integration.test_deviating_proved import FEW_BITS, Beside, at_work, attacked, fields_of, session_of
from tests.integration.test_proved_rounds import proved_task
from tests.integration.test_registration import silence, take_part

CLIENTS = ("alice", "bob")


class Liar(Deviant):
    """Tells every client, once it has joined, that the task is finished."""

    async def _join(self, requests: Any, context: Any) -> AsyncIterator[bytes]:
        async for event in super()._join(requests, context):
            yield event
            goodbye = common_pb2.Goodbye(finished=True, reason="5 rounds done")
            yield aggregator_pb2.ClientEvent(goodbye=goodbye).SerializeToString()
            return


class Staller(Deviant):
    """Sends no model before its round is over."""

    async def _get_model(self, requests: Any, context: Any) -> AsyncIterator[bytes]:
        await asyncio.sleep(60.0)
        async for chunk in super()._get_model(requests, context):
            yield chunk


@asynchronous
async def test_one_server_alone_does_not_end_a_task_as_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "GONE_S", 0.5)
    monkeypatch.setattr(session, "FAREWELL_S", 1.0)
    pki, task, addresses = Pki.create(tmp_path / "pki", CLIENTS), proved_task(CLIENTS, **FEW_BITS), free_addresses(2)
    honest = Beside(task, pki, tmp_path, 1, addresses, reconnect_timeout_s=5.0)
    liar = Liar(0, fields_of(task), task.divisor, pki.directory, (addresses[0], addresses[1]))
    sessions = [session_of(name, task, pki, addresses, np.zeros(task.dim, dtype=np.int64)) for name in CLIENTS]
    async with at_work(honest.server.run(), liar.run()):
        found = await asyncio.gather(*(one.run() for one in sessions), return_exceptions=True)
    assert [type(error) for error in found] == [TaskEndedError] * 2
    assert "expected both servers to say that it is finished, not aggregator-a alone" in str(found[0])


@asynchronous
async def test_a_model_that_comes_late_is_trained_on_by_nobody(tmp_path: Path) -> None:
    """Every client is let go when uploads are over, round by round, and uploads nothing."""
    with capture_logs() as said:
        pki = Pki.create(tmp_path / "pki", CLIENTS)
        await attacked(
            pki, tmp_path, [Plan()] * 3, party=0, rounds=3, kind=Staller, submit_timeout_s=1.0, proof_timeout_s=1.0
        )
    skipped = [line for line in said if line["event"] == "client.skipped"]
    assert {line["client"] for line in skipped} == {"alice", "bob"}
    assert {line["reason"] for line in skipped} == {"model: expected all of it while uploads are taken, found less"}
    assert not [line for line in said if line["event"] == "client.submitted"]


@asynchronous
async def test_servers_wait_for_a_dealer_no_longer_than_for_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps its connections and ends no batch after the first. Once it deals again, rounds go on."""
    deals, original = asyncio.Event(), DealerServicer.Deal

    async def deal(self: DealerServicer, requests: Any, context: Any) -> AsyncIterator[dealer_pb2.DealReply]:
        n_batches = 0
        async for reply in original(self, requests, context):
            if reply.HasField("corrections") and reply.corrections.last:
                n_batches += 1
                if n_batches > 1:
                    await deals.wait()
            yield reply

    monkeypatch.setattr(DealerServicer, "Deal", deal)
    pki, task = Pki.create(tmp_path / "pki", CLIENTS), small_task(CLIENTS, rounds=100, min_clients=2, gate="native")
    patient = {"reconnect_timeout_s": 60.0}
    ours = {"noises": (silence, silence), "dealer": patient, "step_timeout_s": 2.0, **patient}
    with capture_logs() as said:
        async with running(task, pki, tmp_path, **ours) as deployment:
            alice, bob = (LeashedClient(client, deployment) for client in CLIENTS)
            await asyncio.gather(alice.join(), bob.join())
            await asyncio.gather(take_part(alice, after=-1), take_part(bob, after=-1))
            async with asyncio.timeout(30.0):
                await until(lambda: [line["event"] for line in said].count("aggregator.interrupted") >= 2)
                deals.set()
                await asyncio.gather(take_part(alice, after=1), take_part(bob, after=1))
            await asyncio.gather(alice.leave(), bob.leave())
    first, *_ = [line["reason"] for line in said if "the dealer: expected the tuples of" in line.get("reason", "")]
    assert first.startswith("the dealer: expected the tuples of round 1 within 2.")  # a slow machine loses more
