"""Certificates, keys, authorities and pins replaced under running servers: real TLS over real loopback sockets.

Failure means: a connection that stood is lost; a handshake after the replacement shows the old certificate. It also
means: files that do not fit stop a server, replace what it had, or are not reported, once.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import os
import shutil
import socket
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import structlog
from aiohttp import web

from precad.clients.upload.links import Links
from precad.deploy.authority.pki import PkiError, create_authority, issue, renew
from precad.protos.precad.v1 import common_pb2, peer_pb2_grpc
from precad.protos.tls import renewable as last_good
from precad.protos.tls.files import TlsContext, TlsFileError, TlsFiles, renewable, renewable_pins
from precad.protos.tls.identity import (
    Identity,
    PinRefusedError,
    Role,
    fingerprint,
    peer_certificate,
    peer_identity,
    require_pinned,
)
from precad.protos.tls.transport import bind_server, dial, explain
from precad.servers.door.servicers import PeerServicer
from precad.servers.links.peer import dial_peer
from precad.servers.operations.doorway import Doorway
from precad.servers.telemetry.events import Telemetry
from tests.harness.pki import Pki

A, B, ALICE = Identity(Role.AGGREGATOR_A, "aggregator-a"), Identity(Role.AGGREGATOR_B, "aggregator-b"), "alice"


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki.create(tmp_path / "pki", [ALICE])


def another(pki: Pki, identity: Identity, folder: Path, **when: dt.datetime) -> TlsFiles:
    """A second certificate of an identity by the same authority, for another key."""
    folder.mkdir()
    for name in ("ca.pem", "ca.key"):
        shutil.copy(pki.directory / name, folder / name)
    return issue(folder, identity, **when)


def put(source: Path, place: Path) -> None:
    """As an operator should: the new file appears whole."""
    staging = place.with_name(place.name + ".new")
    shutil.copy(source, staging)
    os.replace(staging, place)


@contextlib.asynccontextmanager
async def desk(tls: TlsFiles) -> AsyncIterator[str]:
    """A server that says who calls it; its address."""

    async def answer(_request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        return peer_identity(context).uri.encode()

    async def who(_request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        return fingerprint(peer_certificate(context)).encode()

    async def slowly(_request: bytes, _context: grpc.aio.ServicerContext) -> bytes:
        await asyncio.sleep(0.5)
        return b"done"

    server, port = bind_server("127.0.0.1:0", tls)
    named = {"Answer": answer, "Who": who, "Slowly": slowly}
    handlers = {name: grpc.unary_unary_rpc_method_handler(method) for name, method in named.items()}
    server.add_registered_method_handlers("desk", handlers)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def ask(channel: grpc.aio.Channel) -> bytes:
    return await channel.unary_unary("/desk/Answer")(b"", timeout=10)


def shown_at(address: str, tls: TlsFiles) -> str:
    """The fingerprint of what a server shows in a fresh handshake, by Python's own TLS."""
    context = ssl.create_default_context(cafile=str(tls.authority))
    context.load_cert_chain(tls.certificate, tls.key)
    context.check_hostname = False
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=5) as raw, context.wrap_socket(raw) as connection:
        der = connection.getpeercert(binary_form=True)
        assert der is not None
        return fingerprint(ssl.DER_cert_to_PEM_cert(der).encode())


def test_a_server_shows_a_renewed_certificate_and_keeps_its_connections(pki: Pki, tmp_path: Path) -> None:
    """Show a new certificate with a new key, while a channel that stands goes on.

    A channel that pins the new certificate gets in, and one that pins the old one does not. One that pins both gets in
    before and after.
    """
    files, next_files = pki.tls("aggregator-a"), another(pki, A, tmp_path / "next")
    pins = {name: tmp_path / f"{name}.pem" for name in ("old", "new", "both")}
    pins["old"].write_bytes(files.certificate.read_bytes())
    pins["new"].write_bytes(next_files.certificate.read_bytes())
    pins["both"].write_bytes(pins["old"].read_bytes() + pins["new"].read_bytes())

    async def scenario() -> None:
        async with desk(files) as address:

            def channel(pin: str) -> grpc.aio.Channel:
                return dial(address, Role.AGGREGATOR_A, pki.tls(ALICE), renewable_pins(pins[pin], Role.AGGREGATOR_A))

            async with channel("old") as standing:
                assert await ask(standing) == b"precad://client/alice"
                async with channel("both") as before:
                    assert await ask(before) == b"precad://client/alice"
                put(next_files.key, files.key)
                put(next_files.certificate, files.certificate)
                for pin in ("new", "both"):
                    async with channel(pin) as after:
                        assert await ask(after) == b"precad://client/alice"
                async with channel("old") as stale:
                    with pytest.raises(grpc.aio.AioRpcError) as caught:
                        await ask(stale)
                    assert "not the pinned one" in explain(caught.value, Role.AGGREGATOR_A, address)
                assert await ask(standing) == b"precad://client/alice"

    asyncio.run(scenario())


def test_half_a_pair_and_foreign_files_are_refused_with_one_line(pki: Pki, tmp_path: Path) -> None:
    """The certificate is there before its key; then the key comes. Expired, of another authority, of another holder."""
    files = pki.tls("aggregator-a")
    long_ago = dt.datetime.now(dt.UTC) - dt.timedelta(days=400)
    create_authority(tmp_path / "foreign")
    shutil.copytree(files.certificate.parent, tmp_path / "kept")
    bad = {
        "one valid at": another(pki, A, tmp_path / "expired", now=long_ago),
        "one that it did not sign": issue(tmp_path / "foreign", A),
        "expected one of precad://aggregator-a": pki.tls("aggregator-b"),
    }
    next_files = another(pki, A, tmp_path / "next")
    old, new = (fingerprint(tls.certificate.read_bytes()) for tls in (files, next_files))

    async def scenario() -> None:
        async with desk(files) as address:

            async def shown() -> str:
                return await asyncio.to_thread(shown_at, address, pki.tls(ALICE))

            for reason, theirs in bad.items():
                with structlog.testing.capture_logs() as lines:
                    put(theirs.key, files.key)
                    put(theirs.certificate, files.certificate)
                    assert [await shown() for _ in range(3)] == [old] * 3
                assert [line["event"] for line in lines] == ["tls.refused"]
                assert reason in lines[0]["reason"]
            put(tmp_path / "kept" / "key.pem", files.key)
            put(tmp_path / "kept" / "cert.pem", files.certificate)
            assert await shown() == old
            with structlog.testing.capture_logs() as lines:
                put(next_files.certificate, files.certificate)
                assert [await shown() for _ in range(3)] == [old] * 3
                put(next_files.key, files.key)
                assert [await shown() for _ in range(3)] == [new] * 3
            assert [line["event"] for line in lines] == ["tls.refused", "tls.renewed"]
            assert "PRIVATE" not in str(lines)

    asyncio.run(scenario())


def test_an_authority_is_replaced_by_way_of_a_bundle(pki: Pki, tmp_path: Path) -> None:
    """Both authorities first; then certificates of the new one; then the new one alone, and the old one's are out."""
    create_authority(tmp_path / "new-authority")
    new_a, new_alice = (issue(tmp_path / "new-authority", i) for i in (A, Identity(Role.CLIENT, ALICE)))
    old_alice, files = pki.tls(ALICE), pki.tls("aggregator-a")
    bundle, new_ca = tmp_path / "bundle.pem", tmp_path / "new-authority" / "ca.pem"
    bundle.write_bytes(pki.authority.read_bytes() + new_ca.read_bytes())
    at_server = TlsFiles(certificate=files.certificate, key=files.key, authority=tmp_path / "trusted.pem")
    shutil.copy(pki.authority, at_server.authority)

    async def comes_in(address: str, shown: TlsFiles) -> bool:
        trusting_both = TlsFiles(certificate=shown.certificate, key=shown.key, authority=bundle)
        async with dial(address, Role.AGGREGATOR_A, trusting_both) as channel:
            try:
                return await ask(channel) == b"precad://client/alice"
            except grpc.aio.AioRpcError:
                return False

    async def scenario() -> None:
        async with desk(at_server) as address:
            assert [await comes_in(address, tls) for tls in (old_alice, new_alice)] == [True, False]
            put(bundle, at_server.authority)
            assert [await comes_in(address, tls) for tls in (old_alice, new_alice)] == [True, True]
            put(new_a.key, at_server.key)
            put(new_a.certificate, at_server.certificate)
            put(new_ca, at_server.authority)
            assert [await comes_in(address, tls) for tls in (old_alice, new_alice)] == [False, True]

    asyncio.run(scenario())


class Caller:
    """A call by the holder of a certificate."""

    def __init__(self, tls: TlsFiles) -> None:
        self._pem = tls.certificate.read_bytes()

    def auth_context(self) -> dict[str, list[bytes]]:
        """As gRPC says it."""
        return {"x509_pem_cert": [self._pem]}


def test_pins_are_read_again_and_bad_ones_change_nothing(pki: Pki, tmp_path: Path) -> None:
    first, second = pki.tls("aggregator-b"), another(pki, B, tmp_path / "second")
    path = tmp_path / "b.pem"
    shutil.copy(first.certificate, path)
    pins = renewable_pins(path, Role.AGGREGATOR_B)
    with pytest.raises(PinRefusedError):
        require_pinned(Caller(second), pins.load().fingerprints)
    both = tmp_path / "both.pem"
    both.write_bytes(first.certificate.read_bytes() + second.certificate.read_bytes())
    put(both, path)
    for caller in (first, second):
        require_pinned(Caller(caller), pins.load().fingerprints)
    with structlog.testing.capture_logs() as lines:
        for bad in (pki.tls("dealer").certificate, first.key, pki.authority):
            put(bad, path)
            assert len(pins.load().fingerprints) == len(pins.load().fingerprints) == 2
        path.unlink()
        assert len(pins.load().fingerprints) == 2
    assert [line["event"] for line in lines] == ["pins.refused"] * 4
    put(second.certificate, path)
    with pytest.raises(PinRefusedError):
        require_pinned(Caller(first), pins.load().fingerprints)


def test_a_certificate_of_tomorrow_is_taken_when_it_is_valid(
    pki: Pki, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file does not change again. Our clock is behind the authority's by less than CLOCK_SKEW: no difference."""
    files = pki.tls(ALICE)
    latest = renewable(files)
    ahead = dt.datetime.now(dt.UTC) + dt.timedelta(minutes=4)
    put(another(pki, Identity(Role.CLIENT, ALICE), tmp_path / "skewed", now=ahead).key, files.key)
    put(tmp_path / "skewed" / ALICE / "cert.pem", files.certificate)
    assert latest.load().certificate == files.certificate.read_bytes()
    before = latest.load()
    starts = dt.datetime.now(dt.UTC) + dt.timedelta(minutes=5, seconds=6)
    put(another(pki, Identity(Role.CLIENT, ALICE), tmp_path / "soon", now=starts).key, files.key)
    put(tmp_path / "soon" / ALICE / "cert.pem", files.certificate)
    with structlog.testing.capture_logs() as lines:
        assert latest.load() is before
    assert "this machine's clock" in lines[0]["reason"]
    monkeypatch.setattr(last_good, "RETRY_S", 0.0)
    with structlog.testing.capture_logs() as lines:
        assert latest.load() is before
        latest._retry_at = 0.0  # as if RETRY_S had passed
        time.sleep(6)
        assert latest.load().certificate == files.certificate.read_bytes()
    assert [line["event"] for line in lines] == ["tls.renewed"]


def test_the_operations_port_shows_what_is_latest_in_each_handshake(pki: Pki, tmp_path: Path) -> None:
    """With and without a server name, TLS 1.3 alone."""
    files, next_files = pki.tls("aggregator-a"), another(pki, A, tmp_path / "next")
    contexts = TlsContext(tls=files, pinned=None, server_side=True).renewable()

    async def scenario() -> None:
        runner = web.AppRunner(web.Application())
        await runner.setup()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            accepting = asyncio.create_task(Doorway(16, 30.0).accept(listener, runner, contexts.load))
            address = f"127.0.0.1:{listener.getsockname()[1]}"
            old = await asyncio.to_thread(shown_at, address, pki.tls(ALICE))
            put(next_files.certificate, files.certificate)
            assert await asyncio.to_thread(shown_at, address, pki.tls(ALICE)) == old
            put(next_files.key, files.key)
            new = await asyncio.to_thread(shown_at, address, pki.tls(ALICE))
            assert (old == new, new) == (False, fingerprint(next_files.certificate.read_bytes()))
            old_version = ssl.create_default_context(cafile=str(pki.authority))
            old_version.maximum_version, old_version.check_hostname = ssl.TLSVersion.TLSv1_2, False
            with pytest.raises((ssl.SSLError, ConnectionResetError)):
                await asyncio.open_connection(*address.split(":"), ssl=old_version)
            accepting.cancel()
            await asyncio.wait([accepting])
        await runner.cleanup()

    asyncio.run(scenario())


@pytest.mark.parametrize(("version", "is_welcome"), [("TLSv1", False), ("TLSv1_1", False), ("TLSv1_2", True)])
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_grpc_speaks_no_tls_below_1_2(pki: Pki, version: str, is_welcome: bool) -> None:
    """With every cipher that OpenSSL has, at its lowest security level, and a good certificate."""

    def connect(address: str) -> str:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
        context.check_hostname = False
        context.load_verify_locations(str(pki.authority))
        tls = pki.tls(ALICE)
        context.load_cert_chain(tls.certificate, tls.key)
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=5) as raw, context.wrap_socket(raw) as connection:
            return str(connection.version())

    async def scenario() -> None:
        async with desk(pki.tls("aggregator-a")) as address:
            if is_welcome:
                assert await asyncio.to_thread(connect, address) == "TLSv1.2"
            else:  # by its version alone: with 1.2 the same connection is welcome
                with pytest.raises((ssl.SSLError, ConnectionResetError)):
                    await asyncio.to_thread(connect, address)

    asyncio.run(scenario())


def test_renewing_keeps_name_and_key_and_the_certificate_before(pki: Pki) -> None:
    """The new one fits the old key; a name without a certificate cannot be renewed."""
    files = pki.tls(ALICE)
    before = files.load()
    path = renew(pki.directory, before.identity, days=30)
    after = files.load()
    assert path == files.certificate
    assert (after.identity, after.key) == (before.identity, before.key)
    assert after.certificate != before.certificate == path.with_name("previous.pem").read_bytes()
    with pytest.raises(PkiError, match="expected the certificate to renew"):
        renew(pki.directory, Identity(Role.CLIENT, "nobody"))


def test_a_client_that_lost_a_server_comes_back_with_its_renewed_certificate(pki: Pki, tmp_path: Path) -> None:
    """A channel shows what it was made with; `Links.renew` makes another one, and none where nothing has changed.

    Calls of a round go on over the channel that they began on.
    """
    renewed = another(pki, Identity(Role.CLIENT, ALICE), tmp_path / "next")

    async def scenario() -> None:
        async with desk(pki.tls("aggregator-a")) as a, desk(pki.tls("aggregator-b")) as b:
            links = Links((a, b), pki.tls(ALICE), (None, pki.tls("aggregator-b").certificate))
            first = list(links.stubs)
            await links.renew(0)
            assert links.stubs == first
            put(renewed.key, pki.tls(ALICE).key)
            put(renewed.certificate, pki.tls(ALICE).certificate)
            before = links._channels[0]
            under_way = before.unary_unary("/desk/Slowly")(b"", timeout=10)
            for server in (0, 1):
                await links.renew(server)
                shown = await links._channels[server].unary_unary("/desk/Who")(b"", timeout=10)
                assert shown.decode() == fingerprint(renewed.certificate.read_bytes())
            assert not set(map(id, links.stubs)) & set(map(id, first))
            assert await under_way == b"done"
            assert await ask(before)  # a call of the same round, by a stub that it has from before
            await links.close()

    asyncio.run(scenario())


def test_a_waits_for_a_peer_that_renews_meanwhile(pki: Pki, tmp_path: Path) -> None:
    """B shows another certificate than A has pinned when it begins to dial; then A's operator replaces the pin."""
    renewed, pin = another(pki, B, tmp_path / "next"), tmp_path / "b.pem"
    shutil.copy(pki.tls("aggregator-b").certificate, pin)
    pins = renewable_pins(pin, Role.AGGREGATOR_B)
    hello = common_pb2.Hello(protocol_version="1", nonce=b"n")

    async def scenario() -> None:
        server, port = bind_server("127.0.0.1:0", renewed)
        servicer = PeerServicer(
            renewable_pins(pki.tls("aggregator-a").certificate, Role.AGGREGATOR_A), Telemetry(Role.AGGREGATOR_B)
        )
        peer_pb2_grpc.add_PeerServicer_to_server(servicer, server)
        await server.start()
        address = f"127.0.0.1:{port}"
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(server.stop, 0)
            stack.callback(servicer.release)
            dialling = asyncio.create_task(
                dial_peer(
                    stack, lambda: dial(address, Role.AGGREGATOR_B, pki.tls("aggregator-a"), pins), hello, address, 20
                )
            )
            answering = asyncio.create_task(servicer.wait_for_peer(hello, 20))
            await asyncio.sleep(0.5)
            assert not dialling.done()
            put(renewed.certificate, pin)
            assert (await dialling)[1] == hello
            assert (await answering)[1] == hello

    asyncio.run(scenario())


def test_a_replaced_certificate_must_fit_at_the_start(pki: Pki) -> None:
    put(pki.tls("aggregator-b").certificate, pki.tls(ALICE).certificate)
    with pytest.raises(TlsFileError, match="expected the certificate's key"):
        renewable(pki.tls(ALICE))
