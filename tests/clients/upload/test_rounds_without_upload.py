"""Rounds in which a client sends nothing: those that come after the last one, and those that it is too slow for.

Failure means: an upload of mode `proved` that no committed round can follow. Or an update that comes too late is
counted, or sent all the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import structlog
from numpy.typing import NDArray

from precad.clients.errors import ProtocolError
from precad.clients.upload import proved
from precad.clients.upload import session as session_module
from precad.clients.upload.model_cache import ModelCache
from precad.clients.upload.session import ClientSession
from precad.clients.upload_limit import UploadLimit
from precad.mpc.proved.submission import seeded_of
from precad.mpc.ring import RingArray
from precad.protos.precad.v1 import aggregator_pb2
from tests.clients.upload.test_repeated_invitations import DIGEST, Inviting, pki, serving
from tests.harness.harness import Pki, asynchronous, small_task, until

__all__ = ["pki"]

SEED = bytes(range(16))
LIMIT_S = 0.05


def invitations(n_committed: int, *, evaluation: bool, dim: int) -> list[aggregator_pb2.Invitation]:
    """Return those of A and B to one round of mode `proved`, slot 0."""
    told = {"task": "small-1", "round": 9, "dim": dim, "model_digest": DIGEST, "n_committed": n_committed}
    return [
        aggregator_pb2.Invitation(**told, evaluation=evaluation, mask_seed=SEED if seeded_of(0) == party else b"")
        for party in (0, 1)
    ]


def test_no_upload_is_made_with_a_proof_once_all_rounds_are_committed() -> None:
    """The evaluation of the last model comes after all of them, and is agreed on."""
    task = small_task(mode="proved", evaluation="clients", evaluation_every=1, evaluation_noise=5.0)
    one = task.evaluation_round
    assert one is not None
    for n in (task.rounds, task.rounds + 1, 2**64 - 1):
        with pytest.raises(ProtocolError, match=f"n_committed: expected fewer than 2, the servers say {n}$"):
            proved.agree(*invitations(n, evaluation=False, dim=task.dim), task)
    last, _ = proved.agree(*invitations(task.rounds - 1, evaluation=False, dim=task.dim), task)
    evaluation, _ = proved.agree(*invitations(task.rounds, evaluation=True, dim=one.dim), one)
    assert (last.n_committed, evaluation.n_committed) == (1, 2)


@asynchronous
async def test_an_update_that_is_made_too_late_is_neither_sent_nor_counted(pki: Pki) -> None:
    """The servers take no more of the round; the client may upload for its model in the next one."""
    task = small_task(["alice", "bob"], dim=1, submit_timeout_s=LIMIT_S)
    limit, cache = UploadLimit("alice", task.digest(), most=1), ModelCache()
    trained = list[NDArray[np.float32]]()

    async def model() -> NDArray[np.float32]:
        return np.zeros(1, dtype=np.float32)

    def train(parameters: NDArray[np.float32]) -> RingArray:
        trained.append(parameters)
        time.sleep(2 * LIMIT_S)
        return np.zeros(1, dtype=np.int64)

    await cache.get(DIGEST, model)  # as another client of the process did
    servers = Inviting([{}], "masked"), Inviting([{}], "masked")
    with structlog.testing.capture_logs() as lines:
        async with serving(pki, servers) as addresses:
            session = asyncio.create_task(
                ClientSession(
                    client="alice",
                    task=task,
                    addresses=addresses,
                    tls=pki.tls("alice"),
                    train=train,
                    cache=cache,
                    limit=limit,
                ).run()
            )
            answers = {"client.submitted", "client.skipped", "client.refused"}
            await until(lambda: session.done() or any(line["event"] in answers for line in lines))
            for server in servers:
                server.is_over.set()
            await session
    skipped = [line["reason"] for line in lines if line["event"] == "client.skipped"]
    assert (len(trained), servers[0].uploads) == (1, [])
    assert skipped == ["update: expected it while uploads are taken, found it done later"]
    limit.require_room(DIGEST, 0)


class ReadsNothing(Inviting):
    """Admits the upload of its first round, and takes no part of it."""

    async def Submit(self, parts: AsyncIterator[Any], context: Any) -> aggregator_pb2.SubmitReply:
        if not self.uploads:
            self.uploads.append(-1)
            await self.is_over.wait()
        return await super().Submit(parts, context)


@pytest.mark.parametrize("deviating", [0, 1])
@asynchronous
async def test_a_server_that_reads_nothing_costs_one_round(
    pki: Pki, deviating: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a mode with a dealer, where nobody but the servers' own clocks bounded the call."""
    monkeypatch.setattr(session_module, "LATE_S", LIMIT_S)
    task = small_task(["alice", "bob"], dim=1, rounds=20, mode="shares", submit_timeout_s=5.0)
    servers = [Inviting([{}, {}], "shares"), Inviting([{}, {}], "shares")]
    servers[deviating] = ReadsNothing([{}, {}], "shares")
    with structlog.testing.capture_logs() as lines:
        async with serving(pki, servers) as addresses:
            session = asyncio.create_task(
                ClientSession(
                    client="alice",
                    task=task,
                    addresses=addresses,
                    tls=pki.tls("alice"),
                    train=lambda model: np.zeros(1, dtype=np.int64),
                ).run()
            )
            await until(lambda: session.done() or any(line["event"] == "client.submitted" for line in lines))
            for server in servers:
                server.is_over.set()
            await session
    found = [(line["event"], line["round"]) for line in lines if line["event"] in ("client.silent", "client.submitted")]
    assert found == [("client.silent", 0), ("client.submitted", 1)]
