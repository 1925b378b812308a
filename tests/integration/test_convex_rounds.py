"""Rounds with bounds of layers and half-spaces equal the reference round bit for bit, given the same noise.

Honest clients project and encode by the real code. Others are just inside or just outside one constraint each, or
satisfy all of them modulo 2^64 alone. Failure is another verdict, another integer of an opened sum, another bit of a
model.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray
from rich.console import Console

from precad.clients.encoding import encode_update
from precad.clients.submission import agree, make_submission
from precad.clients.training.round_update import projected
from precad.clients.upload.session import ClientSession
from precad.deploy.errors import ConfigError
from precad.deploy.localhost.deployment import LocalRun
from precad.mpc.channel import memory_pair
from precad.mpc.ring import RingArray
from precad.protos.task.task import Task
from precad.protos.tls.identity import Role
from precad.servers.errors import SetupError
from precad.servers.rounds.dealt_form import require_set
from precad.servers.rounds.states import Committed, Opened
from tests.harness import server_main
from tests.harness.forked import exit_codes, servers
from tests.harness.harness import (
    AGGREGATORS,
    DealerInMemory,
    Pki,
    ServerInProcess,
    asynchronous,
    free_addresses,
    link_pair,
    read_rounds,
    small_task,
    upload_to,
)
from tests.integration.test_reference_round import noise_of_both
from tests.reference.round import ReferenceRound, run_round

N_ROUNDS, DIM = 2, 24
LAYERS = ((15, 0.5), (9, 0.9))
FIRST = np.array([*range(1, 16), *[0] * 9])
LAST = np.array([*[0] * 15, *[-40] * 9])
THRESHOLDS = (-2.0, -30.0)
HALF_SPACES = ((FIRST.tolist(), THRESHOLDS[0]), (LAST.tolist(), THRESHOLDS[1]))


def task_of(folder: Path, **changes: Any) -> Task:
    path = folder / "directions.npy"
    np.save(path, np.array([FIRST, LAST], dtype=np.int64))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    sizes, clips = map(list, zip(*LAYERS, strict=True))
    cut = {"half_spaces": list(THRESHOLDS), "directions_sha256": digest, "directions": path}
    bounds = {"layer_sizes": sizes, "layer_clips": clips, **cut}
    return small_task(CLIENTS, rounds=N_ROUNDS, dim=DIM, **{"gate": "native"} | bounds | changes)


def forged(t: int) -> dict[str, RingArray]:
    """Return uploads of malicious clients in round t; their names say what is within everything."""
    zero = np.zeros(DIM, dtype=np.int64)

    def at(values: Mapping[int, int]) -> RingArray:
        x = zero.copy()
        x[list(values)] = list(values.values())
        return x

    half, most = 2**15, math.floor(0.9 * 2**16)
    return {
        "in-layer": at({t: half}),
        "out-layer": at({t: half, t + 1: 1}),
        "in-last-layer": at({16 + t: -most}),
        "out-last-layer": at({16 + t: -most - 1}),
        "in-half-space": at({14: -8738}),  # 15 * -8738 = -131070 >= -2 * 2^16
        "out-half-space": at({14: -8738, 2: -1}),  # three less
        "out-last-half-space": at({15: 2**14, 16: 2**14, 17: 2**14, 18: 2}),  # -40 * (3 * 2^14 + 2) < -30 * 2^16
        "wraps-layer": at({t: 2**32}),
        "wraps-half-space": at({14: 2**62, 13: 2**62}),
    }


HONEST = ("short", "long", "against")
CLIENTS = (*HONEST, *forged(0))


def updates(t: int) -> dict[str, NDArray[np.float64]]:
    """Return honest updates before projection: within everything, too long, and against both half-spaces."""
    random = np.random.default_rng(40 + t)
    v = random.normal(size=DIM)
    return {"short": 1e-3 * v, "long": 50.0 * v, "against": -(FIRST / 10.0) - LAST / 40.0 + 0.1 * v}


def uploads(task: Task, t: int) -> dict[str, RingArray]:
    honest = {client: encode_update(projected(task, update), task) for client, update in updates(t).items()}
    return honest | forged(t)


def reference_rounds(task: Task, noise: NDArray[np.int64]) -> list[ReferenceRound]:
    parameters, results = np.zeros(task.dim, dtype=np.float32), []
    for t in range(task.rounds):
        results.append(
            run_round(
                parameters,
                {},
                {client: vector.tolist() for client, vector in uploads(task, t).items()},
                (noise[0, t].tolist(), noise[1, t].tolist()),
                clip_norm=task.client_clip,
                frac_bits=task.frac_bits,
                learning_rate=task.learning_rate,
                divisor=task.divisor,
                layers=LAYERS,
                half_spaces=HALF_SPACES,
            )
        )
        parameters = results[-1].parameters
    return results


def test_the_reference_tells_the_clients_apart(tmp_path: Path) -> None:
    task = task_of(tmp_path)
    for found in reference_rounds(task, noise_of_both(task)):
        assert found.accepted == sorted(client for client in CLIENTS if client in HONEST or client.startswith("in-"))
    plain = small_task(CLIENTS, dim=DIM)  # the norm alone would let most of the others in
    assert sum(plain.norm_bound.threshold >= int(np.dot(x, x)) for x in forged(0).values()) >= 7


@pytest.mark.parametrize(
    "form", [{}, {"mode": "shares"}, {"gate": "crypten"}], ids=["masked", "shares", "crypten's gate"]
)
@asynchronous
async def test_two_round_runners_equal_the_reference(form: dict[str, Any], tmp_path: Path) -> None:
    task = task_of(tmp_path, **form)
    noise, dealer, links, lanes = noise_of_both(task), DealerInMemory(), link_pair(), memory_pair()
    runners = tuple(
        ServerInProcess(task, links[i], lanes[i], dealer.source(i), noise[i], tmp_path / AGGREGATORS[i]) for i in (0, 1)
    )

    async def upload_all_rounds(client: str) -> None:
        queues = [server.sessions.enter(client) for server in runners]
        while True:
            from_a, from_b = [(await queue.get()).invitation for queue in queues]
            invitation = agree(from_a, from_b, task)
            submission = make_submission(uploads(task, invitation.round)[client], invitation, task=task, client=client)
            for party in submission.servers:
                await upload_to(runners[party].intake, submission)

    background = [asyncio.create_task(link.run()) for link in links]
    background += [asyncio.create_task(upload_all_rounds(client)) for client in CLIENTS]
    for t in range(task.rounds):
        await asyncio.gather(*(server.runner.run_round(t) for server in runners))
    for waiting in background:
        waiting.cancel()
    await asyncio.gather(*background, return_exceptions=True)
    expected = reference_rounds(task, noise)
    for server in runners:
        assert_array_equal([s.noisy_sum for s in server.of_kind(Opened)], [r.noisy_sum for r in expected])
        assert [list(s.record.accepted) for s in server.of_kind(Committed)] == [r.accepted for r in expected]
        assert [list(s.record.rejected) for s in server.of_kind(Committed)] == [r.rejected for r in expected]
        assert_array_equal([s.parameters for s in server.of_kind(Committed)], [r.parameters for r in expected])


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki.create(tmp_path_factory.mktemp("pki"), CLIENTS)


def test_server_processes_equal_the_reference(pki: Pki, tmp_path: Path) -> None:
    """Two aggregators' processes read the directions from a file, which the dealer's has not; layers' squares come by
    the wire."""
    task = task_of(tmp_path)
    noise = noise_of_both(task)
    addresses = dict(zip((*AGGREGATORS, Role.DEALER), free_addresses(3), strict=True))
    deployment = {"task": task.model_dump(mode="json"), "pki": str(pki.directory), "addresses": addresses}
    deployment["own_of_dealer"] = {"directions": str(tmp_path / "nowhere.npy")}
    (tmp_path / "deployment.json").write_text(json.dumps(deployment))
    np.save(tmp_path / "initial.npy", np.zeros(task.dim, dtype=np.float32))
    np.save(tmp_path / "noise.npy", noise)

    def session(client: str) -> ClientSession:
        coming = iter([uploads(task, t)[client] for t in range(task.rounds)])
        return ClientSession(
            client=client,
            task=task,
            addresses=(addresses[Role.AGGREGATOR_A], addresses[Role.AGGREGATOR_B]),
            tls=pki.tls(client),
            train=lambda parameters: next(coming),
        )

    @asynchronous
    async def everybody_takes_part() -> None:
        await asyncio.gather(*(session(client).run() for client in CLIENTS))

    with servers(tmp_path, server_main.main) as processes:
        everybody_takes_part()
        codes = exit_codes(processes)
    assert codes == dict.fromkeys(processes, 0), {r: (tmp_path / f"{r}.log").read_text() for r in codes if codes[r]}
    expected = reference_rounds(task, noise)
    for role in AGGREGATORS:
        assert_array_equal(np.load(tmp_path / role / "opened.npy"), [r.noisy_sum for r in expected])
        assert [record["accepted"] for record in read_rounds(tmp_path / role)] == [r.accepted for r in expected]
        assert np.load(tmp_path / role / "model.npy").tobytes() == expected[-1].parameters.tobytes()


def test_a_server_without_the_directions_does_not_start(tmp_path: Path) -> None:
    """It would check less than the task says, and nobody would see it."""
    task = task_of(tmp_path)
    require_set(task)
    with pytest.raises(SetupError, match="directions: expected the file of SHA-256"):
        require_set(Task(**{**task.model_dump(), "directions": None}))


RUN: dict[str, Any] = {
    "clients": 3, "rounds": 2, "client_rate": 1.0, "record_rate": 1.0, "record_clip": 1.0, "client_clip": 4.0,
    "noise_multiplier": 4.0, "learning_rate": 1.0, "gate": "native", "accept_weak_wire_form": True,
}  # fmt: skip


@pytest.mark.slow
def test_a_local_run_takes_layers_from_its_model_and_the_digest_from_the_file(tmp_path: Path) -> None:
    """`precad run` of three real clients in their own processes, none of whom is rejected."""
    file = tmp_path / "directions.npy"
    np.save(file, np.array([[0] * 4160 + [100] * 650]))
    task = {**RUN, "layer_clips": [1.0, 2.0], "half_spaces": [-60.0], "directions": str(file)}
    run = LocalRun({"task": task}, tmp_path / "run", Console(file=io.StringIO()))
    summary = asyncio.run(run.run())
    assert summary["rounds"] == 2
    assert [record["rejected"] for record in read_rounds(tmp_path / "run" / "a")] == [[], []]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"layer_clips": [1.0]}, "task.layer_clips: expected a bound for each of 2 layers of the model, found 1"),
        ({"half_spaces": [-1.0], "directions": "nowhere.npy"}, "task.directions: expected a .npy file, found nowhere"),
    ],
)
def test_a_local_run_refuses_what_its_model_has_not(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        LocalRun({"task": RUN | changes}, tmp_path / "run", Console(file=io.StringIO()))
