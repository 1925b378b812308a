"""The dealer and the aggregators' links to it, over real gRPC with mutual TLS on loopback.

Failure means a part that leaves twice or to anybody else, or two parts that do not fit together. It also means a server
that goes on waiting for a dealer that is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from precad.deploy.authority.pki import issue
from precad.mpc import ring
from precad.mpc.errors import MalformedMessageError
from precad.mpc.gate_names import make_gate
from precad.mpc.prg import RandomBytes
from precad.mpc.ring import RingArray
from precad.mpc.tuples.burning import MemoryBurns
from precad.mpc.tuples.correlations import (
    AndBlock,
    BitBlock,
    Block,
    CarryBlock,
    CarryShares,
    bits_of_plane,
    split_pairs,
    subset_products,
)
from precad.mpc.tuples.dealt import deal
from precad.mpc.tuples.held import FIELD_PRIME, BatchShape, Dealt, ServerTuples, field_element
from precad.protos.precad.v1 import common_pb2, control_pb2, control_pb2_grpc, dealer_pb2, dealer_pb2_grpc
from precad.protos.task.task import PROTOCOL_VERSION, Task
from precad.protos.tls.files import PinFile, TlsFiles
from precad.protos.tls.identity import Identity, Role
from precad.protos.tls.transport import bind_server, dial
from precad.servers import dealer as dealer_module
from precad.servers.dealer import PRODUCTS_OF_A_WORD, Dealer, DealerServicer, most_products
from precad.servers.errors import PeerUnreachableError, TaskRefusedError
from precad.servers.links.dealer import TupleSource
from precad.servers.links.step_limits import NO_LIMITS, StepLimits
from precad.servers.rounds.dealt_blocks import blocks_of
from precad.servers.store.dealt_parts import DealLedger
from precad.servers.telemetry.events import Telemetry
from tests.harness.harness import AGGREGATORS, Pki, asynchronous, free_addresses, small_task, until
from tests.harness.refusals import LOST_STATUS, refusal

TASK = small_task()
TASK_ID, OTHER_ID = "small-0000000000000001", "small-0000000000000002"
HELLO = common_pb2.Hello(protocol_version=PROTOCOL_VERSION, config_digest=TASK.digest(), task=TASK_ID)
FINISHED = common_pb2.Goodbye(finished=True, reason="done")
STATUS = grpc.StatusCode


def shape_of(
    round: int = 0,
    clients: tuple[str, ...] = ("alice", "bob"),
    blocks: tuple[Block, ...] = (AndBlock(130),),
) -> BatchShape:
    return BatchShape(TASK_ID, round, clients, TASK.dim, blocks)


def blocks(*n_words: int, **kind: Any) -> list[dealer_pb2.Block]:
    return [dealer_pb2.Block(**{"kind": dealer_pb2.Block.AND, "n_words": n, **kind}) for n in n_words]


def carry_blocks(n_words: int, block_bits: int, n_blocks: int) -> list[dealer_pb2.Block]:
    return blocks(n_words, kind=dealer_pb2.Block.CARRY, block_bits=block_bits, n_blocks=n_blocks)


def hello(**changes: Any) -> dealer_pb2.DealRequest:
    changed = common_pb2.Hello()
    changed.CopyFrom(HELLO)
    for name, value in changes.items():
        setattr(changed, name, value)
    return dealer_pb2.DealRequest(hello=changed)


def batch(**changes: Any) -> dealer_pb2.DealRequest:
    fields = {"round": 0, "n_clients": 2, "dim": TASK.dim, "blocks": blocks(130), **changes}
    return dealer_pb2.DealRequest(batch=dealer_pb2.BatchRequest(**fields))


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki.create(tmp_path_factory.mktemp("pki"), ["alice"])


@pytest.fixture(scope="module")
def second_a(pki: Pki, tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    """Another certificate of server A's role, by the same authority."""
    directory = tmp_path_factory.mktemp("second") / "pki"
    shutil.copytree(pki.directory, directory, ignore=lambda _, names: [n for n in names if not n.startswith("ca.")])
    return issue(directory, Identity(Role.AGGREGATOR_A, "aggregator-a"))


@dataclass
class Desk:
    """A running dealer service."""

    pki: Pki
    address: str
    servicer: DealerServicer
    over: asyncio.Task[None]
    """Its whole life, as the dealer's process runs it."""

    @contextlib.asynccontextmanager
    async def source(self, party: int, hello: common_pb2.Hello = HELLO) -> AsyncIterator[TupleSource]:
        """A server's link to the dealer, greeted; ends in peace."""
        async with source_at(self.pki, self.address, party, hello) as (source, run):
            await source.wait_until_greeted(5)
            yield source
            source.say_goodbye(FINISHED)
            await run

    async def ask(self, tls: TlsFiles, *requests: dealer_pb2.DealRequest) -> None:
        """Makes these requests on a stream of its own, each once the one before it is answered."""
        async with dial(self.address, Role.DEALER, tls) as channel:
            call = dealer_pb2_grpc.DealerStub(channel).Deal()
            for request in requests:
                await call.write(request)
                while not _is_last(await call.read()):
                    pass
            await call.done_writing()
            await call.read()

    async def refusal(self, tls: TlsFiles, *requests: dealer_pb2.DealRequest) -> tuple[grpc.StatusCode, str]:
        """Code and text with which the stream was refused."""
        error = await refusal(lambda: self.ask(tls, *requests))
        return error.code(), error.details()


def _is_last(reply: dealer_pb2.DealReply) -> bool:
    return reply.WhichOneof("reply") == "hello" or reply.corrections.last


@contextlib.asynccontextmanager
async def serving(
    servicer: dealer_pb2_grpc.DealerServicer, pki: Pki, address: str = "127.0.0.1:0"
) -> AsyncIterator[str]:
    """The servicer behind the dealer's certificate."""
    server, port = bind_server(address, pki.tls(Role.DEALER))
    dealer_pb2_grpc.add_DealerServicer_to_server(servicer, server)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


@contextlib.asynccontextmanager
async def dealing(pki: Pki, address: str = "127.0.0.1:0", task: Task = TASK) -> AsyncIterator[Desk]:
    """The real dealer service."""
    pins = tuple(PinFile(pki.tls(role).certificate, role) for role in AGGREGATORS)
    state = tempfile.TemporaryDirectory(prefix="precad-dealer-")
    ledger = DealLedger(Path(state.name) / "dealt.sqlite")
    servicer = DealerServicer(task, pins, ledger, Telemetry(Role.DEALER))
    over = asyncio.create_task(servicer.deal_until_over(60.0, reconnect_timeout_s=0.0))
    try:
        async with serving(servicer, pki, address) as bound:
            yield Desk(pki, bound, servicer, over)
    finally:
        over.cancel()
        await asyncio.gather(over, return_exceptions=True)
        ledger.close()
        state.cleanup()


@contextlib.asynccontextmanager
async def source_at(
    pki: Pki, address: str, party: int, hello: common_pb2.Hello = HELLO, limits: StepLimits = NO_LIMITS
) -> AsyncIterator[tuple[TupleSource, asyncio.Task[None]]]:
    """A server's link to whatever is at this address, and the task that runs it."""

    def channel() -> grpc.aio.Channel:
        pin = PinFile(pki.tls(Role.DEALER).certificate, Role.DEALER)
        return dial(address, Role.DEALER, pki.tls(AGGREGATORS[party]), pin)

    source = TupleSource(party, channel, hello, address, MemoryBurns(), limits=limits)
    run = asyncio.create_task(source.run())
    try:
        yield source, run
    finally:
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)


def mask_of(side: ServerTuples, client: str) -> RingArray:
    """One server's half of a client's mask."""
    words = np.empty(side.shape.dim, dtype=np.int64)
    side.mask_share(client).fill(words)
    return words


def assert_fit_together(a: ServerTuples, b: ServerTuples) -> None:
    """Every relation that the servers rely on."""
    for client in a.shape.clients:
        mask = sum(mask_of(side, client) for side in (a, b))
        assert mask.any()
        assert sum(side.squared_mask_shares([client]) for side in (a, b)).tolist() == [ring.dot(mask, mask)]
        of_a, of_b = ([field_element(words) for words in side.equality_tuples([client])[0]] for side in (a, b))
        rho, omega, product = ((x + y) % FIELD_PRIME for x, y in zip(of_a, of_b, strict=True))
        assert rho != 0
        assert product == rho * omega % FIELD_PRIME
    ours, theirs = a.correlations(), b.correlations()
    for block in a.shape.blocks:
        match block:
            case CarryBlock():
                assert_carry_block(*ours.carries(block.n_words), theirs.carries(block.n_words)[1])
            case BitBlock():
                (plane, values), (other_plane, other_values) = (side.bits(block.n_words) for side in (ours, theirs))
                assert np.array_equal(bits_of_plane(plane ^ other_plane, block.n_words), values + other_values)
            case _:
                runs = (side.triples(block.n_words) for side in (ours, theirs))
                x, y, z = (p ^ q for p, q in zip(*runs, strict=True))
                assert x.shape == (block.n_words,)
                assert np.array_equal(z, x & y)


def assert_carry_block(block: CarryBlock, a: CarryShares, b: CarryShares) -> None:
    """The products of the two servers' masks, and those of the sets that the joining step takes."""
    pairs = split_pairs(block.block_bits)
    assert np.array_equal(a.pairs ^ b.pairs, a.bit_masks[pairs.a] & b.bit_masks[pairs.b])
    masks = a.join_masks ^ b.join_masks
    tables = zip(*subset_products(masks[:, 0], masks[:, 1]), strict=True)
    expected = [table[1:] for of_block in tables for table in of_block]
    assert np.array_equal(a.subsets ^ b.subsets, np.concatenate(expected))


# What is dealt


@pytest.mark.parametrize(
    "shape",
    [
        shape_of(),
        shape_of(clients=(), blocks=(AndBlock(0),)),
        shape_of(blocks=()),
        shape_of(blocks=(AndBlock(300_000),)),
        shape_of(blocks=(CarryBlock(128, 5, 6), CarryBlock(2, 6, 9), BitBlock(128), BitBlock(2), AndBlock(150))),
        shape_of(blocks=(CarryBlock(30_000, 5, 6), BitBlock(100_000))),
    ],
    ids=[
        "two clients",
        "an empty round",
        "no correlations",
        "several messages",
        "blocks of several kinds",
        "several messages of them",
    ],
)
@asynchronous
async def test_both_parts_of_a_batch_fit_together(pki: Pki, shape: BatchShape, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deal two clients as much as many need."""
    monkeypatch.setattr(dealer_module, "PRODUCTS_OF_A_WORD", 1 << 14)
    async with dealing(pki) as desk, desk.source(0) as a, desk.source(1) as b:
        parts = await asyncio.gather(a.batch(shape), b.batch(shape))
        assert [part.party for part in parts] == [0, 1]
        assert_fit_together(*parts)
        assert a.bytes_received < 1000  # 16 bytes, whatever the shape


@asynchronous
async def test_batches_of_different_rounds_are_independent_and_may_come_late(pki: Pki) -> None:
    """One server may be a round ahead, and rounds may be left out."""
    async with dealing(pki) as desk, desk.source(0) as a, desk.source(1) as b:
        parts_a = [await a.batch(shape_of(t)) for t in (0, 1, 5)]
        parts_b = [await b.batch(shape_of(t)) for t in (0, 1, 5)]
        for part_a, part_b in zip(parts_a, parts_b, strict=True):
            assert_fit_together(part_a, part_b)
        assert not np.array_equal(mask_of(parts_a[0], "alice"), mask_of(parts_a[1], "alice"))
        assert not desk.servicer._batches  # nothing is kept of what both have


@asynchronous
async def test_batches_that_are_asked_for_together_come_in_order(pki: Pki) -> None:
    async with dealing(pki) as desk, desk.source(0) as a, desk.source(1) as b:
        shapes = [shape_of(t, tuple(f"c{i}" for i in range(t)), blocks=(AndBlock(65 * t),)) for t in range(4)]
        parts_a, parts_b = await asyncio.gather(
            asyncio.gather(*map(a.batch, shapes)), asyncio.gather(*map(b.batch, shapes))
        )
        for shape, part_a, part_b in zip(shapes, parts_a, parts_b, strict=True):
            assert part_a.shape == part_b.shape == shape
            assert_fit_together(part_a, part_b)


@pytest.mark.flaky(reason=LOST_STATUS)
@asynchronous
async def test_a_server_that_runs_far_ahead_of_the_other_is_refused(pki: Pki, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dealer holds a bounded number of batches."""
    monkeypatch.setattr(dealer_module, "MAX_WAITING", 2)
    async with dealing(pki) as desk:
        requests = [batch(round=t) for t in range(3)]
        code, text = await desk.refusal(pki.tls(Role.AGGREGATOR_A), hello(), *requests)
        assert code is STATUS.INVALID_ARGUMENT
        assert "the other server is more than 2 batches behind" in text


@asynchronous
async def test_the_dealer_is_done_when_both_say_so(pki: Pki) -> None:
    async with dealing(pki) as desk:
        async with desk.source(0):
            pass
        await asyncio.sleep(0)
        assert not desk.over.done()
        async with desk.source(1):
            pass
        await asyncio.wait_for(desk.over, 20)


@asynchronous
async def test_a_dealer_says_why_the_task_is_over(pki: Pki, tmp_path: Path) -> None:
    """In its status, which its operations port may still give."""
    (address,) = free_addresses(1)
    dealer = Dealer(task=TASK, config=pki.dealer(listen=address, folder=tmp_path))
    run = asyncio.create_task(dealer.run())
    async with source_at(pki, address, 0) as (a, a_ends), source_at(pki, address, 1) as (b, b_ends):
        for source in (a, b):
            await source.wait_until_greeted(20)
        before = dealer._snapshot()
        for source in (a, b):
            source.say_goodbye(FINISHED)
        await asyncio.gather(a_ends, b_ends)
    await asyncio.wait_for(run, 20)
    after = dealer._snapshot()
    assert (before.ended, before.is_finished) == ("", False)
    assert (after.ended, after.is_finished, after.state) == (FINISHED.reason, True, "ended")


@pytest.mark.parametrize("party", [0, 1])
@asynchronous
async def test_a_batch_survives_one_server_hanging_up(party: int, pki: Pki, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is made, whoever asked first: the other server has its part all the same."""
    started, may_finish = threading.Event(), threading.Event()

    def slow(shape: BatchShape, random_bytes: RandomBytes) -> tuple[Dealt, Dealt]:
        started.set()
        assert may_finish.wait(30)
        return deal(shape, random_bytes)

    monkeypatch.setattr(dealer_module, "deal", slow)
    async with dealing(pki) as desk, desk.source(1 - party) as other:
        async with dial(desk.address, Role.DEALER, pki.tls(AGGREGATORS[party])) as channel:
            call = dealer_pb2_grpc.DealerStub(channel).Deal()
            for request in (hello(), batch()):
                await call.write(request)
            await asyncio.to_thread(started.wait, 30)
            waiting = asyncio.create_task(other.batch(shape_of()))
            await until(lambda: not desk.servicer._batches)  # both have asked
            call.cancel()
        await until(lambda: desk.servicer.n_connected < 2)
        may_finish.set()
        tuples = await asyncio.wait_for(waiting, 10)
        assert tuples.party == 1 - party
        found = ["is here", "is here"]
        found[party] = "is gone, without a goodbye"
        said = "; ".join(f"{role} {what}" for role, what in zip(AGGREGATORS, found, strict=True))
        with pytest.raises(PeerUnreachableError, match=f"{said} .see {AGGREGATORS[party]}'s log.$"):
            await desk.over


@pytest.mark.parametrize("n_joined", [0, 1])
@asynchronous
async def test_a_dealer_that_is_not_joined_by_both_gives_up(n_joined: int, pki: Pki, tmp_path: Path) -> None:
    """The whole process: it ends, and says what it waited for."""
    (address,) = free_addresses(1)
    config = pki.dealer(listen=address, folder=tmp_path).model_copy(update={"connect_timeout_s": 0.5})
    async with contextlib.AsyncExitStack() as stack:
        if n_joined:
            await stack.enter_async_context(source_at(pki, address, 0))
        with pytest.raises(
            PeerUnreachableError, match=r"waited 0\.5 s for both aggregators: .*aggregator-b never came"
        ):
            await asyncio.wait_for(Dealer(task=TASK, config=config).run(), 10)


@pytest.mark.parametrize("last_word", ["it was stopped", None])
@asynchronous
async def test_a_dealer_says_which_aggregator_came_and_which_left(last_word: str | None, pki: Pki) -> None:
    """A came and left, B never came: its operator learns both, and whose log to read next."""
    async with dealing(pki) as desk:
        word = () if last_word is None else (dealer_pb2.DealRequest(goodbye=common_pb2.Goodbye(reason=last_word)),)
        async with dial(desk.address, Role.DEALER, pki.tls(Role.AGGREGATOR_A)) as channel:
            call = dealer_pb2_grpc.DealerStub(channel).Deal()
            await call.write(hello())
            await call.read()
            with pytest.raises(PeerUnreachableError) as here:
                await desk.servicer.deal_until_over(0.05, 0.0)
            for request in word:
                await call.write(request)
            await call.done_writing()
            await call.read()
        with pytest.raises(PeerUnreachableError) as left:
            await desk.servicer.deal_until_over(0.05, 0.0)
    of_b = "aggregator-b never came (see"
    assert str(here.value) == (
        f"waited 0.05 s for both aggregators: aggregator-a is here; {of_b} aggregator-b's log and call.refused in ours)"
    )
    why = "is gone, without a goodbye" if last_word is None else f"ended the task: {last_word}"
    assert str(left.value) == (
        f"waited 0.05 s for both aggregators: aggregator-a {why}; {of_b} aggregator-a's log, aggregator-b's log and "
        "call.refused in ours)"
    )


# What is refused


@asynchronous
async def test_a_part_is_handed_out_once(pki: Pki) -> None:
    """Not again on the same stream, not on another one, not to whoever comes after a broken stream."""
    async with dealing(pki) as desk:
        tls = pki.tls(Role.AGGREGATOR_A)
        assert await desk.refusal(tls, hello(), batch(), batch()) == (
            STATUS.FAILED_PRECONDITION,
            "round 0 was dealt to this server before",
        )
        assert await desk.refusal(tls, hello(), batch()) == (
            STATUS.FAILED_PRECONDITION,
            "round 0 was dealt to this server before",
        )


@pytest.mark.flaky(reason=LOST_STATUS)
@asynchronous
async def test_a_round_never_goes_backwards(pki: Pki) -> None:
    async with dealing(pki) as desk:
        assert await desk.refusal(pki.tls(Role.AGGREGATOR_B), hello(), batch(round=3), batch(round=2)) == (
            STATUS.FAILED_PRECONDITION,
            "round 2 was dealt to this server before",
        )


@pytest.mark.parametrize(
    "changes",
    [
        {"n_clients": 1},
        {"n_clients": 3},
        {"blocks": blocks(131)},
        {"blocks": blocks(130, kind=dealer_pb2.Block.BIT)},
        {"blocks": blocks(130, kind=dealer_pb2.Block.CARRY, block_bits=1, n_blocks=1)},
        {"blocks": blocks(60, 70)},
    ],
)
@asynchronous
async def test_both_servers_must_ask_for_one_shape(pki: Pki, changes: dict[str, Any]) -> None:
    """Else the second gets nothing, and the dealer gives up: the servers are out of step."""
    async with dealing(pki) as desk, desk.source(0) as a:
        await a.batch(shape_of())
        code, text = await desk.refusal(pki.tls(Role.AGGREGATOR_B), hello(), batch(**changes))
        assert code is STATUS.FAILED_PRECONDITION
        assert "batch of round 0 differs" in text
        with pytest.raises(PeerUnreachableError, match="aggregator-b is gone"):
            await asyncio.wait_for(desk.over, 20)


MALFORMED: dict[str, tuple[tuple[dealer_pb2.DealRequest, ...], grpc.StatusCode, str]] = {
    "nothing": ((), STATUS.INVALID_ARGUMENT, "starts with a hello"),
    "no hello": ((batch(),), STATUS.INVALID_ARGUMENT, "starts with a hello"),
    "two hellos": ((hello(), hello()), STATUS.INVALID_ARGUMENT, "expected a batch request or a goodbye"),
    "an empty request": ((hello(), dealer_pb2.DealRequest()), STATUS.INVALID_ARGUMENT, "expected a batch request"),
    "version": ((hello(protocol_version="precad/v0"),), STATUS.FAILED_PRECONDITION, "protocol_version: expected"),
    "digest": ((hello(config_digest=bytes(32)),), STATUS.FAILED_PRECONDITION, "config_digest: expected"),
    "no task": ((hello(task=""),), STATUS.INVALID_ARGUMENT, "task: expected small-, then 16 hexadecimal digits"),
    "another's task": ((hello(task="large-0000000000000001"),), STATUS.INVALID_ARGUMENT, "task: expected small-"),
    "a long task": ((hello(task="x" * 100_000),), STATUS.INVALID_ARGUMENT, "task: expected small-"),
    "dim": ((hello(), batch(dim=TASK.dim + 1)), STATUS.FAILED_PRECONDITION, "dim differs"),
    "trims": ((hello(), batch(trims=True)), STATUS.FAILED_PRECONDITION, "trims differs"),
    "ring products": (
        (hello(), batch(blocks=blocks(5, kind=5))),
        STATUS.FAILED_PRECONDITION,
        "blocks differs",
    ),
    "squares": ((hello(), batch(blocks=blocks(5, kind=6))), STATUS.FAILED_PRECONDITION, "blocks differs"),
    "layers": ((hello(), batch(layer_sizes=[12, 12])), STATUS.FAILED_PRECONDITION, "layer_sizes differs"),
    "no kind": ((hello(), batch(blocks=blocks(5, kind=0))), STATUS.INVALID_ARGUMENT, "kind of a block: expected AND"),
    "no blocks": (
        (hello(), batch(blocks=carry_blocks(5, 5, 0))),
        STATUS.INVALID_ARGUMENT,
        "n_blocks: expected 1 to 8 and 1 to 12",
    ),
    "large blocks": (
        (hello(), batch(blocks=carry_blocks(5, 9, 1))),
        STATUS.INVALID_ARGUMENT,
        "block_bits, n_blocks: expected",
    ),
    "too much": ((hello(), batch(blocks=blocks(1 << 40))), STATUS.INVALID_ARGUMENT, "at most"),
    "one too much": (
        (hello(), batch(blocks=blocks(PRODUCTS_OF_A_WORD * 2 * 65 + 1))),
        STATUS.INVALID_ARGUMENT,
        "products of a batch: expected at most 2080, found 2081",
    ),
    "too many bits": ((hello(), batch(blocks=carry_blocks(1 << 34, 8, 12))), STATUS.INVALID_ARGUMENT, "at most"),
    "too much in all": ((hello(), batch(blocks=blocks(1 << 29, 1 << 29, 1))), STATUS.INVALID_ARGUMENT, "at most"),
    "too many clients": (
        (hello(), batch(n_clients=len(TASK.clients) + 1)),
        STATUS.INVALID_ARGUMENT,
        "clients of a batch: expected at most 3, found 4",
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
@asynchronous
async def test_a_stream_that_no_server_makes_is_refused(pki: Pki, case: str) -> None:
    requests, code, text = MALFORMED[case]
    async with dealing(pki) as desk:
        found = await desk.refusal(pki.tls(Role.AGGREGATOR_A), *requests)
        assert found[0] is code
        assert text in found[1]


@pytest.mark.parametrize("n_clients", [0, 1, 2, 3, 17, 128])
@pytest.mark.parametrize("gate", ["native", "crypten"])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"layer_sizes": [20, 4], "layer_clips": [1.0, 0.5]},
        {"half_spaces": [-1.0] * 3},
        {"algorithm": "user-dp-fedavg", "update_clipping": "private-quantile"},
        {"algorithm": "tsgd-ptr", "record_rate": 1.0},
        {"algorithm": "tsgd-gaussian", "record_rate": 1.0},
        {"algorithm": "krum", "noise_multiplier": 0.0, "krum_attackers": 1},
    ],
    ids=["plain", "layers", "half-spaces", "quantile", "ptr", "trimmed", "krum"],
)
def test_no_round_needs_more_products_than_are_dealt(
    fields: dict[str, Any], gate: str, n_clients: int, tmp_path: Path
) -> None:
    """Bound what a round needs from above, by ten times as much at most."""
    clients = [f"client-{i}" for i in range(128)]
    np.save(path := tmp_path / "directions.npy", np.ones((3, TASK.dim), dtype=np.int64))
    named = {"directions": path, "directions_sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    task = small_task(clients, gate=gate, client_rate=0.25, **fields, **(named if "half_spaces" in fields else {}))
    needed = sum(block.n_products for block in blocks_of(task, make_gate(gate), n_clients))
    assert needed <= most_products(task, n_clients) <= max(1, 10 * needed)


@pytest.mark.flaky(reason=LOST_STATUS)
@asynchronous
async def test_trim_tuples_are_dealt_to_a_task_that_trims_alone(pki: Pki, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its evaluations have none, whether or not they are as long; and a round has only so many words of them."""
    trims = {"algorithm": "tsgd-ptr", "record_rate": 1.0}
    evaluated = {"evaluation": "clients", "evaluation_every": 1, "evaluation_noise": 5.0}
    for task in (small_task(**trims), small_task(**trims, **evaluated)):
        async with dealing(pki, task=task) as desk:
            greeting = hello(config_digest=task.digest())
            code, text = await desk.refusal(pki.tls(Role.AGGREGATOR_A), greeting, batch(trims=False))
            assert (code, "trims differs" in text) == (STATUS.FAILED_PRECONDITION, True)
    one = task.evaluation_round
    assert one is not None
    async with dealing(pki, task=task) as desk:
        code, text = await desk.refusal(pki.tls(Role.AGGREGATOR_A), greeting, batch(dim=one.dim, trims=True))
        assert (code, "trims differs" in text) == (STATUS.FAILED_PRECONDITION, True)
        monkeypatch.setattr(dealer_module, "MAX_TRIM_WORDS", 2 * (task.dim + 1) - 1)
        code, text = await desk.refusal(pki.tls(Role.AGGREGATOR_A), greeting, batch(trims=True))
        assert (code, "trim words" in text) == (STATUS.INVALID_ARGUMENT, True)


@pytest.mark.flaky(reason=LOST_STATUS)
@asynchronous
async def test_squares_are_dealt_of_the_layers_that_the_task_bounds_alone(pki: Pki) -> None:
    """A server cannot ask for squared norms of other runs of coordinates: they would be known of smaller parts."""
    task = small_task(layer_sizes=[20, 4], layer_clips=[1.0, 0.5])
    said = {
        (): "ours 2 layers, peer's 0 layers",
        (20,): "ours 2 layers, peer's 1 layers",
        (4, 20): "ours 20 coordinates in layer 0, peer's 4 coordinates in layer 0",
        (20, 5): "ours 4 coordinates in layer 1, peer's 5 coordinates in layer 1",
        (1,) * 24: "ours 2 layers, peer's 24 layers",
    }
    async with dealing(pki, task=task) as desk:
        for asked, words in said.items():
            greeting = hello(config_digest=task.digest())
            code, text = await desk.refusal(pki.tls(Role.AGGREGATOR_A), greeting, batch(layer_sizes=asked))
            assert code is STATUS.FAILED_PRECONDITION
            assert f"layer_sizes differs between the servers: {words}" in text


@pytest.mark.flaky(reason=LOST_STATUS)
@asynchronous
async def test_words_of_pairs_are_dealt_to_a_task_of_krum_alone(pki: Pki) -> None:
    """With trim tuples, and to no more clients than distances are compared for."""
    clients = [f"client-{i}" for i in range(129)]
    task = small_task(clients, algorithm="krum", noise_multiplier=0.0, krum_attackers=0, client_rate=0.25)
    greeting, role = hello(config_digest=task.digest()), pki.tls(Role.AGGREGATOR_A)
    async with dealing(pki, task=task) as desk:
        for trims, pairs in ((False, True), (True, False)):
            code, text = await desk.refusal(role, greeting, batch(trims=trims, pairs=pairs))
            assert (code, f"{'pairs' if trims else 'trims'} differs" in text) == (STATUS.FAILED_PRECONDITION, True)
        code, text = await desk.refusal(role, greeting, batch(n_clients=129, trims=True, pairs=True))
        assert (code, "clients: expected at most 128 in a batch with pairs" in text) == (STATUS.INVALID_ARGUMENT, True)
    other = small_task(algorithm="tsgd-ptr", record_rate=1.0)
    async with dealing(pki, task=other) as desk:
        greeting = hello(config_digest=other.digest())
        code, text = await desk.refusal(role, greeting, batch(trims=True, pairs=True))
        assert (code, "pairs differs" in text) == (STATUS.FAILED_PRECONDITION, True)


@asynchronous
async def test_strangers_get_nothing_and_change_nothing(pki: Pki, second_a: TlsFiles) -> None:
    """Other roles and unpinned certificates are refused before the dealer looks at what they say."""
    async with dealing(pki) as desk:
        for name in ("alice", Role.OPERATOR):
            code, text = await desk.refusal(pki.tls(name), hello(), batch())
            assert code is STATUS.PERMISSION_DENIED
            assert "needs the role aggregator-a or aggregator-b" in text
        code, text = await desk.refusal(second_a, hello(), batch())
        assert code is STATUS.PERMISSION_DENIED
        assert "expected the pinned one" in text
        async with desk.source(0) as a, desk.source(1) as b:
            code, text = await desk.refusal(pki.tls(Role.AGGREGATOR_A), hello(task=OTHER_ID), batch())
            assert code is STATUS.FAILED_PRECONDITION
            assert_fit_together(*await asyncio.gather(a.batch(shape_of()), b.batch(shape_of())))


@asynchronous
async def test_a_newer_stream_of_a_server_takes_the_place_of_the_older(pki: Pki) -> None:
    """Its holder has lost the older one, and the dealer has not noticed yet. The other server is not disturbed."""
    async with dealing(pki) as desk, desk.source(1) as b, source_at(pki, desk.address, 0) as (older, running):
        await older.wait_until_greeted(10.0)
        async with desk.source(0) as a:
            with pytest.raises(PeerUnreachableError, match="the dealer closed the link"):
                await running
            assert_fit_together(*await asyncio.gather(a.batch(shape_of()), b.batch(shape_of())))


@asynchronous
async def test_the_second_server_must_be_in_the_same_task(pki: Pki) -> None:
    async with dealing(pki) as desk, desk.source(0):
        code, text = await desk.refusal(pki.tls(Role.AGGREGATOR_B), hello(task=OTHER_ID))
        assert code is STATUS.FAILED_PRECONDITION
        assert f"ours {TASK_ID}, peer's {OTHER_ID}" in text


# A server's end


@asynchronous
async def test_a_server_waits_for_a_dealer_that_comes_up_later(pki: Pki) -> None:
    """Its first request is not lost in the attempts that nobody answered."""
    (address,) = free_addresses(1)
    async with source_at(pki, address, 0) as (a, _), source_at(pki, address, 1) as (b, _):
        waiting = asyncio.gather(a.batch(shape_of()), b.batch(shape_of()))
        await asyncio.sleep(0.7)
        assert not waiting.done()
        async with dealing(pki, address):
            assert_fit_together(*await asyncio.wait_for(waiting, 10))


class LostAtFirst(DealerServicer):
    """Hears the first hello, and is gone before it answers."""

    is_lost = False

    async def Deal(self, request_iterator: AsyncIterator[Any], context: Any) -> AsyncIterator[dealer_pb2.DealReply]:
        """See the class."""
        if not self.is_lost:
            self.is_lost = (await anext(aiter(request_iterator))).HasField("hello")
            await context.abort(STATUS.UNAVAILABLE, "lost")
        async for reply in super().Deal(request_iterator, context):
            yield reply


@asynchronous
async def test_no_request_goes_out_over_a_call_that_is_over(pki: Pki, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the server would wait for tuples that nobody was asked for."""
    monkeypatch.setattr(f"{__name__}.DealerServicer", LostAtFirst)
    async with dealing(pki) as desk, desk.source(0) as a, desk.source(1) as b:
        assert_fit_together(*await asyncio.wait_for(asyncio.gather(a.batch(shape_of()), b.batch(shape_of())), 10))


class Slow(DealerServicer):
    """Answers a hello, and keeps the end of each batch until it may leave."""

    may_leave: asyncio.Event

    async def Deal(self, request_iterator: AsyncIterator[Any], context: Any) -> AsyncIterator[dealer_pb2.DealReply]:
        """See the class."""
        async for reply in super().Deal(request_iterator, context):
            if reply.HasField("corrections") and reply.corrections.last:
                await self.may_leave.wait()
            yield reply


@asynchronous
async def test_a_dealer_that_ends_no_batch_is_waited_for_as_long_as_is_said(
    pki: Pki, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays connected, so nothing else ends the wait. Without limits, `step_timeout_s = 0`, none ends it."""
    monkeypatch.setattr(f"{__name__}.DealerServicer", Slow)
    monkeypatch.setattr(Slow, "may_leave", asyncio.Event(), raising=False)
    limits, batch = StepLimits(every=0.5), shape_of()
    async with (
        dealing(pki) as desk,
        source_at(pki, desk.address, 0, limits=limits) as (a, _),
        source_at(pki, desk.address, 1) as (b, _),
    ):
        waiting = asyncio.ensure_future(b.batch(batch))
        limit_s = limits.dealing(batch.bytes_to_server_b)
        expected = f"the dealer: expected the tuples of round 0 within {limit_s:g} s, found no end of them"
        with pytest.raises(PeerUnreachableError, match=f"^{re.escape(expected)}$"):
            await asyncio.wait_for(a.batch(batch), 10)
        assert not waiting.done()
        Slow.may_leave.set()
        assert (await asyncio.wait_for(waiting, 10)).shape == batch


@asynchronous
async def test_without_a_dealer_the_wait_ends_and_says_why(pki: Pki) -> None:
    (address,) = free_addresses(1)
    async with source_at(pki, address, 0) as (a, _):
        with pytest.raises(PeerUnreachableError, match=rf"no dealer within .* at {address}: nothing listens"):
            await a.wait_until_greeted(3.0)


@asynchronous
async def test_a_refusal_by_the_dealer_ends_the_task(pki: Pki) -> None:
    other = common_pb2.Hello(protocol_version=PROTOCOL_VERSION, config_digest=bytes(32), task=TASK_ID)
    async with dealing(pki) as desk, source_at(pki, desk.address, 0, other) as (a, run):
        waiting = asyncio.create_task(a.batch(shape_of()))
        with pytest.raises(TaskRefusedError, match=r"the dealer refused: config_digest"):
            await run
        with pytest.raises(PeerUnreachableError, match="the dealer is gone"):
            await waiting


@asynchronous
async def test_a_dealer_that_is_lost_ends_the_task(pki: Pki) -> None:
    """The link that runs and the batch that waits both say so, now and for every later batch."""
    async with contextlib.AsyncExitStack() as stack:
        async with dealing(pki) as desk:
            a, run = await stack.enter_async_context(source_at(pki, desk.address, 0))
            await a.wait_until_greeted(5)
        with pytest.raises(PeerUnreachableError, match=r"lost the dealer|closed the link"):
            await run
        for _ in range(2):
            with pytest.raises(PeerUnreachableError, match="the dealer is gone"):
                await a.batch(shape_of())


class ScriptedDealer(dealer_pb2_grpc.DealerServicer):
    """Answers every batch request with the same replies, right or wrong."""

    def __init__(self, *replies: dealer_pb2.DealReply) -> None:
        self._replies = replies

    async def Deal(self, request_iterator: AsyncIterator[Any], context: Any) -> AsyncIterator[dealer_pb2.DealReply]:
        """Hello back, then the script."""
        async for request in request_iterator:
            if request.WhichOneof("request") == "hello":
                yield dealer_pb2.DealReply(hello=request.hello)
            elif request.WhichOneof("request") == "batch":
                for reply in self._replies:
                    yield reply


def key(round: int = 0, n_bytes: int = 16) -> dealer_pb2.DealReply:
    return dealer_pb2.DealReply(key=dealer_pb2.BatchKey(round=round, key=bytes(n_bytes)))


def corrections(last: bool = False, **words: int) -> dealer_pb2.DealReply:
    """So many bytes of each kind."""
    parts = {name: bytes(n) for name, n in words.items()}
    return dealer_pb2.DealReply(corrections=dealer_pb2.Corrections(**parts, last=last))


LAST = corrections(last=True)


@pytest.mark.parametrize(
    ("replies", "message"),
    [
        ((key(round=1), LAST), "sent a batch of round 1, asked for 0"),
        ((LAST,), "expected key"),
        ((key(), key()), "expected corrections"),
        ((key(n_bytes=15), LAST), "key of the dealer's batch: expected 16 bytes, found 15"),
        ((key(), LAST), "corrections of a batch: expected shapes"),
        ((key(), corrections(squared_masks=7), LAST), "ring elements: expected"),
        ((key(), corrections(squared_masks=16, equality=88, products=1040), LAST), "come in threes"),
        (
            (key(), corrections(squared_masks=24, equality=48, products=1040), LAST),
            "corrections of a batch: expected shapes",
        ),
        (
            (key(), corrections(squared_masks=16, equality=48, products=1040), LAST),
            "corrections of a batch: expected shapes",
        ),
        (
            (key(), corrections(squared_masks=16, equality=96, products=1032), LAST),
            "corrections of a batch: expected shapes",
        ),
        (
            (key(), corrections(squared_masks=16, equality=96, products=1040), LAST),
            "peer_seed_digests of a batch: expected 64 bytes, found 0",
        ),
        (
            (key(), corrections(squared_masks=16, equality=96, products=1040, peer_seed_digests=63), LAST),
            "peer_seed_digests of a batch: expected 64 bytes, found 63",
        ),
        ((key(), corrections(products=1217)), "exceed 1216 bytes"),
    ],
)
@asynchronous
async def test_a_batch_that_no_dealer_deals_is_refused(
    pki: Pki, replies: tuple[dealer_pb2.DealReply, ...], message: str
) -> None:
    """At B, whose part has corrections: 130 words of products, seven words and a digest for each of two clients."""
    async with serving(ScriptedDealer(*replies), pki) as address, source_at(pki, address, 1) as (b, _):
        with pytest.raises(MalformedMessageError, match=message):
            await b.batch(shape_of())


@asynchronous
async def test_a_dealer_that_is_not_asked_fills_nobodys_memory(pki: Pki) -> None:
    """Replies without end to one request. What no one has asked for stays in the connection."""
    flood = [key(), *[corrections()] * 3000]
    async with serving(ScriptedDealer(*flood), pki) as address, source_at(pki, address, 1) as (b, _):
        asking = asyncio.create_task(b.batch(shape_of()))
        await until(lambda: b.bytes_received > 0)
        asking.cancel()
        await until(lambda: b._replies.qsize() >= 60)
        await asyncio.sleep(0.5)
        assert b._replies.qsize() <= 64


@asynchronous
async def test_the_operator_is_told_what_the_dealer_does(pki: Pki, tmp_path: Path) -> None:
    """Whom it waits for, and of which task; a dealer that nobody has come to deals nothing."""
    (address,) = free_addresses(1)
    run = asyncio.create_task(Dealer(task=TASK, config=pki.dealer(listen=address, folder=tmp_path)).run())

    async def told() -> tuple[str, str, int]:
        async with dial(address, Role.DEALER, pki.tls("operator")) as channel:
            stub = control_pb2_grpc.ControlStub(channel)
            status = await stub.GetStatus(control_pb2.StatusRequest(), wait_for_ready=True)
            return status.state, status.task, status.n_registered

    try:
        assert await told() == ("waiting for the aggregators", "", 0)
        async with source_at(pki, address, 0) as (a, _):
            await a.wait_until_greeted(20)
            assert await told() == ("waiting for the aggregators", TASK_ID, 1)
            async with source_at(pki, address, 1) as (b, _):
                await b.wait_until_greeted(20)
                assert await told() == ("dealing", TASK_ID, 2)
    finally:
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
