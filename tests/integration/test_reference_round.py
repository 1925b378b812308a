"""The secure round equals the reference round bit for bit, given the same noise.

Both wire forms run in process, and as separate server processes with mutual TLS between them.

Failure means one of these:
- one integer of an opened noisy sum, one client's verdict, or one bit of a model differs, at either server;
- an honest client's encoding differs from the reference's.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from precad.clients.submission import agree, make_submission
from precad.clients.training.projection import project
from precad.clients.upload.session import ClientSession
from precad.deploy.oversight.validation_audit import audit
from precad.mpc import fixed_point
from precad.mpc.channel import memory_pair
from precad.mpc.gate_names import make_gate
from precad.mpc.norm_bound import NormBound
from precad.mpc.parameters import Mode
from precad.mpc.ring import RingArray
from precad.protos.messages import convert
from precad.protos.task.task import Task
from precad.protos.tls.identity import Role
from precad.servers.rounds.states import Collecting, Committed, Opened
from tests.harness import server_main
from tests.harness.forked import exit_codes, servers
from tests.harness.harness import (
    AGGREGATORS,
    DealerInMemory,
    LeashedClient,
    Pki,
    ServerInProcess,
    asynchronous,
    free_addresses,
    link_pair,
    read_rounds,
    running,
    small_task,
    upload_to,
)
from tests.reference.round import ReferenceRound, run_round

MODES = ("masked", "shares")
N_ROUNDS = 3
CLIENTS = ("at-bound", "long", "moody", "over-bound", "short", "wraps-to-zero", "wraps-word")


def noise_of_both(task: Task, seed: int = 7) -> NDArray[np.int64]:
    """Fixed noise of realistic size, shape (2, rounds, d)."""
    std = task.noise_std_on_grid
    return np.rint(np.random.default_rng(seed).normal(0, std, (2, task.rounds, task.dim))).astype(np.int64)


def updates_of(task: Task, t: int) -> dict[str, NDArray[np.float64]]:
    """Return what the honest clients send in round t, before clipping: one within the bound, one far beyond it."""
    rng = np.random.default_rng(100 + t)
    direction = rng.normal(size=(2, task.dim))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    honest = {"short": 0.9 * task.client_clip * direction[0], "long": 50.0 * task.client_clip * direction[1]}
    return honest | ({"moody": 0.5 * task.client_clip * direction[1]} if t % 2 else {})


def forgeries_of(task: Task, t: int) -> dict[str, RingArray]:
    """Return the uploads of round t without clipping: at the bound, one over it, and vectors whose squares wrap."""
    zero, bound = np.zeros(task.dim, dtype=np.int64), int(task.norm_bound.encoded_clip)
    at_bound, over_bound, wraps_to_zero, wraps_word = zero.copy(), zero.copy(), zero.copy(), zero.copy()
    at_bound[t] = -bound  # sum of squares T
    over_bound[[t, t + 1]] = bound, 1  # T + 1
    wraps_to_zero[[t, t + 1]] = 2**32, 3 * 2**32  # 10 * 2^64, which is 0 modulo 2^64: passes the paper's literal check
    wraps_word[t], wraps_word[t + 1] = -(2**63), 2**63 - 1
    forgeries = {
        "at-bound": at_bound,
        "over-bound": over_bound,
        "wraps-to-zero": wraps_to_zero,
        "wraps-word": wraps_word,
    }
    return forgeries if t % 2 else forgeries | {"moody": over_bound}


def encode_honestly(update: NDArray[np.float64], task: Task) -> RingArray:
    """As `precad.clients.process.Trainer` does: Algorithm 2, lines 7 and 8."""
    threshold = task.norm_bound.threshold
    clipped = project(update, task.client_clip)
    return fixed_point.encode_within(clipped, squared_norm_threshold=threshold, frac_bits=task.frac_bits)


def uploads_of(task: Task, t: int) -> dict[str, RingArray]:
    """Return what every client encodes in round t."""
    return {c: encode_honestly(u, task) for c, u in updates_of(task, t).items()} | forgeries_of(task, t)


def reference_rounds(
    task: Task, noise: NDArray[np.int64], chosen: Mapping[int, tuple[str, ...]] | None = None
) -> list[ReferenceRound]:
    """All rounds of the task in the clear; `chosen` maps a round to its clients, everybody by default."""
    parameters, results = np.zeros(task.dim, dtype=np.float32), []
    for t in range(task.rounds):
        present = task.clients.keys() if chosen is None else chosen[t]
        result = run_round(
            parameters,
            {c: u.tolist() for c, u in updates_of(task, t).items() if c in present},
            {c: x.tolist() for c, x in forgeries_of(task, t).items() if c in present},
            (noise[0, t].tolist(), noise[1, t].tolist()),
            clip_norm=task.client_clip,
            frac_bits=task.frac_bits,
            learning_rate=task.learning_rate,
            divisor=task.divisor,
        )
        parameters = result.parameters
        results.append(result)
    return results


def test_the_reference_tells_the_clients_apart() -> None:
    """The round above is worth comparing: it accepts and rejects, and one client is once this and once that."""
    task = small_task(CLIENTS, rounds=N_ROUNDS)
    rounds = reference_rounds(task, noise_of_both(task))
    assert [r.accepted for r in rounds] == [
        ["at-bound", "long", "short"],
        ["at-bound", "long", "moody", "short"],
        ["at-bound", "long", "short"],
    ]


def test_honest_clients_encode_as_the_reference_does() -> None:
    """Compare clipping in float64 and encoding with exact rationals.

    With one honest client and no noise the sum is its encoding. A float64 product may fall on the other side of an
    integer with probability about 2^-24 a coordinate. (That is the room that `project` leaves, 2^-40, times the size of
    an encoding.) The vectors here are fixed.
    """
    task = small_task(CLIENTS, rounds=N_ROUNDS)
    silence = np.zeros((2, task.rounds, task.dim), dtype=np.int64)
    for t in range(task.rounds):
        for client, update in updates_of(task, t).items():
            alone = reference_rounds(task, silence, dict.fromkeys(range(task.rounds), (client,)))[t]
            assert_array_equal(encode_honestly(update, task), alone.noisy_sum)


# The validation alone


WORDS = st.one_of(
    st.integers(-40_000, 40_000),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([0, 1, -1, 65_536, -65_536, 2**31, 2**32, 3 * 2**32, 2**62, -(2**63), 2**63 - 1]),
)


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=15, deadline=None)
@given(vectors=st.lists(st.lists(WORDS, min_size=4, max_size=4), min_size=1, max_size=4))
def test_two_validation_parties_sum_what_the_reference_accepts(mode: str, vectors: list[list[int]]) -> None:
    """In process, over the in-memory channel. A vector that wraps passes with probability 2^-64."""
    bound = NormBound(clip_norm=1.0, dim=4)
    checked = audit(np.array(vectors, dtype=np.int64), bound, gate=make_gate("crypten"), mode=Mode(mode))
    expected = run_round(
        np.zeros(4, dtype=np.float32),
        {},
        {str(i): vector for i, vector in enumerate(vectors)},
        ([0] * 4, [0] * 4),
        clip_norm=1.0,
        frac_bits=16,
        learning_rate=1.0,
        divisor=1.0,
    )
    assert [str(i) for i, ok in enumerate(checked.verdicts) if ok] == expected.accepted
    assert_array_equal(checked.accepted_sum, expected.noisy_sum)


# The whole round, in process


async def upload_all_rounds(client: str, servers: tuple[ServerInProcess, ServerInProcess]) -> None:
    """An enrolled client, wired to both servers' objects directly."""
    task = servers[0].task
    queues = [server.sessions.enter(client) for server in servers]
    while True:
        from_a, from_b = [(await queue.get()).invitation for queue in queues]
        invitation = agree(from_a, from_b, task)
        encoded = uploads_of(task, invitation.round)[client]
        submission = make_submission(encoded, invitation, task=task, client=client)
        for party in submission.servers:
            await upload_to(servers[party].intake, submission)


@pytest.mark.parametrize("client_rate", [1.0, 0.4])
@pytest.mark.parametrize("mode", MODES)
@asynchronous
async def test_two_round_runners_equal_the_reference(mode: str, client_rate: float, tmp_path: Path) -> None:
    """Several rounds over an in-memory link, with everybody chosen and with whom the joint coin draws."""
    task = small_task(CLIENTS, rounds=N_ROUNDS, mode=mode, client_rate=client_rate)
    noise, dealer, links, lanes = noise_of_both(task), DealerInMemory(), link_pair(), memory_pair()
    servers = tuple(
        ServerInProcess(
            task, links[party], lanes[party], dealer.source(party), noise[party], tmp_path / AGGREGATORS[party]
        )
        for party in (0, 1)
    )
    background = [asyncio.create_task(link.run()) for link in links]
    background += [asyncio.create_task(upload_all_rounds(client, servers)) for client in CLIENTS]
    for t in range(task.rounds):
        record_a, record_b = await asyncio.gather(*(server.runner.run_round(t) for server in servers))
        assert record_a.model_digest == record_b.model_digest
        assert not record_a.missing
    for waiting in background:
        waiting.cancel()
    await asyncio.gather(*background, return_exceptions=True)

    chosen = {state.round: state.chosen for state in servers[0].of_kind(Collecting)}
    expected = reference_rounds(task, noise, chosen)
    for server in servers:
        assert_array_equal([s.noisy_sum for s in server.of_kind(Opened)], [r.noisy_sum for r in expected])
        assert [list(s.record.accepted) for s in server.of_kind(Committed)] == [r.accepted for r in expected]
        assert [list(s.record.rejected) for s in server.of_kind(Committed)] == [r.rejected for r in expected]
        assert_array_equal([s.parameters for s in server.of_kind(Committed)], [r.parameters for r in expected])


# The whole task, as processes


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki.create(tmp_path_factory.mktemp("pki"), CLIENTS)


@pytest.mark.parametrize("mode", ["masked", pytest.param("shares", marks=pytest.mark.slow)])
def test_two_server_processes_equal_the_reference(mode: str, pki: Pki, tmp_path: Path) -> None:
    """A dealer's and two aggregators' processes; clients run the real client code over mutual TLS."""
    task = small_task(CLIENTS, rounds=N_ROUNDS, mode=mode)
    noise = noise_of_both(task)
    expected = reference_rounds(task, noise)
    addresses = dict(zip((*AGGREGATORS, Role.DEALER), free_addresses(3), strict=True))
    deployment = {"task": task.model_dump(), "pki": str(pki.directory), "addresses": addresses}
    (tmp_path / "deployment.json").write_text(json.dumps(deployment))
    np.save(tmp_path / "initial.npy", np.zeros(task.dim, dtype=np.float32))
    np.save(tmp_path / "noise.npy", noise)

    models_seen: dict[str, list[NDArray[np.float32]]] = {client: [] for client in CLIENTS}

    def session(client: str) -> ClientSession:
        def train(parameters: NDArray[np.float32]) -> RingArray:
            models_seen[client].append(parameters)
            return uploads_of(task, len(models_seen[client]) - 1)[client]

        return ClientSession(
            client=client,
            task=task,
            addresses=(addresses[Role.AGGREGATOR_A], addresses[Role.AGGREGATOR_B]),
            tls=pki.tls(client),
            train=train,
        )

    @asynchronous
    async def everybody_takes_part() -> None:
        await asyncio.gather(*(session(client).run() for client in CLIENTS))

    with servers(tmp_path, server_main.main) as processes:
        everybody_takes_part()
        codes = exit_codes(processes)
    assert codes == dict.fromkeys(processes, 0), {r: (tmp_path / f"{r}.log").read_text() for r in codes if codes[r]}

    for role in AGGREGATORS:
        assert_array_equal(np.load(tmp_path / role / "opened.npy"), [r.noisy_sum for r in expected])
        records = read_rounds(tmp_path / role)
        assert [record["accepted"] for record in records] == [r.accepted for r in expected]
        assert [record["rejected"] for record in records] == [r.rejected for r in expected]
        assert [record["missing"] for record in records] == [[]] * N_ROUNDS
        assert np.load(tmp_path / role / "model.npy").tobytes() == expected[-1].parameters.tobytes()
    models = [np.zeros(task.dim, dtype=np.float32), *(r.parameters for r in expected[:-1])]
    for client in CLIENTS:
        assert_array_equal(models_seen[client], models)


@pytest.mark.parametrize("mode", MODES)
@asynchronous
async def test_uploads_longer_than_one_message_equal_the_reference(mode: str, pki: Pki, tmp_path: Path) -> None:
    """Three clients upload two chunks each at the same time; the link, too, carries each vector in pieces."""
    clients, dim = ("at-bound", "long", "short"), convert.CHUNK_BYTES // 8 + 1000
    task = small_task(clients, mode=mode, dim=dim, rounds=1, noise_multiplier=16.0)  # of the noise below
    rng = np.random.default_rng(3)
    uploads = {client: rng.integers(-100, 100, dim) for client in clients}
    noise = rng.integers(-(2**20), 2**20, (2, dim))
    noises = (lambda std, dim: noise[0], lambda std, dim: noise[1])
    async with running(task, pki, tmp_path, noises=noises) as deployment:
        leashed = [LeashedClient(client, deployment) for client in clients]
        await asyncio.gather(*(client.join() for client in leashed))
        submissions = [client.make(uploads[client.client], await client.invitation()) for client in leashed]
        await asyncio.gather(*(c.submit(submission) for c, submission in zip(leashed, submissions, strict=True)))
        await asyncio.gather(*(client.goodbye() for client in leashed))
        await deployment.finish()
    expected = run_round(
        np.zeros(dim, dtype=np.float32),
        {},
        {client: upload.tolist() for client, upload in uploads.items()},
        (noise[0].tolist(), noise[1].tolist()),
        clip_norm=task.client_clip,
        frac_bits=task.frac_bits,
        learning_rate=task.learning_rate,
        divisor=task.divisor,
    )
    assert expected.accepted == list(clients)
    for party, role in enumerate(AGGREGATORS):
        (record,) = deployment.rounds(party)
        assert (record["accepted"], record["missing"]) == (expected.accepted, [])
        assert np.load(tmp_path / role / "model.npy").tobytes() == expected.parameters.tobytes()
