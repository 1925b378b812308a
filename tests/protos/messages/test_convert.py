"""Values to bytes and messages and back; lengths that no honest party sends."""

from __future__ import annotations

import hashlib
import hmac
import struct
import tracemalloc
from collections.abc import AsyncIterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_array_equal

from precad.mpc import upload_binding
from precad.mpc.errors import MalformedMessageError, ParameterError
from precad.mpc.parameters import DEALT_MODES, Mode
from precad.mpc.prg import Label, Purpose, Seed
from precad.mpc.tuples.correlations import (
    AndBlock,
    BitBlock,
    Block,
    CarryBlock,
    ChoiceBlock,
    ProductBlock,
    SquareBlock,
)
from precad.mpc.tuples.dealt import deal
from precad.mpc.tuples.held import BatchShape, Dealt
from precad.protos.messages import convert
from precad.protos.precad.v1 import common_pb2, dealer_pb2
from precad.protos.task.task import PROTOCOL_VERSION
from tests.harness.harness import asynchronous, small_task

CHUNK = convert.CHUNK_BYTES
CARRY = dealer_pb2.Block.CARRY


async def chunks(*parts: bytes) -> AsyncIterator[common_pb2.Chunk]:
    for part in parts:
        yield common_pb2.Chunk(data=part)


@pytest.mark.parametrize("n_bytes", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK])
@asynchronous
async def test_pieces_collect_to_the_whole(n_bytes: int) -> None:
    data = np.random.default_rng(n_bytes).bytes(n_bytes)
    parts = list(convert.pieces(data))
    assert max(map(len, parts)) <= CHUNK
    assert len(parts) == max(1, -(-n_bytes // CHUNK))
    assert await convert.collect(chunks(*parts), limit=n_bytes) == data


@pytest.mark.parametrize("n_bytes", [0, 1, 1 << 18, (1 << 18) + 1, CHUNK, 2 * CHUNK, 5 * CHUNK + 3])
def test_growing_pieces_are_never_longer_than_what_came_before(n_bytes: int) -> None:
    """So whoever counts whole ones has counted at least half of what is there, once the first one is."""
    data = np.random.default_rng(n_bytes).bytes(n_bytes)
    parts = list(convert.growing_pieces(data))
    assert b"".join(parts) == data
    assert len(parts) == 1 or all(parts)
    assert len(parts[0]) <= 1 << 18  # 8 s at 32 KiB/s, and an upload of 10 s is judged
    assert all(len(part) <= min(CHUNK, len(b"".join(parts[:i]))) for i, part in enumerate(parts) if i > 0)
    assert len(parts) <= 4 + n_bytes // CHUNK


@pytest.mark.parametrize("n_bytes", [0, 1, 7 << 14, 2 * 7 << 14, (2 * 7 << 14) + 1, 2 * CHUNK, 5 * CHUNK + 3])
def test_joined_tiles_make_few_messages_that_grow_likewise(n_bytes: int) -> None:
    data = np.random.default_rng(n_bytes).bytes(n_bytes)
    tile = 7 << 14
    parts = list(convert.joined_pieces(data[start : start + tile] for start in range(0, n_bytes, tile)))
    assert b"".join(parts) == data
    assert len(parts[0]) <= 1 << 18
    assert all(len(part) <= min(CHUNK, len(b"".join(parts[:i]))) for i, part in enumerate(parts) if i > 0)
    assert len(parts) <= 4 + n_bytes // (CHUNK - tile)


@asynchronous
async def test_collecting_stops_at_the_first_byte_too_many() -> None:
    """Ask for nothing that comes after the first byte too many."""
    n_sent = 0

    async def endless() -> AsyncIterator[common_pb2.Chunk]:
        nonlocal n_sent
        while True:
            n_sent += 1
            yield common_pb2.Chunk(data=bytes(10))

    with pytest.raises(MalformedMessageError, match="exceeds 25 bytes"):
        await convert.collect(endless(), limit=25)
    assert n_sent == 3


@asynchronous
async def test_collecting_takes_memory_of_the_limit_however_short_the_chunks_are() -> None:
    """A server that deviates sends each byte by itself, and empty chunks between them."""
    n_bytes = 50_000
    parts = (b"x", b"") * n_bytes
    tracemalloc.start()
    try:
        found = await convert.collect(chunks(*parts), limit=n_bytes)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == b"x" * n_bytes
    assert peak < 8 * len(parts) + 6 * n_bytes  # `parts` once more, and the bytes


@given(arrays(np.float32, st.integers(0, 20), elements=st.floats(width=32)))
def test_a_model_survives_the_wire_bit_for_bit(parameters: np.ndarray) -> None:
    """NaN payloads, infinities and negative zero too."""
    data = convert.model_to_bytes(parameters)
    back = convert.model_from_bytes(data, parameters.size)
    assert_array_equal(back.view(np.uint32), parameters.view(np.uint32))
    assert back.flags.writeable


def test_a_model_is_little_endian_on_the_wire() -> None:
    assert convert.model_to_bytes(np.array([1.0], dtype=np.float32)) == bytes.fromhex("0000803f")
    assert convert.model_to_bytes(np.array([1.0], dtype=">f4")) == bytes.fromhex("0000803f")


@pytest.mark.parametrize("n_bytes", [0, 4 * 24 - 1, 4 * 24 + 1, 4 * 23, 4 * 25])
def test_a_model_of_another_length_is_refused(n_bytes: int) -> None:
    with pytest.raises(MalformedMessageError, match=f"model: expected 96 bytes of 24 parameters, found {n_bytes}"):
        convert.model_from_bytes(bytes(n_bytes), 24)


def test_upload_lengths() -> None:
    """8d bytes to one server; a seed, or nothing, to the other."""
    lengths = {(mode, party): convert.upload_bytes(mode, party, 24) for mode in DEALT_MODES for party in (0, 1)}
    assert lengths == {
        (Mode.MASKED, 0): 192,
        (Mode.MASKED, 1): 0,
        (Mode.SHARES, 0): 16,
        (Mode.SHARES, 1): 192,
    }


# Bindings


def binding(**changes: object) -> common_pb2.Binding:
    message = convert.binding(
        task=small_task(),
        task_id="small-1",
        round=3,
        client="alice",
        model_digest=bytes(32),
        digests=(bytes([1] * 32), bytes([2] * 32)),
    )
    for name, value in changes.items():
        setattr(message, name, value)
    return message


def test_a_binding_says_everything() -> None:
    message = binding()
    assert all(getattr(message, field.name) or field.name == "model_digest" for field in message.DESCRIPTOR.fields)
    assert message.protocol_version == PROTOCOL_VERSION
    assert message.config_digest == small_task().digest()


def test_a_bindings_digest_covers_every_field() -> None:
    digests = {convert.binding_digest(binding())}
    for field in common_pb2.Binding.DESCRIPTOR.fields:
        value = getattr(binding(), field.name)
        other = value + 1 if isinstance(value, int) else value[:-1] or value + value[:1]
        digests.add(convert.binding_digest(binding(**{field.name: other})))
    assert len(digests) == 1 + len(common_pb2.Binding.DESCRIPTOR.fields)
    assert all(len(digest) == 32 for digest in digests)


def test_a_bindings_digest_keeps_its_fields_apart() -> None:
    """A byte that moves from one field to its neighbour changes it."""
    a = binding(digest_a=b"12", digest_b=b"3")
    b = binding(digest_a=b"1", digest_b=b"23")
    assert convert.binding_digest(a) != convert.binding_digest(b)


def test_a_bindings_digest_is_fixed() -> None:
    """Both servers compute it from their own message: it must not move with the version of protobuf."""
    message = common_pb2.Binding(protocol_version="v", task="t", round=1, client="c", dim=2, mode="m", digest_a=b"\xff")
    message.digest_b = b"\x00"
    fields = [b"v", b"t", b"1", b"c", b"", b"", b"2", b"m", b"\xff", b"\x00"]
    numbered = b"".join(struct.pack(">IQ", i, len(field)) + field for i, field in enumerate(fields, start=1))
    assert convert.binding_digest(message) == hashlib.sha256(numbered).digest()


def test_a_statement_is_hmac_under_a_key_of_its_own() -> None:
    """HKDF's two steps and HMAC by hand; other seeds, places and bindings have other statements."""
    seed, label, digest = Seed(bytes(range(16))), Label("small-1", 5, "2"), bytes(range(32))
    extracted = hmac.digest(bytes(32), seed.reveal(), "sha256")
    key = hmac.digest(extracted, label.encode(Purpose.STATEMENT) + b"\x01", "sha256")[:16]
    assert upload_binding.statement(seed, label, digest) == hmac.digest(key, digest, "sha256")
    others = {
        upload_binding.statement(*given)
        for given in (
            (seed, label, digest),
            (Seed(bytes(16)), label, digest),
            (seed, Label("small-1", 5, "1"), digest),
            (seed, Label("small-1", 6, "2"), digest),
            (seed, label, bytes(32)),
        )
    }
    assert len(others) == 5


# The dealer's messages


@pytest.mark.parametrize(
    "more",
    [(False, False, ()), (True, False, ()), (True, True, ()), (False, False, (20, 1, 3))],
    ids=["plain", "trims", "pairs", "layers"],
)
@pytest.mark.parametrize("party", [0, 1])
@pytest.mark.parametrize("n_clients", [0, 1, 3])
@pytest.mark.parametrize(
    "blocks",
    [(), (AndBlock(5),), (AndBlock(3), CarryBlock(4, 5, 6), BitBlock(7)), (AndBlock(CHUNK // 8 + 1),)],
    ids=["no products", "one block", "blocks of several kinds", "two messages"],
)
def test_a_dealt_part_survives_the_wire(
    party: int, n_clients: int, blocks: tuple[Block, ...], more: tuple[bool, bool, tuple[int, ...]]
) -> None:
    clients = tuple(f"client-{i}" for i in range(n_clients))
    shape = BatchShape("small-1", 2, clients, 24, blocks, *more)
    dealt = deal(shape)[party]
    assert dealt.trims.size == (25 * n_clients if more[0] and party == 1 else 0)
    assert dealt.pairs.size == (n_clients * (n_clients - 1) // 2 if more[1] and party == 1 else 0)
    assert dealt.layer_squares.size == (n_clients * len(more[2]) if party == 1 else 0)
    messages = list(convert.dealt_to_messages(dealt, 2))
    assert messages[0].key.round == 2
    assert [message.corrections.last for message in messages[1:]] == [False] * (len(messages) - 2) + [True]
    assert max(message.ByteSize() for message in messages) <= CHUNK + 100
    n_bytes = sum(map(len, parts_of(messages[1:]).values()))
    assert n_bytes == (shape.bytes_to_server_b if party == 1 else 32 * n_clients)
    assert len(messages) - 1 <= 1 + 2 * n_bytes // CHUNK  # two messages in a row are more than a chunk together
    back = convert.dealt_from_parts(messages[0].key.key, parts_of(messages[1:]))
    assert back.key == dealt.key
    assert back.peer_seed_digests == dealt.peer_seed_digests
    assert len(back.peer_seed_digests) == 32 * n_clients
    for name in ("squared_masks", "equality", "products", "trims", "pairs", "layer_squares"):
        assert_array_equal(getattr(back, name), getattr(dealt, name))
        assert getattr(back, name).shape == getattr(dealt, name).shape


def parts_of(messages: list[dealer_pb2.DealReply]) -> dict[str, bytes]:
    names = ("squared_masks", "equality", "products", "trims", "pairs", "layer_squares", "peer_seed_digests")
    return {name: b"".join(getattr(message.corrections, name) for message in messages) for name in names}


@pytest.mark.parametrize(
    ("key_bytes", "lengths"),
    [
        (15, (0, 0, 0, 0, 0)),
        (17, (0, 0, 0, 0, 0)),
        (16, (7, 0, 0, 0, 0)),
        (16, (8, 32, 0, 0, 0)),
        (16, (8, 40, 0, 0, 0)),
        (16, (8, 49, 0, 0, 0)),
        (16, (8, 48, 4, 0, 0)),
        (16, (8, 48, 0, 9, 0)),
        (16, (8, 48, 0, 0, 9)),
    ],
)
def test_a_dealt_part_of_other_lengths_is_refused(key_bytes: int, lengths: tuple[int, int, int, int, int]) -> None:
    """Not as a fault of the configuration, which would be for this server's operator to mend."""
    names = ("squared_masks", "equality", "products", "trims", "layer_squares")
    parts = dict(zip(names, map(bytes, lengths), strict=True))
    parts |= {"pairs": b"", "peer_seed_digests": b""}
    with pytest.raises(MalformedMessageError):
        convert.dealt_from_parts(bytes(key_bytes), parts)


def test_nothing_dealt_shows_in_a_representation() -> None:
    dealt: Dealt = deal(BatchShape("small-1", 2, ("alice",), 24, (AndBlock(1),)))[1]
    assert dealt.key.reveal().hex() not in repr(dealt)
    assert str(int(dealt.products[0])) not in repr(dealt)


@pytest.mark.parametrize(
    "block", [AndBlock(5), BitBlock(5), CarryBlock(5, 3, 4), ChoiceBlock(5), ProductBlock(5), SquareBlock(5)]
)
def test_a_block_on_the_wire_has_a_kind_and_its_numbers(block: Block) -> None:
    """Each kind has a number of its own, and what only a CARRY has is left out of the others."""
    (message,) = convert.batch_request(BatchShape("small-1", 2, (), 24, (block,))).blocks
    kinds = {AndBlock: 1, BitBlock: 2, ChoiceBlock: 4, ProductBlock: 5, SquareBlock: 6}
    expected = (3, 5, 3, 4) if isinstance(block, CarryBlock) else (kinds[type(block)], 5, 0, 0)
    assert (message.kind, message.n_words, message.block_bits, message.n_blocks) == expected


def test_a_batch_request_carries_its_shape_and_no_name() -> None:
    """The dealer deals to slots what the servers, who know the names, expect."""
    blocks = (
        AndBlock(5),
        CarryBlock(6, 3, 4),
        BitBlock(7),
        CarryBlock(8, 4, 3),
        AndBlock(9),
        BitBlock(0),
        ChoiceBlock(3),
    )
    shape = BatchShape("small-1", 2, ("bob", "alice"), 24, blocks, trims=True, pairs=True)
    request = convert.batch_request(shape)
    dealers = convert.batch_shape("small-1", request)
    assert dealers == BatchShape.anonymous("small-1", 2, 2, 24, blocks, trims=True, pairs=True)
    assert [dealers.label(slot) for slot in dealers.clients] == [shape.label(client) for client in shape.clients]
    assert dealers.label() == shape.label()
    assert not any(name.encode() in request.SerializeToString() for name in shape.clients)


@pytest.mark.parametrize(
    "changes",
    [
        {"dim": 0},
        {"blocks": [dealer_pb2.Block(n_words=1)]},
        {"blocks": [dealer_pb2.Block(kind=7, n_words=1)]},
        {"blocks": [dealer_pb2.Block(kind=CARRY, n_words=1)]},
        {"blocks": [dealer_pb2.Block(kind=CARRY, n_words=1, block_bits=9, n_blocks=1)]},
        {"blocks": [dealer_pb2.Block(kind=CARRY, n_words=1, block_bits=1, n_blocks=13)]},
    ],
)
def test_a_batch_request_that_no_server_makes_is_refused(changes: dict[str, object]) -> None:
    fields = {"round": 0, "n_clients": 1, "dim": 24, "blocks": [], **changes}
    with pytest.raises(ParameterError):
        convert.batch_shape("small-1", dealer_pb2.BatchRequest(**fields))
