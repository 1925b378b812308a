"""One server that deviates towards clients alone: it says that all is over, or keeps them waiting for a model.

Failure means a client that ends as if its task were done. It also means one that keeps its share seed, or trains and
uploads, for a round that is long over.
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
from precad.protos.precad.v1 import aggregator_pb2, common_pb2
from tests.harness.harness import asynchronous, free_addresses
from tests.harness.pki import Pki
from tests.integration.deviating_proved import Deviant, Plan
from tests.integration.test_deviating_proved import FEW_BITS, Beside, at_work, attacked, fields_of, session_of
from tests.integration.test_proved_rounds import proved_task

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
