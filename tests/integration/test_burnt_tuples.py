"""Server A's process is killed around the use of its tuples, and everything is started again.

Failure means a mask seed that reaches a client twice, or one that reaches it and is not in the ledger. It also means a
task that does not go on, or a round that its tuples were not burnt for.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest

from precad.clients.submission import agree
from precad.mpc.tuples.burning import TupleUse
from precad.protos.task.task import Task
from precad.protos.tls.identity import Role
from precad.servers.store.folder import open_tuple_ledger
from tests.harness import killed_server, server_main
from tests.harness.forked import exit_codes, servers
from tests.harness.harness import AGGREGATORS, LeashedClient, Pki, asynchronous, free_addresses, small_task

CLIENTS = ("alice", "bob")
TASK = small_task(CLIENTS, rounds=1)
POINTS = ["before-mask", "after-mask", "first-upload", "after-check"]


def deployment_of(task: Task, pki: Pki, addresses: dict[str, str]) -> Any:
    """Return what a leashed client needs to know of a deployment that it does not run."""
    return SimpleNamespace(task=task, pki=pki, addresses=tuple(addresses[role] for role in AGGREGATORS))


async def seeds_of_a_round(folder: Path, pki: Pki, addresses: dict[str, str]) -> list[tuple[str, int, str, bytes]]:
    """(task, server, client, seed) of whatever the two clients are told; they upload once they know both halves."""
    deployment = deployment_of(TASK, pki, addresses)
    seeds = []

    async def take_part(client: LeashedClient) -> None:
        await client.join()
        with suppress(grpc.aio.AioRpcError):
            events = []
            for server, stream in enumerate(client.streams):
                events.append((await stream.read()).invitation)
                if events[-1].mask_seed:
                    seeds.append((events[-1].task, server, client.client, events[-1].mask_seed))
            if all(event.mask_seed for event in events):
                from_a, from_b = events
                invitation = agree(from_a, from_b, TASK)
                await client.submit(client.make(np.ones(TASK.dim, dtype=np.int64), invitation))
                for stream in client.streams:
                    await stream.read()
        await client.leave()

    await asyncio.gather(*(take_part(LeashedClient(name, deployment)) for name in CLIENTS))
    return seeds


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_no_seed_reaches_a_client_twice(point: str, tmp_path: Path) -> None:
    """Continue the task by the same commands, in another round with other seeds; one record holds both."""
    pki, addresses = (
        Pki.create(tmp_path / "pki", CLIENTS),
        dict(zip((*AGGREGATORS, Role.DEALER), free_addresses(3), strict=True)),
    )
    deployment = {"task": TASK.model_dump(), "pki": str(pki.directory), "addresses": addresses}
    (tmp_path / "deployment.json").write_text(json.dumps(deployment))
    np.save(tmp_path / "initial.npy", np.zeros(TASK.dim, dtype=np.float32))
    np.save(tmp_path / "noise.npy", np.zeros((2, 1, TASK.dim), dtype=np.int64))
    seeds: list[tuple[str, int, str, bytes]] = []

    @asynchronous
    async def one_round() -> None:
        seeds.extend(await seeds_of_a_round(tmp_path, pki, addresses))

    with servers(tmp_path, server_main.main, (killed_server.main, point)) as processes:
        one_round()
        assert exit_codes(processes)[Role.AGGREGATOR_A] == -9
    n_first = len(seeds)
    assert any(server == 0 for _, server, _, _ in seeds) == (point in POINTS[2:])

    with servers(tmp_path, server_main.main) as processes:
        one_round()
        assert set(exit_codes(processes).values()) == {0}

    def seeds_of(server: int, client: str) -> list[bytes]:
        return [seed for _, at, name, seed in seeds if (at, name) == (server, client)]

    assert len(seeds) == n_first + 4
    assert len({seed for *_, seed in seeds}) == len(seeds)
    for server, role in enumerate(AGGREGATORS):
        with open_tuple_ledger(tmp_path / role) as ledger:
            for task, _, client, _ in (entry for entry in seeds if entry[1] == server):
                burnt = [(round, name, use) for round, _, name, use in ledger.burnt(task)]
                assert len(burnt) == len(set(burnt))
                assert sum(entry[1:] == (client, TupleUse.MASK) for entry in burnt) >= len(seeds_of(server, client))
