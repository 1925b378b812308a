"""A server that refuses an upload keeps nothing of it, whatever the collector of garbage does.

Failure means that a later look into the memory of a holder finds an update's payload, or that refused calls fill it.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from precad.clients.training.conduct import Honest
from precad.clients.upload.proved import RoundUpload, agree
from precad.protos.precad.v1 import aggregator_pb2, aggregator_pb2_grpc, common_pb2
from precad.protos.task.task import Task
from precad.protos.task.task_fields import hello_to
from precad.protos.tls.identity import AGGREGATORS
from precad.protos.tls.transport import dial
from precad.servers.rounds.receiving import Upload
from tests.harness.harness import Deployment, asynchronous, running
from tests.harness.pki import Pki
from tests.integration.test_forgers import silence
from tests.integration.test_proved_rounds import proved_task

CLIENTS = ("alice", "bob")
Event = aggregator_pb2.ClientEvent


@contextmanager
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def kept() -> list[Any]:
    """Return the uploads, and the parts of some, that are still in this process, which is both servers.

    Parts are in frames of ours, or in gRPC's stream of a call's requests.
    """
    uploads, held = list[Any](), list[Any]()
    for one in gc.get_objects():
        if isinstance(one, Upload):
            uploads.append(one)
        elif type(one).__name__ == "frame" and "/servers/" in one.f_code.co_filename:
            held += one.f_locals.values()
        elif type(one).__name__.endswith("async_message_receiver"):
            held += gc.get_referents(one)
    return uploads + [one for one in held if isinstance(one, aggregator_pb2.SubmitPart)]


class Caller:
    """A client's two streams, by hand."""

    def __init__(self, name: str, task: Task, pki: Pki, deployment: Deployment) -> None:
        self.name, self.task = name, task
        self.stubs = [
            aggregator_pb2_grpc.AggregatorStub(dial(address, role, pki.tls(name)))
            for address, role in zip(deployment.addresses, AGGREGATORS, strict=True)
        ]
        request = aggregator_pb2.JoinRequest(hello=hello_to(task))
        self.streams = [stub.Join(request, wait_for_ready=True) for stub in self.stubs]

    async def invited(self) -> RoundUpload:
        """Return an upload to the round that both servers invite to."""
        found = []
        for stream in self.streams:
            while (event := await stream.read()).WhichOneof("event") != "invitation":
                pass
            found.append(event.invitation)
        invitation, seed = agree(found[0], found[1], self.task)
        encoded = np.full(self.task.dim, 3, dtype=np.int64)
        return RoundUpload(encoded, invitation, seed, task=self.task, client=self.name, conduct=Honest())


async def refusal(stub: aggregator_pb2_grpc.AggregatorStub, parts: AsyncIterator[aggregator_pb2.SubmitPart]) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Submit(parts)
    return f"{caught.value.code().name} {caught.value.details()}"


@asynchronous
async def test_nothing_of_a_refused_upload_stays_with_its_holder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An honest one that the lock cuts off, one that names another round, and a message that is too long to be one."""
    caplog.set_level(logging.WARNING)
    pki = Pki.create(tmp_path / "pki", CLIENTS)
    task = proved_task(CLIENTS, rounds=1, submit_timeout_s=6.0, proof_timeout_s=2.0)
    async with running(task, pki, tmp_path, noises=(silence, silence)) as deployment:
        alice, bob = (Caller(name, task, pki, deployment) for name in CLIENTS)
        upload, _ = await asyncio.gather(alice.invited(), bob.invited())
        (first, *_) = [part async for part in upload.parts()]

        async def one(part: aggregator_pb2.SubmitPart) -> AsyncIterator[aggregator_pb2.SubmitPart]:
            yield part

        async def cut_off() -> AsyncIterator[aggregator_pb2.SubmitPart]:
            part = aggregator_pb2.SubmitPart()
            part.CopyFrom(first)
            part.chunk.data = first.chunk.data[:-7]
            yield part
            await asyncio.sleep(60.0)

        elsewhere = aggregator_pb2.SubmitPart()
        elsewhere.CopyFrom(first)
        elsewhere.binding.round += 1
        large = aggregator_pb2.SubmitPart(binding=first.binding, chunk=common_pb2.Chunk(data=bytes(2 << 20)))
        with uncollected():
            holder = alice.stubs[upload.holder]
            assert "wrong_round" in await refusal(holder, one(elsewhere))
            assert "INVALID_ARGUMENT" in await refusal(holder, one(large))
            assert "is locked" in await refusal(holder, cut_off())
            assert kept() == []
    assert [r.getMessage() for r in caplog.records if r.name.startswith("grpc")] == []


@asynchronous
async def test_no_invitation_stays_with_its_server_once_it_has_left(tmp_path: Path) -> None:
    """A client that is no longer active hears nothing more in the round: its share seed would wait for the next one."""
    pki = Pki.create(tmp_path / "pki", CLIENTS)
    task = proved_task(CLIENTS, rounds=1)
    async with running(task, pki, tmp_path, noises=(silence, silence)) as deployment:
        callers = [Caller(name, task, pki, deployment) for name in CLIENTS]
        with uncollected():
            await asyncio.gather(*(caller.invited() for caller in callers))
            await asyncio.sleep(0.1)
            held = [one for holder in gc.get_objects() for one in gc.get_referents(holder) if isinstance(one, Event)]
        assert [event for event in held if event.invitation.mask_seed] == []
