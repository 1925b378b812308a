from precad.protos.precad.v1 import common_pb2 as _common_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JoinRequest(_message.Message):
    __slots__ = ("hello",)
    HELLO_FIELD_NUMBER: _ClassVar[int]
    hello: _common_pb2.Hello
    def __init__(self, hello: _Optional[_Union[_common_pb2.Hello, _Mapping]] = ...) -> None: ...

class ClientEvent(_message.Message):
    __slots__ = ("welcome", "invitation", "goodbye", "challenge")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    INVITATION_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    invitation: Invitation
    goodbye: _common_pb2.Goodbye
    challenge: Challenge
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., invitation: _Optional[_Union[Invitation, _Mapping]] = ..., goodbye: _Optional[_Union[_common_pb2.Goodbye, _Mapping]] = ..., challenge: _Optional[_Union[Challenge, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Invitation(_message.Message):
    __slots__ = ("task", "round", "dim", "model_digest", "deadline_s", "mask_seed", "slot", "n_committed", "peer_mask_seed_digest", "evaluation")
    TASK_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    MASK_SEED_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    N_COMMITTED_FIELD_NUMBER: _ClassVar[int]
    PEER_MASK_SEED_DIGEST_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    task: str
    round: int
    dim: int
    model_digest: bytes
    deadline_s: float
    mask_seed: bytes
    slot: int
    n_committed: int
    peer_mask_seed_digest: bytes
    evaluation: bool
    def __init__(self, task: _Optional[str] = ..., round: _Optional[int] = ..., dim: _Optional[int] = ..., model_digest: _Optional[bytes] = ..., deadline_s: _Optional[float] = ..., mask_seed: _Optional[bytes] = ..., slot: _Optional[int] = ..., n_committed: _Optional[int] = ..., peer_mask_seed_digest: _Optional[bytes] = ..., evaluation: _Optional[bool] = ...) -> None: ...

class Challenge(_message.Message):
    __slots__ = ("round", "challenge", "deadline_s")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    round: int
    challenge: bytes
    deadline_s: float
    def __init__(self, round: _Optional[int] = ..., challenge: _Optional[bytes] = ..., deadline_s: _Optional[float] = ...) -> None: ...

class ModelRequest(_message.Message):
    __slots__ = ("round",)
    ROUND_FIELD_NUMBER: _ClassVar[int]
    round: int
    def __init__(self, round: _Optional[int] = ...) -> None: ...

class SubmitPart(_message.Message):
    __slots__ = ("binding", "chunk", "statement", "salt")
    BINDING_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    binding: _common_pb2.Binding
    chunk: _common_pb2.Chunk
    statement: bytes
    salt: bytes
    def __init__(self, binding: _Optional[_Union[_common_pb2.Binding, _Mapping]] = ..., chunk: _Optional[_Union[_common_pb2.Chunk, _Mapping]] = ..., statement: _Optional[bytes] = ..., salt: _Optional[bytes] = ...) -> None: ...

class SubmitReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ProvePart(_message.Message):
    __slots__ = ("binding", "chunk", "statement", "salt")
    BINDING_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    binding: _common_pb2.ProofBinding
    chunk: _common_pb2.Chunk
    statement: bytes
    salt: bytes
    def __init__(self, binding: _Optional[_Union[_common_pb2.ProofBinding, _Mapping]] = ..., chunk: _Optional[_Union[_common_pb2.Chunk, _Mapping]] = ..., statement: _Optional[bytes] = ..., salt: _Optional[bytes] = ...) -> None: ...

class ProveReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
