"""Servers with `require_pqc`: a task runs, and whoever connects without the hybrid group gets nowhere, on each link.

Failure means a call over keys that a recorder could open later, or a lane without the second encryption.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precad.mpc.errors import PeerMismatchError
from precad.mpc.ring import RingArray
from precad.protos.tls.identity import Role
from precad.servers.links.lane import Lane
from precad.servers.links.lane_seal import SealedConnection
from precad.servers.task.meeting import Meeting, meet
from tests.harness.classical import classical_call
from tests.harness.harness import Deployment, LeashedClient, Pki, asynchronous, running, small_task

A, B, DEALER = Role.AGGREGATOR_A, Role.AGGREGATOR_B, Role.DEALER
TASK = small_task()
PERMISSION_DENIED, UNIMPLEMENTED = 7, 12
LINKS = [
    (A, "alice", "/precad.v1.Aggregator/Join"),
    (A, "alice", "/precad.v1.Aggregator/Submit"),
    (B, "alice", "/precad.v1.Aggregator/GetModel"),
    (B, "aggregator-a", "/precad.v1.Peer/Link"),
    (DEALER, "aggregator-a", "/precad.v1.Dealer/Deal"),
    (DEALER, "aggregator-b", "/precad.v1.Dealer/Deal"),
    (A, "operator", "/precad.v1.Control/Watch"),
    (A, "alice", "/grpc.health.v1.Health/Check"),
    (B, "alice", "/precad.v1.Nothing/Nothing"),
]


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki.create(tmp_path_factory.mktemp("pki"), sorted(TASK.clients))


def silence(std: float, dim: int) -> RingArray:
    return np.zeros(dim, dtype=np.int64)


@contextlib.asynccontextmanager
async def open_round(pki: Pki, folder: Path, **required: Any) -> AsyncIterator[tuple[Deployment, list[LeashedClient]]]:
    """A deployment whose clients have joined. required: the settings of all three servers."""
    async with running(TASK, pki, folder, noises=(silence, silence), dealer=required, **required) as deployment:
        clients = [LeashedClient(name, deployment) for name in sorted(TASK.clients)]
        try:
            await asyncio.gather(*(client.join() for client in clients))
            yield deployment, clients
        finally:
            for client in clients:
                await client.leave()


async def play(deployment: Deployment, clients: list[LeashedClient]) -> None:
    """Both rounds, honestly."""
    for _ in range(TASK.rounds):
        invitations = await asyncio.gather(*(client.invitation() for client in clients))
        vector = np.full(TASK.dim, 1000, dtype=np.int64)
        pairs = zip(clients, invitations, strict=True)
        await asyncio.gather(*(client.submit(client.make(vector, invitation)) for client, invitation in pairs))
    words = await asyncio.gather(*(client.goodbye() for client in clients))
    assert {word.reason for word in words} == {"2 rounds done"}
    await deployment.finish()


@asynchronous
async def test_each_link_refuses_a_handshake_without_the_hybrid_group(
    pki: Pki, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strangers' attempts change nothing; our own clients and servers, with gRPC's offer, complete the task.

    Every step of the task goes over a lane that is sealed at both ends.
    """
    meetings: list[Meeting] = []

    async def noted(*args: Any, **settings: Any) -> Meeting:
        meetings.append(await meet(*args, **settings))
        return meetings[-1]

    monkeypatch.setattr("precad.servers.task.run.meet", noted)
    async with open_round(pki, tmp_path, require_pqc=True) as (deployment, clients):
        addresses = dict(zip((A, B, DEALER), (*deployment.addresses, deployment.dealer_address), strict=True))
        for role, caller, method in LINKS:
            code, text = await asyncio.to_thread(classical_call, addresses[role], role, pki.tls(caller), method)
            assert (code, "require_pqc: expected a connection with the group X25519MLKEM768" in text) == (
                PERMISSION_DENIED,
                True,
            ), (method, text)
        old = await asyncio.to_thread(
            classical_call, addresses[A], A, pki.tls("alice"), "/precad.v1.Nothing/Nothing", ssl.TLSVersion.TLSv1_2
        )
        assert old[0] == PERMISSION_DENIED, old
        await play(deployment, clients)
    assert [isinstance(meeting.lane._stream, SealedConnection) for meeting in meetings] == [True, True]


@asynchronous
async def test_without_the_setting_such_a_handshake_is_let_in(
    pki: Pki, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check the attacker above: its call arrives, and no lane is sealed."""

    def refuse(lane: Lane, keys: tuple[bytes, bytes]) -> None:
        pytest.fail("a lane was sealed")

    monkeypatch.setattr(Lane, "seal", refuse)
    async with open_round(pki, tmp_path) as (deployment, clients):
        nothing = "/precad.v1.Nothing/Nothing"
        code, text = await asyncio.to_thread(classical_call, deployment.addresses[0], A, pki.tls("alice"), nothing)
        assert code == UNIMPLEMENTED, text
        await play(deployment, clients)


@pytest.mark.parametrize("strict", [0, 1])
@asynchronous
async def test_the_lane_gets_no_key_where_one_server_requires_none(pki: Pki, tmp_path: Path, strict: int) -> None:
    """Both servers end, and both say why; no round begins."""
    settings = {"own": lambda party: {"require_pqc": party == strict}}
    async with running(TASK, pki, tmp_path, noises=(silence, silence), **settings) as deployment:
        ends = await asyncio.gather(*deployment._runs[1:], return_exceptions=True)
    for party, error in enumerate(ends):
        assert isinstance(error, PeerMismatchError), error
        said = ("false", "true") if party != strict else ("true", "false")
        assert f"require_pqc differs between the servers: ours {said[0]}, peer's {said[1]}" == str(error)
