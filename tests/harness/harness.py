"""Shared parts of the tests of servers and of whole deployments: certificates, a small task, links, leashed clients."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import itertools
import json
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias
from unittest import mock

import grpc
import numpy as np
from numpy.typing import NDArray

from precad.clients.submission import RoundInvitation, Submission, agree, make_submission
from precad.clients.upload.sending import parts_of
from precad.mpc.channel import MemoryChannel
from precad.mpc.gate_names import make_gate
from precad.mpc.local import engines
from precad.mpc.prg import RandomBytes, Seed
from precad.mpc.ring import RingArray
from precad.mpc.tuples.dealt import deal
from precad.mpc.tuples.held import BatchShape, Dealt, ServerTuples
from precad.protos.precad.v1 import aggregator_pb2, aggregator_pb2_grpc, common_pb2, peer_pb2
from precad.protos.task.task import Task
from precad.protos.tls import transport
from precad.protos.tls.files import TlsFiles
from precad.protos.tls.identity import Role
from precad.protos.tls.transport import CHANNEL_OPTIONS, dial
from precad.servers.aggregator import Aggregator
from precad.servers.dealer import Dealer
from precad.servers.links.peer import PeerLink, Send
from precad.servers.rounds.equipment import (
    SYSTEM_RANDOMNESS,
    Compute,
    Links,
    MarginNoiseSource,
    NoiseSource,
    Randomness,
)
from precad.servers.rounds.intake import Intake
from precad.servers.rounds.round import RoundRunner
from precad.servers.rounds.sessions import Sessions
from precad.servers.rounds.states import Collecting, RoundState
from precad.servers.store.state import TaskState
from precad.servers.telemetry.quality import Program
from tests.harness.pki import AGGREGATORS, Pki
from tests.harness.room import roomy

SCENARIO_TIMEOUT_S = 120.0
"""Many times what anything here takes: a scenario that hangs fails here, before the whole run's limit does."""
OTHERS_HANDLERS_END_S = 0.1
"""How long a server of several on one event loop waits for handlers when it ends. It cannot tell its own from those of
the others, which go on. When all end, each waits as long as ever."""


def asynchronous(scenario: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs a test that is a coroutine on an event loop of its own."""

    @functools.wraps(scenario)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(scenario(*args, **kwargs), SCENARIO_TIMEOUT_S))

    return run


async def until(condition: Callable[[], bool]) -> None:
    """Returns when it holds; asks often. A scenario's own time limit ends a wait in vain."""
    while not condition():
        await asyncio.sleep(0.005)


# -- parameters and certificates ---------------------------------------------------------------------------------------


def small_task(clients: Iterable[str] = ("alice", "bob", "mallory"), **changes: Any) -> Task:
    """A task of two rounds in 24 dimensions that everybody is chosen for. clients: ids, or ids with their records."""
    bounds = bool({"layer_clips", "half_spaces"} & changes.keys())
    values: dict[str, Any] = {
        "name": "small",
        "clients": clients if isinstance(clients, Mapping) else {c: 10 + i for i, c in enumerate(clients)},
        "rounds": 2,
        "client_rate": 1.0,
        "record_rate": 0.5,
        "record_clip": 1.0,
        "client_clip": 1.0,
        "noise_multiplier": 1.0,
        "learning_rate": 0.3,
        "dim": 24,
        "submit_timeout_s": 20.0,
        "registration_timeout_s": 60.0,
        "accept_weak_wire_form": changes.get("mode") == "shares" or (bounds and changes.get("mode") != "proved"),
    }
    return Task(**{**values, **changes})


_STRETCH: Final = 2000
_WORKER: Final = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 10
_PORTS: Final = itertools.cycle(
    12_000 + _STRETCH * _WORKER + (os.getpid() + i) % _STRETCH for i in range(_STRETCH)
)  # below those that Linux hands out; no other process of this run has them


def free_addresses(n: int) -> list[str]:
    """Addresses on loopback that nobody listens on now. Servers have to know each other's before any of them is up.

    The kernel gives none of them to a process that asks for any port, which was another test's by chance.
    """
    found: list[str] = []
    while len(found) < n:
        port = next(_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(f"127.0.0.1:{port}")
    return found


def channel_as(
    address: str, role: Role, *, trust: Path, tls: TlsFiles | None = None, plaintext: bool = False
) -> grpc.aio.Channel:
    """A channel with whatever an attacker presents, past the checks of our own code."""
    if plaintext:
        return grpc.aio.insecure_channel(address)
    key, certificate = (None, None) if tls is None else (tls.key.read_bytes(), tls.certificate.read_bytes())
    credentials = grpc.ssl_channel_credentials(trust.read_bytes(), key, certificate)
    options = (*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", role.server_name))
    return grpc.aio.secure_channel(address, credentials, options)


# -- links ------------------------------------------------------------------------------------------------------------


OnMessage: TypeAlias = Callable[[int, peer_pb2.PeerMessage], None]
"""(party that sends it, message)."""


def link_pair(on_message: OnMessage = lambda party, message: None) -> tuple[PeerLink, PeerLink]:
    """Both ends of a link, over a pair of queues in place of the gRPC stream."""
    to_b, to_a = asyncio.Queue[Any](), asyncio.Queue[Any]()
    return (
        PeerLink(0, sender(to_b, functools.partial(on_message, 0)), to_a.get),
        PeerLink(1, sender(to_a, functools.partial(on_message, 1)), to_b.get),
    )


def sender(queue: asyncio.Queue[Any], on_message: Callable[[peer_pb2.PeerMessage], None]) -> Send:
    """Writes to the queue, and lets others run meanwhile, as a write to a gRPC stream does."""

    async def send(message: Any) -> None:
        await asyncio.sleep(0)
        on_message(message)
        queue.put_nowait(message)

    return send


# -- a round without transport -----------------------------------------------------------------------------------------


async def upload_to(intake: Intake, submission: Submission, client: str = "") -> None:
    """As the servicer of that server takes it. client: of the certificate, where it is another's than the binding's."""
    async with intake.upload(client or submission.binding.client) as upload:
        upload.begin(submission.binding, submission.statement, submission.salt_to(intake.party))
        upload.write(submission.payloads[intake.party])


class FixedBytes:
    """A source of randomness that a test fixes, with what was asked of it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.drawn: list[bytes] = []

    def __call__(self, size: int) -> bytes:
        self.drawn.append(hashlib.shake_128(f"{self._name}/{len(self.drawn)}".encode()).digest(size))
        return self.drawn[-1]


class DealerInMemory:
    """The two servers' tuple sources: one batch per round, each part of it taken once."""

    def __init__(self) -> None:
        self._parts: dict[tuple[BatchShape, int], Dealt] = {}

    def source(self, party: int) -> TuplesInMemory:
        """One server's end."""
        return TuplesInMemory(party, self._parts)


class TuplesInMemory:
    """In the place of `precad.servers.links.dealer.TupleSource`."""

    bytes_received = 0

    def __init__(self, party: int, parts: dict[tuple[BatchShape, int], Dealt]) -> None:
        self._party, self.parts = party, parts
        self.may_deal = asyncio.Event()
        self.may_deal.set()

    async def batch(self, shape: BatchShape) -> ServerTuples:
        """See `TupleSource.batch`."""
        if (shape, self._party) not in self.parts:
            self.parts[shape, 0], self.parts[shape, 1] = deal(shape)
        await self.may_deal.wait()
        return ServerTuples(self._party, shape, self.parts.pop((shape, self._party)))


def _one_after_the_other(noise: NDArray[np.int64]) -> NoiseSource:
    noises = iter(noise)
    return lambda std, dim: next(noises)


class ServerInProcess:
    """One `RoundRunner` and what it is handed, with every state that it went through."""

    def __init__(
        self,
        task: Task,
        link: PeerLink,
        lane: MemoryChannel,
        tuples: TuplesInMemory,
        noise: NDArray[np.int64] | NoiseSource,
        folder: Path,
        coin: RandomBytes = SYSTEM_RANDOMNESS.coin,
        margin_noise: MarginNoiseSource = SYSTEM_RANDOMNESS.margin_noise,
    ) -> None:
        self.task, self.link, self.tuples, self.sessions = task, link, tuples, Sessions(task.clients)
        self.state = TaskState.open(contextlib.ExitStack(), folder, task, np.zeros(task.dim, dtype=np.float32))
        self.state.store.begin("in-process", AGGREGATORS[link.party])
        if task.min_separation > 1:  # as a meeting does, by a coin of its own
            self.state.deal_turns(Seed(bytes(16)))
        self.states: list[RoundState] = []
        draw = noise if callable(noise) else _one_after_the_other(noise)
        links = Links(link, lane, tuples, self.sessions)  # type: ignore[arg-type] # tuples have what the runner calls
        randomness = Randomness(coin=coin, noise=draw, margin_noise=margin_noise)
        compute = Compute(make_gate("crypten"), engines.CPU, ThreadPoolExecutor(1), randomness)
        self.runner = RoundRunner(self.state, links, compute, roomy(), self.states.append)

    @property
    def intake(self) -> Intake:
        """Return the intake of the round in progress."""
        return next(state.intake for state in reversed(self.states) if isinstance(state, Collecting))

    def of_kind(self, kind: type) -> list[RoundState]:
        """The states of one kind, in the order of rounds."""
        return [state for state in self.states if isinstance(state, kind)]


# -- a deployment on one event loop ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Deployment:
    """A dealer, where the mode has one, and both aggregators, over real sockets with mutual TLS."""

    task: Task
    pki: Pki
    folder: Path
    aggregators: tuple[Aggregator, Aggregator]
    addresses: tuple[str, str]
    dealer_address: str
    dealers: tuple[Dealer, ...]
    """The one, or none."""
    _runs: list[asyncio.Task[None]]

    async def finish(self) -> None:
        """Waits for the end of the task. Raises what ended a server early."""
        await asyncio.gather(*self._runs)

    def rounds(self, party: int) -> list[dict[str, Any]]:
        """The records that one aggregator wrote."""
        return read_rounds(self.folder / AGGREGATORS[party])

    def state_on_disk(self) -> dict[str, bytes]:
        """Every file that the two aggregators keep."""
        return {
            str(path.relative_to(self.folder)): path.read_bytes()
            for role in AGGREGATORS
            for path in sorted((self.folder / role).rglob("*"))
            if path.is_file()
        }


@contextlib.asynccontextmanager
async def running(
    task: Task,
    pki: Pki,
    folder: Path,
    *,
    noises: tuple[NoiseSource, NoiseSource],
    coins: tuple[RandomBytes, RandomBytes] = (SYSTEM_RANDOMNESS.coin, SYSTEM_RANDOMNESS.coin),
    tuples: RandomBytes = SYSTEM_RANDOMNESS.tuples,
    on_state: Callable[[int, RoundState], None] = lambda party, state: None,
    own: Callable[[int], Mapping[str, Any]] = lambda party: {},
    dealer: Mapping[str, Any] | None = None,
    measuring: Callable[[int], Program | None] = lambda party: None,
    **changes: Any,
) -> AsyncIterator[Deployment]:
    """Starts all three servers and, however the test ends, leaves none behind. changes: of both aggregators'
    configurations; own: of one's; dealer: of the dealer's. `measuring` says how an aggregator measures models."""
    np.save(folder / "initial.npy", np.zeros(task.dim, dtype=np.float32))
    if task.is_proved:
        changes["dealer_certificate"] = None
    a, b, dealer_address = free_addresses(3)
    aggregators = [
        Aggregator(
            party=party,
            task=task,
            config=pki.aggregator(party, listen=(a, b)[party], folder=folder, **changes, **own(party)),
            addresses=(b, None if task.is_proved else dealer_address),
            measuring=measuring(party),
            randomness=Randomness(coin=coins[party], noise=noises[party]),
            on_state=functools.partial(on_state, party),
        )
        for party in (0, 1)
    ]
    dealer_config = pki.dealer(listen=dealer_address, folder=folder, **(dealer or {}))
    dealers = () if task.is_proved else (Dealer(task=task, config=dealer_config, randomness=Randomness(tuples=tuples)),)
    servers = (*dealers, *aggregators)
    runs = [asyncio.create_task(server.run()) for server in servers]
    try:
        with mock.patch.object(transport, "HANDLERS_END_S", OTHERS_HANDLERS_END_S):
            both = (aggregators[0], aggregators[1])
            yield Deployment(task, pki, folder, both, (a, b), dealer_address, dealers, runs)
    finally:
        for run in runs:
            run.cancel()
        await asyncio.gather(*runs, return_exceptions=True)


def read_rounds(state_dir: Path) -> list[dict[str, Any]]:
    """rounds.jsonl, one record per committed round; a list that is empty is not in it."""
    lines = (state_dir / "rounds.jsonl").read_text().splitlines()
    empty: dict[str, Any] = {"round": "0", "chosen": [], "accepted": [], "rejected": [], "missing": []}
    return [{**empty, **json.loads(line)} for line in lines]


class LeashedClient:
    """A client over real sockets that takes each step when the test says so. Between steps it is honest."""

    def __init__(self, client: str, deployment: Deployment) -> None:
        self.client, self.task, self._deployment = client, deployment.task, deployment
        tls = deployment.pki.tls(client)
        self.channels = [dial(a, r, tls) for a, r in zip(deployment.addresses, AGGREGATORS, strict=True)]
        self.stubs = [aggregator_pb2_grpc.AggregatorStub(channel) for channel in self.channels]
        self.streams: list[Any] = []

    async def join(self) -> None:
        """Registers with both servers; tries again until they are up."""
        task = self._deployment.task
        hello = common_pb2.Hello(protocol_version=task.protocol_version, config_digest=task.digest())
        for stub in self.stubs:
            stream = stub.Join(aggregator_pb2.JoinRequest(hello=hello), wait_for_ready=True)
            assert (await stream.read()).WhichOneof("event") == "welcome"
            self.streams.append(stream)

    async def invitation(self) -> RoundInvitation:
        """The next one, from both servers."""
        from_a, from_b = [(await stream.read()).invitation for stream in self.streams]
        return agree(from_a, from_b, self._deployment.task)

    def make(self, encoded: RingArray, invitation: RoundInvitation) -> Submission:
        """A submission of this vector."""
        return make_submission(encoded, invitation, task=self._deployment.task, client=self.client)

    async def rejoin(self) -> None:
        """Hangs up at both servers and comes back once they have noticed, without what it was told before."""
        for stream in self.streams:
            stream.cancel()
        self.streams.clear()
        both = [aggregator._sessions for aggregator in self._deployment.aggregators]
        await until(lambda: not any(self.client in sessions.connected for sessions in both))
        await self.join()

    async def submit(self, submission: Submission) -> None:
        """Uploads as `precad.clients.upload.session` does, where there are two uploads one after the other."""
        for server in submission.servers:
            await self.stubs[server].Submit(parts_of(submission, server))

    async def goodbye(self) -> common_pb2.Goodbye:
        """The servers' last word, equal at both; hangs up."""
        words = [(await stream.read()).goodbye for stream in self.streams]
        assert words[0] == words[1], [word.reason for word in words]
        await self.leave()
        return words[0]

    async def leave(self) -> None:
        """Hangs up."""
        for stream in self.streams:
            stream.cancel()
        for channel in self.channels:
            await channel.close()
