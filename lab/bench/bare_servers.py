"""Run rounds of mode `proved` whose servers only exchange messages: what `precad bench overhead` compares rounds with.

Clients join both servers, train, share and prove. Each server receives invitations' answers and proofs, and sends
invitations and challenges, over the same gRPC and mutual TLS. Between the servers one frame stands for each step of the
lane, of its length, without TLS. No relay passes the link, no client counts its uploads on disk, and no server checks,
adds up, writes or logs what it has. So a round here is below one of a deployment, but for what runs differ by.

A process: python -m precad.lab.bench.bare_servers aggregator-a|aggregator-b JOB | clients JOB ID..
"""

from __future__ import annotations

import asyncio
import functools
import json
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import grpc
import numpy as np
from google.protobuf.message import Message
from numpy.typing import NDArray

from precad.clients.errors import ServerUnreachableError
from precad.clients.training.conduct import Honest
from precad.clients.upload import proved
from precad.deploy.localhost.processes import watch_lifeline
from precad.lab.bench import plain_federation
from precad.lab.bench.plain_federation import RETRY_S, Context, Job, PlainClients, PlainServer
from precad.lab.bench.processor_time import ProcessorTime
from precad.mpc.joint_coin import COIN_BYTES
from precad.mpc.prg import SEED_BYTES
from precad.mpc.proved.field import ELEMENT_BYTES
from precad.mpc.proved.sizes import N_POINTS
from precad.mpc.proved.submission import DIGEST_BYTES, holder_of, seeded_of
from precad.mpc.sharing import Party
from precad.protos.messages import convert
from precad.protos.messages.undecoded import BytesStub, stub_of_bytes
from precad.protos.precad.v1 import aggregator_pb2, aggregator_pb2_grpc
from precad.protos.task.task import Task
from precad.protos.tls.identity import AGGREGATORS, Role, require_role
from precad.protos.tls.transport import dial
from precad.servers.freed_memory import overwrite_and_keep

BARE_SERVERS: Final = "bare-servers"
_SERVICE: Final = aggregator_pb2.DESCRIPTOR.services_by_name["Aggregator"]
_PARTIES: Final[tuple[Party, Party]] = (0, 1)
_CHALLENGE: Final = bytes(SEED_BYTES)
_STEP: Final = 1e-3
"""A sum's coordinates: so every round has another model, which clients download."""


def measure(
    task: Task, client: dict[str, Any], *, clients_per_process: int, chosen: Sequence[Sequence[str]], warm_up: int
) -> tuple[list[dict[str, float]], ProcessorTime | None]:
    """Return seconds of a round, for every set of chosen clients, and processor time after the first rounds.

    Phases are those of `plain_federation.measure`. task: of mode `proved`. Raises ProcessFailedError.
    """
    return plain_federation.measure(
        BARE_SERVERS,
        task,
        client,
        clients_per_process=clients_per_process,
        chosen=chosen,
        warm_up=warm_up,
        module=__name__,
        servers=AGGREGATORS,
    )


class BareServer(PlainServer):
    """Invites, asks for proofs, and exchanges frames with the other server."""

    def __init__(self, job: Job, party: Party) -> None:
        super().__init__(job, AGGREGATORS[party], job.addresses[party])
        self._party = party
        self._link: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def Submit(  # noqa: N802
        self, request_iterator: AsyncIterator[aggregator_pb2.SubmitPart], context: Context
    ) -> aggregator_pb2.SubmitReply:
        """Receive one upload."""
        await self._receive(request_iterator, context, self._task.dim)
        return aggregator_pb2.SubmitReply()

    async def Prove(  # noqa: N802
        self, request_iterator: AsyncIterator[aggregator_pb2.ProvePart], context: Context
    ) -> aggregator_pb2.ProveReply:
        """Receive one proof."""
        await self._receive(request_iterator, context, self._task.proof_sizes.proof_elements)
        return aggregator_pb2.ProveReply()

    async def _receive(
        self,
        parts: AsyncIterator[aggregator_pb2.SubmitPart] | AsyncIterator[aggregator_pb2.ProvePart],
        context: Context,
        n_elements: int,
    ) -> None:
        client = require_role(context, Role.CLIENT).name
        room, n_received = np.empty(ELEMENT_BYTES * n_elements, dtype=np.uint8).data, 0
        async for part in parts:
            data = part.chunk.data
            room[n_received : n_received + len(data)] = data
            n_received += len(data)
        if n_received == len(room):
            self._expected.discard(client)
            self._changed.set()

    async def meet(self) -> None:
        """Connect both servers: B listens, at a file."""
        file = Path(self._job.result).with_name("link")
        if self._party == 1:
            met: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]]
            met = asyncio.get_running_loop().create_future()
            await asyncio.start_unix_server(lambda *ends: met.set_result(ends), file)
            self._link = await met
            return
        while self._link is None:
            with suppress(OSError):
                self._link = await asyncio.open_unix_connection(file)
            await asyncio.sleep(RETRY_S)

    async def _step(self, n_bytes: int) -> None:
        assert self._link is not None  # `meet` made it
        reader, writer = self._link
        writer.write(bytes(n_bytes))
        await reader.readexactly(n_bytes)

    async def _collect(self, t: int, parameters: NDArray[np.float32], chosen: Sequence[str]) -> None:
        sizes, of_all = self._task.proof_sizes, DIGEST_BYTES * len(chosen)
        self._model, self._total = convert.model_to_bytes(parameters), np.full(self._task.dim, _STEP)
        await self._steps(DIGEST_BYTES, COIN_BYTES)  # the selection's coin
        await self._ask(chosen, functools.partial(self._invitation, t, convert.sha256(self._model)))
        await self._steps(DIGEST_BYTES + of_all, COIN_BYTES)  # the lock, and the challenge's coin
        challenge = aggregator_pb2.ClientEvent(challenge=aggregator_pb2.Challenge(round=t, challenge=_CHALLENGE))
        await self._ask(chosen, lambda slot: challenge)
        of_verifier = N_POINTS * ELEMENT_BYTES * (sizes.n_wires + 3) * len(chosen)
        await self._steps(COIN_BYTES + of_all, of_verifier, DIGEST_BYTES, ELEMENT_BYTES * sizes.dim, DIGEST_BYTES)

    def _note_round(self) -> None:
        if self._party == 0:
            super()._note_round()

    async def _steps(self, *lengths: int) -> None:
        for n_bytes in lengths:
            await self._step(n_bytes)

    async def _ask(self, chosen: Sequence[str], event: Callable[[int], aggregator_pb2.ClientEvent]) -> None:
        """Send each chosen client an event, and wait for what those with a slot of ours send."""
        self._expected = {client for slot, client in enumerate(chosen) if holder_of(slot) == self._party}
        for slot, client in enumerate(chosen):
            self._queues[client].put_nowait(event(slot))
        await self._until(lambda: not self._expected)

    def _invitation(self, t: int, model_digest: bytes, slot: int) -> aggregator_pb2.ClientEvent:
        invitation = aggregator_pb2.Invitation(
            task=BARE_SERVERS,
            round=t,
            dim=self._task.dim,
            model_digest=model_digest,
            mask_seed=bytes(SEED_BYTES) if seeded_of(slot) == self._party else b"",
            slot=slot,
            n_committed=t - 1,
        )
        return aggregator_pb2.ClientEvent(invitation=invitation)


class BareClients(PlainClients):
    """Several virtual clients, each with its own certificate, and a connection to each server."""

    async def _run_client(self, client: str) -> None:
        events: asyncio.Queue[tuple[Party, aggregator_pb2.ClientEvent | None]] = asyncio.Queue()
        channels = [
            dial(address, role, self._job.tls(client))
            for address, role in zip(self._job.addresses, AGGREGATORS, strict=True)
        ]
        try:
            async with asyncio.TaskGroup() as tasks:
                for party, channel in zip(_PARTIES, channels, strict=True):
                    tasks.create_task(self._listen(aggregator_pb2_grpc.AggregatorStub(channel), party, events))
                stubs = [stub_of_bytes(channel, _SERVICE) for channel in channels]
                await self._answer(client, events, stubs, channels[0])
        finally:
            for channel in channels:
                await channel.close()

    async def _listen(
        self,
        stub: aggregator_pb2_grpc.AggregatorStub,
        party: Party,
        events: asyncio.Queue[tuple[Party, aggregator_pb2.ClientEvent | None]],
    ) -> None:
        async for event in self._events(stub):
            events.put_nowait((party, event))
        events.put_nowait((party, None))

    async def _answer(
        self,
        client: str,
        events: asyncio.Queue[tuple[Party, aggregator_pb2.ClientEvent | None]],
        stubs: Sequence[BytesStub],
        of_a: grpc.aio.Channel,
    ) -> None:
        model_of = aggregator_pb2_grpc.AggregatorStub(of_a)
        invitations: dict[Party, aggregator_pb2.Invitation] = {}
        upload: proved.RoundUpload | None = None
        while True:
            party, event = await events.get()
            if event is None or event.WhichOneof("event") == "goodbye":
                return
            if event.WhichOneof("event") == "invitation":
                invitations[party] = event.invitation
                if len(invitations) == len(AGGREGATORS):
                    upload = await self._upload(client, invitations[0], invitations[1], stubs, model_of)
                    invitations = {}
            elif upload is not None and upload.hears(party, event.challenge.challenge):
                proof = await asyncio.to_thread(upload.prove)
                assert proof is not None  # an honest client's row leaves its window with probability 2^-40
                await _sent(stubs[upload.holder].Prove, proved.proof_parts(proof))

    async def _upload(
        self,
        client: str,
        from_a: aggregator_pb2.Invitation,
        from_b: aggregator_pb2.Invitation,
        stubs: Sequence[BytesStub],
        model_of: aggregator_pb2_grpc.AggregatorStub,
    ) -> proved.RoundUpload:
        invitation, seed = proved.agree(from_a, from_b, self._task)
        parameters = await self._cache.get(invitation.model_digest, lambda: self._download(model_of, from_a))

        def made() -> proved.RoundUpload:
            encoded = self._trainer.train(client, parameters)
            return proved.RoundUpload(encoded, invitation, seed, task=self._task, client=client, conduct=Honest())

        upload = await asyncio.to_thread(made)
        preparing = asyncio.create_task(asyncio.to_thread(upload.prepare))
        await _sent(stubs[upload.holder].Submit, upload.parts())
        await preparing
        return upload


async def _sent(call: Any, parts: AsyncIterator[Message]) -> None:
    try:
        await call(parts)
    except grpc.aio.AioRpcError as error:
        raise ServerUnreachableError(str(error.details())) from None


def main() -> None:
    """Run one process of the deployment."""
    watch_lifeline()
    what, path, *clients = sys.argv[1:]
    job = Job.read(Path(path))

    async def serve(party: Party) -> list[dict[str, float]]:
        overwrite_and_keep()
        server = BareServer(job, party)
        await server.meet()
        return await server.run()

    async def train() -> None:
        await BareClients(job, clients).run()

    if what == AGGREGATORS[0]:
        Path(job.result).write_text(json.dumps(asyncio.run(serve(0))))
    elif what == AGGREGATORS[1]:
        asyncio.run(serve(1))
    else:
        asyncio.run(train())


if __name__ == "__main__":
    main()
