"""Calls of which we decode the replies ourselves.

A stub of gRPC's that is asked to decode a message that does not parse writes a traceback to the log. It hands on None
in place of the message. Here it is an error like any other.
"""

from __future__ import annotations

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
    call = kinds[method.client_streaming, method.server_streaming]
    return call(f"/{service.full_name}/{method.name}", request_serializer=request.SerializeToString)


def decoded(kind: type[M], data: bytes, sender: str) -> M:
    """Return the message. Raises MalformedMessageError, which says who sent it."""
    try:
        return kind.FromString(data)
    except DecodeError:
        raise MalformedMessageError(f"{sender} sent {len(data)} bytes that are no {kind.DESCRIPTOR.name}") from None
