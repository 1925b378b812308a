"""Malformed uploads of one client, through the servers' own services and intakes, to the verdicts of both.

Failure means an error that no table knows, an honest client that is not counted, or servers that disagree. It also
means a round that cannot finish, a sum with anything of what was refused in it, or room that is not given back.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from precad.clients.submission import RoundInvitation, Submission, make_submission
from precad.clients.upload.sending import parts_of
from precad.mpc import opening, validation
from precad.mpc.channel import MemoryChannel, run_pair
from precad.mpc.gate import top_bits
from precad.mpc.gate_names import make_gate
from precad.mpc.locking import lock_list
from precad.mpc.parameters import Mode
from precad.mpc.ring import RingArray
from precad.mpc.tuples.dealt import deal
from precad.mpc.tuples.held import BatchShape, ServerTuples
from precad.protos.precad.v1 import aggregator_pb2, common_pb2
from precad.servers.door.revocation import Revocations
from precad.servers.door.servicers import AggregatorServicer
from precad.servers.errors import CallRefusedError
from precad.servers.rounds import receiving
from precad.servers.rounds.intake import Intake, PassOn
from precad.servers.rounds.relayed_uploads import RelayedUploads
from precad.servers.rounds.sessions import Sessions
from precad.servers.rounds.states import Collecting, Selecting
from precad.servers.rounds.uploads import Spool
from precad.servers.telemetry.events import Telemetry
from tests.harness.examples import examples
from tests.harness.harness import AGGREGATORS, LeashedClient, Pki, asynchronous, running, small_task, until
from tests.harness.room import roomy

CLIENTS = ("alice", "bob", "mallory")
ROUND, DIM = 3, 24
MODEL = bytes(range(32))
GATE = make_gate("native")
Parts = list[aggregator_pb2.SubmitPart]


@pytest.fixture(scope="module", autouse=True)
def _short_grace() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(receiving, "PEER_LOCKED_GRACE_S", 0.01)
        yield


class Break(Exception):  # noqa: N818 - not an error of ours: the connection breaks off
    """Mallory hangs up."""


class Pair:
    """Both servers' services in one round, with real tuples and spools, without a transport between them."""

    def __init__(self, mode: str, folder: Path, *, in_memory: bool) -> None:
        self.task = small_task(CLIENTS, mode=mode, gate="native")
        bound = self.task.norm_bound
        shape = BatchShape("small-1", ROUND, CLIENTS, DIM, top_bits.blocks(GATE, len(CLIENTS), bound.low_bits))
        self.tuples = [ServerTuples(party, shape, part) for party, part in enumerate(deal(shape))]
        memory = 1 << 20 if in_memory else 0
        self.spools = [
            Spool(folder / role, most_bytes=8 * DIM, memory_bytes=memory, max_memory_upload=memory)
            for role in AGGREGATORS
        ]
        self.intakes = [self.open_intake(1)]
        relays = RelayedUploads(self.spools[1], 8 * DIM, self.intakes[0].relay)
        self.seeds = [tuples.hand_out_mask_seeds(CLIENTS) for tuples in self.tuples] if mode == "masked" else []
        if mode == "masked":
            self.intakes[0].await_relays(self.seeds[1])

        def relay(t: int, client: str, payload: Any, statement: bytes) -> None:
            relays.take(t, client, payload[:100], False, b"")
            relays.take(t, client, payload[100:], True, statement)

        self.intakes.insert(0, self.open_intake(0, relay if mode == "masked" else None))
        self.servicers = [self.servicer(party) for party in (0, 1)]

    def open_intake(self, party: int, relay: PassOn | None = None) -> Intake:
        """One server's, with its own spool."""
        return Intake(
            task=self.task,
            task_id="small-1",
            party=party,
            round=ROUND,
            chosen=CLIENTS,
            model_digest=MODEL,
            capacity=roomy(self.spools[party]),
            relay=relay,
        )

    def servicer(self, party: int) -> AggregatorServicer:
        """One server's, told that the round takes uploads."""
        telemetry = Telemetry(AGGREGATORS[party])
        telemetry.entered_round(Selecting(ROUND), frozenset())
        collecting = Collecting(ROUND, CLIENTS, self.tuples[party], self.intakes[party], b"")
        telemetry.entered_round(collecting, frozenset(CLIENTS))
        return AggregatorServicer(self.task, Sessions(CLIENTS), telemetry, Revocations(None))

    def submission(self, client: str, vector: RingArray) -> Submission:
        """As an honest client makes it."""
        seeds = tuple(half[client] for half in self.seeds) or None
        slot = CLIENTS.index(client)
        invitation = RoundInvitation("small-1", ROUND, slot, MODEL, seeds)  # type: ignore[arg-type]
        return make_submission(vector, invitation, task=self.task, client=client)

    async def upload(self, client: str, party: int, parts: AsyncIterator[aggregator_pb2.SubmitPart]) -> None:
        """As the service takes it, after the certificate."""
        await self.servicers[party]._take(client, parts)

    async def lock(self) -> list[dict[str, bytes]]:
        """Both intakes wait and close, as the rounds do."""
        peer_locked = asyncio.Event()
        peer_locked.set()
        for intake in self.intakes:
            await asyncio.wait_for(intake.wait(invited=CLIENTS, peer_locked=peer_locked), 15)
        return [intake.close() for intake in self.intakes]

    def validate(self, bindings: list[dict[str, bytes]]) -> tuple[tuple[tuple[str, ...], RingArray], ...]:
        """(accepted, their sum) at each server."""

        def party(channel: MemoryChannel) -> tuple[tuple[str, ...], RingArray]:
            p = channel.party
            locked = lock_list(bindings[p], self.tuples[p].shape.label(), self.tuples[p].shape.clients, channel)
            uploads = {client: self.intakes[p].vector(client) for client in locked.active}
            if self.task.wire_mode is Mode.SHARES:
                rooms = {client: self.intakes[p].room(client) for client in locked.active}
                revealed = validation.reveal_and_open(locked, uploads, self.tuples[p], channel, rooms)
            else:
                revealed = validation.reveal(locked, uploads, self.tuples[p], channel)
            checked = validation.validate(revealed, self.tuples[p], self.task.norm_bound, GATE, channel)
            opening.open_in_place(checked.accepted_share_sum, "sum", channel)
            return checked.accepted, checked.accepted_share_sum

        return run_pair(party)


FIELDS = [field.name for field in common_pb2.Binding.DESCRIPTOR.fields]
TEXT_FIELDS = {"protocol_version", "task", "client", "mode"}
NUMBERS = st.one_of(st.integers(0, 30), st.integers(0, 2**64 - 1))
TEXTS = st.one_of(st.text(max_size=20), st.sampled_from(["alice", "bob", "mallory", "small-1", "masked", "shares"]))
LENGTHS = st.sampled_from([0, 1, 16, 8 * DIM - 1, 8 * DIM, 8 * DIM + 1, 4000])


@st.composite
def changes(draw: st.DrawFn) -> tuple[str, Any]:
    """One way to damage the messages of an upload to one server."""
    kind = draw(
        st.sampled_from(
            [
                *("field", "clear", "drop", "repeat", "swap", "junk", "empty"),
                *("cut", "flip", "extend", "binding", "apart", "break", "statement", "salt"),
            ]
        )
    )
    if kind in ("field", "clear"):
        name = draw(st.sampled_from(FIELDS))
        value = draw(TEXTS if name in TEXT_FIELDS else NUMBERS if name in ("round", "dim") else st.binary(max_size=40))
        return kind, (name, value)
    if kind in ("junk", "extend"):
        return kind, (draw(st.integers(0, 5)), draw(st.binary(max_size=50)), draw(LENGTHS))
    return kind, (draw(st.integers(0, 5)), draw(st.integers(0, 8 * DIM)))


def damaged(parts: Parts, change: tuple[str, Any]) -> Parts | None:
    """The messages after one change; None stands for a connection that breaks at the end of them."""
    kind, argument = change
    parts = [aggregator_pb2.SubmitPart.FromString(part.SerializeToString()) for part in parts]
    at = argument[0] % len(parts) if parts and isinstance(argument[0], int) else 0
    chunk = aggregator_pb2.SubmitPart
    if kind in ("field", "clear"):
        for part in parts:
            if part.HasField("binding"):
                part.binding.ClearField(argument[0])
                if kind == "field":
                    setattr(part.binding, *argument)
    elif kind == "drop":
        del parts[at : at + 1]
    elif kind == "repeat":
        parts[at:at] = parts[at : at + 1]
    elif kind == "swap":
        parts.reverse()
    elif kind in ("junk", "extend"):
        data = (argument[1] + bytes(argument[2]))[: max(argument[2], len(argument[1]))]
        parts.insert(len(parts) if kind == "extend" else at, chunk(chunk=common_pb2.Chunk(data=data)))
    elif kind == "empty":
        parts.insert(at, chunk())
    elif kind in ("cut", "flip") and parts and parts[at].HasField("chunk"):
        data = bytearray(parts[at].chunk.data)
        if kind == "cut":
            del data[argument[1] :]
        elif data:
            data[argument[1] % len(data)] ^= 1 << argument[0]
        parts[at].chunk.data = bytes(data)
    elif kind == "statement" and parts:
        parts[at].statement = bytes(argument[1] % 40)
    elif kind == "salt" and parts:
        parts[at].salt = bytes(argument[1] % 40)
    elif kind == "binding":
        for part in parts:
            part.ClearField("chunk")
        parts = parts[:1]
    elif kind == "apart" and parts:
        whole, header = parts[0].chunk, parts[0]
        header.ClearField("chunk")
        parts[:1] = [header, chunk(chunk=whole)]
    elif kind == "break":
        return None
    return parts


async def stream(parts: Parts, breaks: bool) -> AsyncIterator[aggregator_pb2.SubmitPart]:
    """Messages of one call, in their smallest pieces now and then."""
    for part in parts:
        yield part
    if breaks:
        raise Break


VECTORS = st.lists(st.one_of(st.integers(-5, 5), st.integers(-(2**63), 2**63 - 1)), min_size=DIM, max_size=DIM)


@pytest.mark.parametrize("mode", ["masked", "shares"])
@settings(examples(30, 100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), in_memory=st.booleans(), a_first=st.booleans(), vector=VECTORS)
def test_a_malformed_upload_costs_its_client_only(
    mode: str, data: st.DataObject, in_memory: bool, a_first: bool, vector: list[int], tmp_path_factory: Any
) -> None:
    """Mallory damages what she sends to either server, in up to three ways each; alice and bob are honest."""
    damage = [data.draw(st.lists(changes(), max_size=3), label=f"damage to {role}") for role in AGGREGATORS]
    folder = tmp_path_factory.mktemp("fuzz")

    async def scenario() -> None:
        pair = Pair(mode, folder, in_memory=in_memory)
        x = np.array(vector, dtype=np.int64)
        honest = {client: np.full(DIM, i + 1, dtype=np.int64) for i, client in enumerate(CLIENTS[:2])}
        mallory = pair.submission("mallory", x)
        for party in (0, 1) if a_first else (1, 0):
            parts: Parts = [part async for part in parts_of(mallory, party)]
            breaks = False
            for change in damage[party]:
                result = damaged(parts, change)
                breaks, parts = breaks or result is None, parts if result is None else result
            with contextlib.suppress(CallRefusedError, Break):
                await pair.upload("mallory", party, stream(parts, breaks))
            pair.intakes[party].hung_up("mallory")
        for client, update in honest.items():
            submission = pair.submission(client, update)
            for party in submission.servers:
                await pair.upload(client, party, parts_of(submission, party))
        bindings = await pair.lock()
        (accepted, total), (same, same_total) = await asyncio.to_thread(pair.validate, bindings)
        assert accepted == same
        assert_array_equal(total, same_total)
        assert accepted[:2] == CLIENTS[:2]
        squared = sum(value * value for value in vector)
        expected = sum(honest.values())
        if "mallory" in accepted:  # she did no damage, or undid it
            assert squared <= pair.task.norm_bound.threshold
            expected = expected + x
        assert_array_equal(total, expected)
        if not any(damage):
            assert ("mallory" in accepted) == (squared <= pair.task.norm_bound.threshold)
        for intake, spool in zip(pair.intakes, pair.spools, strict=True):
            intake.forget()
            assert (spool._in_memory, spool.n_in_file) == (0, 0)
            spool.close()

    asyncio.run(scenario())


# Over the network


def mutated(message: bytes, rng: random.Random) -> bytes:
    """The bytes of a message, cut, flipped, repeated or replaced."""
    data = bytearray(message)
    for _ in range(rng.randrange(1, 4)):
        kind, at = rng.randrange(5), rng.randrange(len(data) + 1)
        if kind == 0:
            del data[at:]
        elif kind == 1 and data:
            data[at % len(data)] ^= 1 << rng.randrange(8)
        elif kind == 2:
            data[at:at] = rng.randbytes(rng.randrange(20))
        elif kind == 3:
            data += data[:at]
        elif kind == 4:
            data = bytearray(rng.randbytes(rng.randrange(60)))
    return bytes(data)


@pytest.mark.parametrize("mode", ["masked", "shares"])
@asynchronous
async def test_mutated_messages_over_tls_cost_nobody_else_the_round(mode: str, tmp_path: Path) -> None:
    """Both whole servers; mallory's certificate is good and her bytes are not: 150 calls to each. Every one
    that is refused is refused as an invalid argument, and the next round counts her as before."""
    pki, rng = Pki.create(tmp_path / "pki", CLIENTS), random.Random(7)
    task = small_task(CLIENTS, dim=DIM, rounds=2, mode=mode, gate="native")
    async with running(task, pki, tmp_path, noises=(no_noise, no_noise), call_burst=1000) as deployment:
        clients = {name: LeashedClient(name, deployment) for name in CLIENTS}
        await asyncio.gather(*(client.join() for client in clients.values()))
        mallory = clients["mallory"]
        submission = mallory.make(ones(), await mallory.invitation())
        codes = set()
        for party in (0, 1):
            raw = mallory.channels[party].stream_unary("/precad.v1.Aggregator/Submit")
            honest = [part.SerializeToString() async for part in parts_of(submission, party)]
            for _ in range(150):
                parts = [mutated(part, rng) if rng.random() < 0.7 else part for part in honest]
                if parts == honest:
                    continue
                try:
                    await asyncio.wait_for(raw(iter(parts)), 20)
                except grpc.aio.AioRpcError as error:
                    codes.add(error.code())
        for stream_of_events in mallory.streams:
            stream_of_events.cancel()
        sessions = [aggregator._sessions for aggregator in deployment.aggregators]
        await until(lambda: not any("mallory" in connected.connected for connected in sessions))
        for client in (clients["alice"], clients["bob"]):
            await client.submit(client.make(ones(), await client.invitation()))
        mallory.streams.clear()
        await mallory.join()
        for client in (mallory, clients["alice"], clients["bob"]):  # a round waits for those who did not just return
            await client.submit(client.make(ones(), await client.invitation()))
        await asyncio.gather(*(client.goodbye() for client in clients.values()))
        await deployment.finish()
        for party in (0, 1):
            first, second = deployment.rounds(party)
            assert set(first["accepted"]) >= {"alice", "bob"}
            assert first["rejected"] == []
            assert second["accepted"] == list(CLIENTS)
    assert codes == {grpc.StatusCode.INVALID_ARGUMENT}


def no_noise(std: float, dim: int) -> RingArray:
    return np.zeros(dim, dtype=np.int64)


def ones() -> RingArray:
    return np.ones(DIM, dtype=np.int64)
