"""A client's process that is started again and again while the servers ask for one model: `precad client`, SIGKILL.

Failure means a process that uploads once more than `client.uploads_per_model` in all of its lives. It also means one
that does not say why it stops, with the exit code after which no service manager starts it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from precad.clients.models import networks
from precad.deploy.configuration.sections import load
from precad.deploy.errors import INVALID_INPUT, REFUSED
from precad.protos.messages import convert
from precad.protos.precad.v1 import aggregator_pb2, aggregator_pb2_grpc, common_pb2
from precad.protos.tls.files import TlsFiles
from precad.protos.tls.identity import Role
from precad.protos.tls.transport import bind_server
from tests.harness.harness import asynchronous, free_addresses
from tests.harness.organisations import CLIENTS, ROOT, Organisations
from tests.harness.pki import AGGREGATORS

FEW = 2
"""Uploads for one model, in this client's configuration."""


class HangingUp(aggregator_pb2_grpc.AggregatorServicer):
    """A server that commits nothing: it invites to the next round, and takes no more of an upload than its start."""

    def __init__(self, model: bytes, dim: int, *, gives_seed: bool = True, task_id: str = "digits-1") -> None:
        """gives_seed: in mode `proved` one server alone gives one."""
        self._model, self._dim, self.round = model, dim, 0
        self._seed, self._task_id = bytes(16) if gives_seed else b"", task_id
        self.n_begun = 0
        self.begins = asyncio.Event()

    async def Join(self, request: Any, context: Any) -> AsyncIterator[aggregator_pb2.ClientEvent]:
        yield aggregator_pb2.ClientEvent(welcome=aggregator_pb2.Welcome())
        digest, self.round = convert.sha256(self._model), self.round + 1
        yield aggregator_pb2.ClientEvent(
            invitation=aggregator_pb2.Invitation(
                task=self._task_id,
                round=self.round,
                dim=self._dim,
                model_digest=digest,
                mask_seed=self._seed,
                peer_mask_seed_digest=convert.sha256(bytes(16)),
            )
        )
        await asyncio.Event().wait()

    async def GetModel(self, request: Any, context: Any) -> AsyncIterator[common_pb2.Chunk]:
        yield common_pb2.Chunk(data=self._model)

    async def Submit(self, parts: AsyncIterator[Any], context: Any) -> aggregator_pb2.SubmitReply:
        async for _ in parts:
            self.n_begun += 1
            self.begins.set()
            await asyncio.Event().wait()
        return aggregator_pb2.SubmitReply()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_client_that_is_killed_at_its_first_byte_and_started_again_stops(tmp_path: Path) -> None:
    asyncio.run(asyncio.wait_for(lives(tmp_path), 800.0))


async def lives(tmp_path: Path) -> None:
    organisations = Organisations.create(tmp_path)
    addresses = free_addresses(3)
    organisations.write_configs(
        dict(zip((*AGGREGATORS, Role.DEALER), addresses, strict=True)),
        {"uploads_per_model = 3": f"uploads_per_model = {FEW}"},
    )
    config = organisations.config(Role.CLIENT)
    task = load(config).task
    model = convert.model_to_bytes(networks.initial_vector(task))
    servers = [HangingUp(model, task.dim) for _ in AGGREGATORS]
    async with contextlib.AsyncExitStack() as stack:
        for role, address, servicer in zip(AGGREGATORS, addresses, servers, strict=False):
            folder = organisations.folder(role) / "tls"
            tls = TlsFiles(certificate=folder / "cert.pem", key=folder / "key.pem", authority=folder / "ca.pem")
            server, _ = bind_server(address, tls)
            aggregator_pb2_grpc.add_AggregatorServicer_to_server(servicer, server)
            await server.start()
            stack.push_async_callback(server.stop, None)
        for n in range(1, FEW + 1):
            process = await started(config)
            await servers[0].begins.wait()
            process.kill()
            await process.wait()
            assert servers[0].n_begun == n
            servers[0].begins.clear()
        last = await started(config)
        _, said = await last.communicate()
    assert last.returncode == REFUSED, said.decode()
    why = f"precad: {CLIENTS[0]} stops: expected at most {FEW} uploads for one model (client.uploads_per_model), found"
    assert said.decode().count(f"{why} {FEW} after 0 committed rounds") == 1
    assert servers[0].n_begun == FEW


@asynchronous
async def test_a_client_that_runs_is_not_started_twice(tmp_path: Path) -> None:
    """The second ends, the first goes on, which hosts another too; after a kill of the first there is room."""
    organisations = Organisations.create(tmp_path)
    organisations.write_configs(
        dict(zip((*AGGREGATORS, Role.DEALER), free_addresses(3), strict=True)),
    )
    config = organisations.config(Role.CLIENT)
    first = await started(config, *reversed(CLIENTS[:2]))
    await trains(first)
    second = await started(config)
    _, said = await second.communicate()
    assert (second.returncode, first.returncode) == (INVALID_INPUT, None)
    expected = (
        f"precad: client.state_dir: expected no other process of client {CLIENTS[0]} in this task, found one that"
    )
    assert said.decode().count(expected) == 1
    first.kill()
    await first.wait()
    third = await started(config)
    await trains(third)
    third.kill()
    await third.wait()


async def trains(process: asyncio.subprocess.Process) -> None:
    """Wait until it says what it trains on."""
    assert process.stderr is not None
    while b"client.engine" not in (line := await process.stderr.readline()):
        assert line, "it ended before"


async def started(config: Path, *clients: str) -> asyncio.subprocess.Process:
    ids = [part for client in clients or CLIENTS[:1] for part in ("--id", client)]
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "precad.deploy.cli.main", "client", str(config), *ids),
        cwd=ROOT,
        stderr=asyncio.subprocess.PIPE,
    )
