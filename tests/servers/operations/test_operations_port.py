"""The operations port under attack, over real sockets: who gets in, what gets out, and what it costs the server.

What counts as failure:
- anything but liveness, the login form and its looks is answered without the token or a session;
- a token or a session shows up in an address, a page, a log line or an answer;
- another site's page can log somebody in or out, or frame, script or style ours;
- an address may guess on and on; or guessing ends the sessions of others;
- silent, slow or many connections take the port away for good, or a file outside the list is given out.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import json
import logging
import re
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs
from yarl import URL

from precad.protos.precad.v1 import common_pb2
from precad.protos.tls.files import TransportError
from precad.protos.tls.identity import Role
from precad.servers.config import DealerConfig
from precad.servers.errors import RefusalReason, SetupError, SubmissionRefusedError
from precad.servers.operations import port as port_module
from precad.servers.operations.access import MAX_FAILURES, RECOVERY_S, BrowserSessions, FailureLimit, Token, load_token
from precad.servers.operations.opening import operations_port
from precad.servers.operations.port import MAX_STREAMS, OperationsPort
from precad.servers.operations.snapshot import of_dealer
from precad.servers.rounds.intake import Intake
from precad.servers.rounds.states import Collecting, Selecting
from precad.servers.telemetry.events import Telemetry
from precad.servers.telemetry.status import Status
from tests.harness.harness import Pki, asynchronous, free_addresses, small_task, until
from tests.harness.room import roomy

TOKEN, WRONG = "right-token-of-this-server-0123456789", "wrong-token-of-this-server-0123456789"
SECRET_PATHS = ["/readyz", "/metrics", "/status.json", "/events", "/dashboard.js", "/checkpoints/model.npy", "/nowhere"]
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@dataclass
class Server:
    """One port with a status that the test sets."""

    url: str
    telemetry: Telemetry
    status: Status


@contextlib.asynccontextmanager
async def served(state_dir: Path | None = None) -> AsyncIterator[Server]:
    """A port on loopback."""
    telemetry = Telemetry(Role.AGGREGATOR_A)
    telemetry.task_id = "task-1"
    server = Server("", telemetry, of_dealer(telemetry, n_connected=2, n_waiting=0))
    operations = OperationsPort(Token(TOKEN), telemetry, lambda: server.status, state_dir, is_tls=False)
    async with operations.listening("127.0.0.1:0", None) as number:
        server.url = f"http://127.0.0.1:{number}"
        yield server


def browser(server: Server) -> aiohttp.ClientSession:
    """Keeps cookies, as browsers do; shows redirects."""
    return aiohttp.ClientSession(server.url, cookie_jar=aiohttp.CookieJar(unsafe=True))


async def log_in(session: aiohttp.ClientSession, token: str = TOKEN, **headers: str) -> aiohttp.ClientResponse:
    return await session.post("/login", data={"token": token}, headers=headers, allow_redirects=False)


# -- who gets in -------------------------------------------------------------------------------------------------------


@asynchronous
async def test_nothing_but_liveness_and_the_login_form_without_the_token() -> None:
    async with served() as server, browser(server) as session:
        for path in SECRET_PATHS:
            for name, value in (
                ("Accept", "*/*"),
                ("Authorization", TOKEN),
                ("Cookie", f"precad-aggregator-a={TOKEN}"),
            ):
                answer = await session.get(path, headers={name: value})
                assert answer.status == 401, (path, name)
                assert "task-1" not in await answer.text()
        wrong = await session.get("/metrics", headers={"Authorization": f"Bearer {WRONG}"})
        assert wrong.status == 401
        assert (await session.get("/", allow_redirects=False)).headers["Location"] == "/login"
        assert await (await session.get("/healthz")).text() == "ok\n"
        assert 'name="token"' in await (await session.get("/login")).text()
        for path in ("/healthz", "/login", "/metrics", "/"):
            assert (await session.put(path)).status in {401, 405}


@asynchronous
async def test_a_program_shows_the_token_with_every_request() -> None:
    async with served() as server, browser(server) as session:
        assert (await session.get("/status.json", headers=BEARER)).status == 200
        assert (await session.get("/status.json")).status == 401
        assert (await session.get(f"/status.json?token={TOKEN}")).status == 401


@asynchronous
async def test_a_browser_shows_the_token_once_and_gets_a_session_that_no_script_reads() -> None:
    async with served() as server, browser(server) as session:
        answer = await log_in(session)
        assert (answer.status, answer.headers["Location"]) == (303, "/")
        cookie = answer.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert TOKEN not in cookie
        assert (await session.get("/")).status == 200
        assert (await session.get("/metrics")).status == 200

        old = {cookie.key: cookie.value for cookie in session.cookie_jar}
        await session.post("/logout", allow_redirects=False)
        for cookies in ({}, old):
            assert (await session.get("/metrics", cookies=cookies)).status == 401


@asynchronous
async def test_an_event_stream_ends_with_its_session() -> None:
    async with served() as server, browser(server) as session:
        await log_in(session)
        stream = await session.get("/events")
        assert (await stream.content.readline()).startswith(b"data: ")
        await session.post("/logout", allow_redirects=False)
        assert b"data" not in await stream.content.read()


@pytest.mark.parametrize(
    "headers", [{"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}], ids=str
)
def test_another_site_can_send_no_form_of_ours(headers: dict[str, str]) -> None:
    @asynchronous
    async def scenario() -> None:
        async with served() as server, browser(server) as session:
            answer = await log_in(session, **headers)
            assert answer.status == 403
            assert "Set-Cookie" not in answer.headers
            await log_in(session, Origin=server.url)
            assert (await session.post("/logout", headers=headers, allow_redirects=False)).status == 403
            assert (await session.get("/metrics")).status == 200

    scenario()


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("multipart/form-data", 415),
        ("multipart/form-data; boundary=b", 415),
        ("application/x-www-form-urlencoded; charset=nonsense", 415),
        ("application/x-www-form-urlencoded", 400),
    ],
)
def test_a_form_that_is_none_is_refused_without_a_traceback(kind: str, status: int) -> None:
    """Everybody who reaches the port may send one, as often as they like."""

    @asynchronous
    async def scenario() -> None:
        async with served() as server, browser(server) as session:
            with capture_logs() as lines:
                answer = await session.post("/login", data=b"token=\xff", headers={"Content-Type": kind})
            assert answer.status == status
            assert lines == []

    scenario()


@pytest.mark.parametrize("charset", ["utf-7", "unicode_escape", "raw_unicode_escape"])
@asynchronous
async def test_a_form_in_an_encoding_of_lone_surrogates_is_no_defect(charset: str) -> None:
    """Each request would write a traceback of kilobytes."""
    kind = {"Content-Type": f"application/x-www-form-urlencoded; charset={charset}"}
    async with served() as server, browser(server) as session:
        with capture_logs() as lines:
            for form in (b"token=+2AA-", rb"token=\ud800"):
                assert (await session.post("/login", data=form, headers=kind)).status == 415
    assert lines == []


@asynchronous
async def test_names_of_encodings_are_not_kept() -> None:
    """Python remembers a name of kilobytes for each request that says another one."""
    asked: list[str] = []

    def remember(name: str) -> None:
        asked.append(name)

    codecs.register(remember)
    try:
        async with served() as server, browser(server) as session:
            for name in ("no-such-encoding-1", "no-such-encoding-2"):
                kind = {"Content-Type": f"application/x-www-form-urlencoded; charset={name}"}
                assert (await session.post("/login", data=b"token=a", headers=kind)).status == 415
            kind = {"Content-Type": "application/x-www-form-urlencoded; charset=UTF-8"}
            answer = await session.post("/login", data={"token": TOKEN}, headers=kind, allow_redirects=False)
            assert answer.status == 303
    finally:
        codecs.unregister(remember)
    assert asked == []


FORM_HEAD = b"POST /login HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\n"


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (FORM_HEAD + b"Content-Length: 100\r\n\r\ntoken", b""),
        (FORM_HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\ntoken\r\nZZ\r\n", b"400"),
        (FORM_HEAD + b"Content-Encoding: deflate\r\nContent-Length: 5\r\n\r\nhello", b"400"),
        (FORM_HEAD + b"Origin: http://[\r\nContent-Length: 5\r\n\r\nhello", b"403"),
        (FORM_HEAD + b"Content-Length: 9000\r\n\r\n" + bytes(9000), b"413"),
        (b"GET /events HTTP/1.1\r\nHost: x\r\nCookie: \x01\r\n\r\n", b"400"),
        (b"\x16\x03\x01 no HTTP at all\r\n\r\n", b"400"),
    ],
    ids=["cut off", "no chunk", "no deflate", "no origin", "too long", "no cookie", "no HTTP"],
)
@asynchronous
async def test_a_request_that_is_none_leaves_nothing_in_the_log(
    request_: bytes, status: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Not a line, since each costs its sender as little as the next one."""
    async with served() as server:
        url = URL(server.url)
        with capture_logs() as lines:
            reader, writer = await asyncio.open_connection(url.host, url.port)
            writer.write(request_)
            await writer.drain()
            if not status:
                await asyncio.sleep(0.1)  # it has been read, and more is waited for
                writer.write_eof()
            answer = await reader.readline()
            writer.close()
    assert answer.split(b" ")[1:2] == [status] * bool(status)
    assert lines == []
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


@asynchronous
async def test_guessing_is_slow_and_ends_nobodys_session() -> None:
    """By form and by header alike, and the right token is not told from a wrong one meanwhile."""
    async with served() as server, browser(server) as good, browser(server) as bad:
        await log_in(good)
        codes = [(await log_in(bad, WRONG)).status for _ in range(MAX_FAILURES // 2)]
        headers = {"Authorization": f"Bearer {WRONG}"}
        codes += [(await bad.get("/metrics", headers=headers)).status for _ in range(MAX_FAILURES - len(codes))]
        assert set(codes) == {401, 403}
        for refused in (await log_in(bad, WRONG), await log_in(bad), await bad.get("/metrics", headers=BEARER)):
            assert refused.status == 429
            assert 0 < int(refused.headers["Retry-After"]) <= RECOVERY_S
        assert (await good.get("/metrics")).status == 200
        families = {f.name: f for f in text_string_to_metric_families(await (await good.get("/metrics")).text())}
        assert families["precad_operations_logins_failed"].samples[0].value == MAX_FAILURES


def test_the_limit_recovers_and_does_not_grow() -> None:
    """Against the bucket's closed form, on a clock of ours."""
    now = 0.0
    limit = FailureLimit(lambda: now)
    for _ in range(MAX_FAILURES):
        assert limit.wait_s("a") == 0
        limit.failed("a")
    assert limit.wait_s("a") == pytest.approx(RECOVERY_S)
    assert limit.wait_s("b") == 0
    now = RECOVERY_S
    assert limit.wait_s("a") == pytest.approx(0)
    limit.failed("a")
    assert limit.wait_s("a") == pytest.approx(RECOVERY_S)
    now += MAX_FAILURES * RECOVERY_S
    assert limit._failures("a") == pytest.approx(0)
    for i in range(10_000):
        limit.failed(f"address-{i}")
    assert len(limit._buckets) <= 4096


def test_sessions_end_by_themselves_and_are_not_kept_in_the_clear() -> None:
    now = 0.0
    sessions = BrowserSessions(lambda: now)
    first = sessions.open()
    assert sessions.is_open(first)
    assert first not in repr(vars(sessions))
    assert not sessions.is_open("")
    now = 12 * 3600.0
    assert not sessions.is_open(first)
    names = [sessions.open() for _ in range(1000)]
    assert len({*names}) == 1000
    assert sum(map(sessions.is_open, names)) == 256


# -- what gets out -----------------------------------------------------------------------------------------------------


@asynchronous
async def test_every_answer_forbids_what_is_not_ours() -> None:
    async with served() as server, browser(server) as session:
        await log_in(session)
        for path in ("/healthz", "/login", "/", "/metrics", "/status.json", "/nowhere", "/events", "/checkpoints/x"):
            answer = await session.get(path)
            policy = answer.headers["Content-Security-Policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Cache-Control"] == "no-store"
            assert answer.headers["Referrer-Policy"] == "no-referrer"
            assert "aiohttp" not in answer.headers.get("Server", "")
            answer.close()


@asynchronous
async def test_pages_are_ours_alone() -> None:
    """No address of another host, no inline script or style that the policy would have to allow."""
    async with served() as server, browser(server) as session:
        await log_in(session)
        for path in ("/login", "/", "/dashboard.js", "/dashboard.css", "/icon.svg"):
            text = await (await session.get(path)).text()
            addresses = set(re.findall(r"https?://[^\s\"')]+", text))
            assert addresses <= {"http://www.w3.org/2000/svg"}  # the name of a language, which nobody fetches
            assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=|innerHTML|eval\(", text), path


@asynchronous
async def test_no_secret_reaches_a_log_line_an_answer_or_a_representation() -> None:
    async with served() as server, browser(server) as session:
        with capture_logs() as lines:
            answer = await log_in(session)
            await log_in(session, WRONG)
            async with browser(server) as program:
                await program.get("/metrics", headers={"Authorization": f"Bearer {WRONG}"})
            pages = [await (await session.get(path)).text() for path in ("/", "/metrics", "/status.json", "/login")]
        name = answer.cookies["precad-aggregator-a"].value
        for secret in (TOKEN, WRONG, name):
            assert secret not in repr(lines)
            assert all(secret not in page for page in pages)
        assert [line["event"] for line in lines] == ["operations.wrong_token"] * 2
        assert TOKEN not in repr(Token(TOKEN))


@asynchronous
async def test_only_the_files_of_the_list_are_given_out(tmp_path: Path) -> None:
    (tmp_path / "model.npy").write_bytes(b"model")
    (tmp_path / "tuples.sqlite").write_bytes(b"burnt")
    (tmp_path.parent / "outside").write_bytes(b"outside")
    async with served(tmp_path) as server, browser(server) as session:
        model = await session.get("/checkpoints/model.npy", headers=BEARER)
        assert (model.status, await model.read()) == (200, b"model")
        assert "attachment" in model.headers["Content-Disposition"]
        others = ("tuples.sqlite", "rounds.jsonl", "..%2Foutside", "../outside", "%2e%2e/outside", "model.npy%00")
        for name in others:
            address = URL(f"{server.url}/checkpoints/{name}", encoded=True)  # as it is written here
            answer = await session.get(address, headers=BEARER)
            assert answer.status == 404, name
            assert await answer.read() not in {b"burnt", b"outside"}


@asynchronous
async def test_a_defect_is_logged_and_not_shown() -> None:
    """A snapshot that fails, in the answer of a scrape."""

    def fails() -> Status:
        raise ZeroDivisionError("a secret of the server")

    operations = OperationsPort(Token(TOKEN), Telemetry(Role.DEALER), fails, None, is_tls=False)
    with capture_logs() as lines:
        async with operations.listening("127.0.0.1:0", None) as number, aiohttp.ClientSession() as session:
            answer = await session.get(f"http://127.0.0.1:{number}/status.json", headers=BEARER)
            assert answer.status == 500
            assert "secret" not in await answer.text()
    assert "operations.failed" in [line["event"] for line in lines]


# -- what it costs -----------------------------------------------------------------------------------------------------


async def silent(url: str) -> asyncio.StreamReader:
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n")  # and no end
    return reader


@asynchronous
async def test_connections_that_say_nothing_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_module, "SILENT_S", 0.2)
    monkeypatch.setattr(port_module, "MAX_CONNECTIONS", 4)
    async with served() as server:
        readers = [await silent(server.url) for _ in range(8)]  # four are over the limit
        with contextlib.suppress(ConnectionError):
            for reader in readers:
                await asyncio.wait_for(reader.read(), 10)
        async with browser(server) as session:
            assert (await session.get("/healthz")).status == 200


@asynchronous
async def test_handshakes_that_stall_are_no_more_than_the_connections(
    pki: Pki, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The descriptors are the server's, and whoever comes beyond the limit is hung up on at once."""
    monkeypatch.setattr(port_module, "SILENT_S", 6.0)
    monkeypatch.setattr(port_module, "MAX_CONNECTIONS", 4)
    tls = pki.tls(Role.DEALER)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_into(context)
    telemetry = Telemetry(Role.DEALER)
    operations = OperationsPort(Token(TOKEN), telemetry, Status.model_construct, None, is_tls=True)
    async with operations.listening("127.0.0.1:0", lambda: context) as number:
        strangers = [await asyncio.open_connection("127.0.0.1", number) for _ in range(12)]
        ends = [asyncio.create_task(reader.read()) for reader, _ in strangers]
        await until(lambda: sum(end.done() for end in ends) >= 8)
        await asyncio.sleep(0.5)
        assert sum(end.done() for end in ends) == 8
        await asyncio.wait(ends)
        own = ssl.create_default_context(cafile=str(tls.authority))
        await asyncio.open_connection("127.0.0.1", number, ssl=own, server_hostname=Role.DEALER.server_name)


@asynchronous
async def test_a_server_name_that_is_none_leaves_nothing_in_the_log(
    pki: Pki, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Anybody may send one, and Python would write a traceback for each to standard error."""
    (tmp_path / "token").touch(0o600)
    (tmp_path / "token").write_text(TOKEN)
    address, token = free_addresses(1)[0], tmp_path / "token"
    ours = config(pki, tmp_path, operations_listen=address, operations_tls=True, operations_token=token)
    async with operations_port(ours, Telemetry(Role.DEALER), Status.model_construct):
        reader, writer = await asyncio.open_connection(*address.split(":"))
        writer.write(greeting(b"\xff" * 16))
        assert (await reader.read(1)) == b"\x16"  # a handshake that goes on
        writer.close()
    assert capfd.readouterr().err == ""


def greeting(name: bytes) -> bytes:
    """Return the first message of a handshake, to a server of this name."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl._create_unverified_context().wrap_bio(incoming, outgoing, server_hostname="a" * len(name))
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read().replace(b"a" * len(name), name, 1)


@asynchronous
async def test_event_streams_are_limited() -> None:
    async with served() as server, browser(server) as session:
        streams = [await session.get("/events", headers=BEARER) for _ in range(MAX_STREAMS)]
        assert (await session.get("/events", headers=BEARER)).status == 503
        for stream in streams:
            stream.close()
        server.status = server.status.model_copy(update={"state": "another"})
        await until_async(lambda: session.get("/events", headers=BEARER), 200)


async def until_async(ask: Callable[[], object], status: int) -> None:
    """Asks until the answer is this one."""
    while True:
        answer = await ask()  # type: ignore[misc]
        answer.close()
        if answer.status == status:
            return
        await asyncio.sleep(0.05)


# -- what it says ------------------------------------------------------------------------------------------------------


@asynchronous
async def test_events_come_when_something_changes_and_the_last_one_before_the_end() -> None:
    telemetry = Telemetry(Role.DEALER)
    telemetry.task_id = "task-1"
    status = of_dealer(telemetry, n_connected=0, n_waiting=0)
    operations = OperationsPort(Token(TOKEN), telemetry, lambda: status, None, is_tls=False)
    seen: list[str] = []

    async def look(number: int) -> None:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{number}/events", headers=BEARER) as stream,
        ):
            async for line in stream.content:
                if line.startswith(b"data: "):
                    seen.append(json.loads(line[6:])["status"]["state"])

    async with operations.listening("127.0.0.1:0", None) as number:
        looking = asyncio.create_task(look(number))
        await until(lambda: seen == ["starting"])
        await asyncio.sleep(1.2)
        assert seen == ["starting"]
        status = status.model_copy(update={"state": "dealing"})
        await until(lambda: len(seen) == 2)
        status = status.model_copy(update={"state": "ended"})
    await looking
    assert seen == ["starting", "dealing", "ended"]


@asynchronous
async def test_readiness_begins_with_listening_and_ends_with_draining() -> None:
    async with served() as server, browser(server) as session:
        answers = []
        for change in (
            {},
            {"is_listening": True},
            {"is_draining": True},
            {"is_draining": False},
            {"ended": common_pb2.Goodbye()},
        ):
            for name, value in change.items():
                setattr(server.telemetry, name, value)
            answer = await session.get("/readyz", headers=BEARER)
            answers.append((answer.status, await answer.text()))
        no, yes = (503, "not ready\n"), (200, "ready\n")
        assert answers == [no, yes, no, yes, no]


def test_refusals_are_counted_by_reason_and_kept_by_client_of_the_round() -> None:
    telemetry, intake = (
        Telemetry(Role.AGGREGATOR_A),
        Intake(task=small_task(), task_id="t", party=0, round=3, chosen=("alice",), model_digest=b"", capacity=roomy()),
    )
    telemetry.entered_round(Selecting(3), frozenset())
    telemetry.entered_round(Collecting(3, ("alice",), None, intake, b""), frozenset({"alice"}))
    for client, reason in (
        ("alice", RefusalReason.LATE),
        ("alice", RefusalReason.DUPLICATE),
        ("stranger", RefusalReason.NOT_CHOSEN),
    ):
        with pytest.raises(SubmissionRefusedError), telemetry.submission(client):
            raise SubmissionRefusedError(reason, "x")
    assert telemetry.notes[3].refusals == {"alice": RefusalReason.LATE}
    assert dict(telemetry.refused) == {RefusalReason.LATE: 1, RefusalReason.DUPLICATE: 1, RefusalReason.NOT_CHOSEN: 1}
    for round in range(1000):
        telemetry.note(round)
    assert len(telemetry.notes) < 20


# -- configuration -----------------------------------------------------------------------------------------------------


def config(pki: Pki, folder: Path, **changes: object) -> DealerConfig:
    base = pki.dealer(listen="127.0.0.1:0", folder=folder)
    return DealerConfig.model_validate({**base.model_dump(), **changes})


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki.create(tmp_path_factory.mktemp("pki"), ())


@pytest.mark.parametrize(
    "address", ["0.0.0.0:9000", "[::]:9000", "10.0.0.1:9000", "example.org:9000", "127.0.0.1.evil.org:1"]
)
def test_plain_text_is_refused_beyond_this_machine(pki: Pki, tmp_path: Path, address: str) -> None:
    with pytest.raises(ValueError, match=r"expected an address of loopback, or operations_tls = true"):
        config(pki, tmp_path, operations_listen=address)
    assert config(pki, tmp_path, operations_listen=address, operations_tls=True).operations_listen == address


@pytest.mark.parametrize("address", ["127.0.0.1:9000", "[::1]:9000", "localhost:9000"])
def test_plain_text_is_taken_on_loopback(pki: Pki, tmp_path: Path, address: str) -> None:
    assert config(pki, tmp_path, operations_listen=address).operations_listen == address


@pytest.mark.parametrize(
    ("content", "mode", "problem"),
    [
        (None, 0o600, "a readable file"),
        ("short", 0o600, "24 to 512 letters"),
        (TOKEN + " and more", 0o600, "24 to 512 letters"),
        ("", 0o600, "24 to 512 letters"),
        (TOKEN, 0o604, "closed to other users"),
    ],
)
def test_a_token_that_protects_nothing_is_refused_and_not_shown(
    tmp_path: Path, content: str | None, mode: int, problem: str
) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
        path.chmod(mode)
    with pytest.raises(SetupError, match=problem) as refused:
        load_token(path)
    assert TOKEN not in str(refused.value)


def test_the_token_comes_from_the_file_or_else_from_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text(TOKEN + "\n")
    environment = {"PRECAD_OPERATIONS_TOKEN": WRONG}
    assert load_token(path, environment).matches(TOKEN)
    path.write_text(TOKEN, encoding="utf-8-sig")  # as editors of Windows do
    assert load_token(path, environment).matches(TOKEN)
    assert load_token(None, environment).matches(WRONG)
    with pytest.raises(SetupError, match="PRECAD_OPERATIONS_TOKEN in the environment, found neither"):
        load_token(None, {})


@asynchronous
async def test_without_an_address_there_is_no_port_and_a_taken_one_is_reported(pki: Pki, tmp_path: Path) -> None:
    telemetry = Telemetry(Role.DEALER)

    def status() -> Status:
        return of_dealer(telemetry, n_connected=0, n_waiting=0)

    async with operations_port(config(pki, tmp_path), telemetry, status):
        pass
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text(TOKEN)
    (address,) = free_addresses(1)
    taking = config(pki, tmp_path, operations_listen=address, operations_token=token)
    async with operations_port(taking, telemetry, status):
        with pytest.raises(TransportError, match=r"operations_listen: expected a free .* Address already in use"):
            async with operations_port(taking, Telemetry(Role.DEALER), status):
                pass


@asynchronous
async def test_over_tls_the_server_shows_its_certificate_and_the_cookie_is_secure(pki: Pki, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text(TOKEN)
    (address,) = free_addresses(1)
    own = config(pki, tmp_path, operations_listen=address, operations_token=token, operations_tls=True)
    telemetry = Telemetry(Role.DEALER)
    trust = ssl.create_default_context(cafile=pki.authority)
    async with (
        operations_port(own, telemetry, lambda: of_dealer(telemetry, n_connected=0, n_waiting=0)),
        aiohttp.ClientSession(f"https://{address}") as session,
    ):
        answer = await session.post(
            "/login", data={"token": TOKEN}, ssl=trust, server_hostname="dealer.precad", allow_redirects=False
        )
        assert answer.status == 303
        assert answer.headers["Set-Cookie"].startswith("__Host-precad-dealer=")
        assert "Secure" in answer.headers["Set-Cookie"]
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await session.get("/healthz", ssl=trust, server_hostname="aggregator-a.precad")
        with pytest.raises(aiohttp.ClientError):
            await session.get(f"http://{address}/healthz")
