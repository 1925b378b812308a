from precad.protos.precad.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Status(_message.Message):
    __slots__ = ("role", "state", "task", "round", "n_registered")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    N_REGISTERED_FIELD_NUMBER: _ClassVar[int]
    role: str
    state: str
    task: str
    round: int
    n_registered: int
    def __init__(self, role: _Optional[str] = ..., state: _Optional[str] = ..., task: _Optional[str] = ..., round: _Optional[int] = ..., n_registered: _Optional[int] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("with_models",)
    WITH_MODELS_FIELD_NUMBER: _ClassVar[int]
    with_models: bool
    def __init__(self, with_models: _Optional[bool] = ...) -> None: ...

class ControlEvent(_message.Message):
    __slots__ = ("status", "round", "goodbye", "model")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    status: Status
    round: RoundRecord
    goodbye: _common_pb2.Goodbye
    model: _common_pb2.Chunk
    def __init__(self, status: _Optional[_Union[Status, _Mapping]] = ..., round: _Optional[_Union[RoundRecord, _Mapping]] = ..., goodbye: _Optional[_Union[_common_pb2.Goodbye, _Mapping]] = ..., model: _Optional[_Union[_common_pb2.Chunk, _Mapping]] = ...) -> None: ...

class RoundRecord(_message.Message):
    __slots__ = ("round", "chosen", "accepted", "rejected", "missing", "model_digest", "seconds", "bytes_by_link", "epsilon_one_server", "epsilon_clients_only", "test")
    class SecondsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class BytesByLinkEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    ROUND_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    BYTES_BY_LINK_FIELD_NUMBER: _ClassVar[int]
    EPSILON_ONE_SERVER_FIELD_NUMBER: _ClassVar[int]
    EPSILON_CLIENTS_ONLY_FIELD_NUMBER: _ClassVar[int]
    TEST_FIELD_NUMBER: _ClassVar[int]
    round: int
    chosen: _containers.RepeatedScalarFieldContainer[str]
    accepted: _containers.RepeatedScalarFieldContainer[str]
    rejected: _containers.RepeatedScalarFieldContainer[str]
    missing: _containers.RepeatedScalarFieldContainer[str]
    model_digest: bytes
    seconds: _containers.ScalarMap[str, float]
    bytes_by_link: _containers.ScalarMap[str, int]
    epsilon_one_server: float
    epsilon_clients_only: float
    test: ProposedTest
    def __init__(self, round: _Optional[int] = ..., chosen: _Optional[_Iterable[str]] = ..., accepted: _Optional[_Iterable[str]] = ..., rejected: _Optional[_Iterable[str]] = ..., missing: _Optional[_Iterable[str]] = ..., model_digest: _Optional[bytes] = ..., seconds: _Optional[_Mapping[str, float]] = ..., bytes_by_link: _Optional[_Mapping[str, int]] = ..., epsilon_one_server: _Optional[float] = ..., epsilon_clients_only: _Optional[float] = ..., test: _Optional[_Union[ProposedTest, _Mapping]] = ...) -> None: ...

class ProposedTest(_message.Message):
    __slots__ = ("noisy_margin", "passed", "trim_count")
    NOISY_MARGIN_FIELD_NUMBER: _ClassVar[int]
    PASSED_FIELD_NUMBER: _ClassVar[int]
    TRIM_COUNT_FIELD_NUMBER: _ClassVar[int]
    noisy_margin: int
    passed: bool
    trim_count: int
    def __init__(self, noisy_margin: _Optional[int] = ..., passed: _Optional[bool] = ..., trim_count: _Optional[int] = ...) -> None: ...
