from precad.protos.precad.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PeerMessage(_message.Message):
    __slots__ = ("hello", "relay", "goodbye", "closed", "relays")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    RELAY_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    RELAYS_FIELD_NUMBER: _ClassVar[int]
    hello: _common_pb2.Hello
    relay: Relay
    goodbye: _common_pb2.Goodbye
    closed: Closed
    relays: Relays
    def __init__(self, hello: _Optional[_Union[_common_pb2.Hello, _Mapping]] = ..., relay: _Optional[_Union[Relay, _Mapping]] = ..., goodbye: _Optional[_Union[_common_pb2.Goodbye, _Mapping]] = ..., closed: _Optional[_Union[Closed, _Mapping]] = ..., relays: _Optional[_Union[Relays, _Mapping]] = ...) -> None: ...

class Closed(_message.Message):
    __slots__ = ("round", "phase")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    round: int
    phase: int
    def __init__(self, round: _Optional[int] = ..., phase: _Optional[int] = ...) -> None: ...

class Relay(_message.Message):
    __slots__ = ("round", "client", "data", "last", "statement", "digest", "phase")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    round: int
    client: str
    data: bytes
    last: bool
    statement: bytes
    digest: bytes
    phase: int
    def __init__(self, round: _Optional[int] = ..., client: _Optional[str] = ..., data: _Optional[bytes] = ..., last: _Optional[bool] = ..., statement: _Optional[bytes] = ..., digest: _Optional[bytes] = ..., phase: _Optional[int] = ...) -> None: ...

class Relays(_message.Message):
    __slots__ = ("relays",)
    RELAYS_FIELD_NUMBER: _ClassVar[int]
    relays: _containers.RepeatedCompositeFieldContainer[Relay]
    def __init__(self, relays: _Optional[_Iterable[_Union[Relay, _Mapping]]] = ...) -> None: ...
