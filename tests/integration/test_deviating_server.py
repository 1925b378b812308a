"""Server B deviates and hangs up, over real sockets, TLS, lane and disk. Server A and the clients are honest.

Failure means one of these:
- B gets more answers, draws or noisy sums than the task may lose rounds, or than clients upload for one model;
- an answer that server A did not pay for, or that its records do not show;
- A's model moves by a sum that B made up.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog

from precad.clients.errors import ServerUnreachableError, TaskEndedError, UploadLimitError
from precad.clients.upload.session import ClientSession
from precad.clients.upload_limit import UploadLimit
from precad.dp.ledgers.ledger import verified_charges
from precad.mpc import fixed_point
from precad.mpc.errors import CommitmentError, VerdictsDifferError
from precad.mpc.prg import Seed
from precad.mpc.ring import RingArray
from precad.protos.task.task import Task
from precad.servers.errors import PeerUnreachableError, TaskRefusedError
from precad.servers.store import audit_log
from precad.servers.store.folder import ledger_path, open_task_store, store_path
from precad.servers.task import meeting
from tests.harness.harness import AGGREGATORS, Deployment, asynchronous, running, small_task, until
from tests.harness.pki import Pki
from tests.integration.deviating import DecidesVerdicts, HangsUpAt, StallsAt, believing_b, deviating_b, is_zero

CLIENTS = ("alice", "bob")
LOST_ROUNDS = 4
A = AGGREGATORS[0]


def silence(std: float, dim: int) -> RingArray:
    """No noise: what is opened is what the test computes."""
    return np.zeros(dim, dtype=np.int64)


def update(task: Task, length: float) -> RingArray:
    """Along the first axis, in units of C."""
    return fixed_point.encode(np.eye(1, task.dim)[0] * task.client_clip * length, task.frac_bits)


@contextlib.asynccontextmanager
async def deployment(
    task: Task,
    folder: Path,
    *,
    uploads_per_model: int = 100,
    vectors: dict[str, RingArray] | None = None,
    step_timeout_s: float = 600.0,
    reconnect_timeout_s: float = 30.0,
    of_both: dict[str, Any] | None = None,
) -> AsyncIterator[tuple[Deployment, list[asyncio.Task[None]]]]:
    """Three servers and the clients' sessions, which upload their vectors, half of C long where none is given.

    step_timeout_s: of server A. reconnect_timeout_s: of everybody. of_both: of both servers' configurations."""
    folder.mkdir(exist_ok=True)
    pki, patient = Pki.create(folder / "pki", task.clients), {"reconnect_timeout_s": reconnect_timeout_s}
    async with running(
        task,
        pki,
        folder,
        noises=(silence, silence),
        reconnect_timeout_s=reconnect_timeout_s,
        dealer=patient,
        own=lambda party: {"step_timeout_s": (step_timeout_s, 600.0)[party], **(of_both or {})},
    ) as servers:
        sessions = [
            ClientSession(
                client=client,
                task=task,
                addresses=servers.addresses,
                tls=pki.tls(client),
                train=lambda parameters, client=client: (vectors or {}).get(client, update(task, 0.5)),
                limit=UploadLimit(client, task.digest(), most=uploads_per_model),
                reconnect_timeout_s=reconnect_timeout_s,
            )
            for client in task.clients
        ]
        runs = [asyncio.create_task(session.run()) for session in sessions]
        try:
            yield servers, runs
        finally:
            for run in runs:
                run.cancel()
            await asyncio.gather(*runs, return_exceptions=True)


async def end_of_a(servers: Deployment) -> BaseException:
    """Return the error that ended server A."""
    run = servers._runs[1]
    await asyncio.wait([run])
    error = run.exception()
    assert error is not None
    return error


def entries(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Server A's, of its verified audit log."""
    return [dict(entry.fields) for entry in audit_log.read(store_path(folder / A)) if entry.kind == kind]


def states(folder: Path) -> dict[int, str]:
    """Return the state of every round in server A's store, by number."""
    with contextlib.closing(sqlite3.connect(store_path(folder / A))) as store:
        return dict(store.execute("SELECT number, state FROM round").fetchall())


def charges(folder: Path) -> dict[int, list[str]]:
    return verified_charges(ledger_path(folder / A))


@asynchronous
async def test_every_question_is_charged_and_on_record_and_there_are_at_most_lost_rounds(tmp_path: Path) -> None:
    """The attack that read a squared norm in 32 rounds: an offset, the verdict before A has it, no answer, again."""
    task = small_task(CLIENTS, rounds=50, lost_rounds=LOST_ROUNDS, batches_ahead=0, gate="native")
    answers = list[list[bool]]()
    squared_norm = int((task.client_clip * 2**task.frac_bits) ** 2)
    shifts = iter(squared_norm * k // 64 for k in range(0, -64, -1))

    def ask(channel: Any) -> HangsUpAt:
        return HangsUpAt(channel, "equality/masked", lambda ours, theirs: answers.append(is_zero(ours, theirs)))

    with deviating_b(ask, lambda active: next(shifts)):
        async with deployment(task, tmp_path) as (servers, _):
            error = await end_of_a(servers)
    assert isinstance(error, TaskRefusedError)
    assert f"lost_rounds: expected fewer than {LOST_ROUNDS}" in str(error)
    assert 0 < len(answers) <= LOST_ROUNDS
    charged = charges(tmp_path)
    assert len(charged) == len(answers)
    assert all(clients == sorted(CLIENTS) for clients in charged.values())
    unknown = entries(tmp_path, "unknown")
    assert [entry["round"] for entry in unknown] == sorted(charged)
    assert all(sorted(entry["clients"]) == sorted(CLIENTS) for entry in unknown)
    assert {number for number, state in states(tmp_path).items() if state == "unknown"} == set(charged)
    telemetry = servers.aggregators[0]._telemetry
    assert telemetry.n_lost == LOST_ROUNDS
    assert [attempt.number for attempt in telemetry.unknown] == sorted(charged)


@asynchronous
async def test_a_server_that_stalls_in_the_check_loses_the_round_as_by_a_hang_up(tmp_path: Path) -> None:
    """B has read the verdicts, keeps its connections open and answers nothing, in every round."""
    task = small_task(CLIENTS, rounds=50, lost_rounds=2, batches_ahead=0, gate="native")
    answers = list[list[bool]]()

    def stall(channel: Any) -> StallsAt:
        return StallsAt(channel, "equality/masked", lambda ours, theirs: answers.append(is_zero(ours, theirs)))

    with deviating_b(stall):
        async with deployment(task, tmp_path, step_timeout_s=1.5) as (servers, _):
            error = await end_of_a(servers)
    assert "lost_rounds: expected fewer than 2" in str(error)
    (interruption,) = entries(tmp_path, "interrupted")
    assert "/0/equality/masked': expected the part of aggregator-b within 1.50" in interruption["reason"]
    assert interruption["round"] == 0
    assert sorted(charges(tmp_path)) == [entry["round"] for entry in entries(tmp_path, "unknown")] == [0, 1]
    assert len(answers) == 2


@asynchronous
async def test_a_client_answers_a_few_times_for_one_model_whatever_the_task_may_lose(tmp_path: Path) -> None:
    """`lost_rounds` is no limit here: the clients' own one is."""
    task = small_task(CLIENTS, rounds=50, lost_rounds=1000, batches_ahead=0, gate="native")
    answers = list[list[bool]]()

    def ask(channel: Any) -> HangsUpAt:
        return HangsUpAt(channel, "equality/masked", lambda ours, theirs: answers.append(is_zero(ours, theirs)))

    with deviating_b(ask):
        async with deployment(task, tmp_path, uploads_per_model=3) as (_, runs):
            ends = await asyncio.gather(*runs, return_exceptions=True)
    assert all(isinstance(end, UploadLimitError) for end in ends), ends
    assert sum(map(len, answers)) <= 3 * len(CLIENTS)
    assert set(charges(tmp_path)) >= {entry["round"] for entry in entries(tmp_path, "unknown")}


@asynchronous
async def test_noisy_sums_are_no_more_than_lost_rounds_and_each_is_charged(tmp_path: Path) -> None:
    """The attack that took 40 sums in a task of 2 rounds: B reads A's noisy share, and keeps its own."""
    task = small_task(CLIENTS, rounds=2, lost_rounds=LOST_ROUNDS, batches_ahead=0, gate="native")
    sums = list[bytes]()

    def take(channel: Any) -> HangsUpAt:
        return HangsUpAt(channel, "noisy sum", lambda ours, theirs: sums.append(theirs))

    with deviating_b(take):
        async with deployment(task, tmp_path) as (servers, _):
            error = await end_of_a(servers)
    assert "lost_rounds" in str(error)
    assert 0 < len(sums) <= LOST_ROUNDS
    assert len(charges(tmp_path)) == len(sums)
    assert set(states(tmp_path).values()) <= {"validated", "reserved"}


@asynchronous
async def test_a_draw_that_b_does_not_like_is_a_lost_round(tmp_path: Path) -> None:
    """Hanging up when the selection's coin is known."""
    task = small_task(CLIENTS, rounds=2, lost_rounds=LOST_ROUNDS, batches_ahead=0, client_rate=0.5, gate="native")
    coins = list[bytes]()

    def reroll(channel: Any) -> HangsUpAt:
        return HangsUpAt(channel, "coin/reveal", lambda ours, theirs: coins.append(theirs))

    with deviating_b(reroll):
        async with deployment(task, tmp_path) as (servers, _):
            error = await end_of_a(servers)
    assert "lost_rounds" in str(error)
    assert 0 < len(coins) <= LOST_ROUNDS
    assert charges(tmp_path) == {}
    assert list(states(tmp_path).values()) == ["reserved"] * LOST_ROUNDS


@asynchronous
async def test_a_coin_that_was_only_committed_to_is_drawn_afresh_and_costs_no_number(tmp_path: Path) -> None:
    """B hangs up with A's commitment, as often as it likes: it knows nothing of the draw then."""
    task = small_task(CLIENTS, rounds=2, lost_rounds=1, batches_ahead=0, client_rate=0.5, gate="native")
    commitments = list[bytes]()

    def asks_again(channel: Any) -> HangsUpAt:
        return HangsUpAt(channel, "coin/commit", lambda ours, theirs: commitments.append(theirs))

    with deviating_b(asks_again):
        async with deployment(task, tmp_path) as (servers, _):
            await until(lambda: len(commitments) == 2 or servers._runs[1].done())
            assert not servers._runs[1].done()
            assert states(tmp_path) == {}
    assert len(set(commitments)) == len(commitments)


@asynchronous
async def test_who_answers_last_decides_no_verdict(tmp_path: Path) -> None:
    """B has read A's share of every verdict, and completes it to "accepted": a question in a round that commits."""
    task = small_task(CLIENTS, rounds=2, gate="native")
    shift = 10 * int((task.client_clip * 2**task.frac_bits) ** 2)  # so that both are too long

    def decides(channel: Any) -> DecidesVerdicts:
        return DecidesVerdicts(channel, lambda place: True, for_itself=True)

    with deviating_b(decides, lambda _: -shift), believing_b():
        async with deployment(task, tmp_path) as (servers, _):
            error = await end_of_a(servers)
    assert isinstance(error, CommitmentError)
    assert states(tmp_path)[0] == "unknown"
    assert [entry["clients"] for entry in entries(tmp_path, "unknown")] == [sorted(CLIENTS)]
    assert len(charges(tmp_path)) == 1


@asynchronous
async def test_verdicts_that_only_one_server_holds_end_the_task_before_anything_is_opened(tmp_path: Path) -> None:
    """B says that it accepts nobody."""
    task = small_task(CLIENTS, rounds=2, gate="native")

    class SaysNobody(HangsUpAt):
        def exchange(self, label: str, payload: bytes, at_most: int | None = None) -> bytes:
            return super().exchange(label, bytes(len(payload)) if label == "verdicts" else payload, at_most)

    with deviating_b(lambda channel: SaysNobody(channel, "", lambda ours, theirs: None)):
        async with deployment(task, tmp_path) as (servers, _):
            error = await end_of_a(servers)
            parameters = servers.aggregators[0]._telemetry.parameters
    assert isinstance(error, VerdictsDifferError)
    assert not any(client in str(error) for client in CLIENTS)
    assert parameters is not None
    assert not parameters.any()
    assert states(tmp_path)[0] == "unknown"
    assert len(charges(tmp_path)) == 1


@asynchronous
async def test_a_sum_that_is_too_long_moves_no_model(tmp_path: Path) -> None:
    """B colludes with bob: it knows his norm, and shifts his word so that 3000 C pass the check at both servers.

    Both refuse the sum. A sees it for itself, or B's word comes first: A then waits for B in vain, and passes it on.
    """
    task = small_task(CLIENTS, rounds=2, gate="native")
    vectors = {"bob": update(task, 0.5) * 6000}
    squared = int((vectors["bob"].astype(object) ** 2).sum())

    def shift(active: Sequence[str]) -> list[int]:
        return [squared if client == "bob" else 0 for client in active]

    with deviating_b(offset=shift):
        async with deployment(task, tmp_path, vectors=vectors, reconnect_timeout_s=5.0) as (servers, _):
            error = await end_of_a(servers)
            parameters = servers.aggregators[0]._telemetry.parameters
    if isinstance(error, PeerUnreachableError):
        assert "before that: the other aggregator ended the task: opened sum" in str(error)
    else:
        assert isinstance(error, TaskRefusedError)
        assert str(error).startswith("opened sum")
    assert parameters is not None
    assert not parameters.any()


@asynchronous
async def test_charges_of_rounds_that_were_never_drawn_burn_no_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack that spent server A's whole budget in one meeting."""
    task = small_task(CLIENTS, rounds=3, epsilon_budget_one_server=20.0, gate="native")
    honest = meeting.TaskState.charges_told

    def lies(state: Any) -> dict[int, tuple[str, ...]]:
        return dict.fromkeys(range(900), CLIENTS) if AGGREGATORS[1] in state.store.where else honest(state)

    monkeypatch.setattr(meeting.TaskState, "charges_told", lies)
    async with deployment(task, tmp_path) as (servers, _):
        error = await end_of_a(servers)
    assert "never drawn" in str(error) or "charges" in str(error)
    assert charges(tmp_path) == {}


@asynchronous
async def test_a_client_that_gets_another_mask_seed_than_dealt_uploads_nothing(tmp_path: Path) -> None:
    """B would have a linear function of alice's update, of its own seed, added to her norm. Bob gets the dealt seed."""
    task = small_task(CLIENTS, rounds=1, submit_timeout_s=10.0, gate="native")

    def foreign(client: str, dealt: Seed) -> Seed:
        return Seed(bytes(16)) if client == "alice" else dealt

    with structlog.testing.capture_logs() as lines, deviating_b(hands_out=foreign):
        async with deployment(task, tmp_path) as (servers, _):
            await servers.finish()
            (record,) = servers.rounds(0)
    assert (record["accepted"], record["missing"]) == (["bob"], ["alice"])
    assert [line["client"] for line in lines if line["event"] == "client.submitted"] == ["bob"]
    (skipped,) = [line for line in lines if line["event"] == "client.skipped"]
    assert skipped["client"] == "alice"
    assert "expected from aggregator-b the seed that aggregator-a says was dealt to it" in skipped["reason"]
    with contextlib.closing(sqlite3.connect(tmp_path / A / "tuples.sqlite")) as burnt:
        checked = burnt.execute("SELECT client FROM burnt WHERE use = 'check'").fetchall()
    assert checked == [("bob",)]


@asynchronous
async def test_honest_servers_lose_nothing_by_it(tmp_path: Path) -> None:
    """The twin: nobody deviates, and the same deployment commits all its rounds."""
    task = small_task(CLIENTS, rounds=2, lost_rounds=1, gate="native")
    async with deployment(task, tmp_path, uploads_per_model=1) as (servers, runs):
        await servers.finish()
        with contextlib.suppress(ServerUnreachableError, TaskEndedError):
            await asyncio.gather(*runs)
    assert set(states(tmp_path).values()) == {"committed"}
    assert entries(tmp_path, "unknown") == []
    with open_task_store(tmp_path / A, task, bytes(4 * task.dim)) as store:
        assert [len(round.accepted) for round in store.committed()] == [2, 2]
