"""Nobody gets in: real TLS over real loopback sockets, honest peers and every kind of stranger.

Failure means: a stranger's call reaches the servicer's state, a refusal takes longer than PROMPT_S, or its text does
not say what is wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import os
import re
import shutil
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from precad.deploy.authority.pki import create_authority, issue
from precad.mpc.tuples.burning import MemoryBurns
from precad.protos.precad.v1 import common_pb2
from precad.protos.tls.address import split_address
from precad.protos.tls.files import PinFile, TlsContext, TlsFileError, TlsFiles, TransportError
from precad.protos.tls.identity import (
    Identity,
    IdentityError,
    PinRefusedError,
    Role,
    RoleRefusedError,
    fingerprint,
    parse_certificate,
    peer_identity,
    require_pinned,
    require_role,
)
from precad.protos.tls.transport import (
    CHANNEL_OPTIONS,
    CONNECT_TIMEOUT_S,
    PING_TIME_S,
    PING_TIMEOUT_S,
    bind_server,
    dial,
    explain,
)
from precad.protos.tls.validity import why_not_valid
from precad.servers.errors import PeerUnreachableError
from precad.servers.links.dealer import TupleSource
from precad.servers.links.lane import lane_context
from precad.servers.links.peer import dial_peer
from tests.harness.stalls import RunningTime

PROMPT_S = 5.0
SERVER_AUTH, CLIENT_AUTH = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH


def server_identity(role: Role) -> Identity:
    return Identity(role, role.value)


@dataclass(frozen=True)
class Pki:
    """An authority with one certificate of each kind, and what an attacker may hold."""

    directory: Path
    a: TlsFiles
    b: TlsFiles
    dealer: TlsFiles
    client: TlsFiles
    operator: TlsFiles
    second_a: TlsFiles
    """Another certificate of role aggregator-a, signed by the same authority, not the one agreed on."""
    second_b: TlsFiles
    expired_b: TlsFiles
    expired_client: TlsFiles
    future_b: TlsFiles
    """A certificate of tomorrow, or of a machine whose clock is a day ahead."""
    foreign_b: TlsFiles
    """By another authority that bears the same name."""
    foreign_client: TlsFiles


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    long_ago = dt.datetime.now(dt.UTC) - dt.timedelta(days=30)
    ours, foreign = tmp_path_factory.mktemp("ours"), tmp_path_factory.mktemp("foreign")
    create_authority(ours, now=long_ago)
    create_authority(foreign, now=long_ago)
    copies = []
    for label in ("second", "expired", "future"):
        copy = tmp_path_factory.mktemp(label)
        for name in ("ca.pem", "ca.key"):
            shutil.copy(ours / name, copy / name)
        copies.append(copy)
    second, expired, future = copies
    a, b, dealer, operator = (server_identity(role) for role in Role if role is not Role.CLIENT)
    client = Identity(Role.CLIENT, "client-3")
    return Pki(
        directory=ours,
        a=issue(ours, a),
        b=issue(ours, b),
        dealer=issue(ours, dealer),
        operator=issue(ours, operator),
        client=issue(ours, client),
        second_a=issue(second, a),
        second_b=issue(second, b),
        expired_b=issue(expired, b, days=1, now=long_ago),
        expired_client=issue(expired, client, days=1, now=long_ago),
        future_b=issue(future, b, now=dt.datetime.now(dt.UTC) + dt.timedelta(days=1)),
        foreign_b=issue(foreign, b),
        foreign_client=issue(foreign, client),
    )


@dataclass
class Desk:
    """A servicer whose whole state is how many calls it served."""

    allowed: tuple[Role, ...] = (Role.CLIENT,)
    pinned: str | None = None
    busy_s: float = 0.0
    n_served: int = 0

    async def answer(self, _request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        try:
            identity = require_role(context, *self.allowed)
            if self.pinned is not None:
                require_pinned(context, (self.pinned,))
        except (RoleRefusedError, PinRefusedError) as error:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
        except IdentityError as error:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
        await asyncio.sleep(self.busy_s)
        self.n_served += 1
        return identity.uri.encode()

    def serve(self, server: grpc.aio.Server) -> None:
        server.add_registered_method_handlers("desk", {"Answer": grpc.unary_unary_rpc_method_handler(self.answer)})


@contextlib.asynccontextmanager
async def running(desk: Desk, tls: TlsFiles) -> AsyncIterator[int]:
    """The desk behind mutual TLS as production sets it up; yields the port."""
    server, port = bind_server("127.0.0.1:0", tls)
    async with started(server, desk):
        yield port


@contextlib.asynccontextmanager
async def running_as(desk: Desk, certificate: bytes, key: bytes, authority: bytes) -> AsyncIterator[int]:
    """The desk behind whatever an attacker presents, past the checks of our own code."""
    server = grpc.aio.server()
    credentials = grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=True)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    async with started(server, desk):
        yield port


@contextlib.asynccontextmanager
async def started(server: grpc.aio.Server, desk: Desk) -> AsyncIterator[None]:
    desk.serve(server)
    await server.start()
    try:
        yield
    finally:
        await server.stop(grace=None)


def presenting(tls: TlsFiles) -> tuple[bytes, bytes, bytes]:
    return tls.certificate.read_bytes(), tls.key.read_bytes(), tls.authority.read_bytes()


async def ask(channel: grpc.aio.Channel, *, timeout_s: float | None = 30.0, request: bytes = b"") -> bytes:
    async with channel:
        return await channel.unary_unary("/desk/Answer")(request, timeout=timeout_s)


async def refusal(channel: grpc.aio.Channel, within_s: float = PROMPT_S) -> grpc.aio.AioRpcError:
    """The error of a call that must fail promptly."""
    with RunningTime() as took, pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask(channel)
    assert took.seconds < within_s
    return caught.value


# Honest peers


def test_each_pair_that_must_talk_talks_and_knows_the_peer(pki: Pki) -> None:
    """Clients and the operator dial a server, A dials B pinned both ways, both dial the dealer."""

    async def scenario() -> None:
        pin_of_a = fingerprint(pki.a.certificate.read_bytes())
        for server, role, caller, pinned, desk in (
            (pki.a, Role.AGGREGATOR_A, pki.client, None, Desk()),
            (pki.a, Role.AGGREGATOR_A, pki.operator, None, Desk(allowed=(Role.OPERATOR,))),
            (pki.b, Role.AGGREGATOR_B, pki.a, pki.b.certificate, Desk((Role.AGGREGATOR_A,), pin_of_a)),
            (pki.dealer, Role.DEALER, pki.b, pki.dealer.certificate, Desk((Role.AGGREGATOR_A, Role.AGGREGATOR_B))),
        ):
            async with running(desk, server) as port:
                pins = None if pinned is None else PinFile(pinned, role)
                answer = await ask(dial(f"127.0.0.1:{port}", role, caller, pins))
            assert answer.decode() == caller.load().identity.uri
            assert desk.n_served == 1

    asyncio.run(scenario())


def test_the_environment_cannot_bend_the_route(pki: Pki, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy variable, common on machines of organisations, is not followed."""
    for name in ("grpc_proxy", "https_proxy", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    async def scenario() -> None:
        async with running(Desk(), pki.a) as port:
            assert await ask(dial(f"127.0.0.1:{port}", Role.AGGREGATOR_A, pki.client)) == b"precad://client/client-3"

    asyncio.run(scenario())


# Strangers who call


def channel_with(
    port: int, *, root: Path, tls: TlsFiles | None = None, role: Role = Role.AGGREGATOR_A
) -> grpc.aio.Channel:
    """A channel with whatever an attacker presents, past the checks of our own code."""
    key, certificate = (None, None) if tls is None else (tls.key.read_bytes(), tls.certificate.read_bytes())
    credentials = grpc.ssl_channel_credentials(root.read_bytes(), key, certificate)
    options = (*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", role.server_name))
    return grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options)


STRANGERS: dict[str, Callable[[Pki, int], grpc.aio.Channel]] = {
    "no certificate": lambda pki, port: channel_with(port, root=pki.a.authority),
    "unknown authority": lambda pki, port: channel_with(port, root=pki.a.authority, tls=pki.foreign_client),
    "expired": lambda pki, port: channel_with(port, root=pki.a.authority, tls=pki.expired_client),
    "not for clients": lambda pki, port: channel_with(port, root=pki.a.authority, tls=pki.dealer),
    "plaintext": lambda _pki, port: grpc.aio.insecure_channel(f"127.0.0.1:{port}"),
}


@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_stranger_is_refused_and_changes_nothing(pki: Pki, stranger: str) -> None:
    """Refused in the handshake; the next honest client is served as if nothing had happened."""

    async def scenario() -> None:
        desk = Desk()
        async with running(desk, pki.a) as port:
            error = await refusal(STRANGERS[stranger](pki, port))
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert "hung up on our certificate" in explain(error, Role.AGGREGATOR_A, f"127.0.0.1:{port}")
            assert desk.n_served == 0
            await ask(dial(f"127.0.0.1:{port}", Role.AGGREGATOR_A, pki.client))
            assert desk.n_served == 1

    asyncio.run(scenario())


def test_whoever_is_hung_up_on_with_a_certificate_that_has_expired_is_told_so(pki: Pki) -> None:
    """The server's log has no line of it. A certificate whose dates are right is not blamed."""

    async def scenario() -> None:
        async with running(Desk(), pki.a) as port:
            error, address = await refusal(STRANGERS["expired"](pki, port)), f"127.0.0.1:{port}"
        explained = [explain(error, Role.AGGREGATOR_A, address, one.certificate) for one in (pki.expired_client, pki.b)]
        dates = r"valid \d{4}-\d\d-\d\d \d\d:\d\d to \d{4}-\d\d-\d\d \d\d:\d\d"
        said = rf"hung up on our certificate, which has expired: {dates}, and this machine's clock says .* UTC$"
        assert re.search(said, explained[0])
        assert explained[1].endswith("it hung up on our certificate, or it is stopping")

    asyncio.run(scenario())


def test_a_link_that_waits_says_that_our_certificate_has_expired(pki: Pki) -> None:
    hello = common_pb2.Hello(protocol_version="1", nonce=b"n")

    async def scenario() -> None:
        async with running(Desk(), pki.b) as port, contextlib.AsyncExitStack() as stack:
            root, expired = pki.a.authority, pki.expired_client

            def channel() -> grpc.aio.Channel:
                return channel_with(port, root=root, tls=expired, role=Role.AGGREGATOR_B)

            with pytest.raises(PeerUnreachableError, match="our certificate, which has expired"):
                await dial_peer(stack, channel, hello, f"127.0.0.1:{port}", 1.0, expired.certificate)
            source = TupleSource(0, channel, hello, f"127.0.0.1:{port}", MemoryBurns(), expired.certificate)
            waiting = asyncio.create_task(source.run())
            with pytest.raises(PeerUnreachableError, match="our certificate, which has expired"):
                await source.wait_until_greeted(1.0)
            waiting.cancel()

    asyncio.run(scenario())


def test_a_certificate_says_why_it_is_not_valid_now(pki: Pki, tmp_path: Path) -> None:
    assert why_not_valid(pki.future_b.certificate).startswith("is not valid yet: valid ")
    assert why_not_valid(pki.b.certificate) == ""
    assert why_not_valid(tmp_path / "none") == ""


def test_a_known_peer_in_the_wrong_role_is_refused_by_name(pki: Pki) -> None:
    """A client on a call between servers: PERMISSION_DENIED, with the role needed and the role found."""

    async def scenario() -> None:
        desk = Desk(allowed=(Role.AGGREGATOR_A, Role.OPERATOR))
        async with running(desk, pki.b) as port:
            error = await refusal(dial(f"127.0.0.1:{port}", Role.AGGREGATOR_B, pki.client))
        assert error.code() is grpc.StatusCode.PERMISSION_DENIED
        assert "needs the role aggregator-a or operator" in error.details()
        assert "precad://client/client-3" in error.details()
        assert desk.n_served == 0

    asyncio.run(scenario())


def test_a_second_server_a_is_refused_by_the_pin(pki: Pki) -> None:
    """Same role, same authority, another certificate."""

    async def scenario() -> None:
        pin, second_pin = (fingerprint(tls.certificate.read_bytes()) for tls in (pki.a, pki.second_a))
        desk = Desk(allowed=(Role.AGGREGATOR_A,), pinned=pin)
        async with running(desk, pki.b) as port:
            error = await refusal(dial(f"127.0.0.1:{port}", Role.AGGREGATOR_B, pki.second_a))
        assert error.code() is grpc.StatusCode.PERMISSION_DENIED
        assert pin in error.details()
        assert second_pin in error.details()
        assert desk.n_served == 0

    asyncio.run(scenario())


def test_a_plaintext_port_proves_nobody(pki: Pki) -> None:
    """Were a server ever bound without TLS, no call would have an identity; and our channels refuse to talk to it."""

    async def scenario() -> None:
        desk = Desk()
        server = grpc.aio.server()
        port = server.add_insecure_port("127.0.0.1:0")
        async with started(server, desk):
            error = await refusal(grpc.aio.insecure_channel(f"127.0.0.1:{port}"))
            assert error.code() is grpc.StatusCode.UNAUTHENTICATED
            assert "mutual TLS" in error.details()
            error = await refusal(dial(f"127.0.0.1:{port}", Role.AGGREGATOR_A, pki.client))
            assert "does not speak TLS" in explain(error, Role.AGGREGATOR_A, f"127.0.0.1:{port}")
        assert desk.n_served == 0

    asyncio.run(scenario())


# Strangers who are called


def forge(
    pki: Pki,
    signer: TlsFiles | None,
    *,
    usage: x509.ObjectIdentifier,
    dns: str | None = None,
    common_name: str = "forged",
) -> tuple[bytes, bytes]:
    """A certificate that our authority (or, if given, a peer as `signer`) would never sign, and its key, as PEM."""
    issuer_pem = (pki.directory / "ca.pem" if signer is None else signer.certificate).read_bytes()
    issuer_key = (pki.directory / "ca.key" if signer is None else signer.key).read_bytes()
    key = ec.generate_private_key(ec.SECP256R1())
    now = dt.datetime.now(dt.UTC)
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier("precad://aggregator-b/aggregator-b")]
    names += [x509.DNSName(dns)] if dns else []
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)]))
        .issuer_name(parse_certificate(issuer_pem).subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .sign(load_pem_private_key(issuer_key, None), hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return certificate.public_bytes(Encoding.PEM), private


def impostors(pki: Pki) -> dict[str, tuple[tuple[bytes, bytes, bytes], Path | None, str]]:
    """Return what a false aggregator-b presents, the pin of whoever dials it, and what the refusal says."""
    authority = pki.b.authority.read_bytes()
    forged = forge(pki, None, usage=CLIENT_AUTH, dns="aggregator-b.precad")
    below_b = forge(pki, pki.b, usage=SERVER_AUTH, dns="aggregator-b.precad")
    chain_below_b = (below_b[0] + pki.b.certificate.read_bytes(), below_b[1])
    return {
        "a client's certificate": (presenting(pki.client), None, "not one of a server"),
        "only its key usage is wrong": ((*forged, authority), None, "not one of a server"),
        "the dealer's certificate": (presenting(pki.dealer), None, "of another role"),
        "another authority": (presenting(pki.foreign_b), None, "another authority"),
        "expired": (presenting(pki.expired_b), None, "expired"),
        "not valid yet": (presenting(pki.future_b), None, "its certificate is not valid yet"),
        "expired, though pinned's twin": (presenting(pki.expired_b), pki.b.certificate, "not the pinned one"),
        "a second b": (presenting(pki.second_b), pki.b.certificate, "not the pinned one"),
        "signed by b itself": ((*below_b, authority), pki.b.certificate, "not the pinned one"),
        "signed by b itself, with chain": ((*chain_below_b, authority), pki.b.certificate, ""),
    }


@pytest.mark.parametrize(
    "impostor",
    [
        "a client's certificate",
        "only its key usage is wrong",
        "the dealer's certificate",
        "another authority",
        "expired",
        "not valid yet",
        "expired, though pinned's twin",
        "a second b",
        "signed by b itself",
        "signed by b itself, with chain",
    ],
)
def test_an_impostor_is_not_spoken_to(pki: Pki, impostor: str) -> None:
    """The caller hangs up in the handshake, before it sends a request."""

    async def scenario() -> None:
        (certificate, key, authority), pinned, reason = impostors(pki)[impostor]
        desk = Desk(allowed=tuple(Role))
        async with running_as(desk, certificate, key, authority) as port:
            pins = None if pinned is None else PinFile(pinned, Role.AGGREGATOR_B)
            error = await refusal(dial(f"127.0.0.1:{port}", Role.AGGREGATOR_B, pki.a, pins))
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert reason in explain(error, Role.AGGREGATOR_B, f"127.0.0.1:{port}")
        assert desk.n_served == 0

    asyncio.run(scenario())


def test_a_pinned_certificate_expires_too(pki: Pki) -> None:
    """Being the trust anchor does not prolong a certificate: TLS itself refuses it, beside `PinFile`."""

    async def scenario() -> None:
        desk = Desk(allowed=tuple(Role))
        async with running_as(desk, *presenting(pki.expired_b)) as port:
            root = pki.expired_b.certificate
            error = await refusal(channel_with(port, root=root, tls=pki.a, role=Role.AGGREGATOR_B))
            assert "has expired" in error.details()
        assert desk.n_served == 0

    asyncio.run(scenario())


def test_a_client_named_like_a_host_is_no_host(pki: Pki) -> None:
    """gRPC takes a common name for a host name; our certificates have none, whatever the client is called.

    As trust anchor a certificate is exempt from the check of its usage, so the name alone decides here.
    """
    named = issue(pki.directory, Identity(Role.CLIENT, "dealer.precad"))
    with_common_name = forge(pki, None, usage=CLIENT_AUTH, common_name="dealer.precad")

    async def scenario(certificate: bytes, key: bytes, root: Path) -> bytes:
        async with running_as(Desk(), certificate, key, pki.a.authority.read_bytes()) as port:
            return await ask(channel_with(port, root=root, tls=pki.client, role=Role.DEALER))

    with pytest.raises(grpc.aio.AioRpcError, match="Hostname Verification Check failed"):
        asyncio.run(scenario(named.certificate.read_bytes(), named.key.read_bytes(), named.certificate))
    anchor = pki.directory / "with-common-name.pem"
    anchor.write_bytes(with_common_name[0])
    assert asyncio.run(scenario(*with_common_name, anchor)), "gRPC changed: the common name no longer counts"


@pytest.mark.parametrize("reason", ["Network is unreachable", "No route to host"])
def test_an_address_that_no_route_leads_to_is_said_once(reason: str) -> None:
    """By gRPC's own words, which repeat the address twice."""
    at, none = "ipv4:192.0.2.7:9", grpc.aio.Metadata()
    details = f"failed to connect to all addresses; last error: UNKNOWN: {at}: connect failed: addr: {at} error: "
    error = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, none, none, details + reason)
    assert explain(error, Role.DEALER, "192.0.2.7:9") == "dealer at 192.0.2.7:9: no route leads there"


def test_nobody_there_is_said_at_once(pki: Pki) -> None:
    async def scenario() -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{unused.getsockname()[1]}"
            error = await refusal(dial(address, Role.DEALER, pki.a))
        assert explain(error, Role.DEALER, address) == f"dealer at {address}: nothing listens there"

    asyncio.run(scenario())


@pytest.mark.parametrize(("host", "longest_ms"), [("127.0.0.1", 200), ("[::1]", 200), ("192.0.2.1", 2000)])
def test_a_server_on_this_machine_is_tried_again_soon(
    pki: Pki, host: str, longest_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A local run's processes start together, and each would wait for two seconds of gRPC's after the last try."""
    given: list[dict[str, int | str]] = []
    monkeypatch.setattr(grpc.aio, "secure_channel", lambda _address, _credentials, options: given.append(dict(options)))
    dial(f"{host}:1", Role.DEALER, pki.a)
    assert given[0]["grpc.max_reconnect_backoff_ms"] == longest_ms
    assert given[0]["grpc.ssl_target_name_override"] == Role.DEALER.server_name


# Peers that fall silent


@dataclass
class Line:
    """A slow line between two peers, which may freeze: then it carries nothing and closes nothing."""

    bytes_per_s: float = 1e9
    is_frozen: bool = False

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(16384):
            if self.is_frozen:
                await asyncio.Event().wait()
            writer.write(data)
            await writer.drain()
            await asyncio.sleep(len(data) / self.bytes_per_s)

    @contextlib.asynccontextmanager
    async def to(self, port: int) -> AsyncIterator[str]:
        """The address at which the line to `port` begins."""
        carriers: list[asyncio.Task[None]] = []

        async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
            for pair in ((reader, far_writer), (far_reader, writer)):
                carriers.append(asyncio.create_task(self.carry(*pair)))

        server = await asyncio.start_server(connect, "127.0.0.1", 0)
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        server.close()
        for carrier in carriers:
            carrier.cancel()
        await asyncio.gather(*carriers, return_exceptions=True)


async def seconds_until_lost(call: Awaitable[bytes]) -> float:
    start = time.monotonic()
    with pytest.raises(grpc.aio.AioRpcError):
        await call
    return time.monotonic() - start


@pytest.mark.slow
def test_silence_between_servers_is_noticed(pki: Pki) -> None:
    """A call without deadline ends when its link freezes, and when the peer accepts the connection but is mute."""

    async def frozen() -> float:
        line = Line()
        async with running(Desk((Role.AGGREGATOR_A,), busy_s=60), pki.b) as port, line.to(port) as address:
            call = asyncio.create_task(ask(dial(address, Role.AGGREGATOR_B, pki.a), timeout_s=None))
            await asyncio.sleep(1)
            line.is_frozen = True
            return await seconds_until_lost(call)

    async def mute() -> float:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            address = f"127.0.0.1:{listener.getsockname()[1]}"
            return await seconds_until_lost(ask(dial(address, Role.AGGREGATOR_B, pki.a), timeout_s=None))

    async def scenario() -> None:
        frozen_s, mute_s = await asyncio.gather(frozen(), mute())
        assert frozen_s < PING_TIME_S + PING_TIMEOUT_S + 3
        assert mute_s < CONNECT_TIMEOUT_S + 3

    asyncio.run(scenario())


@pytest.mark.slow
def test_slow_is_not_dead(pki: Pki) -> None:
    """A long call on an idle link lives (gRPC's defaults end it: too_many_pings), and so does a slow client's upload.

    The upload keeps the line busy for 2 * PING_TIMEOUT_S, all of it in buffers ahead of the pings.
    """

    async def long_call() -> bytes:
        async with running(Desk(busy_s=6.0 * PING_TIME_S), pki.a) as port:
            return await ask(dial(f"127.0.0.1:{port}", Role.AGGREGATOR_A, pki.client), timeout_s=None)

    async def slow_upload() -> bytes:
        upload = bytes(4_000_000)
        line = Line(bytes_per_s=len(upload) / (2 * PING_TIMEOUT_S))
        async with running(Desk(), pki.a) as port, line.to(port) as address:
            return await ask(dial(address, Role.AGGREGATOR_A, pki.client), timeout_s=None, request=upload)

    async def scenario() -> None:
        assert await asyncio.gather(long_call(), slow_upload()) == [b"precad://client/client-3"] * 2

    asyncio.run(scenario())


# Our own files and addresses


def misfits(pki: Pki, scratch: Path) -> dict[str, tuple[TlsFiles, str]]:
    """Files that do not fit, and the start of the message that names the field, the expected and the found."""
    garbage = scratch / "garbage.pem"
    garbage.write_text("-----BEGIN CERTIFICATE-----\nnothing\n")
    exposed = scratch / "exposed.pem"
    shutil.copy(pki.client.key, exposed)
    exposed.chmod(0o644)
    private_key = load_pem_private_key(pki.client.key.read_bytes(), None)
    encrypted = scratch / "encrypted.pem"
    encrypted.write_bytes(private_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x")))
    contents = {"right": "x", "another": "xx", "exposed": "x", "two lines": "x\nx\n", "empty": "\n"}
    phrases = {name: scratch / f"{name}.txt" for name in contents}
    for name, path in phrases.items():
        path.touch(0o644 if name == "exposed" else 0o600)
        path.write_text(contents[name])
    no_key = scratch / "no-key.pem"
    shutil.copy(pki.client.certificate, no_key)
    for path in (encrypted, no_key):
        path.chmod(0o600)
    chain = scratch / "chain.pem"
    chain.write_bytes(pki.client.certificate.read_bytes() + pki.client.authority.read_bytes())
    tomorrow = dt.datetime.now(dt.UTC) + dt.timedelta(days=1)
    future = issue(pki.directory, Identity(Role.CLIENT, "from-the-future"), now=tomorrow)
    create_authority(scratch / "tomorrows", now=tomorrow)
    early = issue(scratch / "tomorrows", Identity(Role.CLIENT, "early"))
    absent = scratch / "absent.pem"
    good = pki.client
    return {
        "certificate missing": (
            replace(good, certificate=absent),
            "certificate: expected a readable file, found No such",
        ),
        "key missing": (replace(good, key=absent), "key: expected a readable file, found No such"),
        "authority missing": (replace(good, authority=absent), "authority: expected a readable file, found No such"),
        "directory": (replace(good, key=scratch), "key: expected a readable file, found Is a directory"),
        "not PEM": (replace(good, certificate=garbage), "certificate: expected a PEM certificate"),
        "key as certificate": (replace(good, certificate=good.key), "certificate: expected a PEM certificate"),
        "chain": (replace(good, certificate=chain), "certificate: expected a PEM certificate"),
        "authority not PEM": (replace(good, authority=garbage), "authority: expected a PEM certificate"),
        "key exposed": (replace(good, key=exposed), "key: expected a file closed to other users, found mode 0644"),
        "certificate as key": (replace(good, key=no_key), "key: expected a PEM private key"),
        "key encrypted": (
            replace(good, key=encrypted),
            "key: expected key_passphrase_file or PRECAD_KEY_PASSPHRASE for an encrypted key, found neither",
        ),
        "another passphrase": (
            replace(good, key=encrypted, key_passphrase_file=phrases["another"]),
            "key: expected a key that the passphrase opens",
        ),
        "key in the clear": (
            replace(good, key_passphrase_file=phrases["right"]),
            "key: expected an encrypted PEM private key",
        ),
        "passphrase missing": (
            replace(good, key=encrypted, key_passphrase_file=absent),
            "key_passphrase_file: expected a readable file, found No such",
        ),
        "passphrase exposed": (
            replace(good, key=encrypted, key_passphrase_file=phrases["exposed"]),
            "key_passphrase_file: expected a file closed to other users, found mode 0644",
        ),
        "two passphrases": (
            replace(good, key=encrypted, key_passphrase_file=phrases["two lines"]),
            "key_passphrase_file: expected one line of 1 to 1023 bytes",
        ),
        "no passphrase": (
            replace(good, key=encrypted, key_passphrase_file=phrases["empty"]),
            "key_passphrase_file: expected one line of 1 to 1023 bytes",
        ),
        "key of another": (replace(good, key=pki.a.key), "key: expected the certificate's key"),
        "expired": (pki.expired_client, "certificate: expected one valid at"),
        "not yet valid": (future, "certificate: expected one valid at"),
        "another authority": (
            replace(good, authority=pki.foreign_client.authority),
            "certificate: expected one signed by",
        ),
        "authority not yet valid": (early, "authority: expected one valid at"),
        "authority is a peer": (replace(good, authority=pki.a.certificate), "authority: expected an authority's"),
    }


def test_files_that_do_not_fit_are_refused_before_anything_starts(pki: Pki, tmp_path: Path) -> None:
    """Each message names the field, the expected and the found, then the file; none quotes a file."""
    for tls, message in misfits(pki, tmp_path).values():
        with pytest.raises(TlsFileError) as caught:
            tls.load()
        assert str(caught.value).startswith(message)
        assert "PRIVATE KEY--" not in str(caught.value)
        with pytest.raises(TlsFileError):
            dial("127.0.0.1:1", Role.AGGREGATOR_A, tls)
        with pytest.raises(TlsFileError):
            bind_server("127.0.0.1:0", tls)
        with pytest.raises(TlsFileError) as again:
            TlsContext(tls=tls, pinned=None, server_side=True).load()
        assert str(again.value) == str(caught.value)


@pytest.mark.parametrize("in_file", [True, False], ids=["file", "environment"])
@pytest.mark.parametrize("form", [PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL])
def test_an_encrypted_key_runs_a_server_and_a_client(
    pki: Pki, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: PrivateFormat, in_file: bool
) -> None:
    """Encrypted in either form that OpenSSL writes; of both ends, over gRPC and over a plain TLS connection."""
    phrase = tmp_path / "phrase"
    phrase.touch(0o600)
    phrase.write_text("correct horse\r\n")
    ends = []
    for tls in (pki.a, pki.b):
        key = load_pem_private_key(tls.key.read_bytes(), None)
        path = tmp_path / f"{len(ends)}.pem"
        path.touch(0o600)
        path.write_bytes(key.private_bytes(Encoding.PEM, form, BestAvailableEncryption(b"correct horse")))
        ends.append(replace(tls, key=path, key_passphrase_file=phrase if in_file else None))
    if not in_file:
        monkeypatch.setenv("PRECAD_KEY_PASSPHRASE", "correct horse")
    a, b = ends

    async def scenario() -> bytes:
        async with running(Desk(allowed=(Role.AGGREGATOR_B,)), a) as port:
            return await ask(dial(f"127.0.0.1:{port}", Role.AGGREGATOR_A, b))

    assert asyncio.run(scenario()) == b"precad://aggregator-b/aggregator-b"
    assert asyncio.run(handshake(a, b)) == "TLSv1.3"


async def handshake(a: TlsFiles, b: TlsFiles) -> str | None:
    """Shake hands on the lane between A and B, each with the other's certificate pinned. Return the version of TLS."""
    at_b, at_a = lane_context(1, b, a.certificate).load(), lane_context(0, a, b.certificate).load()
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=at_b)
    async with server:
        name, port = Role.AGGREGATOR_B.server_name, server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=at_a, server_hostname=name)
        version: str | None = writer.get_extra_info("ssl_object").version()
        assert await reader.read() == b""
        writer.close()
        return version


def test_a_passphrase_in_the_environment_does_not_refuse_keys_in_the_clear(
    pki: Pki, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`precad run` makes its keys in the clear, whatever else the shell serves."""
    monkeypatch.setenv("PRECAD_KEY_PASSPHRASE", "of another deployment")
    assert pki.a.load() == pki.a.load()


def test_an_authority_certificate_without_identity_runs_nothing(pki: Pki) -> None:
    authority = TlsFiles(
        certificate=pki.directory / "ca.pem", key=pki.directory / "ca.key", authority=pki.directory / "ca.pem"
    )
    with pytest.raises(TlsFileError, match="certificate: expected an identity"):
        authority.load()


@pytest.mark.parametrize("holder", ["client", "operator"])
def test_only_a_server_listens_and_only_servers_are_dialled(pki: Pki, holder: str) -> None:
    async def scenario() -> None:
        with pytest.raises(TransportError, match="expected one of a server to listen with"):
            bind_server("127.0.0.1:0", getattr(pki, holder))
        with pytest.raises(TransportError, match="expected a server to dial"):
            dial("127.0.0.1:1", Role(holder), pki.a)
        with pytest.raises(TransportError, match="expected one to dial aggregator-a with"):
            dial("127.0.0.1:1", Role.AGGREGATOR_A, pki.dealer)

    asyncio.run(scenario())


def test_a_pin_must_be_a_server_certificate_of_the_role_dialled(pki: Pki, tmp_path: Path) -> None:
    wrong_usage = tmp_path / "wrong-usage.pem"
    wrong_usage.write_bytes(forge(pki, None, usage=CLIENT_AUTH, dns="aggregator-b.precad")[0])
    for pinned, message in (
        (pki.dealer.certificate, r"found one of precad://dealer/dealer"),
        (wrong_usage, "expected the server certificate of aggregator-b"),
        (pki.expired_b.certificate, "expected one valid at"),
        (pki.b.authority, "expected the certificate of aggregator-b"),
        (pki.b.key, "expected a PEM certificate"),
        (tmp_path / "absent.pem", "found No such file"),
    ):
        with pytest.raises(TlsFileError, match=f"^pinned: .*{message}"):
            PinFile(pinned, Role.AGGREGATOR_B).load()


def test_loaded_material_does_not_show_its_key(pki: Pki) -> None:
    ours = pki.client.load()
    assert ours.identity == Identity(Role.CLIENT, "client-3")
    assert "PRIVATE KEY" not in f"{ours} {ours!r}"


def test_a_port_in_use_is_refused(pki: Pki) -> None:
    """Also where it is in use for one of the addresses of a name, or by a PRECAD server."""

    async def scenario() -> None:
        server, port = bind_server("127.0.0.1:0", pki.a)
        for address in (f"127.0.0.1:{port}", f"localhost:{port}", f"0.0.0.0:{port}"):
            with pytest.raises(TransportError, match=rf"found {address}: Address already in use"):
                bind_server(address, pki.b)
        await server.stop(grace=None)

    asyncio.run(scenario())


def test_an_address_elsewhere_is_refused(pki: Pki) -> None:
    async def scenario() -> None:
        with pytest.raises(TransportError, match="Cannot assign requested address"):
            bind_server("192.0.2.1:0", pki.a)

    asyncio.run(scenario())


def test_addresses_mean_what_they_say() -> None:
    assert split_address("a.example_1:443") == ("a.example_1", 443)
    assert split_address("[::1]:0") == ("::1", 0)
    for address in ("127.0.0.1", "127.0.0.1:65536", ":1", "::1:5", "unix:/tmp/x:1", "dns:///a:1", "a:1\n", "a:-1", ""):
        with pytest.raises(TransportError, match=r"address: expected HOST:PORT"):
            split_address(address)


# Identities


@dataclass
class Call:
    """A servicer context as far as identities go."""

    certificates: tuple[bytes, ...]

    def auth_context(self) -> dict[str, tuple[bytes, ...]]:
        return {"x509_pem_cert": self.certificates} if self.certificates else {}


def certificate_with(*uris: str) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "anybody")])
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + dt.timedelta(days=1))
    if uris:
        names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri) for uri in uris])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


def test_an_identity_is_read_from_the_one_precad_uri() -> None:
    pem = certificate_with("spiffe://elsewhere/x", "precad://client/client-3")
    assert peer_identity(Call((pem,))) == Identity(Role.CLIENT, "client-3")


@pytest.mark.parametrize(
    "uris",
    [
        (),
        ("spiffe://elsewhere/x",),
        ("precad://client/a", "precad://client/b"),
        ("precad://client/a", "PRECAD://client/a"),
        ("precad://client/a", "precad:client"),
        ("precad://root/root",),
        ("precad://Client/a",),
        ("precad://client/a/b",),
        ("precad://client/",),
        ("precad://client/a%2fb",),
        ("precad://client/A",),
        ("precad://user@client/a",),
        ("precad://client:1/a",),
        ("precad://client/a?b",),
        ("precad://client/dealer",),
        ("precad://dealer/other",),
    ],
)
def test_a_doubtful_certificate_names_nobody(uris: tuple[str, ...]) -> None:
    with pytest.raises(IdentityError):
        Identity.from_certificate(certificate_with(*uris))


def test_no_certificate_names_nobody() -> None:
    pem = certificate_with("precad://client/a")
    for certificates in ((), (pem, pem), (pem + pem,), (b"",), (os.urandom(64),)):
        with pytest.raises(IdentityError):
            peer_identity(Call(certificates))


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "A", "-a", "a\n", "a" * 64, "é", "client", "operator"])
def test_client_names_are_plain(name: str) -> None:
    with pytest.raises(IdentityError):
        Identity(Role.CLIENT, name)
