from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Chunk(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol_version", "config_digest", "nonce", "task", "model_digest", "lane_port", "n_committed", "last_round", "next_round", "previous_model_digest", "task_fields", "lane_token", "lane_key")
    class TaskFieldsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    CONFIG_DIGEST_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    LANE_PORT_FIELD_NUMBER: _ClassVar[int]
    N_COMMITTED_FIELD_NUMBER: _ClassVar[int]
    LAST_ROUND_FIELD_NUMBER: _ClassVar[int]
    NEXT_ROUND_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELDS_FIELD_NUMBER: _ClassVar[int]
    LANE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    LANE_KEY_FIELD_NUMBER: _ClassVar[int]
    protocol_version: str
    config_digest: bytes
    nonce: bytes
    task: str
    model_digest: bytes
    lane_port: int
    n_committed: int
    last_round: int
    next_round: int
    previous_model_digest: bytes
    task_fields: _containers.ScalarMap[str, str]
    lane_token: bytes
    lane_key: bytes
    def __init__(self, protocol_version: _Optional[str] = ..., config_digest: _Optional[bytes] = ..., nonce: _Optional[bytes] = ..., task: _Optional[str] = ..., model_digest: _Optional[bytes] = ..., lane_port: _Optional[int] = ..., n_committed: _Optional[int] = ..., last_round: _Optional[int] = ..., next_round: _Optional[int] = ..., previous_model_digest: _Optional[bytes] = ..., task_fields: _Optional[_Mapping[str, str]] = ..., lane_token: _Optional[bytes] = ..., lane_key: _Optional[bytes] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("finished", "reason")
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    finished: bool
    reason: str
    def __init__(self, finished: _Optional[bool] = ..., reason: _Optional[str] = ...) -> None: ...

class Binding(_message.Message):
    __slots__ = ("protocol_version", "task", "round", "client", "config_digest", "model_digest", "dim", "mode", "digest_a", "digest_b")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    CONFIG_DIGEST_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_A_FIELD_NUMBER: _ClassVar[int]
    DIGEST_B_FIELD_NUMBER: _ClassVar[int]
    protocol_version: str
    task: str
    round: int
    client: str
    config_digest: bytes
    model_digest: bytes
    dim: int
    mode: str
    digest_a: bytes
    digest_b: bytes
    def __init__(self, protocol_version: _Optional[str] = ..., task: _Optional[str] = ..., round: _Optional[int] = ..., client: _Optional[str] = ..., config_digest: _Optional[bytes] = ..., model_digest: _Optional[bytes] = ..., dim: _Optional[int] = ..., mode: _Optional[str] = ..., digest_a: _Optional[bytes] = ..., digest_b: _Optional[bytes] = ...) -> None: ...

class ProofBinding(_message.Message):
    __slots__ = ("protocol_version", "task", "round", "client", "binding_digest", "challenge", "proof_digest")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    BINDING_DIGEST_FIELD_NUMBER: _ClassVar[int]
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    PROOF_DIGEST_FIELD_NUMBER: _ClassVar[int]
    protocol_version: str
    task: str
    round: int
    client: str
    binding_digest: bytes
    challenge: bytes
    proof_digest: bytes
    def __init__(self, protocol_version: _Optional[str] = ..., task: _Optional[str] = ..., round: _Optional[int] = ..., client: _Optional[str] = ..., binding_digest: _Optional[bytes] = ..., challenge: _Optional[bytes] = ..., proof_digest: _Optional[bytes] = ...) -> None: ...
