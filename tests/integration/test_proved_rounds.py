"""Mode `proved` over real sockets: two servers and clients, no dealer, and what happens when somebody deviates.

Failure means that a round of this mode makes another model than the reference round. Or a vector that is too long is in
the sum. Or a client or server sends more of a slot after its peer has broken a rule.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from precad.clients.attacks.attack import Attack
from precad.clients.errors import ProtocolError, RestoredServersError
from precad.clients.submission import ProvedMessage
from precad.clients.training.conduct import Conduct, Honest
from precad.clients.upload import proved
from precad.clients.upload.session import ClientSession
from precad.dp.ledgers.ledger import verified_charges
from precad.mpc import fixed_point
from precad.mpc.errors import CommitmentError, MpcError
from precad.mpc.local import engines
from precad.mpc.local.torch_engine import TorchEngine
from precad.mpc.prg import Seed
from precad.mpc.proved.field import P
from precad.mpc.proved.query import PROOFS_STEP
from precad.mpc.proved.verifier import VERIFIER_STEP
from precad.mpc.ring import RingArray
from precad.protos.precad.v1 import aggregator_pb2, common_pb2
from precad.protos.task.task import Task
from precad.servers.errors import PeerUnreachableError, ServerError, StoreError
from precad.servers.links import words
from precad.servers.rounds.form import Ground
from precad.servers.rounds.proved_form import ProvedForm
from precad.servers.rounds.proved_intake import Proofs
from precad.servers.rounds.states import (
    Aborted,
    Charged,
    Collecting,
    Committed,
    Locked,
    Opened,
    Proving,
    RoundState,
    Slots,
)
from precad.servers.store.rounds import TaskStore
from tests.harness.harness import Deployment, asynchronous, running, small_task
from tests.harness.pki import Pki
from tests.mpc.proved.two_servers import centred, square_root
from tests.reference.round import run_round

CLIENTS = ("at-bound", "over-bound", "scaled", "short", "wraps")
HONEST = ("at-bound", "short")


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki.create(tmp_path_factory.mktemp("pki"), CLIENTS)


class Forced(Attack):
    """Shares what it is given, and proves it with the low bits of numbers that do not fit."""


def proved_task(clients: tuple[str, ...] = CLIENTS, **changes: Any) -> Task:
    return small_task(clients, **{"mode": "proved", "frac_bits": 16, "proof_timeout_s": 20.0, **changes})


def update_of(task: Task, t: int) -> NDArray[np.float64]:
    direction = np.random.default_rng(100 + t).normal(size=task.dim)
    return np.asarray(0.9 * task.client_clip * direction / np.linalg.norm(direction))


def forgeries_of(task: Task) -> dict[str, RingArray]:
    """At the bound, one over it, a hundred times too long, and one whose squares are zero modulo p."""
    found = {client: np.zeros(task.dim, dtype=np.int64) for client in CLIENTS if client != "short"}
    bound, large = int(task.norm_bound.encoded_clip), 1 << 40
    root = square_root(-large * large % P)
    assert root is not None
    found["at-bound"][0] = -bound
    found["over-bound"][:2] = bound, 1
    found["scaled"][3] = 100 * bound
    found["wraps"][:2] = large, centred(root)
    return found


def vector_of(client: str, task: Task, t: int) -> RingArray:
    if client != "short":
        return forgeries_of(task)[client]
    threshold = task.norm_bound.threshold
    return fixed_point.encode_within(update_of(task, t), squared_norm_threshold=threshold, frac_bits=task.frac_bits)


class Clients:
    """The clients of a deployment, each a session of the program's own."""

    def __init__(self, deployment: Deployment, **settings: Any) -> None:
        self.sessions: dict[str, asyncio.Task[None]] = {}
        for client in deployment.task.clients:
            conduct: Conduct = Honest() if client in HONEST else Forced()
            session = ClientSession(
                client=client,
                task=deployment.task,
                addresses=deployment.addresses,
                tls=deployment.pki.tls(client),
                train=self._trainer(client, deployment.task),
                conduct=conduct,
                reconnect_timeout_s=20.0,
                **settings,
            )
            self.sessions[client] = asyncio.create_task(session.run())

    @staticmethod
    def _trainer(client: str, task: Task) -> Callable[[NDArray[np.float32]], RingArray]:
        rounds = iter(range(100))
        return lambda parameters: vector_of(client, task, next(rounds))

    async def gone(self) -> None:
        for session in self.sessions.values():
            session.cancel()
        await asyncio.gather(*self.sessions.values(), return_exceptions=True)


class Watched:
    """Every state of both servers, and something that happens at one of them."""

    def __init__(self) -> None:
        self.states: tuple[list[RoundState], list[RoundState]] = ([], [])
        self.react: Callable[[int, RoundState], object] = lambda party, state: None

    def __call__(self, party: int, state: RoundState) -> None:
        self.states[party].append(state)
        self.react(party, state)

    def of_kind(self, party: int, kind: type) -> list[Any]:
        return [state for state in self.states[party] if isinstance(state, kind)]


def _next(drawn: Iterator[NDArray[np.int64]], std: float, dim: int) -> NDArray[np.int64]:
    return next(drawn)


@contextlib.asynccontextmanager
async def rounds_of(
    task: Task, pki: Pki, folder: Path, watched: Watched, noise: NDArray[np.int64] | None = None, **changes: Any
) -> AsyncIterator[tuple[Deployment, Clients]]:
    drawn = np.zeros((2, 100, task.dim), dtype=np.int64) if noise is None else noise
    noises = tuple(functools.partial(_next, iter(part)) for part in drawn)
    async with running(task, pki, folder, noises=noises, on_state=watched, **changes) as deployment:  # type: ignore[arg-type]
        clients = Clients(deployment)
        try:
            yield deployment, clients
        finally:
            await clients.gone()


EQUIPMENT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "alike": ({}, {}),
    "a GPU's twin, and threads that read from disk": (
        {"engine": "cuda"},
        {"check_threads": 2, "max_upload_in_memory_mb": 0},
    ),
}


@pytest.mark.parametrize("equipment", EQUIPMENT)
@asynchronous
async def test_rounds_equal_the_reference(
    pki: Pki, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, equipment: str
) -> None:
    """Holders are both servers, by the slots' labels; vectors that are too long are rejected at both.

    How a server computes is its own affair: the other one cannot tell.
    """
    monkeypatch.setattr(engines, "ENGINES", {**engines.ENGINES, "cuda": lambda _: TorchEngine("cpu")})
    task, watched = proved_task(), Watched()
    noise = np.random.default_rng(7).integers(-70_000, 70_000, (2, task.rounds, task.dim))
    own = EQUIPMENT[equipment].__getitem__
    async with rounds_of(task, pki, tmp_path, watched, noise, own=own) as (deployment, _):
        await deployment.finish()
    parameters = np.zeros(task.dim, dtype=np.float32)
    for t in range(task.rounds):
        expected = run_round(
            parameters,
            {"short": update_of(task, t).tolist()},
            {client: vector.tolist() for client, vector in forgeries_of(task).items()},
            (noise[0, t].tolist(), noise[1, t].tolist()),
            clip_norm=task.client_clip,
            frac_bits=task.frac_bits,
            learning_rate=task.learning_rate,
            divisor=task.divisor,
        )
        parameters = expected.parameters
        assert (expected.accepted, expected.rejected) == (["at-bound", "short"], ["over-bound", "scaled", "wraps"])
        for party in (0, 1):
            assert_array_equal(watched.of_kind(party, Opened)[t].noisy_sum, expected.noisy_sum)
            committed = watched.of_kind(party, Committed)[t]
            assert (list(committed.record.accepted), list(committed.record.rejected)) == (
                expected.accepted,
                expected.rejected,
            )
            assert_array_equal(committed.parameters, parameters)
    kinds = [type(state).__name__ for state in watched.states[0]]
    assert kinds[:8] == [
        *("Selecting", "Collecting", "Locked", "Proving"),
        *("Charged", "Validated", "Opened", "Committed"),
    ]
    assert all("dealer" not in str(path) for path in tmp_path.rglob("*"))


@asynchronous
async def test_no_phase_waits_for_words_that_wait_for_others(
    pki: Pki, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A holder that awaits nothing more says so at once: words that wait for others are lost here."""
    monkeypatch.setattr(words, "WORDS_WAIT_S", 1e6)
    task, watched = proved_task(), Watched()
    async with rounds_of(task, pki, tmp_path, watched) as (deployment, _):
        await deployment.finish()
    for party in (0, 1):
        for record in deployment.rounds(party):
            assert (record["accepted"], record["missing"]) == (["at-bound", "short"], [])


@asynchronous
async def test_a_client_that_vanishes_before_its_proof_costs_itself_alone(pki: Pki, tmp_path: Path) -> None:
    task, watched = proved_task(("at-bound", "short"), rounds=1, proof_timeout_s=60.0), Watched()
    async with rounds_of(task, pki, tmp_path, watched) as (deployment, clients):
        with patch.object(proved.RoundUpload, "hears", _vanishing(clients, proved.RoundUpload.hears)):
            await asyncio.wait_for(deployment.finish(), 50.0)
    (record,) = deployment.rounds(0)
    assert (record["accepted"], record["rejected"], record["missing"]) == (["short"], [], ["at-bound"])


@asynchronous
async def test_a_full_disk_ends_the_round_before_the_proofs_time_is_up(pki: Pki, tmp_path: Path) -> None:
    """The locked uploads are written down while clients prove. These never do."""
    task = proved_task(("at-bound", "short"), rounds=1, proof_timeout_s=60.0)

    def full(*_: Any, **__: Any) -> None:
        raise StoreError("no space left")

    async with rounds_of(task, pki, tmp_path, Watched()) as (deployment, _):
        with (
            patch.object(proved.RoundUpload, "hears", lambda *_: False),
            patch.object(TaskStore, "checking", full),
            pytest.raises(StoreError, match="no space left"),
        ):
            await asyncio.wait_for(deployment.finish(), 50.0)


@asynchronous
async def test_a_proof_under_way_is_cut_off_before_the_query(pki: Pki, tmp_path: Path) -> None:
    """A server shows its coin for the points when it takes no byte of a proof any more. Here its client's session ends,
    and the call goes on."""
    task, watched = proved_task(("at-bound", "short"), rounds=1), Watched()
    parts_of_proof, n_begun = proved.proof_parts, 0

    def intakes() -> list[Proofs]:
        return [proving.proofs for party in (0, 1) for proving in watched.of_kind(party, Proving)]

    def n_under_way() -> int:
        return sum(intake.n_receiving for intake in intakes())

    async def stalling(proof: ProvedMessage) -> AsyncIterator[aggregator_pb2.ProvePart]:
        nonlocal n_begun
        async for part in parts_of_proof(proof):
            if proof.header.binding.client == "at-bound":
                whole, part.chunk.data = part.chunk.data, part.chunk.data[:-2]
                yield part
                yield aggregator_pb2.ProvePart(chunk=common_pb2.Chunk(data=whole[-2:-1]))  # two are sent at a time
                while not n_under_way():
                    await asyncio.sleep(0.01)
                n_begun += 1
                for intake in intakes():
                    intake.left("at-bound")
                await asyncio.sleep(60.0)
            yield part

    left: list[int] = []
    watched.react = lambda party, state: left.append(n_under_way()) if isinstance(state, Charged) else None
    with patch.object(proved, "proof_parts", stalling):
        async with rounds_of(task, pki, tmp_path, watched) as (deployment, _):
            await asyncio.wait_for(deployment.finish(), 50.0)
    assert (n_begun, left) == (1, [0, 0])
    assert deployment.rounds(0)[0]["missing"] == ["at-bound"]


@asynchronous
async def test_a_sum_of_fewer_clients_than_share_the_noise_is_not_opened(pki: Pki, tmp_path: Path) -> None:
    """Algorithm distributed-dp: one valid upload carries half of the noise that is accounted, so zeros are opened."""
    shared: dict[str, Any] = {"algorithm": "distributed-dp", "non_colluding": 2, "servers_follow_protocol": True}
    task, watched = proved_task(("at-bound", "scaled"), rounds=1, client_clip=40.0, **shared), Watched()
    async with rounds_of(task, pki, tmp_path, watched) as (deployment, _):
        await deployment.finish()
    assert deployment.rounds(0)[0]["accepted"] == ["at-bound"]
    for party in (0, 1):
        assert not watched.of_kind(party, Opened)[0].noisy_sum.any()


@asynchronous
async def test_share_seeds_are_drawn_with_their_invitations(pki: Pki, tmp_path: Path) -> None:
    """Rule S0: of a client that was drawn and is not invited, no server has one. Then each client has one, of one
    server."""
    task, watched = proved_task(("at-bound", "short"), rounds=1), Watched()
    drawn: dict[type, list[int]] = {Collecting: [], Locked: []}

    def note(party: int, state: RoundState) -> None:
        if isinstance(state, Collecting | Locked) and isinstance(state.held, Slots):
            drawn[type(state)].append(len(state.held.seeds._given))

    watched.react = note
    async with rounds_of(task, pki, tmp_path, watched) as (deployment, _):
        await deployment.finish()
    assert drawn[Collecting] == [0, 0]
    assert sum(drawn[Locked]) == 2


def _vanishing(clients: Clients, hears: Callable[..., bool]) -> Callable[..., bool]:
    def heard(self: proved.RoundUpload, server: int, challenge: bytes) -> bool:
        if self._binding.client != "at-bound":
            return hears(self, server, challenge)
        clients.sessions["at-bound"].cancel()
        return False

    return heard


@asynchronous
async def test_a_server_that_is_lost_while_clients_prove_loses_the_round(pki: Pki, tmp_path: Path) -> None:
    """Nothing of the round is used again: seeds, challenges and proofs are new."""
    task, watched = proved_task(("at-bound", "short"), rounds=2), Watched()
    seeds: list[bytes] = []

    def lose(party: int, state: RoundState) -> None:
        if party == 1 and isinstance(state, Proving) and state.round == 0:
            raise PeerUnreachableError("as if the link had broken")

    watched.react = lose
    with _share_seeds(seeds):
        async with rounds_of(task, pki, tmp_path, watched, reconnect_timeout_s=20.0) as (deployment, _):
            await deployment.finish()
    assert [record["round"] for record in deployment.rounds(0)] == ["1", "2"]
    assert watched.of_kind(0, Aborted)[0].round == 0
    assert [state.round for state in watched.of_kind(0, Opened)] == [1, 2]
    challenges = {state.round: state.check._challenge.reveal() for state in watched.of_kind(0, Proving)}
    assert len(set(challenges.values())) == len(challenges) == 3
    assert len(set(seeds)) == len(seeds) == 6
    for party in (0, 1):
        for state in watched.of_kind(party, Proving):
            assert_erased(state)


def assert_erased(state: Proving) -> None:
    """Rule S4: who still has a round's states, as an error's frames do, has no seed and no share with them."""
    check, slots = state.check, state.held
    assert all(slots.seeds.given(slot) is None for slot in slots.of_client.values())
    assert not check._locked
    assert not check._taken
    assert check._sum is None


@contextlib.contextmanager
def _share_seeds(found: list[bytes]) -> Iterator[None]:
    agree = proved.agree

    def noted(*invitations: Any) -> Any:
        invitation, seed = agree(*invitations)
        found.append(seed.reveal())
        return invitation, seed

    with patch.object(proved, "agree", noted):
        yield


# What a deviating server gets


class Meddling:
    """Server B's channel of a round: changes what it sends in one step, or hangs up there."""

    def __init__(self, inner: Any, step: str, change: Callable[[bytes], bytes] | None) -> None:
        self._inner, self._step, self._change, self._n_reveals = inner, step, change, 0

    @property
    def party(self) -> int:
        return int(self._inner.party)

    def exchange(self, label: str, payload: bytes, at_most: int | None = None) -> bytes:
        if label == self._step:
            if self._change is None:
                raise PeerUnreachableError("B hangs up")
            payload = self._change(payload)
        return bytes(self._inner.exchange(label, payload, at_most))

    def exchange_pieces(self, label: str, pieces: Any, at_most: int | None = None) -> Any:
        if label == self._step:
            raise PeerUnreachableError("B hangs up")
        return self._inner.exchange_pieces(label, pieces, at_most)


@contextlib.contextmanager
def b_meddles(step: str, change: Callable[[bytes], bytes] | None, *, method: str) -> Iterator[None]:
    """Within it, B deviates in one step of one method of its rounds."""
    honest, channel = getattr(ProvedForm, method), Ground.channel

    def meddling(self: ProvedForm, *arguments: Any) -> Any:
        if self._ground.party == 0:
            return honest(self, *arguments)
        with patch.object(Ground, "channel", lambda ground, t: _of(ground, channel(ground, t), step, change)):
            return honest(self, *arguments)

    async def asynchronously(self: ProvedForm, *arguments: Any) -> Any:
        if self._ground.party == 0:
            return await honest(self, *arguments)
        with patch.object(Ground, "channel", lambda ground, t: _of(ground, channel(ground, t), step, change)):
            return await honest(self, *arguments)

    with patch.object(ProvedForm, method, asynchronously if asyncio.iscoroutinefunction(honest) else meddling):
        yield


def _of(ground: Ground, inner: Any, step: str, change: Callable[[bytes], bytes] | None) -> Any:
    return Meddling(inner, step, change) if ground.party == 1 else inner


def flipped(payload: bytes) -> bytes:
    return bytes([payload[0] ^ 1]) + payload[1:]


@asynchronous
async def test_a_false_coin_ends_the_task_before_a_client_hears_a_challenge(pki: Pki, tmp_path: Path) -> None:
    """Rule S1: A uses, and passes on, a challenge only if B's coin fits its commitment."""
    task, watched = proved_task(("at-bound", "short"), rounds=1), Watched()
    with b_meddles("coin/reveal", flipped, method="challenge"):
        async with rounds_of(task, pki, tmp_path, watched) as (deployment, _):
            with pytest.raises((CommitmentError, ServerError)):
                await deployment.finish()
    assert not watched.of_kind(0, Proving)
    assert not watched.of_kind(0, Charged)


@pytest.mark.parametrize("step", [PROOFS_STEP, VERIFIER_STEP])
@asynchronous
async def test_a_server_that_hangs_up_before_the_verifier_message_gets_no_sum(
    pki: Pki, tmp_path: Path, step: str
) -> None:
    """The round was charged on disk, A opened its shares once at most, at one pair of points, and releases nothing of
    it (S3, S5)."""
    task, watched = proved_task(("at-bound", "short"), rounds=1, lost_rounds=1), Watched()
    with b_meddles(step, None, method="_validate"):
        async with rounds_of(task, pki, tmp_path, watched, reconnect_timeout_s=5.0) as (deployment, _):
            with pytest.raises((ServerError, MpcError)):
                await deployment.finish()
    assert watched.of_kind(0, Charged)
    assert not watched.of_kind(0, Opened)
    ledgers = sorted(tmp_path.rglob("ledger.jsonl"))
    assert [verified_charges(ledger) for ledger in ledgers] == [{0: sorted(task.clients)}] * 2


@asynchronous
async def test_other_digests_of_proofs_leave_their_slots_unopened(pki: Pki, tmp_path: Path) -> None:
    """Rule S2: A computes no verifier message for a proof on which both do not agree."""
    task, watched = proved_task(("at-bound", "short"), rounds=1), Watched()
    first_slot = slice(32, 64)

    def other(payload: bytes) -> bytes:
        return payload[: first_slot.start] + bytes(32) + payload[first_slot.stop :]

    opened: list[int] = []
    with b_meddles(PROOFS_STEP, other, method="_validate"), _opened_slots(opened):
        async with rounds_of(task, pki, tmp_path, watched) as (deployment, _):
            with pytest.raises((ServerError, MpcError)):
                await deployment.finish()  # B, which counts the slot, waits for a longer message
    assert opened.count(1) >= 1


@contextlib.contextmanager
def _opened_slots(found: list[int]) -> Iterator[None]:
    """Note how many slots each server opens."""
    from precad.mpc.proved.check import ProofCheck

    honest = ProofCheck.open

    def noted(self: ProofCheck, slots: Any, *arguments: Any) -> Any:
        if self._party == 0:
            found.append(len(slots))
        return honest(self, slots, *arguments)

    with patch.object(ProofCheck, "open", noted):
        yield


@asynchronous
async def test_clients_answer_no_challenge_that_one_server_made_up(pki: Pki, tmp_path: Path) -> None:
    """Rule C2: B tells clients another challenge than A does. All are silent, and the round has nobody in it."""
    task, watched = proved_task(("at-bound", "short"), rounds=1, proof_timeout_s=1.0), Watched()
    send = ProvedForm._send_challenge

    def other(self: ProvedForm, t: int, seed: Seed, active: tuple[str, ...]) -> None:
        send(self, t, Seed(bytes(16)) if self._ground.party == 1 else seed, active)

    with patch.object(ProvedForm, "_send_challenge", other):
        async with rounds_of(task, pki, tmp_path, watched) as (deployment, _):
            await deployment.finish()
    assert [state.proofs.bytes_received for party in (0, 1) for state in watched.of_kind(party, Proving)] == [0, 0]
    (record,) = deployment.rounds(0)
    assert (record["accepted"], sorted(record["missing"])) == ([], ["at-bound", "short"])


def invitations(slot: int = 4, **of_b: Any) -> tuple[aggregator_pb2.Invitation, aggregator_pb2.Invitation]:
    """Both servers' invitations to a slot that A holds, B's with other fields."""
    common = {"task": "small-1", "round": 3, "slot": slot, "dim": 24, "model_digest": bytes(32), "n_committed": 1}
    return (
        aggregator_pb2.Invitation(**common),  # type: ignore[arg-type]
        aggregator_pb2.Invitation(**{**common, "mask_seed": bytes(range(16)), **of_b}),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    "of_b",
    [
        {"mask_seed": b""},
        {"mask_seed": bytes(15)},
        {"round": 4},
        {"slot": 5},
        {"model_digest": bytes(31) + b"1"},
        {"n_committed": 0},
        {"task": "small-2"},
        {"dim": 25},
    ],
    ids=lambda of_b: next(iter(of_b)),
)
def test_a_client_refuses_invitations_that_differ_or_lack_the_seed(of_b: dict[str, Any]) -> None:
    """Rule C0."""
    task = proved_task()
    assert proved.agree(*invitations(), task)[1].reveal() == bytes(range(16))
    with pytest.raises(ProtocolError):
        proved.agree(*invitations(**of_b), task)


def test_a_client_refuses_a_seed_from_the_holder() -> None:
    """Rule C0: with a seed of its own choice the holder would read the update."""
    from_a, from_b = invitations()
    from_a.mask_seed, from_b.mask_seed = from_b.mask_seed, b""
    with pytest.raises(ProtocolError, match="share_seed"):
        proved.agree(from_a, from_b, proved_task())
    from_b.mask_seed = from_a.mask_seed
    with pytest.raises(ProtocolError, match="share_seed"):
        proved.agree(from_a, from_b, proved_task())


def test_a_client_refuses_a_slot_that_no_client_of_the_task_has() -> None:
    """Labels are below the number of enrolled clients: others would have streams that the servers never drew."""
    task = proved_task()
    most = len(task.clients)
    assert proved.agree(*in_slot(most - 1), task)[0].slot == most - 1
    with pytest.raises(ProtocolError, match=f"slot: expected fewer than {most}, the servers say {most}"):
        proved.agree(*in_slot(most), task)


def in_slot(slot: int) -> tuple[aggregator_pb2.Invitation, aggregator_pb2.Invitation]:
    """Return honest invitations to a slot, whichever server holds it."""
    from_a, from_b = invitations(slot)
    if slot % 2:
        from_a.mask_seed, from_b.mask_seed = from_b.mask_seed, b""
    return from_a, from_b


@asynchronous
async def test_a_second_invitation_of_a_round_is_not_answered(pki: Pki, tmp_path: Path) -> None:
    """A server that invites twice, with two seeds, has one upload."""
    task, watched = proved_task(("at-bound", "short"), rounds=1), Watched()
    async with rounds_of(task, pki, tmp_path, watched) as (deployment, clients):
        with patch.object(ClientSession, "_model", _counting(ClientSession._model)) as asked:
            watched.react = lambda party, state: _invite_again(party, state, deployment, to_round=0)
            await deployment.finish()
    assert sorted(asked.calls) == ["at-bound", "short"]
    assert clients is not None


@asynchronous
async def test_servers_that_were_put_back_end_a_client_that_stayed(pki: Pki, tmp_path: Path) -> None:
    """Both repeat a round that it was in, and state fewer rounds than it uploaded after: it is not merely left out."""
    task, watched = proved_task(("at-bound", "short"), rounds=2), Watched()
    async with rounds_of(task, pki, tmp_path, watched) as (deployment, clients):
        watched.react = lambda party, state: state.round == 1 and _invite_again(party, state, deployment, to_round=0)
        with pytest.raises(RestoredServersError, match=r"short stops: .* hold the 1 rounds .* found 0: were"):
            await asyncio.wait_for(clients.sessions["short"], 20.0)


def _counting(honest: Any) -> Any:
    async def counted(self: ClientSession, *arguments: Any) -> Any:
        counted.calls.append(self.client)  # type: ignore[attr-defined]
        return await honest(self, *arguments)

    counted.calls = []  # type: ignore[attr-defined]
    return counted


def _invite_again(party: int, state: RoundState, deployment: Deployment, *, to_round: int) -> None:
    if isinstance(state, Proving):
        sessions = deployment.aggregators[party]._sessions
        for client, slot in state.held.of_client.items():
            invitation = aggregator_pb2.Invitation(
                task=deployment.aggregators[party]._telemetry.task_id,
                round=to_round,
                slot=slot,
                dim=deployment.task.dim,
                model_digest=bytes(32),
                mask_seed=bytes(16) if slot % 2 != party else b"",
            )
            sessions.send(client, aggregator_pb2.ClientEvent(invitation=invitation))
