"""Calls that a server takes on at once, and what becomes of those that it does not.

Failure means more than a limit allows, a body that is read although its call is refused, or a caller that keeps others
out. It also means a refusal without a hint, or a log that callers can fill.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import random
import resource
import shutil
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
from grpc._cython import cygrpc

from precad.clients.upload.patience import retry_after_s
from precad.deploy.authority.pki import issue, renew, request
from precad.protos.precad.v1 import aggregator_pb2, aggregator_pb2_grpc, common_pb2
from precad.protos.tls.address import split_address
from precad.protos.tls.identity import Identity, Role, fingerprint
from precad.protos.tls.transport import SERVER_OPTIONS, bind_server, dial
from precad.servers.door.admission import MOST_REQUEST_BYTES, Admission, TokenBucket, reserve_descriptors
from precad.servers.door.calls import Context
from precad.servers.door.revocation import Revocations
from precad.servers.errors import Limit
from precad.servers.operations.metrics import expose
from precad.servers.telemetry.events import Telemetry
from precad.servers.telemetry.logs import Throttle
from tests.harness.harness import asynchronous, small_task, until
from tests.harness.pki import Pki

CLIENTS = ("alice", "bob")
A = Role.AGGREGATOR_A
MIB = 1 << 20
RATE = 0.02
"""Calls a second: no stall of a busy machine gives back what a test has used up. A hint is at most its inverse."""


# -- rates -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rate", "burst"), [(20.0, 60), (0.5, 1), (3.0, 2)])
def test_a_bucket_admits_what_its_rate_and_burst_say(rate: float, burst: int) -> None:
    """In no stretch of time more than burst + rate * length calls; whoever waits as long as it is told is let in."""
    draw, now, admitted = random.Random(5), 0.0, []
    bucket = TokenBucket.full(rate, burst, now)
    for _ in range(2000):
        if (wait_s := bucket.take(now)) == 0:
            admitted.append(now)
        elif draw.random() < 0.5:
            now += wait_s + 1e-9
            assert bucket.take(now) == 0
            admitted.append(now)
        now += draw.expovariate(4 * rate)
    for i, start in enumerate(admitted):
        for n, end in enumerate(admitted[i : i + 200], start=1):
            assert n <= burst + rate * (end - start) + 1e-6
    assert len(admitted) > 100


# -- over TLS ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki.create(tmp_path_factory.mktemp("pki"), [*CLIENTS, "eve", "oscar"])


@dataclass
class Served(aggregator_pb2_grpc.AggregatorServicer):
    """A service that does nothing but note what reached it."""

    joined: int = 0
    submitted: list[int] = field(default_factory=list)

    async def Join(
        self, request: aggregator_pb2.JoinRequest, context: Context
    ) -> AsyncIterator[aggregator_pb2.ClientEvent]:
        """Open until the caller hangs up."""
        self.joined += 1
        yield aggregator_pb2.ClientEvent(welcome=aggregator_pb2.Welcome())
        await asyncio.Event().wait()

    async def Submit(
        self, request_iterator: AsyncIterator[aggregator_pb2.SubmitPart], context: Context
    ) -> aggregator_pb2.SubmitReply:
        """Takes all."""
        self.submitted.append(sum([len(part.chunk.data) async for part in request_iterator]))
        return aggregator_pb2.SubmitReply()


@dataclass
class Scene:
    """A server behind admission control."""

    pki: Pki
    address: str
    served: Served
    telemetry: Telemetry
    channels: list[grpc.aio.Channel] = field(default_factory=list)

    def channel(self, who: str) -> grpc.aio.Channel:
        """Return a channel on a connection of its own."""
        self.channels.append(dial(self.address, A, self.pki.tls(who)))
        return self.channels[-1]

    def stub(self, who: str) -> aggregator_pb2_grpc.AggregatorStub:
        """Likewise."""
        return aggregator_pb2_grpc.AggregatorStub(self.channel(who))

    def pushed_back(self) -> dict[str, int]:
        """Return what Prometheus would read, the zeros left out."""
        lines = expose(self.telemetry.registry).decode().splitlines()
        prefix = 'precad_calls_pushed_back_total{limit="'
        found = {
            line[len(prefix) :].split('"')[0]: float(line.split()[-1]) for line in lines if line.startswith(prefix)
        }
        assert set(found) == set(Limit)
        return {limit: int(n) for limit, n in found.items() if n}


@asynccontextmanager
async def serving(pki: Pki, folder: Path, **limits: Any) -> AsyncIterator[Scene]:
    """With A's certificate."""
    config = pki.aggregator(0, listen="127.0.0.1:0", folder=folder, **limits)
    telemetry = Telemetry(A)
    admission = Admission(config, CLIENTS, telemetry, revocations=Revocations(config.revoked))
    server, port = bind_server(config.listen, config.tls, (admission,), max_connections=config.max_connections)
    admission.listens(port)
    served = Served()
    aggregator_pb2_grpc.add_AggregatorServicer_to_server(served, server)
    await server.start()
    scene = Scene(pki, f"127.0.0.1:{port}", served, telemetry)
    try:
        yield scene
    finally:
        for channel in scene.channels:
            await channel.close()
        await server.stop(None)


async def joined(stub: aggregator_pb2_grpc.AggregatorStub) -> Any:
    """An open stream."""
    stream = stub.Join(aggregator_pb2.JoinRequest())
    assert (await stream.read()).WhichOneof("event") == "welcome"
    return stream


async def refused(call: Any) -> grpc.aio.AioRpcError:
    """Why a call ended."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def is_joined(stub: aggregator_pb2_grpc.AggregatorStub) -> bool:
    """Join; tell whether there was room."""
    try:
        return await stub.Join(aggregator_pb2.JoinRequest()).read() is not grpc.aio.EOF
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
            raise
        return False


@asynchronous
async def test_open_calls_of_one_caller_are_bounded_and_nobody_elses(pki: Pki, tmp_path: Path) -> None:
    """However many connections it has. A call that ended makes room."""
    async with serving(pki, tmp_path, max_calls_per_caller=4) as scene:
        open_calls = [await joined(scene.stub("alice")) for _ in range(4)]
        error = await refused(scene.stub("alice").Join(aggregator_pb2.JoinRequest()).read())
        assert (error.code(), retry_after_s(error)) == (grpc.StatusCode.RESOURCE_EXHAUSTED, 1.0)
        assert error.details() == "calls_of_caller: at most 4 open calls of one caller"
        await joined(scene.stub("bob"))
        open_calls[0].cancel()
        stub, n_refused = scene.stub("alice"), 1
        while not await is_joined(stub):  # the server hears of a call's end when it does
            n_refused += 1
            await asyncio.sleep(0.05)
        assert scene.pushed_back() == {Limit.CALLS_OF_CALLER: n_refused}


@asynchronous
async def test_open_calls_of_all_clients_are_bounded_and_servers_still_get_through(pki: Pki, tmp_path: Path) -> None:
    async with serving(pki, tmp_path, max_calls=16, max_calls_per_caller=9) as scene:
        for who in ("alice", "bob"):
            stub = scene.stub(who)
            for _ in range(8):
                await joined(stub)
        error = await refused(scene.stub("eve").Join(aggregator_pb2.JoinRequest()).read())
        assert error.details() == "calls: at most 16 open calls"
        assert retry_after_s(error) == 1.0
        await joined(scene.stub(Role.AGGREGATOR_B))
        assert scene.pushed_back() == {Limit.CALLS: 1}


@asynchronous
async def test_calls_come_at_a_rate_and_the_hint_is_when_there_is_room(pki: Pki, tmp_path: Path) -> None:
    """Clients that are not enrolled share one part; those that are have their own. Servers come as they like."""
    async with serving(pki, tmp_path, calls_per_caller_s=RATE, call_burst=3) as scene:
        stubs = {who: scene.stub(who) for who in ("eve", "oscar", "alice")}
        for who in ("eve", "oscar", "eve"):
            await stubs[who].Submit(iter(()))
        for who in ("eve", "oscar"):
            hint_s = retry_after_s(await refused(stubs[who].Submit(iter(()))))
            assert hint_s is not None
            assert 0 < hint_s <= 1 / RATE
        for _ in range(3):
            await stubs["alice"].Submit(iter(()))
        server = scene.stub(Role.AGGREGATOR_B)
        for _ in range(4):
            await server.Submit(iter(()))
        assert scene.pushed_back() == {Limit.RATE: 2}
        assert scene.served.submitted == [0] * 10


@asynchronous
async def test_a_revoked_certificate_takes_nothing_from_whoever_was_certified_anew(tmp_path: Path) -> None:
    """A thief uses up the strangers' part, and its name's holder comes and goes by a new key."""
    pki, revoked = Pki.create(tmp_path / "pki", [*CLIENTS, "eve"]), tmp_path / "revoked.txt"
    shutil.copytree(pki.tls("alice").certificate.parent, pki.directory / "thief")
    revoked.write_text(fingerprint(pki.tls("thief").certificate.read_bytes()))
    holder = Identity(Role.CLIENT, "alice")
    asked = request(tmp_path / "anew", holder)
    renew(pki.directory, holder, request_path=asked)
    shutil.copy(asked.with_name("key.pem"), pki.tls("alice").key)
    limits = {"calls_per_caller_s": RATE, "call_burst": 3, "max_connections_per_caller": 2}
    async with serving(pki, tmp_path, revoked=revoked, **limits) as scene:
        thieves = [scene.stub("thief") for _ in range(2)]
        for thief in (*thieves, thieves[0]):
            await thief.Submit(iter(()))
        for thief in thieves:
            assert "calls a second" in str((await refused(thief.Submit(iter(())))).details())
        alice = scene.stub("alice")
        for _ in range(3):
            await alice.Submit(iter(()))
        assert "calls a second" in str((await refused(scene.stub("eve").Submit(iter(())))).details())


@asynchronous
async def test_a_certificate_that_has_expired_resumes_no_session(tmp_path: Path) -> None:
    """TLS asks for no certificate then. Whoever resumes takes from the strangers' part: limits hold for it, too.

    A connection that stands goes on.
    """
    pki, lifetime = Pki.create(tmp_path / "pki", []), dt.timedelta(seconds=8)
    born = dt.datetime.now(dt.UTC) - dt.timedelta(days=1)
    tls = issue(pki.directory, Identity(Role.CLIENT, "alice"), days=1, now=born + lifetime)
    read = [path.read_bytes() for path in (tls.authority, tls.key, tls.certificate)]
    cache = cygrpc.SSLSessionCacheLRU(1)
    options = [
        ("grpc.ssl_target_name_override", A.server_name),
        ("grpc.ssl_session_cache", cache),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    limits = {"calls_per_caller_s": RATE, "call_burst": 3, "max_connections_per_caller": 2}
    async with serving(pki, tmp_path, **limits) as scene:

        def channel() -> grpc.aio.Channel:
            scene.channels.append(
                grpc.aio.secure_channel(scene.address, grpc.ssl_channel_credentials(*read), options=options)
            )
            return scene.channels[-1]

        standing = aggregator_pb2_grpc.AggregatorStub(channel())
        await standing.Submit(iter(()))
        await asyncio.sleep((born + lifetime + dt.timedelta(days=1) - dt.datetime.now(dt.UTC)).total_seconds() + 0.1)
        await standing.Submit(iter(()))
        resumed = [aggregator_pb2_grpc.AggregatorStub(channel()) for _ in range(2)]
        for stub in (*resumed, resumed[0]):
            error = await refused(stub.Submit(iter(())))
            assert error.code() is grpc.StatusCode.UNAUTHENTICATED
            assert "the peer's certificate: expected one that is valid now" in str(error.details())
        assert "calls a second" in str((await refused(resumed[1].Submit(iter(())))).details())
        await standing.Submit(iter(()))
        assert scene.pushed_back() == {Limit.RATE: 1}


@asynchronous
async def test_the_body_of_a_call_that_is_refused_is_not_read(pki: Pki, tmp_path: Path) -> None:
    """A client that goes on sending is stopped by flow control, not by memory: of 512 MiB next to nothing leaves."""
    sent = 0

    async def endless() -> AsyncIterator[aggregator_pb2.SubmitPart]:
        nonlocal sent
        for _ in range(512):
            sent += MIB
            yield aggregator_pb2.SubmitPart(chunk=common_pb2.Chunk(data=bytes(MIB)))

    async with serving(pki, tmp_path, calls_per_caller_s=0.001, call_burst=1) as scene:
        stub = scene.stub("alice")
        await stub.Submit(iter(()))
        assert retry_after_s(await refused(stub.Submit(endless()))) is not None
        assert scene.served.submitted == [0]
    assert sent <= 16 * MIB


def connected(scene: Scene) -> ssl.SSLSocket | None:
    """A TLS connection on which the server spoke; None when it hung up."""
    context = ssl.create_default_context(cafile=scene.pki.authority)
    context.load_cert_chain(scene.pki.tls("alice").certificate, scene.pki.tls("alice").key)
    context.set_alpn_protocols(["h2"])
    host, port = split_address(scene.address)
    connection = socket.create_connection((host, port), timeout=10)
    try:
        secured = context.wrap_socket(connection, server_hostname=A.server_name)
        if secured.recv(1):
            return secured
    except OSError:
        pass
    connection.close()
    return None


@asynchronous
async def test_connections_are_bounded(pki: Pki, tmp_path: Path) -> None:
    """Hang up on a connection over the limit, and let one in when another has left."""
    async with serving(pki, tmp_path, max_connections=16) as scene:
        connections = [await asyncio.to_thread(connected, scene) for _ in range(18)]
        assert [connection is not None for connection in connections] == [True] * 16 + [False] * 2
        for connection in connections[:2]:
            assert connection is not None
            connection.close()
        while (late := await asyncio.to_thread(connected, scene)) is None:
            await asyncio.sleep(0.05)
        for connection in (late, *connections[2:16]):
            assert connection is not None
            connection.close()


@pytest.fixture
def _quick_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("precad.servers.door.connections.SWEEP_S", 0.1)


@pytest.mark.usefixtures("_quick_sweeps")
@asynchronous
async def test_connections_of_one_caller_are_bounded_and_nobody_elses(pki: Pki, tmp_path: Path) -> None:
    """Bound a caller's connections once a call says whose they are.

    The ones without a call make room, and the server is what ends them. Where all have one, the newcomer is refused,
    then hung up on.
    """
    limits = {"max_connections": 16, "max_connections_per_caller": 2, "max_calls_per_caller": 8}
    async with serving(pki, tmp_path, **limits) as scene:
        idle = [scene.channel("alice") for _ in range(6)]
        for channel in idle:
            await aggregator_pb2_grpc.AggregatorStub(channel).Submit(iter(()))
        await until(lambda: sum(c.get_state() is grpc.ChannelConnectivity.READY for c in idle) == 2)
        busy = [await joined(scene.stub("alice")) for _ in range(2)]
        await until(lambda: not any(c.get_state() is grpc.ChannelConnectivity.READY for c in idle))
        newcomer = scene.channel("alice")
        stub = aggregator_pb2_grpc.AggregatorStub(newcomer)
        error = await refused(stub.Submit(iter(())))
        assert error.details() == "connections_of_caller: at most 2 connections of one caller"
        assert retry_after_s(error) == 1.0
        await until(lambda: newcomer.get_state() is not grpc.ChannelConnectivity.READY)
        await joined(scene.stub("bob"))
        assert not any(stream.done() for stream in busy)
        assert scene.pushed_back() == {Limit.CONNECTIONS_OF_CALLER: 1}


@pytest.mark.usefixtures("_quick_sweeps")
@pytest.mark.parametrize("method", ["Submit", "Nothing"])
@asynchronous
async def test_one_certificate_cannot_fill_the_connections(pki: Pki, tmp_path: Path, method: str) -> None:
    """Let others in beside 49 connections, where there may be 32.

    Each has a call, also of a method that there is not, or too many for the rate.
    """
    async with serving(pki, tmp_path, max_connections=32, max_connections_per_caller=2, call_burst=5) as scene:
        for _ in range(7):
            for _ in range(7):
                with suppress(grpc.aio.AioRpcError):
                    await scene.channel("alice").stream_unary(f"/precad.v1.Aggregator/{method}")(iter(()))
            await until(lambda: sum(c.get_state() is grpc.ChannelConnectivity.READY for c in scene.channels) <= 3)
        connection = await asyncio.to_thread(connected, scene)
        assert connection is not None
        connection.close()
        await joined(scene.stub("bob"))


@asynchronous
async def test_a_connection_without_a_call_is_hung_up_on(pki: Pki, tmp_path: Path) -> None:
    """By gRPC, between one and two times IDLE_TIME_S; here with a shorter one."""
    shorter = tuple((name, 200 if name == "grpc.max_connection_idle_ms" else value) for name, value in SERVER_OPTIONS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("precad.protos.tls.transport.SERVER_OPTIONS", shorter)
        async with serving(pki, tmp_path) as scene:
            channel = scene.channel("alice")
            await channel.channel_ready()
            await until(lambda: channel.get_state() is not grpc.ChannelConnectivity.READY)


@asynchronous
async def test_what_is_no_message_is_refused_counted_and_leaves_no_traceback(
    pki: Pki, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """gRPC's own logger stays silent; ours has one line that says who and which method, whatever the number."""
    caplog.set_level(logging.DEBUG)
    capture, bodies = structlog.testing.LogCapture(), (b"\xff", b"\x0a\x7f", b"\x0b" * 30, b"")
    structlog.configure(processors=[Throttle(), capture])
    try:
        async with serving(pki, tmp_path) as scene:
            channel = scene.channel("alice")
            join = channel.unary_stream("/precad.v1.Aggregator/Join")
            for body in bodies[:3] * 4:
                assert (await refused(join(body).read())).code() is grpc.StatusCode.INVALID_ARGUMENT
            silent = channel.stream_stream("/precad.v1.Aggregator/Join")()
            await silent.done_writing()
            assert (await refused(silent.read())).details() == "this call has one request, and none came"
            assert scene.served.joined == 0
            text = expose(scene.telemetry.registry).decode()
    finally:
        structlog.reset_defaults()
    assert 'precad_messages_undecodable_total{call="Join"} 12.0' in text
    assert 'precad_calls_refused_total{call="Join",code="INVALID_ARGUMENT"} 13.0' in text
    assert [r.getMessage() for r in caplog.records if r.name.startswith("grpc") and r.levelno > logging.DEBUG] == []
    (line,) = capture.entries
    assert (line["event"], line["call"], line["caller"]) == ("call.refused", "Join", "precad://client/alice")


@asynchronous
async def test_a_request_that_is_too_long_is_refused_before_it_is_parsed(
    pki: Pki, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Many short entries take a second to parse, and a hundred MB. A hello of a task with 5,000 clients is let in, and
    the longest chunk with its header."""
    caplog.set_level(logging.DEBUG)
    longest = small_task(clients=dict.fromkeys((f"c{i}" for i in range(5000)), 10), min_clients=1)
    many = {str(i): "" for i in range(20_000)}
    async with serving(pki, tmp_path) as scene:
        stub = scene.stub("alice")
        for fields, is_short in ((longest.carried_fields, True), (many, False)):
            request = aggregator_pb2.JoinRequest(hello=common_pb2.Hello(task_fields=fields))
            assert (request.ByteSize() <= MOST_REQUEST_BYTES) is is_short
            if is_short:
                assert (await stub.Join(request).read()).WhichOneof("event") == "welcome"
            else:
                error = await refused(stub.Join(request).read())
                assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
                assert "request: expected at most 65536 bytes, found" in (error.details() or "")
        assert scene.served.joined == 1

        async def whole() -> AsyncIterator[aggregator_pb2.SubmitPart]:
            said = {"binding": common_pb2.Binding(task="t" * 64, client="c" * 64), "salt": bytes(32)}
            yield aggregator_pb2.SubmitPart(statement=bytes(512), chunk=common_pb2.Chunk(data=bytes(MIB)), **said)

        await stub.Submit(whole())
        assert scene.served.submitted == [MIB]
    assert [r.getMessage() for r in caplog.records if r.name.startswith("grpc") and r.levelno > logging.DEBUG] == []


@asynchronous
async def test_a_compressed_message_is_not_unpacked(pki: Pki, tmp_path: Path) -> None:
    """A few kB that would become 64 MiB are refused as the few kB that they are."""
    bomb = aggregator_pb2.JoinRequest(hello=common_pb2.Hello(nonce=bytes(64 * MIB))).SerializeToString()
    async with serving(pki, tmp_path) as scene:
        join = scene.channel("alice").unary_stream("/precad.v1.Aggregator/Join")
        error = await refused(join(bomb, compression=grpc.Compression.Gzip).read())
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert 'precad_messages_undecodable_total{call="Join"} 1.0' in expose(scene.telemetry.registry).decode()


@asynchronous
async def test_a_method_that_does_not_exist_is_not_there_behind_the_limits_either(pki: Pki, tmp_path: Path) -> None:
    async with serving(pki, tmp_path) as scene:
        unknown = scene.channel("alice").unary_unary("/precad.v1.Aggregator/Nothing")
        assert (await refused(unknown(b""))).code() is grpc.StatusCode.UNIMPLEMENTED


@asynchronous
async def test_a_method_that_a_service_lacks_leaves_no_traceback(
    pki: Pki, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """gRPC would print one for each caller that is gone before its answer."""
    async with serving(pki, tmp_path) as scene:
        error = await refused(scene.stub("eve").Prove(iter(())))
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    assert [r.getMessage() for r in caplog.records if r.name.startswith("grpc") and r.levelno > logging.DEBUG] == []


@asynchronous
async def test_a_method_whose_name_is_no_text_ends_no_server(pki: Pki, tmp_path: Path) -> None:
    """Eve, of another task, makes the call; others' streams stand, and who comes is let in."""
    async with serving(pki, tmp_path) as scene:
        stream = await joined(scene.stub("alice"))
        for name in (b"/precad.v1.Aggregator/Join\xff", b"/\xff", b"\xc3"):
            error = await refused(scene.channel("eve").unary_unary(name)(b""))
            assert error.code() is grpc.StatusCode.UNIMPLEMENTED
        await joined(scene.stub("bob"))
        assert not stream.done()


# -- the log and the process -------------------------------------------------------------------------------------------


def test_a_process_gets_the_descriptors_that_its_connections_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as the system allows; what is missing is said."""
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (4096, 8192))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: asked.append(limits))
    with structlog.testing.capture_logs() as lines:
        reserve_descriptors(100)
        reserve_descriptors(2000)
        assert (asked, lines) == ([(4560, 8192)], [])
        reserve_descriptors(10_000)
    assert asked[1:] == [(8192, 8192)]
    assert [(line["event"], line["wanted"], line["allowed"]) for line in lines] == [
        ("server.few_descriptors", 12_560, 8192)
    ]


def test_a_sandbox_that_forbids_more_descriptors_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(which: int, limits: tuple[int, int]) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    with structlog.testing.capture_logs() as lines:
        reserve_descriptors(2000)
    assert [(line["event"], line["wanted"], line["allowed"]) for line in lines] == [
        ("server.few_descriptors", 4560, 1024)
    ]
