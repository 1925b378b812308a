"""Certificates by one-time token: the store, the endpoint over real TLS, and the commands as real processes.

Failure means one of these:
- a token worth two keys or two identities, or one that is found on disk or in a log;
- a certificate that leaves before its token is burnt;
- a token that leaves for an endpoint that is not the authority's;
- a retry that gets nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import os
import re
import select
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import structlog
from aiohttp import web

from precad.deploy.authority import pki
from precad.deploy.authority.enrolment import endpoint as endpoint_module
from precad.deploy.authority.enrolment import enrol as enrolling
from precad.deploy.authority.enrolment.endpoint import MAX_REQUEST_BYTES, Endpoint
from precad.deploy.authority.enrolment.enrol import enrol
from precad.deploy.authority.enrolment.tokens import TokenRefusedError, Tokens
from precad.deploy.cli import main as cli
from precad.protos.tls.identity import Identity, Role, fingerprint
from precad.servers.errors import PeerUnreachableError, SetupError
from precad.servers.operations.access import MAX_FAILURES
from tests.harness.command_line import CliRunner
from tests.harness.harness import until
from tests.harness.pki import Pki

ALICE, BOB = (Identity(Role.CLIENT, name) for name in ("alice", "bob"))
DAY = dt.timedelta(days=1)


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now = dt.datetime.now(dt.UTC)

    def __call__(self) -> dt.datetime:
        return self.now


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    pki.create_authority(tmp_path / "authority")
    return tmp_path / "authority"


def asked(folder: Path, identity: Identity) -> bytes:
    return pki.request(folder, identity).read_bytes()


def test_a_token_is_worth_one_key_of_one_identity(authority: Path, tmp_path: Path) -> None:
    """Give one key the same bytes again; another key, another name and another role get nothing."""
    first, second = asked(tmp_path / "1", ALICE), asked(tmp_path / "2", ALICE)
    with Tokens(authority) as tokens:
        token = tokens.make(ALICE, valid=DAY, days=30)
        for wrong in (asked(tmp_path / "3", BOB), asked(tmp_path / "4", Identity(Role.DEALER, "dealer")), b"garbage"):
            with pytest.raises(pki.PkiError, match=r"^request: expected"):
                tokens.redeem(token, wrong)
        with pytest.raises(TokenRefusedError):
            tokens.redeem(token[:-1] + ("A" if token[-1] != "A" else "B"), first)
        certificate = tokens.redeem(token, first)
        assert tokens.redeem(token, first) == certificate
        with pytest.raises(TokenRefusedError):
            tokens.redeem(token, second)
    assert (authority / "alice" / "cert.pem").read_bytes() == certificate
    assert len(token) >= 43  # 256 bits in base64
    for path in authority.iterdir():
        assert path.is_dir() or token.encode() not in path.read_bytes()
    assert (authority / "enrolment.sqlite").stat().st_mode & 0o077 == 0


def test_tokens_end(authority: Path, tmp_path: Path) -> None:
    """At their time, burnt or not, and when a newer one of the identity is made."""
    clock, request = Clock(), asked(tmp_path / "1", ALICE)
    with Tokens(authority, clock) as tokens:
        older, token = (tokens.make(ALICE, valid=DAY, days=30) for _ in range(2))
        with pytest.raises(TokenRefusedError):
            tokens.redeem(older, request)
        clock.now += DAY - dt.timedelta(seconds=1)
        tokens.redeem(token, request)
        clock.now += dt.timedelta(seconds=1)
        with pytest.raises(TokenRefusedError):
            tokens.redeem(token, request)


def test_a_name_that_is_taken_or_revoked_gets_nothing(authority: Path, tmp_path: Path) -> None:
    """Neither a token nor a certificate for one; a name may be revoked after its token was made."""
    request = asked(tmp_path / "1", ALICE)
    with Tokens(authority) as tokens:
        token = tokens.make(ALICE, valid=DAY, days=30)
        pki.issue(authority, ALICE)
        with pytest.raises(pki.PkiError, match="alice exists already"):
            tokens.redeem(token, request)
        with pytest.raises(pki.PkiError, match="alice exists already"):
            tokens.make(ALICE, valid=DAY, days=30)
        token = tokens.make(BOB, valid=DAY, days=30)
        (authority / "revoked-names.txt").write_text("bob  # left in May\n", encoding="utf-8-sig")
        for refused in (
            lambda: tokens.redeem(token, asked(tmp_path / "2", BOB)),
            lambda: tokens.make(BOB, valid=DAY, days=30),
            lambda: pki.issue(authority, BOB),
        ):
            with pytest.raises(pki.PkiError, match="precad://client/bob is revoked"):
                refused()


@pytest.mark.parametrize("days", [0, 36501, 99999999, 36000])
def test_a_token_of_days_that_no_certificate_has_is_refused_here(authority: Path, days: int) -> None:
    """Not at the hospital that was sent it. One of before is kept."""
    with Tokens(authority) as tokens:
        kept = tokens.make(ALICE, valid=DAY, days=30)
        with pytest.raises(
            pki.PkiError, match=r"days: expected (1 to 36500|an end before that of the authority's certificate)"
        ):
            tokens.make(ALICE, valid=DAY, days=days)
        with pytest.raises(pki.PkiError, match="request: expected"):
            tokens.redeem(kept, b"")


def test_a_token_is_burnt_before_its_certificate_leaves(
    authority: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies between the two: another key gets nothing afterwards, the same one its certificate."""

    class KilledError(BaseException):
        pass

    def dies(*_: object) -> None:
        raise KilledError

    first, second = asked(tmp_path / "1", ALICE), asked(tmp_path / "2", ALICE)
    with Tokens(authority) as tokens:
        token = tokens.make(ALICE, valid=DAY, days=30)
        with monkeypatch.context() as patch:
            patch.setattr(pki, "file_certificate", dies)
            with pytest.raises(KilledError):
                tokens.redeem(token, first)
    with Tokens(authority) as tokens:
        with pytest.raises(TokenRefusedError):
            tokens.redeem(token, second)
        certificate = tokens.redeem(token, first)
    assert (authority / "alice" / "cert.pem").read_bytes() == certificate


# The endpoint


@contextlib.asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[tuple[str, Tokens]]:
    with Tokens(directory) as tokens:
        endpoint = Endpoint(directory, tokens, "127.0.0.1:0")
        running = asyncio.create_task(endpoint.run())
        while not endpoint.port:
            await asyncio.sleep(0.01)
            assert not running.done() or running.result() is None
        try:
            yield f"https://127.0.0.1:{endpoint.port}", tokens
        finally:
            endpoint.stop()
            await running


def pin(directory: Path) -> str:
    return fingerprint((directory / "ca.pem").read_bytes())


def test_handshakes_that_stall_are_bounded_and_keep_nobody_out_for_long(
    authority: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strangers who connect and say nothing hold a few descriptors, and those not for ever."""
    monkeypatch.setattr(endpoint_module, "MAX_CONNECTIONS", 4)
    monkeypatch.setattr(endpoint_module, "CONNECTION_S", 6.0)

    async def scenario() -> None:
        async with serving(authority) as (url, tokens):
            port = int(url.rpartition(":")[2])
            strangers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(12)]
            ends = [asyncio.create_task(reader.read()) for reader, _ in strangers]
            await until(lambda: sum(end.done() for end in ends) >= 8)
            await asyncio.sleep(0.5)
            assert sum(end.done() for end in ends) == 8
            await asyncio.wait(ends)
            token = tokens.make(ALICE, valid=DAY, days=30)
            await enrol(url, tmp_path / "new", ALICE, token, pin(authority))

    asyncio.run(scenario())


def test_twenty_strangers_a_second_keep_nobody_out(
    authority: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenth of both limits bounds the same rate."""
    monkeypatch.setattr(endpoint_module, "MAX_CONNECTIONS", endpoint_module.MAX_CONNECTIONS // 10)
    monkeypatch.setattr(endpoint_module, "CONNECTION_S", endpoint_module.CONNECTION_S / 10)

    async def scenario() -> None:
        async with serving(authority) as (url, tokens):
            strangers = []
            for _ in range(60):
                strangers.append(await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2])))
                await asyncio.sleep(0.05)
            token = tokens.make(ALICE, valid=DAY, days=30)
            await enrol(url, tmp_path / "new", ALICE, token, pin(authority))
            for _, writer in strangers:
                writer.close()

    asyncio.run(scenario())


def test_enrolling_again_after_a_lost_answer_gives_the_same_certificate(authority: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(authority) as (url, tokens):
            token = tokens.make(ALICE, valid=DAY, days=30)
            with structlog.testing.capture_logs() as lines:
                made = await enrol(url, tmp_path / "new", ALICE, token, pin(authority))
                first = made.certificate.read_bytes()
                with pytest.raises(pki.PkiError, match="has a certificate already"):
                    await enrol(url, tmp_path / "new", ALICE, token, pin(authority))
                made.certificate.unlink()
                await enrol(url, tmp_path / "new", ALICE, token, pin(authority))
                assert made.certificate.read_bytes() == first
                with pytest.raises(pki.PkiError, match=r"refused \(403\): token: expected one that is valid"):
                    await enrol(url, tmp_path / "other", ALICE, token, pin(authority))
            assert made.load().identity == ALICE
            assert made.key.stat().st_mode & 0o777 == 0o600
            assert not (tmp_path / "other" / "alice" / "cert.pem").exists()
            events = [line["event"] for line in lines]
            assert events == ["enrolment.issued", "enrolment.issued", "enrolment.wrong_token"]
            assert token not in str(lines)

    asyncio.run(scenario())


def test_the_token_does_not_leave_for_another_endpoint(authority: Path, tmp_path: Path) -> None:
    """An impostor shows the authority's own certificate at /ca.pem, and cannot prove its name in the next handshake.

    An authority of another fingerprint, or plain text, is not asked at all.
    """
    pki.create_authority(tmp_path / "foreign")
    certificate, key = pki.issue_for_host(tmp_path / "foreign", "enrolment.precad", days=1)
    pair = tmp_path / "pair.pem"
    pair.write_bytes(key + certificate)
    asked_for: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked_for.append(f"{request.method} {request.path}")
        return web.Response(body=(authority / "ca.pem").read_bytes())

    async def scenario() -> None:
        application = web.Application()
        application.router.add_route("*", "/{anything}", answer)
        runner = web.AppRunner(application)
        await runner.setup()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair)
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        url = f"https://127.0.0.1:{runner.addresses[0][1]}"
        with pytest.raises(PeerUnreachableError, match="CERTIFICATE_VERIFY_FAILED"):
            await enrol(url, tmp_path / "new", ALICE, "secret", pin(authority))
        with pytest.raises(pki.PkiError, match="--authority-fingerprint: expected"):
            await enrol(url, tmp_path / "new", ALICE, "secret", pin(tmp_path / "foreign"))
        for no_fingerprint in ("SHA256", "", pin(authority)[:-1]):
            with pytest.raises(pki.PkiError, match="expected a SHA-256, 64 hexadecimal digits, found") as refused:
                await enrol(url, tmp_path / "none", ALICE, "secret", no_fingerprint)
            assert pin(authority)[:8] not in str(refused.value)  # whoever answers there
        assert asked_for == ["GET /ca.pem"] * 2
        for wrong in (
            url.replace("https", "http"),
            "https://127.0.0.1:abc",
            "https://[::1",
            "https://:1",
            "https://h:0",
            "https://alice:hunter2@h:x",
        ):
            with pytest.raises(pki.PkiError, match="URL: expected https://HOST:PORT, found") as refused:
                await enrol(wrong, tmp_path / "none", ALICE, "secret", pin(authority))
            assert "hunter2" not in str(refused.value)
        assert not (tmp_path / "none").exists()  # no key is made for it
        await runner.cleanup()
        with pytest.raises(PeerUnreachableError, match=r"no enrolment at .*: nothing listens there"):
            await enrol(url, tmp_path / "new", ALICE, "secret", pin(authority))

    asyncio.run(scenario())


def test_what_an_endpoint_breaks_is_said_in_a_few_words(authority: Path, tmp_path: Path) -> None:
    """Whoever answers there chooses them: a chunk's length of 80,000 digits, before its certificate is looked at."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    files = Pki.create(tmp_path / "foreign", ["alice"]).tls("aggregator-a")
    context.load_cert_chain(files.certificate, files.key)

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 80_000)
        with contextlib.suppress(OSError):
            await writer.drain()

    async def scenario() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(PeerUnreachableError, match=r"^no enrolment at .*: 400") as caught:
            await enrol(url, tmp_path / "new", ALICE, "secret", pin(authority))
        assert len(str(caught.value)) < 500
        server.close()

    asyncio.run(scenario())


def test_guesses_are_limited_and_long_requests_refused(authority: Path, tmp_path: Path) -> None:
    """After MAX_FAILURES wrong tokens the right one gets no answer either; before, 8 KiB are the most that is read."""
    request = asked(tmp_path / "1", ALICE)

    async def scenario() -> None:
        async with serving(authority) as (url, tokens), aiohttp.ClientSession() as session:
            token = tokens.make(ALICE, valid=DAY, days=30)

            async def status(token: str, body: bytes) -> int:
                headers = {"Authorization": f"Bearer {token}"}
                async with session.post(f"{url}/enrol", data=body, headers=headers, ssl=False) as answer:
                    return answer.status

            assert await status(token, bytes(MAX_REQUEST_BYTES + 1)) == 413
            assert await status(token, b"nothing") == 409
            for _ in range(MAX_FAILURES):
                assert await status("guess", request) == 403
            assert await status(token, request) == 429
            assert not (authority / "alice").exists()

    asyncio.run(scenario())


def test_the_endpoint_speaks_tls_1_3_alone(authority: Path) -> None:
    async def scenario() -> None:
        async with serving(authority) as (url, _):
            context = ssl.create_default_context(cafile=str(authority / "ca.pem"))
            context.maximum_version, context.check_hostname = ssl.TLSVersion.TLSv1_2, False
            with pytest.raises((ssl.SSLError, ConnectionResetError)):
                await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]), ssl=context)

    asyncio.run(scenario())


def test_a_token_is_read_from_a_private_file_or_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("secret\n")
    path.chmod(0o644)
    with pytest.raises(SetupError, match="--token-file: expected a file closed to other users, found mode 0644"):
        enrolling.read_token(path)
    path.chmod(0o600)
    assert enrolling.read_token(path) == enrolling.read_token(None, {"PRECAD_ENROLMENT_TOKEN": "secret"}) == "secret"
    with pytest.raises(pki.PkiError, match="expected it in --token-file or in PRECAD_ENROLMENT_TOKEN, found none"):
        enrolling.read_token(None, {})
    for text in ("", "two words", "line\nX-Other: 1", "gr\u00fcn"):
        with pytest.raises(pki.PkiError, match="token: expected one of `precad pki token`, found"):
            enrolling.read_token(None, {"PRECAD_ENROLMENT_TOKEN": text})


def test_a_token_is_of_an_authority(tmp_path: Path) -> None:
    """A mistyped folder is refused, and nothing is made there."""
    command = ["pki", "token", str(tmp_path / "none"), "--name", "alice"]
    done = CliRunner().invoke(cli.app, command)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "DIR: expected the authority's folder, found no ca.pem" in done.stderr
    assert not (tmp_path / "none").exists()


def test_the_commands_enrol_a_client_across_processes(authority: Path, tmp_path: Path) -> None:
    """Token, endpoint and client as an operator starts them; the endpoint ends on SIGTERM."""
    command = [sys.executable, "-P", "-m", "precad.deploy.cli.main"]
    made = subprocess.run(
        [*command, "pki", "token", authority, "--name", "alice", "--valid", "1h"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text(made.stdout)
    endpoint = subprocess.Popen(
        [*command, "pki", "serve", authority, "--listen", "127.0.0.1:0"], stderr=subprocess.PIPE, text=True
    )
    assert endpoint.stderr is not None
    try:
        assert select.select([endpoint.stderr], [], [], 60)[0]
        port = re.search(r'"port": (\d+)', endpoint.stderr.readline())
        assert port is not None
        flags = ["--authority-fingerprint", pin(authority), "--dir", tmp_path / "new", "--name", "alice"]
        done = subprocess.run(
            [*command, "enrol", f"https://127.0.0.1:{port[1]}", *flags, "--token-file", token],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, "PRECAD_ENROLMENT_TOKEN": "not this one"},
        )
        assert (done.returncode, done.stderr) == (0, "")
        new = tmp_path / "new" / "alice"
        assert done.stdout == f"certificate: {new / 'cert.pem'}\nkey: {new / 'key.pem'}\n"
    finally:
        endpoint.terminate()
        _, log = endpoint.communicate(timeout=30)
    assert endpoint.returncode == 0, log
    assert "enrolment.issued" in log
    assert made.stdout.strip() not in log
    assert (tmp_path / "new/alice/cert.pem").read_bytes() == (authority / "alice/cert.pem").read_bytes()


def test_what_is_no_request_leaves_no_line(authority: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Anybody may send it: aiohttp would write a traceback for each."""

    async def scenario() -> None:
        async with serving(authority) as (url, _):
            host, port = url.removeprefix("https://").split(":")
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
            writer.write(b"GET /" + bytes(9000) + b" HTTP/1.1\r\n\r\n")
            assert b"400" in await reader.read(100)
            writer.close()

    asyncio.run(scenario())
    assert [record for record in caplog.records if record.exc_info] == []
