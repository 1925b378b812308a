"""Mutated messages in mode `proved`: `Submit` and `Prove` while they are open, and the link's relays and closes.

As in `tests.faults.test_fuzzing`, over real gRPC with TLS; callers hold real certificates. The link's messages are
played into the receiving end, since one stream of a peer ends at its first bad message.

Failure means one of these:
- a server that stops answering, a call that hangs, or an error of ours that is not in the table of refusals;
- a slot of somebody else, or a slot's second word, that a message decided;
- an honest round that does not come out as it would have without.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import structlog

from precad.clients.training.conduct import Honest
from precad.clients.upload import proved
from precad.clients.upload.sending import send
from precad.deploy.authority.pki import issue
from precad.mpc.errors import MpcError
from precad.mpc.prg import Label
from precad.mpc.proved.submission import Relay
from precad.mpc.upload_binding import statement
from precad.protos.messages import proved as messages
from precad.protos.messages.undecoded import decoded, stub_of_bytes
from precad.protos.precad.v1 import aggregator_pb2, common_pb2, peer_pb2
from precad.protos.tls.identity import Identity, Role
from precad.protos.tls.transport import dial
from precad.servers.errors import ServerError
from precad.servers.links.peer import PeerLink
from tests.faults.test_fuzzing import Fuzzer, Method, mutations
from tests.harness.harness import AGGREGATORS, Deployment, Pki, asynchronous, running, small_task
from tests.servers.rounds.test_attacks_on_proved_intake import ROUND, Server, bound

LIMIT_S = 60.0
N_MESSAGES = int(os.environ.get("PRECAD_FUZZ_MESSAGES", "1000000"))
CLIENTS = ("alice", "bob", "mallet", "mallory")
"""Mallory spoils her upload, mallet his proof; eve is a client of another task."""
TASK = small_task(CLIENTS, mode="proved", frac_bits=16, rounds=1, submit_timeout_s=3600.0, proof_timeout_s=3600.0)
OPEN_DOORS = {"call_burst": 1_000_000, "calls_per_caller_s": 1e6, "max_calls_per_caller": 1000}


class Leashed:
    """A client that takes each step when the test says so, with the messages of the program's own."""

    def __init__(self, name: str, deployment: Deployment) -> None:
        self.name, tls = name, deployment.pki.tls(name)
        pairs = zip(deployment.addresses, AGGREGATORS, strict=True)
        self._channels = [dial(address, role, tls) for address, role in pairs]
        service = aggregator_pb2.DESCRIPTOR.services_by_name["Aggregator"]
        self.stubs = [stub_of_bytes(channel, service) for channel in self._channels]
        self._streams: list[Any] = []
        self.upload: proved.RoundUpload
        self.proof: proved.Proof | None = None

    async def join(self) -> None:
        hello = common_pb2.Hello(protocol_version=TASK.protocol_version, config_digest=TASK.digest())
        for stub in self.stubs:
            stream = stub.Join(aggregator_pb2.JoinRequest(hello=hello), wait_for_ready=True)
            await stream.read()
            self._streams.append(stream)

    async def _events(self) -> tuple[aggregator_pb2.ClientEvent, aggregator_pb2.ClientEvent]:
        a, b = [decoded(aggregator_pb2.ClientEvent, await stream.read(), Role.CLIENT) for stream in self._streams]
        return a, b

    async def make_upload(self) -> None:
        a, b = await self._events()
        invitation, seed = proved.agree(a.invitation, b.invitation, TASK)
        vector = np.full(TASK.dim, 1000 + CLIENTS.index(self.name), dtype=np.int64)
        self.upload = proved.RoundUpload(vector, invitation, seed, task=TASK, client=self.name, conduct=Honest())

    async def submit(self) -> None:
        holder = self.upload.holder
        await send(self.stubs, holder, "Submit", self.upload.parts, LIMIT_S)

    async def make_proof(self) -> None:
        a, b = await self._events()
        self.upload.hears(0, a.challenge.challenge)
        self.upload.hears(1, b.challenge.challenge)
        self.proof = self.upload.prove()

    async def prove(self) -> None:
        assert self.proof is not None
        holder, parts = self.upload.holder, functools.partial(proved.proof_parts, self.proof)
        await send(self.stubs, holder, "Prove", parts, LIMIT_S)

    async def leave(self) -> None:
        for stream in self._streams:
            stream.cancel()
        for channel in self._channels:
            await channel.close()


@dataclass
class Scene:
    """A round of mode `proved` that is open, and who attacks it."""

    deployment: Deployment
    clients: dict[str, Leashed]
    certificates: Any
    methods: list[Method] = field(default_factory=list)

    def channel(self, role: Role, tls: Any) -> grpc.aio.Channel:
        """To a server, with this certificate (or that of this name)."""
        tls = self.deployment.pki.tls(tls) if isinstance(tls, str) else tls
        return dial(dict(zip(AGGREGATORS, self.deployment.addresses, strict=True))[role], role, tls)

    def snapshot(self, spoilt: str) -> list[Any]:
        """Return what both servers hold of everybody but the one whose own slot is hers to spoil."""
        found = []
        for aggregator in self.deployment.aggregators:
            telemetry = aggregator._telemetry
            intakes = (telemetry.collecting, telemetry.proving)
            for intake in (
                getattr(state, name, None) for state, name in zip(intakes, ("intake", "proofs"), strict=True)
            ):
                if intake is not None:
                    names = (intake.complete, intake._started, intake._expected)
                    found.append([sorted(set(one) - {spoilt}) for one in names])
        return found


@dataclass(frozen=True)
class Second:
    """A certificate of server A's role that is not the pinned one."""

    second_a: Any


@contextlib.asynccontextmanager
async def scene_of(folder: Path) -> AsyncIterator[Scene]:
    """All clients invited, nothing uploaded."""
    pki = Pki.create(folder / "pki", [*CLIENTS, "eve"])

    def silence(std: float, dim: int) -> Any:
        return np.zeros(dim, dtype=np.int64)

    (folder / "second").mkdir()
    for name in ("ca.pem", "ca.key"):
        (folder / "second" / name).write_bytes((pki.directory / name).read_bytes())
    second = Second(issue(folder / "second", Identity(Role.AGGREGATOR_A, Role.AGGREGATOR_A.value)))
    async with running(TASK, pki, folder, noises=(silence, silence), **OPEN_DOORS) as deployment:
        clients = {name: Leashed(name, deployment) for name in CLIENTS}
        try:
            await asyncio.gather(*(client.join() for client in clients.values()))
            for client in clients.values():
                await client.make_upload()
            yield Scene(deployment, clients, second)
        finally:
            for client in clients.values():
                await client.leave()


async def serialized(parts: AsyncIterator[Any]) -> tuple[bytes, ...]:
    return tuple([part.SerializeToString() async for part in parts])


async def fuzz(scene: Scene, methods: list[Method], spoilt: str, n_messages: int) -> Fuzzer:
    """Fuzz these methods; what is held of everybody else is as it was."""
    before = scene.snapshot(spoilt)
    seed = random.SystemRandom().randrange(2**32)
    fuzzer = Fuzzer(scene, seed, methods, AGGREGATORS, ("eve", spoilt, Role.OPERATOR, "second A"))  # type: ignore[arg-type]
    try:
        await fuzzer.run(n_messages)
    finally:
        await fuzzer.close()
    assert scene.snapshot(spoilt) == before, seed
    return fuzzer


async def both_phases(folder: Path, n_messages: int) -> Counter[str]:
    """Fuzz uploads, then proofs, and let the honest clients finish the round. Return the calls by their outcome."""
    async with scene_of(folder) as scene:
        clients = scene.clients
        mallory = await serialized(clients["mallory"].upload.parts())
        join = aggregator_pb2.JoinRequest(hello=common_pb2.Hello(protocol_version=TASK.protocol_version))
        others = [
            Method("Aggregator/Join", AGGREGATORS, (join.SerializeToString(),)),
            Method("Peer/Link", (Role.AGGREGATOR_B,), link_messages(Relay(0, "bob", bytes(32), bytes(32)))),
        ]
        first = await fuzz(
            scene, [Method("Aggregator/Submit", AGGREGATORS, mallory), *others], "mallory", n_messages // 2
        )
        await clients["mallory"].leave()
        provers = [client for name, client in clients.items() if name != "mallory"]
        await asyncio.gather(*(client.submit() for client in provers))
        for client in provers:
            await client.make_proof()
        proof = clients["mallet"].proof
        assert proof is not None
        mallet = await serialized(proved.proof_parts(proof))
        second = await fuzz(
            scene, [Method("Aggregator/Prove", AGGREGATORS, mallet), *others], "mallet", n_messages // 2
        )
        await asyncio.gather(*(clients[name].prove() for name in ("alice", "bob")))
        await clients["mallet"].leave()
        await scene.deployment.finish()
        for party in (0, 1):
            (record,) = scene.deployment.rounds(party)
            assert {"alice", "bob"} <= set(record["accepted"]) <= {"alice", "bob", "mallet"}
            assert record["rejected"] == []
        return first.codes + second.codes


@asynchronous
async def test_a_thousand_mutated_messages_in_mode_proved(tmp_path: Path) -> None:
    """Run the program below with fewer messages, in the default suite."""
    codes = await both_phases(tmp_path, 1_000)
    assert codes["INVALID_ARGUMENT"] > 100
    assert codes["PERMISSION_DENIED"] > 50


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_million_mutated_messages_in_mode_proved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line of log for each call would be most of the work."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    started = time.monotonic()
    try:
        codes = asyncio.run(both_phases(tmp_path, N_MESSAGES))
    finally:
        structlog.reset_defaults()
    with capsys.disabled():
        print(f"\n{N_MESSAGES} messages in {time.monotonic() - started:.0f} s; calls by outcome {dict(codes)}")


# The link


def honest_relay(server: Server, client: str = "bob") -> Relay:
    binding = bound(client, bytes(range(32)))
    said = statement(server.seed, Label(ROUND.task, ROUND.round, "1"), binding.digest())
    return Relay(ROUND.round, client, binding.payload_digest, said)


def link_messages(relay: Relay) -> tuple[bytes, ...]:
    """Valid ones of the kinds that pass after the hello, and a hello."""
    closes = [peer_pb2.Closed(round=relay.round, phase=phase) for phase in (0, 1)]
    made = [
        peer_pb2.PeerMessage(hello=common_pb2.Hello(protocol_version=TASK.protocol_version)),
        peer_pb2.PeerMessage(relay=messages.relay_message(0, relay)),
        peer_pb2.PeerMessage(relay=messages.relay_message(1, relay)),
        peer_pb2.PeerMessage(relays=peer_pb2.Relays(relays=[messages.relay_message(0, relay)] * 2)),
        *(peer_pb2.PeerMessage(closed=closed) for closed in closes),
    ]
    return tuple(message.SerializeToString() for message in made)


async def play(link: PeerLink) -> str:
    """Return the name of the error with which the link ended."""
    try:
        await link._take_in()
    except (MpcError, ServerError) as error:
        return type(error).__name__
    return "goodbye"


async def fuzz_link(folder: Path, n_messages: int) -> Counter[str]:
    """Streams of one to four mutated messages each. A client's slot counts only by the client's own statement."""
    draw, server = random.Random(random.SystemRandom().randrange(2**32)), Server(folder)
    relay = honest_relay(server)
    pool = list(link_messages(relay))
    spoil, ends, sent = mutations(draw, pool), Counter[str](), 0
    while sent < n_messages:
        stream = [next(spoil)(draw.choice(pool)) for _ in range(draw.randrange(1, 5))]
        sent += len(stream)
        left = iter([*stream, None])

        async def receive(left: Any = left) -> peer_pb2.PeerMessage | None:
            data = next(left)
            return None if data is None else decoded(peer_pb2.PeerMessage, data, Role.AGGREGATOR_B)

        link = PeerLink(0, lambda message: asyncio.sleep(0), receive)
        link.begin(ROUND.round, n_phases=2)
        link._open = (ROUND.round, 1)
        said = list[tuple[int, Relay]]()
        link.on_word = lambda phase, word, said=said: said.append((phase, word))
        ends[await play(link)] += 1
        uploads = server.fresh_uploads()
        for phase, word in said:
            if phase == 0:
                uploads.relay(word)
        assert uploads.complete <= {"bob"}
        assert (
            not uploads.complete or next(word for phase, word in said if phase == 0 and word.client == "bob") == relay
        )
    return ends


@asynchronous
async def test_mutated_messages_on_the_link(tmp_path: Path) -> None:
    """Each stream ends with an error of ours, and none changes a slot that the peer does not hold."""
    ends = await fuzz_link(tmp_path, 5_000)
    assert set(ends) <= {"MalformedMessageError", "PeerMismatchError", "PeerUnreachableError", "goodbye"}, ends
    assert min(ends["MalformedMessageError"], ends["PeerMismatchError"], ends["PeerUnreachableError"]) > 10


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_million_mutated_messages_on_the_link(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Likewise."""
    ends = asyncio.run(fuzz_link(tmp_path, N_MESSAGES))
    with capsys.disabled():
        print(f"\n{N_MESSAGES} messages on the link: {dict(ends)}")
    assert set(ends) <= {"MalformedMessageError", "PeerMismatchError", "PeerUnreachableError", "goodbye"}, ends
