"""Real servers' reports to their operators, and how the servers leave when they are asked to.

What counts as failure:
- a metric, the status and the records that a server wrote tell different stories;
- a round that was in flight is lost by a server that drains, or a server that drains does not leave in time;
- readiness, over HTTP or gRPC, does not follow at once; or gRPC's health answers somebody without a certificate;
- a log line about a task or a round does not say which one.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import numpy as np
import pytest
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from precad.clients.submission import Submission
from precad.clients.upload.sending import parts_of
from precad.deploy.errors import SUCCESS, UNREACHABLE, ConfigError, RunFailedError
from precad.deploy.localhost.deployment import LocalRun
from precad.deploy.localhost.processes import Children
from precad.deploy.oversight.status_sources import Source, fetch, follow
from precad.dp.ledgers.sealed_file import is_open
from precad.mpc.ring import RingArray
from precad.protos.messages.phases import PHASES
from precad.protos.precad.v1 import aggregator_pb2
from precad.protos.task.task import Task
from precad.protos.tls.identity import Role
from precad.protos.tls.transport import dial
from precad.servers.errors import StoppedError
from precad.servers.store.folder import ledger_path
from precad.servers.telemetry import logs
from precad.servers.telemetry.status import Status
from tests.harness.harness import (
    AGGREGATORS,
    Deployment,
    LeashedClient,
    Pki,
    asynchronous,
    channel_as,
    free_addresses,
    running,
    small_task,
    until,
)
from tests.integration.test_faults import exit_codes, n_lines, wait_for

CLIENTS = ("alice", "bob", "mallory")
TOKEN = "token-of-both-servers-in-these-tests"


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki.create(tmp_path_factory.mktemp("pki"), CLIENTS)


def silence(std: float, dim: int) -> RingArray:
    return np.zeros(dim, dtype=np.int64)


@dataclass
class Watched:
    """A deployment and how to look at it from outside."""

    deployment: Deployment
    sources: tuple[Source, Source]
    session: aiohttp.ClientSession

    async def metrics(self, party: int) -> dict[tuple[str, ...], float]:
        """Every sample by its name and the values of its labels."""
        headers = {"Authorization": f"Bearer {TOKEN}"}
        answer = await self.session.get(f"{self.sources[party].url}/metrics", headers=headers)
        families = text_string_to_metric_families(await answer.text())
        return {(s.name, *s.labels.values()): s.value for f in families for s in f.samples}

    async def readiness(self, party: int) -> int:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        return (await self.session.get(f"{self.sources[party].url}/readyz", headers=headers)).status

    async def once(self, party: int, state: str, n_rounds: int = 0) -> Status:
        """The status once the server is in this state, after so many rounds."""
        async for status in follow(self.sources[party]):
            if (status.state, status.rounds_done) == (state, n_rounds):
                return status
        raise AssertionError(f"the stream ended before {state}")


@contextlib.asynccontextmanager
async def watched(task: Task, pki: Pki, folder: Path, **changes: Any) -> AsyncIterator[Watched]:
    """Both aggregators with an operations port."""
    token, addresses = folder / "token", free_addresses(2)
    token.touch(0o600)
    token.write_text(TOKEN)
    a, b = (Source(role, f"http://{address}", TOKEN) for role, address in zip(AGGREGATORS, addresses, strict=True))
    async with (
        running(
            task,
            pki,
            folder,
            noises=(silence, silence),
            own=lambda party: {"operations_listen": addresses[party]},
            operations_token=token,
            **{"reconnect_timeout_s": 0.0, **changes},
        ) as deployment,
        aiohttp.ClientSession() as session,
    ):
        await until(lambda: all(server._telemetry.is_listening for server in deployment.aggregators))
        yield Watched(deployment, (a, b), session)


async def join_all(deployment: Deployment) -> dict[str, LeashedClient]:
    clients = {name: LeashedClient(name, deployment) for name in CLIENTS}
    await asyncio.gather(*(client.join() for client in clients.values()))
    return clients


async def submission(client: LeashedClient, value: int = 1) -> Submission:
    """A vector of this length on the grid, for the round that comes."""
    x = np.zeros(client.task.dim, dtype=np.int64)
    x[-1] = value
    return client.make(x, await client.invitation())


async def tampered(client: LeashedClient, made: Submission) -> grpc.StatusCode:
    """Uploads with the last byte changed; how A answers."""

    async def parts() -> AsyncIterator[aggregator_pb2.SubmitPart]:
        async for part in parts_of(made, 0):
            if part.HasField("chunk"):
                part.chunk.data = part.chunk.data[:-1] + bytes([part.chunk.data[-1] ^ 1])
            yield part

    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await client.stubs[0].Submit(parts())
    return refused.value.code()


# -- metrics and status ------------------------------------------------------------------------------------------------


@asynchronous
async def test_metrics_and_status_say_what_the_records_say(pki: Pki, tmp_path: Path) -> None:
    """Compare both servers' counters with the sums over the records that they wrote.

    There are two rounds, and a third has begun. Alice is honest, mallory's norm is too large, bob's bytes are not what
    he announced, and then he is gone.
    """
    task = small_task(rounds=3, epsilon_budget_one_server=50.0)
    async with watched(task, pki, tmp_path) as watch:
        clients = await join_all(watch.deployment)
        too_long = round(2 * task.client_clip * 2**task.frac_bits)
        made = {
            name: await submission(client, too_long if name == "mallory" else 1) for name, client in clients.items()
        }
        assert await tampered(clients["bob"], made["bob"]) is grpc.StatusCode.INVALID_ARGUMENT
        await clients.pop("bob").leave()
        await asyncio.gather(*(client.submit(made[name]) for name, client in clients.items()))
        for name, client in clients.items():
            await client.submit(await submission(client, too_long if name == "mallory" else 1))
        for party in (0, 1):
            status = await watch.once(party, "collecting", n_rounds=2)
            records, metrics = watch.deployment.rounds(party), await watch.metrics(party)
            _require_equal(records, metrics, status)
            assert metrics["precad_epsilon_budget", "one_server"] == 50.0
            assert metrics["precad_epsilon_left", "one_server"] == 50.0 - metrics["precad_epsilon_spent", "one_server"]
            assert ("precad_epsilon_budget", "clients_only") not in metrics
            reasons = [{o.client: o.reason for o in r.outcomes} for r in status.rounds]
            of_bob = ["wrong_digest", "not_connected"] if party == 0 else ["incomplete", "not_connected"]
            assert reasons == [{"alice": "", "bob": reason, "mallory": "norm_exceeded"} for reason in of_bob]
            assert metrics["precad_uploads_refused_total", "wrong_digest"] == (1 if party == 0 else 0)
            assert metrics.get(("precad_calls_refused_total", "Submit", "INVALID_ARGUMENT"), 0) == (party == 0)
            assert [checkpoint.name for checkpoint in status.checkpoints] == [
                "model.npy",
                "rounds.jsonl",
                "ledger.jsonl",
            ]
        model = await watch.session.get(
            f"{watch.sources[0].url}/checkpoints/model.npy", headers={"Authorization": f"Bearer {TOKEN}"}
        )
        assert np.load(io.BytesIO(await model.read())).shape == (task.dim,)


def _require_equal(records: list[dict[str, Any]], metrics: dict[tuple[str, ...], float], status: Status) -> None:
    """One server's account of its task, three times."""
    assert len(records) == status.rounds_done == metrics[("precad_rounds_total",)] == 2
    for verdict in ("accepted", "rejected", "missing"):
        n = sum(len(record[verdict]) for record in records)
        assert n == metrics["precad_uploads_total", verdict] == status.uploads[verdict] > 0
    for link in ("to_peer", "from_clients", "from_dealer"):
        n_bytes = sum(int(record["bytes_by_link"].get(link, 0)) for record in records)
        assert n_bytes == metrics["precad_bytes_total", link] == status.bytes[link]
        assert n_bytes > 0 or (link == "from_clients" and status.role == Role.AGGREGATOR_B)  # masked vectors go to A
    of_this_mode = [phase for phase in PHASES if phase != "prove"]
    assert all(set(record["seconds"]) == set(of_this_mode) for record in records)
    for phase in of_this_mode:
        seconds = sum(record["seconds"][phase] for record in records)
        assert metrics["precad_phase_seconds_sum", phase] == pytest.approx(seconds)
        assert metrics["precad_phase_seconds_count", phase] == len(records)
    for view in ("one_server", "clients_only"):
        assert metrics["precad_epsilon_spent", view] == records[-1][f"epsilon_{view}"] > 0
    for summary, record in zip(status.rounds, records, strict=True):
        assert summary.seconds == record["seconds"]
        assert summary.epsilon["one_server"] == record["epsilon_one_server"]
        assert summary.n_accepted == len(record["accepted"])
    assert metrics[("precad_ready",)] == metrics["precad_state", "collecting"] == 1


@asynchronous
async def test_the_round_in_flight_is_seen_from_outside(pki: Pki, tmp_path: Path) -> None:
    async with watched(small_task(rounds=1), pki, tmp_path) as watch:
        assert await watch.readiness(0) == 200  # as soon as it listens: B must be found through its port
        clients = await join_all(watch.deployment)
        made = await submission(clients["alice"])
        await clients["alice"].submit(made)
        await until(lambda: "alice" in watch.deployment.aggregators[0]._telemetry.collecting.intake.complete)
        status, metrics = await fetch(watch.sources[0]), await watch.metrics(0)
        assert status.live is not None
        assert (status.live.round, status.live.phase, status.live.n_chosen) == (0, "collect", 3)
        assert (status.live.n_complete, status.live.waiting_for) == (1, ("bob", "mallory"))
        assert metrics["precad_queue_depth", "uploads_complete"] == 1
        assert metrics[("precad_connected",)] == metrics[("precad_enrolled",)] == 3
        assert metrics["precad_info", "aggregator-a", status.task, status.version] == 1  # labels in alphabetical order
        with pytest.raises(ConfigError, match="refused ours"):
            await fetch(Source("a", watch.sources[0].url, TOKEN.upper()))


@asynchronous
async def test_a_server_whose_task_is_over_shows_its_pages_and_holds_nothing_else(pki: Pki, tmp_path: Path) -> None:
    """No link and no lock is left, until a signal comes. No other port is left open to strangers."""
    async with watched(small_task(rounds=1), pki, tmp_path, operations_linger_s=3600.0) as watch:
        clients = await join_all(watch.deployment)
        made = {name: await submission(client) for name, client in clients.items()}
        await asyncio.gather(*(client.submit(made[name]) for name, client in clients.items()))
        assert [(await client.goodbye()).finished for client in clients.values()] == [True] * 3
        for client in clients.values():
            await client.leave()
        addresses = [*watch.deployment.addresses, watch.deployment.dealer_address]
        await until(lambda: not any(map(answers, addresses)))
        await until(lambda: not any(is_open(ledger_path(tmp_path / role)) for role in AGGREGATORS))
        for party in (0, 1):
            status, metrics = await fetch(watch.sources[party]), await watch.metrics(party)
            assert (status.state, status.is_finished, status.is_ready) == ("finished", True, False)
            assert metrics[("precad_rounds_total",)] == 1
        assert [run.done() for run in watch.deployment._runs] == [True, False, False]  # the dealer has no such port
        for server in watch.deployment.aggregators:
            server.drain()
        await watch.deployment.finish()
        assert not any(answers(source.url.removeprefix("http://")) for source in watch.sources)


def answers(address: str) -> bool:
    """Tell whether somebody listens at HOST:PORT."""
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=5.0):
        return True
    return False


# -- leaving -----------------------------------------------------------------------------------------------------------


@asynchronous
async def test_a_drained_server_completes_its_round_and_then_leaves(pki: Pki, tmp_path: Path) -> None:
    """Not ready at once; both servers commit the round; the one that drains stops in peace."""
    async with watched(small_task(rounds=5), pki, tmp_path) as watch:
        clients = await join_all(watch.deployment)
        made = {name: await submission(client) for name, client in clients.items()}
        watch.deployment.aggregators[0].drain()
        assert await watch.readiness(0) == 503
        assert await watch.readiness(1) == 200
        status = await fetch(watch.sources[0])
        assert (status.is_draining, status.is_ready, status.state) == (True, False, "collecting")
        await asyncio.gather(*(client.submit(made[name]) for name, client in clients.items()))
        for client in clients.values():
            words = [(await stream.read()).goodbye for stream in client.streams]
            assert [word.finished for word in words] == [False, False]
            await client.leave()
        _, a, b = watch.deployment._runs
        with pytest.raises(StoppedError, match="aggregator-a was stopped by its operator"):
            await a
        await asyncio.wait([b])
        assert [record["accepted"] for record in watch.deployment.rounds(0)] == [sorted(CLIENTS)]
        assert [r["model_digest"] for r in watch.deployment.rounds(0)] == [
            r["model_digest"] for r in watch.deployment.rounds(1)
        ]


@pytest.mark.parametrize("ending", ["timeout", "second signal", "between rounds", "other server lost"])
def test_a_drain_does_not_wait_for_ever(pki: Pki, tmp_path: Path, ending: str) -> None:
    """For clients that never deliver, or a server that is gone; and not at all where no round is in flight."""

    @asynchronous
    async def scenario() -> None:
        limits = {"drain_timeout_s": 0.3 if ending == "timeout" else 3600.0, "reconnect_timeout_s": 3600.0}
        async with watched(small_task(submit_timeout_s=3600.0), pki, tmp_path, **limits) as watch:
            server, (_, a, b) = watch.deployment.aggregators[0], watch.deployment._runs
            if ending == "between rounds":
                await watch.once(0, "registering clients")
            else:
                clients = await join_all(watch.deployment)
                await asyncio.gather(*(client.invitation() for client in clients.values()))
            server.drain()
            if ending == "second signal":
                await asyncio.sleep(0.2)
                assert not a.done()
                assert (await fetch(watch.sources[0])).live is not None
                server.drain()
            elif ending == "other server lost":
                b.cancel()
            with pytest.raises(StoppedError):
                await asyncio.wait_for(a, 30)
            assert not (tmp_path / "aggregator-a" / "rounds.jsonl").exists()

    scenario()


@pytest.mark.slow
def test_sigterm_between_processes_loses_no_round(tmp_path: Path) -> None:
    """`precad serve` under load: A is asked to leave, ends with code 0, and B holds the same rounds."""
    task = {
        "name": "drain",
        "clients": ["client-0", "client-1"],
        "rounds": 100_000,
        "client_rate": 1.0,
        "record_rate": 0.1,
        "record_clip": 1.0,
        "client_clip": 16.0,
        "noise_multiplier": 4.6,
        "learning_rate": 1.0,
    }
    servers: dict[str, Any] = {"aggregator": {letter: {"drain_timeout_s": 60.0} for letter in "ab"}}
    run = LocalRun({"task": task, **servers}, tmp_path / "run", Console(file=io.StringIO()))
    config, children = str(run.folder.config), Children(run.folder.logs)
    try:
        children.start("dealer", "serve", "dealer", config)
        for letter in "ab":
            children.start(f"aggregator-{letter}", "serve", "aggregator", config, "--role", letter)
        for client in run.deployment.task.clients:
            children.start(client, "client", config, "--id", client)
        paths = [run.folder.state_dir(letter) / "rounds.jsonl" for letter in "ab"]
        wait_for("the first rounds", lambda: n_lines(paths[0]) > 3, within_s=90.0)
        a = children.all[1]
        a.process.send_signal(signal.SIGTERM)
        codes = exit_codes(children.all)
        assert (codes["aggregator-a"], codes["aggregator-b"]) == (SUCCESS, UNREACHABLE)
        digests = [[json.loads(line)["model_digest"] for line in path.read_text().splitlines()] for path in paths]
        assert digests[0] == digests[1]
        assert a.last_words().endswith("aggregator-a was stopped by its operator")
        assert "server.draining" in a.log.read_text()
    finally:
        children.close()


# -- gRPC's health -----------------------------------------------------------------------------------------------------


@asynchronous
async def test_grpc_health_is_for_holders_of_a_certificate(pki: Pki, tmp_path: Path) -> None:
    ask = health_pb2.HealthCheckRequest()
    serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
    async with watched(small_task(), pki, tmp_path) as watch:
        addresses = (*watch.deployment.addresses, watch.deployment.dealer_address)
        for address, role in zip(addresses, (*AGGREGATORS, Role.DEALER), strict=True):
            async with dial(address, role, pki.tls("alice")) as channel:
                stub = health_pb2_grpc.HealthStub(channel)
                assert (await stub.Check(ask, wait_for_ready=True)).status == serving
                with pytest.raises(grpc.aio.AioRpcError) as unknown:
                    await stub.Check(health_pb2.HealthCheckRequest(service="precad.v1.Peer"))
                assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
                with pytest.raises(grpc.aio.AioRpcError) as denied:
                    await stub.Watch(ask).read()
                assert denied.value.code() is grpc.StatusCode.PERMISSION_DENIED
        a = addresses[0]
        for stranger in (channel_as(a, AGGREGATORS[0], trust=pki.authority), grpc.aio.insecure_channel(a)):
            async with stranger:
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await health_pb2_grpc.HealthStub(stranger).Check(ask, timeout=10)
                assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        async with dial(a, AGGREGATORS[0], pki.tls(Role.OPERATOR)) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            stream = stub.Watch(ask)
            assert (await stream.read()).status == serving
            await join_all(watch.deployment)
            await watch.once(0, "collecting")
            watch.deployment.aggregators[0].drain()
            assert (await stub.Check(ask)).status == not_serving
            assert (await stream.read()).status == not_serving


# -- logs --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def lines() -> Iterator[list[dict[str, Any]]]:
    """Yield what is logged, with the context that `precad serve` adds."""
    capture = structlog.testing.LogCapture()
    structlog.configure(processors=[logs.add_context, capture])
    yield capture.entries
    structlog.reset_defaults()


def test_lines_say_whose_they_are(lines: list[dict[str, Any]], pki: Pki, tmp_path: Path) -> None:
    """Also those of calls that began before there was a task, whose handlers run in tasks of gRPC's. Two aggregators
    and a dealer share this process, and are told apart."""

    @asynchronous
    async def scenario() -> None:
        async with watched(small_task(rounds=1), pki, tmp_path) as watch:
            clients = await join_all(watch.deployment)
            made = {name: await submission(client) for name, client in clients.items()}
            assert await tampered(clients["bob"], made["bob"]) is grpc.StatusCode.INVALID_ARGUMENT
            await asyncio.gather(*(clients[name].submit(made[name]) for name in ("alice", "mallory")))
            await asyncio.gather(*(client.goodbye() for client in clients.values()))
            await watch.deployment.finish()

    scenario()
    tasks = {line["task"] for line in lines if "task" in line}
    assert len(tasks) == 1
    assert {line["role"] for line in lines} == {*AGGREGATORS, Role.DEALER}
    (refused,) = (line for line in lines if line["event"] == "call.refused" and line["call"] == "Submit")
    assert (refused["role"], refused["round"], {refused["task"]}) == (AGGREGATORS[0], 0, tasks)
    committed = [line for line in lines if line["event"] == "round.committed"]
    assert [(line["role"], line["round"]) for line in committed] in [
        [(AGGREGATORS[i], 0), (AGGREGATORS[1 - i], 0)] for i in (0, 1)
    ]
    assert all({line["task"]} == tasks for line in committed)
    finished = {line["role"]: line.get("reason") for line in lines if line["event"].endswith(".finished")}
    assert finished == {**dict.fromkeys(AGGREGATORS, "1 round done"), Role.DEALER: None}
    assert TOKEN not in repr(lines)


@asynchronous
async def test_a_server_that_is_not_there_is_said_so() -> None:
    (address,) = free_addresses(1)
    for look in (fetch, lambda source: anext(follow(source))):
        with pytest.raises(RunFailedError, match="nothing listens there") as gone:
            await look(Source("a", f"http://{address}", TOKEN))
        assert gone.value.exit_code == UNREACHABLE
        assert TOKEN not in str(gone.value)
