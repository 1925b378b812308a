"""Send one upload, or one proof, to one server: the same bytes at every attempt."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, Literal

from google.protobuf.message import Message

from precad.clients.errors import ProtocolError
from precad.clients.submission import Submission
from precad.clients.upload.patience import until_admitted
from precad.mpc.errors import MalformedMessageError, raised_as
from precad.protos.messages import convert
from precad.protos.messages.undecoded import BytesStub, decoded
from precad.protos.precad.v1 import aggregator_pb2
from precad.protos.tls.identity import AGGREGATORS

_REPLIES: Final = {"Submit": aggregator_pb2.SubmitReply, "Prove": aggregator_pb2.ProveReply}

refusing_nonsense = functools.partial(raised_as, ProtocolError, MalformedMessageError)
"""Turn away bytes that no honest server sends. Raises ProtocolError."""


async def send(
    stubs: Sequence[BytesStub],
    server: int,
    method: Literal["Submit", "Prove"],
    parts: Callable[[], AsyncIterator[Message]],
    limit_s: float,
) -> None:
    """Send the parts to one server; every attempt sends the same bytes, by the latest stub.

    Raises AioRpcError, ProtocolError.
    """

    async def attempt() -> None:
        data = await getattr(stubs[server], method)(parts())
        with refusing_nonsense():
            decoded(_REPLIES[method], data, AGGREGATORS[server])

    await until_admitted(attempt, limit_s)


async def parts_of(submission: Submission, server: int) -> AsyncIterator[aggregator_pb2.SubmitPart]:
    """Return the messages to one server: its payload in chunks, the first one with the binding."""
    first, *others = convert.growing_pieces(submission.payloads[server])
    yield aggregator_pb2.SubmitPart(
        binding=submission.binding,
        statement=submission.statement,
        salt=submission.salt_to(server),
        chunk=convert.chunk(first),
    )
    for piece in others:
        yield aggregator_pb2.SubmitPart(chunk=convert.chunk(piece))
