"""Tell who was drawn, as clients that collude may: by the times at which servers tell them anything.

A slow client holds up every round that it is in. Where rounds follow as soon as they can, the others know all its
draws. With `task.round_period_s` what they are told comes at fixed times.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chisquare

from precad.clients.training.conduct import Honest
from precad.clients.upload.session import ClientSession
from precad.mpc import fixed_point
from precad.mpc.prg import Label, Seed
from precad.mpc.proved.submission import slot_labels
from precad.mpc.ring import RingArray
from precad.protos.precad.v1 import aggregator_pb2, aggregator_pb2_grpc
from precad.protos.task.task import Task
from precad.protos.tls.transport import dial
from precad.servers.rounds.form import Ground
from precad.servers.rounds.sessions import Sessions
from precad.servers.rounds.states import Committed, RoundState, Selecting
from tests.harness.harness import Deployment, asynchronous, running, small_task
from tests.harness.pki import AGGREGATORS, Pki

VICTIM, COLLUDERS = "victim", ("one", "other")
EVERYBODY = (*COLLUDERS, VICTIM)
SLOW_S = 0.3


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    """One authority for all of this file."""
    return Pki.create(tmp_path_factory.mktemp("pki"), (VICTIM, *COLLUDERS))


def task_of(rounds: int, **changes: Any) -> Task:
    clients = (VICTIM, *COLLUDERS)
    values = {"client_rate": 0.5, "mode": "proved", "frac_bits": 16, "rounds": rounds, "lost_rounds": 1, **changes}
    return small_task(clients, **values)


class Watcher(ClientSession):
    """An honest client that writes down when it is told what."""

    def __init__(self, told: list[tuple[int, str, float]], **parts: Any) -> None:
        super().__init__(**parts)
        self._told = told

    def _tell(self, server: int, news: Any) -> None:
        kind = "invitation" if isinstance(news, aggregator_pb2.Invitation) else "challenge"
        self._told.append((news.round, kind, time.monotonic()))
        super()._tell(server, news)


async def watched(task: Task, pki: Pki, folder: Path) -> tuple[list[bool], dict[int, float]]:
    """Run the task. Return for each round whether the victim was in it, and by round how long the colluders waited.

    They wait from their first invitation to their last challenge. A round without one of them has no wait.
    """
    told: list[tuple[int, str, float]] = []
    nothing = (lambda std, dim: np.zeros(dim, dtype=np.int64),) * 2
    async with running(task, pki, folder, noises=nothing) as deployment:
        await asyncio.gather(*(session.run() for session in sessions(task, deployment, told)))
        await deployment.finish()
    is_in = [VICTIM in record["chosen"] for record in deployment.rounds(0)]
    waits = {
        t: max(at for r, kind, at in told if (r, kind) == (t, "challenge"))
        - min(at for r, kind, at in told if (r, kind) == (t, "invitation"))
        for t in {r for r, kind, _ in told if kind == "challenge"}
    }
    return is_in, waits


def sessions(task: Task, deployment: Deployment, told: list[tuple[int, str, float]]) -> list[ClientSession]:
    """Return the victim, which trains slowly, and those who watch."""

    def slowly(parameters: NDArray[np.float32]) -> RingArray:
        time.sleep(SLOW_S)
        return at_once(parameters)

    def at_once(parameters: NDArray[np.float32]) -> RingArray:
        return fixed_point.encode(np.zeros(task.dim), task.frac_bits)

    def parts(client: str) -> dict[str, Any]:
        return {
            "client": client,
            "task": task,
            "addresses": deployment.addresses,
            "tls": deployment.pki.tls(client),
            "train": slowly if client == VICTIM else at_once,
            "conduct": Honest(),
        }

    return [ClientSession(**parts(VICTIM)), *(Watcher(told, **parts(client)) for client in COLLUDERS)]


def advantage(is_in: list[bool], waits: dict[int, float]) -> float:
    """Return how well the waits tell the victim's rounds: 1/2 for chance, 1 where every such round took longer."""
    with_victim = [wait for t, wait in waits.items() if is_in[t]]
    without = [wait for t, wait in waits.items() if not is_in[t]]
    assert min(len(with_victim), len(without)) >= 3, "the coin drew too few rounds of one kind: 1 run of 50"
    pairs = list(itertools.product(with_victim, without))
    return sum((a > b) + (a == b) / 2 for a, b in pairs) / len(pairs)


def chance_band(is_in: list[bool], waits: dict[int, float], *, sigmas: float) -> float:
    """Return how far from 1/2 the advantage may lie by chance: the standard deviation of the rank-sum statistic."""
    n, m = sum(is_in[t] for t in waits), sum(not is_in[t] for t in waits)
    return sigmas * ((n + m + 1) / (12 * n * m)) ** 0.5


@pytest.mark.slow
@asynchronous
async def test_without_a_period_times_tell_who_was_drawn(
    pki: Pki, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every round of the slow client is known by its time, also where a busy machine delays some of the others."""
    monkeypatch.setattr(sys.modules[__name__], "SLOW_S", 1.0)
    assert advantage(*await watched(task_of(24, submit_timeout_s=5.0), pki, tmp_path)) > 0.95


@pytest.mark.slow
@pytest.mark.parametrize("slow_s", [0.3, 0.6])
@asynchronous
async def test_with_a_period_times_do_not_tell_who_was_drawn(
    slow_s: float, pki: Pki, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither way, for a client that answers in time and for one that misses the deadline (0.4 s).

    Chance alone fails one run of 10,000 (3.9 standard deviations). A difference of one standard deviation of the
    waits lies 3.7 standard deviations away from chance. It is found in two runs of five, one of two
    such deviations nearly always.
    """
    monkeypatch.setattr(sys.modules[__name__], "SLOW_S", slow_s)
    paced = task_of(90, submit_timeout_s=0.4, proof_timeout_s=0.3, round_period_s=1.0)
    is_in, waits = await watched(paced, pki, tmp_path)
    assert abs(advantage(is_in, waits) - 0.5) < chance_band(is_in, waits, sigmas=3.9)


END = -1
"""For the round of a goodbye."""


def noting(sent: dict[tuple[int, str], float]) -> Callable[..., None]:
    """Return `Sessions.send` that notes when a round's first invitation and first challenge leave, and a goodbye."""
    send = Sessions.send

    def note(self: Sessions, client: str, event: aggregator_pb2.ClientEvent) -> None:
        kind = event.WhichOneof("event")
        if kind in ("invitation", "challenge", "goodbye"):
            sent.setdefault((getattr(getattr(event, kind), "round", END), kind), time.monotonic())
        send(self, client, event)

    return note


@asynchronous
async def test_nothing_is_told_before_its_time(pki: Pki, tmp_path: Path) -> None:
    """A challenge waits for its time, a round and the end of the task for the period, though everybody is quick.

    Read at the servers, whose clock no load makes early. A round's period is from its beginning at the first of them:
    a stalled machine may invite later than that.
    """
    sent: dict[tuple[int, str], float] = {}
    began: dict[int, float] = {}

    def on_state(party: int, state: RoundState) -> None:
        if isinstance(state, Selecting):
            began.setdefault(state.round, time.monotonic())

    task = task_of(3, client_rate=1.0, submit_timeout_s=0.4, proof_timeout_s=0.3, round_period_s=1.6)
    nothing = (lambda std, dim: np.zeros(dim, dtype=np.int64),) * 2
    with patch.object(Sessions, "send", noting(sent)):
        async with running(task, pki, tmp_path, noises=nothing, on_state=on_state) as deployment:
            await asyncio.gather(*(session.run() for session in sessions(task, deployment, [])))
            await deployment.finish()
    assert {t for t, kind in sent if kind == "invitation"} == {0, 1, 2}
    challenged = [t for t, kind in sent if kind == "challenge"]
    assert challenged
    assert task.challenge_after_s == pytest.approx(0.55)  # half of what clients have for a proof
    for t in challenged:  # the first invitation is A's or B's, and either waits from its own
        assert sent[t, "challenge"] - sent[t, "invitation"] >= 0.55 - 1e-3
    for t in range(2):
        assert sent[t + 1, "invitation"] - began[t] >= 1.6 - 0.3
    assert sent[END, "goodbye"] - began[2] >= 1.6 - 0.3  # or the last round's work would tell


@pytest.mark.parametrize("later_s", [0.0, 0.5])
@asynchronous
async def test_a_server_that_is_stopped_before_the_last_goodbye_says_it_first(
    later_s: float, pki: Pki, tmp_path: Path
) -> None:
    """Else the other one waits for it in vain, and clients of a task that is over end with an error."""
    task = task_of(1, client_rate=1.0, submit_timeout_s=0.4, proof_timeout_s=0.3, round_period_s=2.5)
    nothing = (lambda std, dim: np.zeros(dim, dtype=np.int64),) * 2
    stops: list[Callable[[], None]] = []

    def on_state(party: int, state: RoundState) -> None:
        if party == 1 and isinstance(state, Committed):
            asyncio.get_running_loop().call_later(later_s, stops[0])

    async with running(task, pki, tmp_path, noises=nothing, on_state=on_state) as deployment:
        stops.append(deployment.aggregators[1].drain)
        began = time.monotonic()
        await asyncio.gather(*(session.run() for session in sessions(task, deployment, [])))
        await deployment.finish()
    assert time.monotonic() - began > 2.5 - 0.3  # at its time all the same


async def listening(address: str) -> None:
    """Return once somebody listens there: gRPC cancels whoever awaits a stream that was never connected."""
    host, _, port = address.rpartition(":")
    while True:
        with suppress(OSError):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.close()
            return
        await asyncio.sleep(0.02)


class Answer(NamedTuple):
    """Whether a server still took uploads, or proofs, between a question and its answer."""

    phase: str
    asked_at: float
    answered_at: float
    is_taken: bool


async def asked(address: str, stub: aggregator_pb2_grpc.AggregatorStub, found: list[Answer]) -> None:
    """Ask server A again and again to take nothing at all, until it is gone. Note what it answers."""
    await listening(address)
    while True:
        for phase, ask in (("invitation", stub.Submit), ("challenge", stub.Prove)):
            await asyncio.sleep(0.06)  # within what it answers to one client
            at = time.monotonic()
            try:
                await ask(iter(()))
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                    is_over = any(over in str(error.details()) for over in ("no round is open", "is locked"))
                    found.append(Answer(phase, at, time.monotonic(), not is_over))
            except asyncio.CancelledError:
                asking = asyncio.current_task()
                if asking is None or asking.cancelling():
                    raise
                return  # gRPC cancels who awaits a call of a server that has gone


TRIES = 3
"""A stalled machine may cost a client its round, or let nobody ask in a phase. Neither says who was drawn, and neither
happens every time."""


@asynchronous
async def test_questions_do_not_tell_when_the_others_were_done(pki: Pki, tmp_path: Path) -> None:
    """A phase ends at its time, not with the last one's answer, whoever asks.

    Else the slow client's rounds are known by their longer phases, though everything is told at fixed times.
    """
    judged: set[str] = set()
    for i in range(TRIES):
        (folder := tmp_path / f"{i}").mkdir()
        judged |= await judged_phases(pki, folder)
        if judged == {"invitation", "challenge"}:
            return
    raise AssertionError(judged)


async def judged_phases(pki: Pki, folder: Path) -> set[str]:
    """Run three rounds, and require of each phase in which somebody could ask late that it was still open.

    Return the kinds of these phases.
    """
    sent: dict[tuple[int, str], float] = {}
    answers: list[Answer] = []
    task = task_of(3, client_rate=1.0, submit_timeout_s=1.2, proof_timeout_s=1.2, round_period_s=4.0)
    nothing = (lambda std, dim: np.zeros(dim, dtype=np.int64),) * 2
    with patch.object(Sessions, "send", noting(sent)):
        async with running(task, pki, folder, noises=nothing) as deployment:
            async with dial(deployment.addresses[0], AGGREGATORS[0], pki.tls(COLLUDERS[0])) as channel:
                stub = aggregator_pb2_grpc.AggregatorStub(channel)
                asking = asyncio.create_task(asked(deployment.addresses[0], stub, answers))
                await asyncio.gather(*(session.run() for session in sessions(task, deployment, [])))
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
            await deployment.finish()
    del sent[END, "goodbye"]
    judged: set[str] = set()
    for (t, kind), at in sent.items():  # all uploads are there after 0.3 s, all proofs sooner
        late = [one for one in answers if one.phase == kind and at + 0.7 < one.asked_at and one.answered_at < at + 1.1]
        if late:
            judged.add(kind)
            assert any(one.is_taken for one in late), (t, kind)
    return judged


Told = Counter[tuple[str, bytes]]


async def told_when(drawn: Collection[str], pki: Pki, folder: Path, *, slow_s: float = 0.0) -> Told:
    """Run a round of these clients, all coins and noise fixed. Return what the colluders were told, and how often.

    slow_s: for which the victim trains, so that nobody else is missing. A round with others missing is run again.
    """
    found: list[list[str]] = []
    for i in range(TRIES):
        (own := folder / f"{i}").mkdir(parents=True)
        told, missing = await told_once(drawn, pki, own, slow_s=slow_s)
        found.append(missing)
        if missing == ([VICTIM] if slow_s else []):
            return told
    raise AssertionError(f"missing: {found}")


async def told_once(drawn: Collection[str], pki: Pki, folder: Path, *, slow_s: float) -> tuple[Told, list[str]]:
    """See `told_when`. Return who was missing too."""
    told: Told = Counter()
    send = Sessions.send

    def note(self: Sessions, client: str, event: aggregator_pb2.ClientEvent) -> None:
        if client != VICTIM:
            told[client, without_draws(event)] += 1
        send(self, client, event)

    task = task_of(1, submit_timeout_s=2.5, proof_timeout_s=2.0, round_period_s=5.0)
    nothing = (lambda std, dim: np.zeros(dim, dtype=np.int64),) * 2
    coins = (lambda n: b"a" * n, lambda n: b"b" * n)
    with (
        patch.object(Sessions, "send", note),
        patch.object(Ground, "chosen", lambda self, coin, t: sorted(drawn)),
        patch.object(sys.modules[__name__], "SLOW_S", slow_s),
    ):
        async with running(task, pki, folder, noises=nothing, coins=coins) as deployment:
            await asyncio.gather(*(session.run() for session in sessions(task, deployment, [])))
            await deployment.finish()
    (record,) = deployment.rounds(0)
    return told, record["missing"]


def without_draws(event: aggregator_pb2.ClientEvent) -> bytes:
    """Return an event's bytes but for what is drawn for the round: the slot, its share seed, and the rows' seed."""
    copy = aggregator_pb2.ClientEvent()
    copy.CopyFrom(event)
    if copy.HasField("invitation"):
        copy.invitation.slot, copy.invitation.mask_seed = 0, b""
    if copy.HasField("challenge"):
        copy.challenge.challenge = b""
    return copy.SerializeToString(deterministic=True)


@asynchronous
async def test_what_clients_are_told_does_not_tell_who_was_drawn(pki: Pki, tmp_path: Path) -> None:
    """Byte by byte: invitations, models' digests, challenges and goodbyes, with the victim, without, and missing."""
    told = []
    for name, drawn, slow_s in (("in", EVERYBODY, 0.0), ("out", COLLUDERS, 0.0), ("late", EVERYBODY, 4.0)):
        told.append(await told_when(drawn, pki, tmp_path / name, slow_s=slow_s))
    assert {client for client, _ in told[0]} == set(COLLUDERS)
    assert told[0].total() == 2 * 2 * 3  # of both servers to both: an invitation, a challenge, goodbye
    assert told[0] == told[1] == told[2]


@pytest.mark.parametrize("n", [3, 5])
def test_slots_of_colluders_have_one_law_whoever_else_is_drawn(n: int) -> None:
    """Pairs of slots over 20,000 coins, with the victim and without: uniform. False alarm: one run of a million."""
    for drawn in (COLLUDERS, EVERYBODY):
        pairs: Counter[tuple[int, int]] = Counter()
        for i in range(20_000):
            slots = slot_labels(Seed(i.to_bytes(16, "little")), Label("task", 0), n, drawn)
            pairs[slots[COLLUDERS[0]], slots[COLLUDERS[1]]] += 1
        assert len(pairs) == n * (n - 1)
        assert chisquare(list(pairs.values())).pvalue > 5e-7


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"round_period_s": 2.0}, "round_period_s: expected more than 2, which uploads and proofs may take"),
        ({"round_period_s": -1.0}, "greater than 0"),
        ({"mode": "masked", "proof_timeout_s": 60.0}, "round_period_s is of mode 'proved' only"),
    ],
)
def test_a_period_must_leave_room_for_a_round(changes: dict[str, Any], message: str) -> None:
    """By its field."""
    with pytest.raises(ValueError, match=message):
        task_of(2, **{"submit_timeout_s": 1.0, "proof_timeout_s": 1.0, "round_period_s": 9.0, **changes})
