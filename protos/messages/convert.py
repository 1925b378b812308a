"""Messages to values and back, and the chunking of whatever grows with the model."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterable, Iterable, Iterator, Mapping
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from precad.mpc import ring
from precad.mpc.errors import MalformedMessageError, ParameterError
from precad.mpc.parameters import Mode
from precad.mpc.prg import SEED_BYTES, Seed
from precad.mpc.ring import WORD_BYTES
from precad.mpc.sharing import Party
from precad.mpc.tuples.correlations import (
    AndBlock,
    BitBlock,
    Block,
    CarryBlock,
    ChoiceBlock,
    ProductBlock,
    SquareBlock,
)
from precad.mpc.tuples.held import FIELD_WORDS, BatchShape, Dealt
from precad.mpc.upload_binding import fields_digest
from precad.protos.precad.v1 import common_pb2, dealer_pb2
from precad.protos.task.task import Task

CHUNK_BYTES = 1 << 20
"""No message comes near gRPC's default limit of 4 MB."""
FIRST_CHUNK_BYTES = 1 << 18
"""Bytes of the first chunk of an upload or a download. On the slowest line that a server waits for, by default, it is
there within `transfer_grace_s`."""
DEALT_PARTS = ("squared_masks", "equality", "products", "trims", "pairs", "layer_squares", "peer_seed_digests")
"""Names of the parts that `Corrections` has pieces of."""


class Bytes(Protocol):
    """Bytes, or what can be read like them."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> bytes: ...


def pieces(data: Bytes) -> Iterator[bytes]:
    """Yield `data` in pieces of at most CHUNK_BYTES; one empty piece when there is none."""
    for start in range(0, max(len(data), 1), CHUNK_BYTES):
        yield data[start : start + CHUNK_BYTES]


def chunk(data: bytes) -> dict[str, bytes]:
    """Return a message's part of type Chunk, as its fields.

    A Chunk that is made before the message is encoded, decoded and copied, which takes thirty times as long.
    """
    return {"data": data}


def growing_pieces(data: Bytes) -> Iterator[bytes]:
    """Yield `data` in pieces: the first one of FIRST_CHUNK_BYTES at most, each other no longer than all before it
    together.

    No piece is longer than CHUNK_BYTES. gRPC hands on whole messages only, so the receiver sees at least half of what
    has come.
    """
    size, start = min(FIRST_CHUNK_BYTES, CHUNK_BYTES), 0
    while start == 0 or start < len(data):
        yield data[start : start + size]
        start += size
        size = min(start, CHUNK_BYTES)


def joined_pieces(short: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in few messages, which grow as those of `growing_pieces`. short: of FIRST_CHUNK_BYTES at
    most, such as tiles."""
    waiting, n_waiting, limit, yielded = list[bytes](), 0, FIRST_CHUNK_BYTES, 0
    for piece in short:
        if waiting and n_waiting + len(piece) > limit:
            yielded += n_waiting
            limit = min(yielded, CHUNK_BYTES)
            yield b"".join(waiting)
            waiting, n_waiting = [], 0
        waiting.append(piece)
        n_waiting += len(piece)
    yield b"".join(waiting)


async def collect(chunks: AsyncIterable[common_pb2.Chunk], *, limit: int) -> bytes:
    """Return the concatenation of chunks. Raises MalformedMessageError as soon as they exceed `limit` bytes."""
    received = bytearray()  # a list of chunks, each of a byte, would take many times the limit
    async for chunk in chunks:
        data = chunk.data  # once: every reading copies it
        if len(received) + len(data) > limit:
            raise MalformedMessageError(f"a stream of chunks exceeds {limit} bytes")
        received += data
    return bytes(received)


def sha256(data: bytes | bytearray | memoryview) -> bytes:
    """Return the SHA-256 of what is uploaded or downloaded."""
    return hashlib.sha256(data).digest()


def model_bytes(dim: int) -> int:
    """Return the length of a model on the wire: 4d bytes."""
    return 4 * dim


def model_to_bytes(parameters: NDArray[np.float32]) -> bytes:
    """Return a model on the wire: float32, little-endian, in the order of its flat vector."""
    return parameters.astype("<f4", copy=False).tobytes()


def model_from_bytes(data: bytes, dim: int) -> NDArray[np.float32]:
    """Return the flat vector, (d,). Raises MalformedMessageError on another length."""
    if len(data) != model_bytes(dim):
        raise MalformedMessageError(f"model: expected {model_bytes(dim)} bytes of {dim} parameters, found {len(data)}")
    return np.frombuffer(data, dtype="<f4").astype(np.float32)


def upload_bytes(mode: Mode, party: Party, dim: int) -> int:
    """Return the length of what a client uploads to one server: 8d bytes to one, and a seed or nothing at all to the
    other."""
    if mode is Mode.MASKED:
        return WORD_BYTES * dim if party == 0 else 0
    return SEED_BYTES if party == 0 else WORD_BYTES * dim


def binding(
    *, task: Task, task_id: str, round: int, client: str, model_digest: bytes, digests: tuple[bytes, bytes]
) -> common_pb2.Binding:
    """Everything that one submission is bound to."""
    return common_pb2.Binding(
        protocol_version=task.protocol_version,
        task=task_id,
        round=round,
        client=client,
        config_digest=task.digest(),
        model_digest=model_digest,
        dim=task.dim,
        mode=task.mode,
        digest_a=digests[0],
        digest_b=digests[1],
    )


def binding_digest(message: common_pb2.Binding) -> bytes:
    """Return 32 bytes that the servers compare.

    Fields in number order, each with its length: independent of protobuf's own serialization, which promises no
    canonical form.
    """
    return fields_digest({field.number: getattr(message, field.name) for field in message.DESCRIPTOR.fields})


def batch_request(shape: BatchShape) -> dealer_pb2.BatchRequest:
    """Return a server's request to the dealer."""
    return dealer_pb2.BatchRequest(
        round=shape.round,
        n_clients=len(shape.clients),
        dim=shape.dim,
        blocks=[_block_message(block) for block in shape.blocks],
        trims=shape.trims,
        pairs=shape.pairs,
        layer_sizes=shape.layer_sizes,
    )


def batch_shape(task_id: str, request: dealer_pb2.BatchRequest) -> BatchShape:
    """Raises ParameterError on a request that no server makes."""
    blocks = tuple(_block(message) for message in request.blocks)
    further = (request.trims, request.pairs, tuple(request.layer_sizes))
    return BatchShape.anonymous(task_id, request.round, request.n_clients, request.dim, blocks, *further)


_KINDS: Final[Mapping[dealer_pb2.Block.Kind, type[AndBlock | BitBlock | ChoiceBlock | ProductBlock | SquareBlock]]] = {
    dealer_pb2.Block.AND: AndBlock,
    dealer_pb2.Block.BIT: BitBlock,
    dealer_pb2.Block.CHOICE: ChoiceBlock,
    dealer_pb2.Block.PRODUCT: ProductBlock,
    dealer_pb2.Block.SQUARE: SquareBlock,
}
"""Blocks that are their number of words alone."""


def _block_message(block: Block) -> dealer_pb2.Block:
    if isinstance(block, CarryBlock):
        return dealer_pb2.Block(
            kind=dealer_pb2.Block.CARRY,
            n_words=block.n_words,
            block_bits=block.block_bits,
            n_blocks=block.n_blocks,
        )
    kind = next(kind for kind, of_kind in _KINDS.items() if isinstance(block, of_kind))
    return dealer_pb2.Block(kind=kind, n_words=block.n_words)


def _block(message: dealer_pb2.Block) -> Block:
    if message.kind == dealer_pb2.Block.CARRY:
        return CarryBlock(message.n_words, message.block_bits, message.n_blocks)
    if (kind := _KINDS.get(message.kind)) is None:
        expected = "AND, BIT, CARRY, CHOICE, PRODUCT or SQUARE"
        raise ParameterError(f"kind of a block: expected {expected}, found {message.kind}")
    return kind(message.n_words)


def dealt_to_messages(dealt: Dealt, round: int) -> Iterator[dealer_pb2.DealReply]:
    """Yield the key, then the corrections, as many in a message as a chunk may have bytes; digests alone for server
    A."""
    yield dealer_pb2.DealReply(key=dealer_pb2.BatchKey(round=round, key=dealt.key.reveal()))
    corrections, n_bytes = dealer_pb2.Corrections(), 0
    for name in DEALT_PARTS:
        part = getattr(dealt, name)
        for piece in pieces(part if isinstance(part, bytes) else ring.to_bytes(part)):
            if n_bytes + len(piece) > CHUNK_BYTES:
                yield dealer_pb2.DealReply(corrections=corrections)
                corrections, n_bytes = dealer_pb2.Corrections(), 0
            setattr(corrections, name, piece)
            n_bytes += len(piece)
    corrections.last = True
    yield dealer_pb2.DealReply(corrections=corrections)


def dealt_from_parts(key: bytes, parts: dict[str, bytes]) -> Dealt:
    """Rebuild the `Dealt` that `dealt_to_messages` sent; `ServerTuples` checks the shapes.

    Raises MalformedMessageError.
    """
    if len(key) != SEED_BYTES:
        raise MalformedMessageError(f"key of the dealer's batch: expected {SEED_BYTES} bytes, found {len(key)}")
    digests = parts["peer_seed_digests"]
    words = {name: ring.from_bytes(parts[name], n_words=len(parts[name]) // WORD_BYTES) for name in DEALT_PARTS[:-1]}
    if words["equality"].size % (3 * FIELD_WORDS):
        raise MalformedMessageError("equality corrections come in threes of field elements")
    equality = words["equality"].reshape(-1, 3, FIELD_WORDS)
    return Dealt(Seed(key), digests, equality=equality, **{name: words[name] for name in words if name != "equality"})
