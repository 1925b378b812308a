"""Streams of which we decode the messages ourselves.

A channel of gRPC's that is asked to decode what is no message writes a traceback to the log, and hands on None in its
place. Here it is an error like any other.
"""

from __future__ import annotations

from typing import Any, TypeVar

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from mpc.errors import MalformedMessageError

M = TypeVar("M", bound=Message)


def stream_of_bytes(
    channel: grpc.aio.Channel, service: ServiceDescriptor, method: str
) -> grpc.aio.StreamStreamMultiCallable[Any, bytes]:
    """A method with streams both ways: takes messages, and gives what the other side sends as bytes."""
    request = GetMessageClass(service.methods_by_name[method].input_type)
    return channel.stream_stream(f"/{service.full_name}/{method}", request_serializer=request.SerializeToString)


def decoded(kind: type[M], data: bytes, sender: str) -> M:
    """The message. Raises MalformedMessageError, which says who sent it."""
    try:
        return kind.FromString(data)
    except DecodeError:
        raise MalformedMessageError(f"{sender} sent {len(data)} bytes that are no {kind.DESCRIPTOR.name}") from None
