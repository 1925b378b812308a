"""Calls of which we decode the replies ourselves.

A stub of gRPC's that is asked to decode a message that does not parse writes a traceback to the log. It hands on None
in place of the message. Here it is an error like any other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, TypeAlias, TypeVar

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from precad.mpc.errors import MalformedMessageError

M = TypeVar("M", bound=Message)

BytesStub: TypeAlias = SimpleNamespace
"""Like a generated stub, and its replies are bytes."""


def stub_of_bytes(channel: grpc.aio.Channel, service: ServiceDescriptor) -> BytesStub:
    """Return the service's methods, by their names: each takes messages, and gives what the other side sends as
    bytes."""
    return SimpleNamespace(**{method.name: _call_of_bytes(channel, service, method) for method in service.methods})


def _call_of_bytes(channel: grpc.aio.Channel, service: ServiceDescriptor, method: MethodDescriptor) -> Any:
    kinds = {
        (False, False): channel.unary_unary,
        (False, True): channel.unary_stream,
        (True, False): channel.stream_unary,
        (True, True): channel.stream_stream,
    }
    request = GetMessageClass(method.input_type)
    path = f"/{service.full_name}/{method.name}"
    call = kinds[method.client_streaming, method.server_streaming](path, request_serializer=request.SerializeToString)
    if not method.client_streaming or method.server_streaming:
        return call
    return _Uploading(channel.unary_unary(path, request_serializer=request.SerializeToString), call)


class _Uploading:
    """A method that takes a stream of messages and gives one.

    A single message is sent as a call of one message: alike on the wire, for two thirds of the processor time here.
    """

    def __init__(self, of_one: Any, of_many: Any) -> None:
        self._of_one, self._of_many = of_one, of_many

    async def __call__(self, messages: AsyncIterator[Message]) -> bytes | None:
        """Send the messages and return the reply; None where the call ends well without one.

        Two messages are held at a time. Raises AioRpcError.
        """
        held = [message async for message in _at_most(2, messages)]
        call = self._of_one(*held) if len(held) == 1 else self._of_many(_followed(held, messages))
        reply: bytes | None = await call
        return reply


async def _at_most(n: int, messages: AsyncIterator[Message]) -> AsyncIterator[Message]:
    for _ in range(n):
        if (message := await anext(messages, None)) is None:
            return
        yield message


async def _followed(held: list[Message], others: AsyncIterator[Message]) -> AsyncIterator[Message]:
    """Yield what is held, and let go of it, then the others."""
    while held:
        yield held.pop(0)
    async for message in others:
        yield message


def decoded(kind: type[M], data: bytes | None, sender: str) -> M:
    """Return the message. Raises MalformedMessageError, which says who sent it, or sent none (None)."""
    if data is None:
        raise MalformedMessageError(f"{sender} sent no {kind.DESCRIPTOR.name}")
    try:
        return kind.FromString(data)
    except DecodeError:
        raise MalformedMessageError(f"{sender} sent {len(data)} bytes that are no {kind.DESCRIPTOR.name}") from None
