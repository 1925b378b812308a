"""The second implementation of mode `proved` over real sockets: as a client, as server A and as server B.

The other parties are the program's own. Failure means that the two kinds do not come to the same verdicts, sums and
model. Or one of them refuses what the other sends.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precad.clients.training.conduct import Honest
from precad.clients.upload.session import ClientSession
from precad.protos.task.task import Task
from precad.servers.aggregator import Aggregator
from precad.servers.rounds.equipment import Randomness
from precad.servers.rounds.states import Committed, Opened, RoundState, Validated
from tests.harness.harness import AGGREGATORS, asynchronous, free_addresses, running
from tests.harness.pki import Pki
from tests.harness.plain_client import PlainClient
from tests.harness.plain_server import PlainServer
from tests.integration.test_proved_rounds import CLIENTS, HONEST, Forced, proved_task, vector_of

FEW_BITS = {"frac_bits": 3}
"""B = 8, so that a proof has 512 bits: the second implementation multiplies polynomials by definition."""
NOISE = np.random.default_rng(11).integers(-9, 9, (2, 10, 24))
"""By party and round."""


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki.create(tmp_path_factory.mktemp("pki"), CLIENTS)


def fields_of(task: Task) -> dict[str, Any]:
    """Return what the task's text says, which is all that the second implementation knows of a task."""
    fields: dict[str, Any] = json.loads(task.canonical())
    return fields


def noise_of(party: int) -> Iterator[np.ndarray[Any, Any]]:
    return iter(NOISE[party].astype(np.int64))


class Beside:
    """One server of the program's, with its states, beside a plain one."""

    def __init__(self, task: Task, pki: Pki, folder: Path, party: int, addresses: list[str], **changes: Any) -> None:
        np.save(folder / "initial.npy", np.zeros(task.dim, dtype=np.float32))
        drawn = noise_of(party)
        self.states: list[RoundState] = []
        config = pki.aggregator(party, listen=addresses[party], folder=folder, dealer_certificate=None, **changes)
        self.server = Aggregator(
            party=party,
            task=task,
            config=config,
            addresses=(addresses[1], None),
            randomness=Randomness(noise=lambda std, dim: next(drawn)),
            on_state=self.states.append,
        )

    def of_kind(self, kind: type) -> list[Any]:
        return [state for state in self.states if isinstance(state, kind)]


def session(client: str, task: Task, pki: Pki, addresses: list[str]) -> ClientSession:
    """A client of the program's own: honest, or one that proves what is too long."""
    rounds = iter(range(100))
    return ClientSession(
        client=client,
        task=task,
        addresses=(addresses[0], addresses[1]),
        tls=pki.tls(client),
        train=lambda parameters: vector_of(client, task, next(rounds)),
        conduct=Honest() if client in HONEST else Forced(),
        reconnect_timeout_s=20.0,
    )


@contextlib.asynccontextmanager
async def at_work(*works: Any) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Run these until the block is over."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("plain", [0, 1], ids=["plain A", "plain B"])
@asynchronous
async def test_a_plain_server_beside_the_programs(pki: Pki, tmp_path: Path, plain: int) -> None:
    """Two rounds, holders mixed, one client too long: verdicts, sums and models are equal, bit for bit."""
    task = proved_task(("at-bound", "over-bound", "short", "wraps"), **FEW_BITS)
    addresses = free_addresses(2)
    beside = Beside(task, pki, tmp_path, 1 - plain, addresses)
    drawn = noise_of(plain)
    server = PlainServer(
        plain,
        fields_of(task),
        task.divisor,
        pki.directory,
        (addresses[0], addresses[1]),
        noise=lambda t: [int(v) for v in next(drawn)],
    )
    sessions = [session(client, task, pki, addresses).run() for client in task.clients]
    async with at_work(*sessions), at_work(beside.server.run(), server.run()) as runs:
        await asyncio.gather(*runs)
    assert server.goodbye is not None
    assert server.goodbye.finished
    opened, committed = beside.of_kind(Opened), beside.of_kind(Committed)
    assert [state.noisy_sum.tolist() for state in opened] == server.sums
    assert [(t, set(valid)) for t, _, valid in server.rounds] == [
        (state.round, set(state.accepted)) for state in beside.of_kind(Validated)
    ]
    assert [set(valid) for _, _, valid in server.rounds] == [set(HONEST)] * task.rounds
    assert committed[-1].record.model_digest == hashlib.sha256(server.model).digest()
    expected = NOISE[:, : task.rounds].sum(axis=0)
    for t, total in enumerate(server.sums):
        vectors = [vector_of(client, task, t) for client in HONEST]
        assert total == (expected[t] + sum(vectors)).tolist()


@pytest.mark.parametrize(
    "names", [("at-bound",), pytest.param(("at-bound", "over-bound"), marks=pytest.mark.slow)], ids="-".join
)
@asynchronous
async def test_plain_clients_beside_the_programs(pki: Pki, tmp_path: Path, names: tuple[str, ...]) -> None:
    """One who is over the bound is silent, which the round waits for: the sum is that of the others."""
    task = proved_task((*names, "short"), rounds=1, proof_timeout_s=8.0, **FEW_BITS)
    states: tuple[list[RoundState], list[RoundState]] = ([], [])

    def silence(std: float, dim: int) -> Any:
        return np.zeros(dim, dtype=np.int64)

    def on_state(party: int, state: RoundState) -> None:
        states[party].append(state)

    async with running(task, pki, tmp_path, noises=(silence, silence), on_state=on_state) as deployment:
        addresses = list(deployment.addresses)
        plain = [
            PlainClient(
                name,
                fields_of(task),
                pki.directory,
                deployment.addresses,
                lambda t, name=name: [int(v) for v in vector_of(name, task, t)],
            )
            for name in names
        ]
        async with at_work(*(one.run() for one in plain), session("short", task, pki, addresses).run()):
            await deployment.finish()
    for party in (0, 1):
        for t, state in enumerate(one for one in states[party] if isinstance(one, Opened)):
            vectors = [vector_of(client, task, t) for client in ("at-bound", "short")]
            assert state.noisy_sum.tolist() == sum(vectors).tolist()
            assert (sorted(state.accepted), state.rejected) == (["at-bound", "short"], ())
    assert not any(one.refused for one in plain)
    models = [np.load(tmp_path / role / "model.npy") for role in AGGREGATORS]
    assert models[0].tobytes() == models[1].tobytes()
