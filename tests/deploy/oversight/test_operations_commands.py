"""`precad status` and `precad watch`, and whom they send the token to.

Failure means one of these:
- a table that says other than the run's files;
- a token that leaves in plain text or to somebody else;
- a server that is gone and an exit code that hides it;
- text of a server's that the terminal takes for markup.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tomli_w
from aiohttp import web
from rich.console import Console

from precad.deploy.configuration.demo import demo_config
from precad.deploy.configuration.earlier_run import go_on
from precad.deploy.configuration.local_servers import with_operations
from precad.deploy.errors import ConfigError, RunFailedError
from precad.deploy.localhost.deployment import LocalRun
from precad.deploy.oversight import run_status, status_sources
from precad.deploy.oversight.run_status import read_run
from precad.deploy.oversight.status_shown import metrics_of, show_rounds, status_table
from precad.deploy.oversight.status_sources import Source, as_it_goes, place_of, server_as_it_goes, sources_of
from precad.deploy.run_files.folder import write_trainings
from precad.protos.tls.identity import Role
from precad.servers.operations.access import Token, load_token
from precad.servers.operations.opening import operations_port
from precad.servers.operations.port import OperationsPort
from precad.servers.operations.snapshot import of_dealer
from precad.servers.telemetry.events import Telemetry
from precad.servers.telemetry.status import AbsentClient, LiveRound, Status
from tests.harness.clock import Clock
from tests.harness.command_line import precad
from tests.harness.harness import Pki, asynchronous, free_addresses

TOKEN = "token-of-the-server-in-these-tests-1"
ROUND: dict[str, Any] = {
    "round": 0,
    "participants": ["client-0", "client-1", "client-7"],
    "accepted": ["client-0"],
    "rejected": ["client-7"],
    "missing": ["client-1"],
    "bytes": {"clients_to_a": 10, "clients_to_b": 11, "a_to_b": 12, "b_to_a": 13, "dealer_to_a": 1, "dealer_to_b": 2},
    "seconds": {"collect": 0.25, "lock": 0.0, "validate": 0.5},
    "seconds_total": 0.75,
    "epsilon_one_server": 1.2301,
    "epsilon_clients_only": 0.5,
    "accuracy": 0.5,
    "model_digest": "ab" * 32,
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run that has begun: a configuration and no round."""
    raw = demo_config()
    raw["task"]["epsilon_budget_one_server"] = 2.0
    return LocalRun(with_operations(raw), tmp_path / "run", Console(quiet=True)).folder.root


def append(folder: Path, **changes: Any) -> None:
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({**ROUND, **changes}) + "\n")


@contextmanager
def serving(status: Status) -> Iterator[str]:
    """An operations port with this status, in a thread of its own; its URL."""
    started, stop = threading.Event(), asyncio.Event()
    found: dict[str, Any] = {}

    async def serve() -> None:
        operations_port = OperationsPort(Token(TOKEN), Telemetry(Role.DEALER), lambda: status, None, is_tls=False)
        async with operations_port.listening("127.0.0.1:0", None) as number:
            found.update(url=f"http://127.0.0.1:{number}", loop=asyncio.get_running_loop())
            started.set()
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert started.wait(60)
    try:
        yield found["url"]
    finally:
        found["loop"].call_soon_threadsafe(stop.set)
        thread.join()


def a_status(**changes: Any) -> Status:
    common: dict[str, Any] = {"role": "dealer", "version": "0", "since": 0.0, "started_at": 0.0}
    return Status(**{**common, "state": "dealing", "is_ready": True, **changes})


# -- run folders -------------------------------------------------------------------------------------------------------


def test_the_status_of_a_run_is_what_its_files_say(run: Path) -> None:
    before = read_run(run)
    assert (before.rounds_done, before.rounds_planned, before.n_enrolled, before.state) == (0, 30, 8, "not finished")
    append(run)
    append(run, round=1, rejected=[], accepted=["client-0", "client-7"], epsilon_one_server=1.9)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"round": 2, ')  # a line that is being written
    status = read_run(run)
    assert status.rounds_done == 2
    assert status.uploads == {"accepted": 3, "rejected": 1, "missing": 2}
    assert [(e.view, e.spent, e.budget) for e in status.epsilons] == [
        ("one_server", 1.9, 2.0),
        ("clients_only", 0.5, None),
    ]
    shown = precad("status", run)
    assert shown.exit_code == 0
    assert "3 accepted, 1 rejected, 2 missing" in shown.stdout
    assert "<= 1.90 (budget 2, 0.10 left)" in shown.stdout
    (run / "summary.json").write_text("{}")
    as_json = json.loads(precad("status", run, "--json").stdout)
    assert as_json["servers"]["run"]["is_finished"] is True
    assert as_json["servers"]["run"]["rounds"][0]["outcomes"][0] == {
        "client": "client-7",
        "verdict": "rejected",
        "reason": "norm_exceeded",
    }


def test_a_round_has_one_number_wherever_a_person_reads(run: Path) -> None:
    """That of the ledger, the records and the logs: a number that was given up leaves a gap, also on screens."""
    append(run, round=4)
    screen = io.StringIO()

    async def watch() -> None:
        async def once() -> AsyncIterator[Status]:
            yield read_run(run)

        await show_rounds(once(), Console(file=screen, width=200), title="")

    asyncio.run(watch())
    caption, row = screen.getvalue().splitlines()
    assert caption == "ε: of the rounds so far, if no draw is discarded"
    assert row.startswith("round 4  in 3")
    live = LiveRound(round=5, phase="collect", began_at=0.0, n_chosen=3, n_complete=1, n_receiving=0)
    table = Console(file=screen, width=200)
    absent = (AbsentClient(client="[b]bob", since=0.0),)
    shown = a_status(role="aggregator-a", live=live, absent=absent, n_enrolled=4, n_connected=1)
    table.print(status_table({"a": shown}))
    assert "round 5: collect, 1 of 3" in screen.getvalue()
    assert re.search(r"\[b\]bob since \d\d:00:00 and 2 more", screen.getvalue())


@pytest.mark.parametrize("command", ["status", "watch"])
@pytest.mark.parametrize("line", [b'{"round": "x"}', b"\xff", b"[" * 5000])
def test_a_line_that_is_no_round_is_reported(command: str, line: bytes, run: Path) -> None:
    (run / "metrics.jsonl").write_bytes(line + b"\n")
    result = precad(command, run)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "metrics.jsonl: expected a round per line" in result.stderr


def test_a_line_with_half_of_a_character_is_reported(run: Path) -> None:
    """JSON may hold one as an escape, and no answer of ours can."""
    append(run, rejected=["\ud800"])
    result = precad("status", run, "--json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "metrics.jsonl: expected a round per line" in result.stderr


def test_a_simulation_has_no_status_and_is_called_one(tmp_path: Path) -> None:
    """One line, not the fields of clients that a simulation's file leaves out."""
    (tmp_path / "config.toml").write_text("[task]\nrounds = 3\n\n[client]\n\n[simulation]\n")
    (tmp_path / "seed-0.jsonl").write_text("")
    result = precad("status", tmp_path)
    expected = "expected a folder of `precad run` or an aggregator's state_dir, found one of `precad simulate`"
    assert (result.exit_code, result.stdout) == (2, "")
    assert " ".join(result.stderr.split()) == f"precad: {tmp_path}: {expected}"
    certified = precad("certify", "--run", tmp_path)
    expected = "expected a folder of `precad run`, found one of `precad simulate`"
    assert (certified.exit_code, certified.stderr) == (2, f"precad: --run {tmp_path}: {expected}\n")
    with pytest.raises(ConfigError, match=f"--after .*: {expected}"):
        go_on({}, tmp_path)


@asynchronous
async def test_watching_a_run_shows_each_round_once_and_ends_with_it(run: Path) -> None:
    console = Console(record=True, width=200, file=io.StringIO())
    watching = asyncio.create_task(show_rounds(as_it_goes(run, None), console, title="x"))
    for i in range(3):
        append(run, round=i)
        await asyncio.sleep(0.1)
    await asyncio.sleep(2 * status_sources.POLL_S)
    assert not watching.done()
    (run / "summary.json").write_text("{}")
    await watching
    text = console.export_text()
    lines = [line for line in text.splitlines() if line.startswith("round ")]
    assert [line.split()[1] for line in lines] == ["0", "1", "2"]
    assert text.count("ε: of the rounds so far, if no draw is discarded") == 1
    assert "rejected client-7 (client-1)" in lines[0]
    assert "ε server 1.24" in lines[0]  # rounded up: a bound stays one


@asynchronous
async def test_a_server_that_was_quiet_for_long_is_sought_for_as_long_as_any(monkeypatch: pytest.MonkeyPatch) -> None:
    """It trains for longer than `watch` has patience, by a clock of ours, and then restarts."""
    clock = Clock()
    monkeypatch.setattr(status_sources, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(status_sources, "POLL_S", 0.05)
    telemetry = Telemetry(Role.AGGREGATOR_A)
    quiet = of_dealer(telemetry, n_connected=2, n_waiting=0)

    def restarted(ended: str = "") -> OperationsPort:
        status = quiet.model_copy(update={"ended": ended})
        return OperationsPort(Token(TOKEN), telemetry, lambda: status, None, is_tls=False)

    seen, first = list[Status](), asyncio.Event()

    async def watch(source: Source) -> None:
        async for status in server_as_it_goes(source):
            seen.append(status)
            first.set()

    async with restarted().listening("127.0.0.1:0", None) as number:
        watching = asyncio.create_task(watch(Source("a", f"http://127.0.0.1:{number}", TOKEN)))
        await first.wait()
        clock.now += 2 * status_sources.PATIENCE_S
    await asyncio.sleep(0.3)
    assert not watching.done()
    async with restarted("all rounds").listening(f"127.0.0.1:{number}", None):
        await asyncio.wait_for(watching, 30.0)
    assert [status.ended for status in seen] == ["", "all rounds"]


@pytest.mark.parametrize(
    "said", [b"[]", b"null", b'"status"', b'{"status": 5}', b"[" * 10_000, b'{"status": {"role": "\\ud800"}}']
)
@asynchronous
async def test_an_event_that_is_none_ends_in_one_line(said: bytes) -> None:
    """Whoever answers in the server's place may send anything."""

    async def nonsense(request: web.Request) -> web.Response:
        return web.Response(body=b"data: " + said + b"\n\n", content_type="text/event-stream")

    app = web.Application()
    app.router.add_get("/events", nonsense)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    source = Source("a", f"http://127.0.0.1:{runner.addresses[0][1]}", TOKEN)
    with pytest.raises(RunFailedError, match="expected a status in its answer, found something else"):
        await anext(server_as_it_goes(source))
    await runner.cleanup()


@asynchronous
async def test_a_stream_that_ends_at_once_is_not_sought_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something answers in the server's place, with a stream of nothing."""
    monkeypatch.setattr(status_sources, "PATIENCE_S", 0.2)
    monkeypatch.setattr(status_sources, "POLL_S", 0.05)
    n_asked = 0

    async def nothing(request: web.Request) -> web.StreamResponse:
        nonlocal n_asked
        n_asked += 1
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(request)
        if n_asked == 1:
            status = of_dealer(Telemetry(Role.AGGREGATOR_A), n_connected=2, n_waiting=0)
            await stream.write(f'data: {{"now":0,"status":{status.model_dump_json()}}}\n\n'.encode())
        return stream

    app = web.Application()
    app.add_routes([web.get("/events", nothing)])
    runner, (address,) = web.AppRunner(app), free_addresses(1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", int(address.rpartition(":")[2])).start()
    try:
        with pytest.raises(RunFailedError, match="its stream of events ended"):
            async with asyncio.timeout(10.0):
                assert [one.ended async for one in server_as_it_goes(Source("a", f"http://{address}", TOKEN))] == [""]
    finally:
        await runner.cleanup()
    assert n_asked > 1


def test_the_latest_run_is_taken_where_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="or a run under runs/, found none"):
        place_of(None)
    for name in ("one", "two"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.toml").touch()
    newest = tmp_path / "runs" / "one" / "config.toml"
    newest.touch()
    assert place_of(None) in {Path("runs/one"), Path("runs/two")}
    simulated = tmp_path / "runs" / "simulated"
    simulated.mkdir()
    for name in ("seed-0.jsonl", "config.toml"):
        (simulated / name).touch()
    os.utime(simulated / "config.toml", (2**31, 2**31))
    assert place_of(None) in {Path("runs/one"), Path("runs/two")}  # a simulation has no servers to look at
    assert place_of("http://127.0.0.1:1") == "http://127.0.0.1:1"


# -- servers -----------------------------------------------------------------------------------------------------------


def test_the_runner_gives_every_server_a_port_of_its_own_and_one_token(run: Path) -> None:
    """Closed to other users, and in no configuration that the run keeps."""
    path = run / "operations-token"
    assert path.stat().st_mode & 0o777 == 0o600
    sources = sources_of(str(run / "config.toml"), None)
    assert [source.name for source in sources] == ["aggregator-a", "aggregator-b", "dealer"]
    assert len({source.url for source in sources}) == 3
    assert all(source.url.startswith("http://127.0.0.1:") for source in sources)
    token = path.read_text().strip()
    assert load_token(path).matches(token)
    assert {source.token for source in sources} == {token}
    assert token not in repr(sources)
    assert token not in (run / "config.toml").read_text()


def test_servers_that_have_ended_name_the_folders_that_they_left(run: Path) -> None:
    """Their files are read there, by a line that a shell takes as it stands; a dealer leaves no status."""
    run = run.rename(run.with_name("of Ward 7"))
    for letter in "ab":
        (run / letter).mkdir()
    gone = precad("status", run / "config.toml", "--json")
    assert gone.exit_code == 4
    of_a, of_b, of_dealer = json.loads(gone.stdout)["unreachable"]
    for letter, fault in (("a", of_a), ("b", of_b)):
        assert fault.endswith(f"is the server running? Once it has ended: precad status '{run / letter}'")
    assert of_dealer.endswith("is the server running?")


def test_a_folder_of_several_trainings_names_them(tmp_path: Path) -> None:
    folder = tmp_path / "several"
    folder.mkdir()
    write_trainings(folder, {"trainings": [f"seed-{n}" for n in range(4)]})
    for command in ("status", "watch", "report"):
        refused = precad(command, folder)
        assert refused.exit_code == 2
        several = ", ".join(str(folder / f"seed-{n}") for n in range(3))
        assert f"4 trainings, each a run of its own: {several}, .." in refused.stderr


def test_a_server_is_shown_and_one_that_is_gone_is_code_4(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRECAD_OPERATIONS_TOKEN", TOKEN)
    with serving(a_status(task="task-1", n_connected=2, n_enrolled=2, n_batches_dealt=7)) as url:
        shown = precad("status", url)
        assert (shown.exit_code, shown.stderr) == (0, "")
        for text in ("task-1", "dealing", "2 of 2 connected"):
            assert text in shown.stdout
        assert json.loads(precad("status", url, "--json").stdout)["servers"][url[7:]]["n_batches_dealt"] == 7
        assert precad("status", url, "--ready").exit_code == 0
        wrong = tmp_path / "wrong"
        wrong.write_text(TOKEN.upper())
        refused = precad("status", url, "--token", wrong)
        assert (refused.exit_code, "refused ours" in refused.stderr) == (2, True)
        assert TOKEN.upper() not in refused.output
    gone = precad("status", url, "--json")
    assert gone.exit_code == 4
    assert json.loads(gone.stdout) == {
        "servers": {},
        "unreachable": [f"{url[7:]} at {url}: nothing listens there: is the server running?"],
    }
    with serving(a_status(is_ready=False)) as url:
        assert precad("status", url).exit_code == 0
        assert precad("status", url, "--ready").exit_code == 4


def test_a_task_that_ended_early_is_code_4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRECAD_OPERATIONS_TOKEN", TOKEN)
    with serving(a_status(state="failed", ended="the dealer is gone")) as url:
        result = precad("watch", url)
    assert result.exit_code == 4
    assert "the task ended early: the dealer is gone" in result.stderr
    with serving(a_status(state="finished", ended="3 rounds done", is_finished=True)) as url:
        assert precad("watch", url).exit_code == 0
        assert "3 rounds done" in precad("status", url).stdout  # of a dealer, too


def test_what_a_server_says_is_no_markup() -> None:
    console = Console(record=True, width=300, file=io.StringIO())
    console.print(status_table({"a": a_status(role="aggregator-a", ended="[bold]x[/bold] [/]", task="[red]t")}))
    text = console.export_text()
    assert "[bold]x[/bold] [/]" in text
    assert "[red]t" in text


@pytest.mark.parametrize(
    ("target", "pattern"),
    [
        ("http://example.org:9464", "expected https beyond this machine"),
        ("http://10.0.0.1:9464", "expected https beyond this machine"),
        ("http://127.0.0.1.evil.example:1", "expected https beyond this machine"),
        ("http://user:secret@127.0.0.1:1", "the token is never part of it"),
        ("https://example.org/?token=secret", "the token is never part of it"),
        ("https://example.org/path", "nothing else"),
        ("https://", "nothing else"),
        ("http://user:secret@[::1", "expected http[s]://HOST[:PORT], found: Invalid IPv6 URL"),
        ("http://127.0.0.1:99999", "expected http[s]://HOST[:PORT], found: Port out of range 0-65535"),
    ],
)
def test_an_address_that_would_give_the_token_away_is_refused(
    monkeypatch: pytest.MonkeyPatch, target: str, pattern: str
) -> None:
    monkeypatch.setenv("PRECAD_OPERATIONS_TOKEN", TOKEN)
    result = precad("status", target)
    assert result.exit_code == 2
    assert pattern in result.stderr
    assert "secret" not in result.stderr


def test_a_configuration_without_an_operations_port_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "deployment.toml"
    raw = {
        "task": {**demo_config()["task"], "dim": 4810, "clients": {"a": 1, "b": 1}},
        "network": {"aggregator_a": "a:1", "aggregator_b": "b:1", "dealer": "c:1"},
    }
    path.write_text(tomli_w.dumps(raw))
    result = precad("status", path)
    assert result.exit_code == 2
    assert "expected a server with operations_listen, found none" in result.stderr


@asynchronous
async def test_over_tls_the_role_of_the_configuration_is_asked_for(tmp_path: Path) -> None:
    """A server of another role of the same authority is not taken for the one that CONFIG means."""
    pki, token, (address,) = Pki.create(tmp_path / "pki", ()), tmp_path / "token", free_addresses(1)
    token.touch(0o600)
    token.write_text(TOKEN)
    plain = pki.dealer(listen="127.0.0.1:0", folder=tmp_path)
    port = {"operations_listen": address, "operations_token": token, "operations_tls": True}
    config = plain.model_copy(update=port)
    telemetry = Telemetry(Role.DEALER)
    telemetry.task_id = "t"
    async with operations_port(config, telemetry, lambda: of_dealer(telemetry, n_connected=0, n_waiting=0)):
        source = status_sources._source_of_server(Role.DEALER, config, None)
        assert (await status_sources.fetch(source)).task == "t"
        with pytest.raises(RunFailedError, match="certificate"):
            await status_sources.fetch(status_sources._source_of_server(Role.AGGREGATOR_A, config, None))


@asynchronous
async def test_the_token_follows_no_redirect() -> None:
    """A server that answers with another address does not learn what that one would be told."""
    seen: list[str | None] = []

    async def elsewhere(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.json_response({})

    async def redirect(request: web.Request) -> web.Response:
        raise web.HTTPFound(f"http://{other}/")

    here, other = free_addresses(2)
    runners = []
    for address, handler in ((here, redirect), (other, elsewhere)):
        application = web.Application()
        application.router.add_get("/{anything:.*}", handler)
        runner = web.AppRunner(application)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", int(address.rpartition(":")[2])).start()
        runners.append(runner)
    source = status_sources.Source("a", f"http://{here}", TOKEN)
    with pytest.raises(RunFailedError, match="expected a status, found HTTP 302"):
        await status_sources.fetch(source)
    source = status_sources.Source("a", f"http://{other}", TOKEN)
    with pytest.raises(RunFailedError, match="expected a status in its answer"):
        await status_sources.fetch(source)
    assert seen == [f"Bearer {TOKEN}"]
    for runner in runners:
        await runner.cleanup()


def test_a_round_of_a_server_fits_the_live_table() -> None:
    """Show of a server's round in `watch` what it shows of a run's."""
    (summary,) = [run_status._round(ROUND)]
    metrics = metrics_of(summary)
    assert (len(metrics["participants"]), len(metrics["accepted"])) == (3, 1)
    assert (metrics["rejected"], metrics["missing"]) == (["client-7"], ["client-1"])
    assert metrics["seconds_total"] == ROUND["seconds_total"]
    assert metrics["epsilon_one_server"] == ROUND["epsilon_one_server"]
