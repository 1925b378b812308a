"""A federated deployment without PRECAD: one server that sees every update, over the same gRPC and mutual TLS.

For `precad bench overhead`. Records, model, gradient engine, certificates, transport and the number of processes are
those of a PRECAD deployment. The second server is missing, with everything that it takes. A client joins, is invited,
downloads the model, trains, and uploads float32. There is one download per process and round, as in
`precad.clients.process`.

    no-privacy   the sum of the sampled records' gradients, clipped by nothing
    local-dp     Algorithm 2's clipped update; each client adds the noise that protects it alone

A process: python -m precad.lab.bench.plain_federation server JOB | clients JOB ID..
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import grpc
import numpy as np
import torch
from numpy.typing import NDArray

from precad.clients.config import ClientConfig
from precad.clients.errors import ProtocolError, ServerUnreachableError
from precad.clients.loading import load_records
from precad.clients.models import networks
from precad.clients.process import Trainer
from precad.clients.training.conduct import Honest
from precad.clients.upload.model_cache import ModelCache
from precad.deploy.authority import pki
from precad.deploy.localhost.processes import Children, isolated_python, watch_lifeline
from precad.dp.noise import rounded_gaussian
from precad.lab.bench import processor_time
from precad.lab.bench.processor_time import ProcessorTime
from precad.lab.bench.server_pair import free_ports, wait_for_all
from precad.mpc.prg import expanded_bytes
from precad.protos.messages import convert
from precad.protos.messages.undecoded import stub_of_bytes
from precad.protos.precad.v1 import aggregator_pb2, aggregator_pb2_grpc, common_pb2
from precad.protos.task.task import Task
from precad.protos.tls.files import TlsFiles
from precad.protos.tls.identity import Identity, Role, require_role
from precad.protos.tls.transport import bind_server, dial
from precad.servers.freed_memory import overwrite_and_keep

NO_PRIVACY, LOCAL_DP = "no-privacy", "local-dp"
NO_CLIP = 1e12
"""A bound that no gradient reaches."""
SERVER = Role.AGGREGATOR_A
_SERVICE = aggregator_pb2.DESCRIPTOR.services_by_name["Aggregator"]
TIMEOUT_S = 1800.0
RETRY_S, CONNECT_TIMEOUT_S = 0.2, 120.0

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """Hold what every process of one setting is told."""

    setting: str
    chosen: Sequence[Sequence[str]]
    """For every round, who is in it."""
    addresses: Sequence[str]
    """One for each server."""
    pki: str
    task: dict[str, Any]
    client: dict[str, Any]
    result: str
    rounds: str
    """A file that gets a line for every round that is over."""

    def write(self, path: Path) -> None:
        """Write the job as JSON."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what `write` wrote."""
        return cls(**json.loads(path.read_text()))

    def tls(self, name: str) -> TlsFiles:
        """Return the files that a process shows and trusts."""
        folder = Path(self.pki)
        return TlsFiles(
            certificate=folder / name / "cert.pem", key=folder / name / "key.pem", authority=folder / "ca.pem"
        )


def measure(
    setting: str,
    task: Task,
    client: dict[str, Any],
    *,
    clients_per_process: int,
    chosen: Sequence[Sequence[str]],
    warm_up: int,
    module: str = "precad.lab.bench.plain_federation",
    servers: Sequence[Role] = (SERVER,),
) -> tuple[list[dict[str, float]], ProcessorTime | None]:
    """Return seconds of each phase, a round for every set of chosen clients, and processor time after the first rounds.

    Phases are `collect` (invitation to last upload) and `update`. module: what runs each process; the first server
    writes the result. Raises ProcessFailedError.
    """
    with tempfile.TemporaryDirectory(prefix=f"precad-{setting}-") as folder:
        root = Path(folder)
        pki.create_authority(root / "pki", name="precad benchmark")
        ids = list(task.clients)
        for identity in (*(Identity(role, role.value) for role in servers), *(Identity(Role.CLIENT, i) for i in ids)):
            pki.issue(root / "pki", identity)
        job, result, rounds = (root / name for name in ("job.json", "result.json", "rounds.txt"))
        Job(
            setting=setting,
            chosen=chosen,
            addresses=[f"127.0.0.1:{port}" for port in free_ports(len(servers))],
            pki=str(root / "pki"),
            task=task.model_dump(mode="json"),
            client={**client, "certificates": str(root / "pki"), "authority": str(root / "pki" / "ca.pem")},
            result=str(result),
            rounds=str(rounds),
        ).write(job)
        children = Children(root)
        names = ["server"] if len(servers) == 1 else [role.value for role in servers]
        watch = processor_time.Watch(
            lambda: processor_time.n_lines(rounds),
            lambda: {child.name: child.process.pid for child in children.all},
            names,
        )
        command = [*isolated_python(), "-m", module]
        try:
            started = [children.start_program(name, *command, name, str(job)) for name in names]
            for start in range(0, len(ids), clients_per_process):
                group = ids[start : start + clients_per_process]
                started.append(children.start_program(f"clients-{start}", *command, "clients", str(job), *group))
            with watch:
                wait_for_all(started, TIMEOUT_S)
        finally:
            children.close()
        return json.loads(result.read_text()), watch.per_round(warm_up=warm_up, rounds=len(chosen))


# -- the server -------------------------------------------------------------------------------------------------------


class PlainServer(aggregator_pb2_grpc.AggregatorServicer):
    """Invites, sums what comes, updates."""

    def __init__(self, job: Job, role: Role = SERVER, address: str | None = None) -> None:
        """role: of its certificate. address: the job's first one, unless it is given."""
        self._job, self._role, self._address = job, role, address or job.addresses[0]
        self._task = Task.model_validate(job.task)
        self._queues: dict[str, asyncio.Queue[aggregator_pb2.ClientEvent]] = {}
        self._changed = asyncio.Event()
        self._model = b""
        self._total: NDArray[np.float64] = np.zeros(self._task.dim)
        self._expected: set[str] = set()

    async def Join(  # noqa: N802
        self, request: aggregator_pb2.JoinRequest, context: Context
    ) -> AsyncIterator[aggregator_pb2.ClientEvent]:
        """Stream invitations until the end."""
        queue = self._queues[require_role(context, Role.CLIENT).name] = asyncio.Queue()
        self._changed.set()
        while True:
            event = await queue.get()
            yield event
            if event.WhichOneof("event") == "goodbye":
                return

    async def GetModel(  # noqa: N802
        self, request: aggregator_pb2.ModelRequest, context: Context
    ) -> AsyncIterator[common_pb2.Chunk]:
        """Yield the model of the round in progress."""
        require_role(context, Role.CLIENT)
        for piece in convert.pieces(self._model):
            yield common_pb2.Chunk(data=piece)

    async def Submit(  # noqa: N802
        self, request_iterator: AsyncIterator[aggregator_pb2.SubmitPart], context: Context
    ) -> aggregator_pb2.SubmitReply:
        """Add one update, float32."""
        client = require_role(context, Role.CLIENT).name
        update, n_received = np.zeros(self._task.dim, dtype="<f4"), 0
        received = update.data.cast("B")
        async for part in request_iterator:
            data = part.chunk.data
            received[n_received : n_received + len(data)] = data
            n_received += len(data)
        self._total += update
        self._expected.discard(client)
        self._changed.set()
        return aggregator_pb2.SubmitReply()

    async def run(self) -> list[dict[str, float]]:
        """Run all rounds, and return the seconds of their phases."""
        server, _ = bind_server(self._address, self._job.tls(self._role.value))
        aggregator_pb2_grpc.add_AggregatorServicer_to_server(self, server)
        await server.start()
        await self._until(lambda: len(self._queues) == len(self._task.clients))
        parameters = networks.initial_vector(self._task)
        measured = []
        for t, chosen in enumerate(self._job.chosen, start=1):
            start = time.perf_counter()
            await self._collect(t, parameters, chosen)
            collected = time.perf_counter()
            step = self._total * (self._task.learning_rate / self._task.divisor)
            parameters = (parameters + step).astype(np.float32)
            measured.append({"collect": collected - start, "update": time.perf_counter() - collected})
            self._note_round()
        for queue in self._queues.values():
            queue.put_nowait(aggregator_pb2.ClientEvent(goodbye=common_pb2.Goodbye(finished=True)))
        await server.stop(5.0)
        return measured

    def _note_round(self) -> None:
        with Path(self._job.rounds).open("a", encoding="ascii") as rounds:
            rounds.write("\n")

    async def _collect(self, t: int, parameters: NDArray[np.float32], chosen: Sequence[str]) -> None:
        self._model, self._total = convert.model_to_bytes(parameters), np.zeros(self._task.dim)
        digest = convert.sha256(self._model)
        self._expected = set(chosen)
        for client in chosen:
            invitation = aggregator_pb2.Invitation(round=t, dim=self._task.dim, model_digest=digest)
            self._queues[client].put_nowait(aggregator_pb2.ClientEvent(invitation=invitation))
        await self._until(lambda: not self._expected)

    async def _until(self, condition: Any) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


# -- a process of clients ---------------------------------------------------------------------------------------------


class PlainClients:
    """Several virtual clients, each with its own certificate and connection."""

    def __init__(self, job: Job, clients: Sequence[str]) -> None:
        torch.set_num_threads(1)
        self._job, self._clients = job, clients
        task = Task.model_validate(job.task)
        config = ClientConfig.model_validate(job.client, context={"base": Path(job.pki)})
        self._is_private = job.setting == LOCAL_DP
        bounds = {"record_clip": NO_CLIP, "client_clip": NO_CLIP} if job.setting == NO_PRIVACY else {}
        self._task = task
        self._trainer = Trainer(
            task=task.model_copy(update=bounds),
            records=load_records(task, config, clients),
            conducts={client: Honest() for client in clients},
            device=config.device,
        )
        self._cache = ModelCache()

    async def run(self) -> None:
        """Run until the server says goodbye. Raises ServerUnreachableError, ProtocolError."""
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(len(self._clients) + 4))
        await asyncio.gather(*(self._run_client(client) for client in self._clients))

    async def _run_client(self, client: str) -> None:
        async with dial(self._job.addresses[0], SERVER, self._job.tls(client)) as channel:
            stub = aggregator_pb2_grpc.AggregatorStub(channel)
            submit = stub_of_bytes(channel, _SERVICE).Submit  # as PRECAD's clients do
            async for event in self._events(stub):
                if event.WhichOneof("event") == "invitation":
                    await self._take_part(stub, submit, client, event.invitation)

    async def _events(self, stub: aggregator_pb2_grpc.AggregatorStub) -> AsyncIterator[aggregator_pb2.ClientEvent]:
        deadline = time.monotonic() + CONNECT_TIMEOUT_S
        while True:
            has_joined = False
            try:
                async for event in stub.Join(aggregator_pb2.JoinRequest()):
                    has_joined = True
                    yield event
            except grpc.aio.AioRpcError as error:
                if has_joined or time.monotonic() > deadline:
                    raise ServerUnreachableError(str(error.details())) from None
                await asyncio.sleep(RETRY_S)
            else:
                return

    async def _take_part(
        self,
        stub: aggregator_pb2_grpc.AggregatorStub,
        submit: Callable[[AsyncIterator[aggregator_pb2.SubmitPart]], Awaitable[bytes]],
        client: str,
        invitation: aggregator_pb2.Invitation,
    ) -> None:
        parameters = await self._cache.get(invitation.model_digest, lambda: self._download(stub, invitation))
        await submit(_parts(await asyncio.to_thread(self._update, client, parameters)))

    def _update(self, client: str, parameters: NDArray[np.float32]) -> bytes:
        update = self._trainer.update(client, parameters)
        if self._is_private:
            noise = rounded_gaussian.sample(self._task.noise_std_on_grid, self._task.dim, expanded_bytes())
            update = update + noise * math.ldexp(1.0, -self._task.frac_bits)
        return update.astype("<f4").tobytes()

    async def _download(
        self, stub: aggregator_pb2_grpc.AggregatorStub, invitation: aggregator_pb2.Invitation
    ) -> NDArray[np.float32]:
        chunks = stub.GetModel(aggregator_pb2.ModelRequest(round=invitation.round))
        data = await convert.collect(chunks, limit=convert.model_bytes(self._task.dim))
        if convert.sha256(data) != invitation.model_digest:
            raise ProtocolError("the downloaded model does not have the digest that the server named")
        return convert.model_from_bytes(data, self._task.dim)


async def _parts(update: bytes) -> AsyncIterator[aggregator_pb2.SubmitPart]:
    for piece in convert.pieces(update):
        yield aggregator_pb2.SubmitPart(chunk=convert.chunk(piece))


def main() -> None:
    """Run one process of the deployment."""
    watch_lifeline()
    what, job, *clients = sys.argv[1:]
    described = Job.read(Path(job))

    async def serve() -> list[dict[str, float]]:  # made inside the loop: gRPC and asyncio's primitives belong to one
        return await PlainServer(described).run()

    async def train() -> None:
        await PlainClients(described, clients).run()

    if what == "server":
        overwrite_and_keep()  # as PRECAD's servers do
        Path(described.result).write_text(json.dumps(asyncio.run(serve())))
    else:
        asyncio.run(train())


if __name__ == "__main__":
    main()
