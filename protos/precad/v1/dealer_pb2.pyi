from precad.protos.precad.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DealRequest(_message.Message):
    __slots__ = ("hello", "batch", "goodbye")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    hello: _common_pb2.Hello
    batch: BatchRequest
    goodbye: _common_pb2.Goodbye
    def __init__(self, hello: _Optional[_Union[_common_pb2.Hello, _Mapping]] = ..., batch: _Optional[_Union[BatchRequest, _Mapping]] = ..., goodbye: _Optional[_Union[_common_pb2.Goodbye, _Mapping]] = ...) -> None: ...

class BatchRequest(_message.Message):
    __slots__ = ("round", "n_clients", "dim", "blocks", "trims", "pairs", "layer_sizes")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    N_CLIENTS_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TRIMS_FIELD_NUMBER: _ClassVar[int]
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    LAYER_SIZES_FIELD_NUMBER: _ClassVar[int]
    round: int
    n_clients: int
    dim: int
    blocks: _containers.RepeatedCompositeFieldContainer[Block]
    trims: bool
    pairs: bool
    layer_sizes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, round: _Optional[int] = ..., n_clients: _Optional[int] = ..., dim: _Optional[int] = ..., blocks: _Optional[_Iterable[_Union[Block, _Mapping]]] = ..., trims: _Optional[bool] = ..., pairs: _Optional[bool] = ..., layer_sizes: _Optional[_Iterable[int]] = ...) -> None: ...

class Block(_message.Message):
    __slots__ = ("kind", "n_words", "block_bits", "n_blocks")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[Block.Kind]
        AND: _ClassVar[Block.Kind]
        BIT: _ClassVar[Block.Kind]
        CARRY: _ClassVar[Block.Kind]
        CHOICE: _ClassVar[Block.Kind]
        PRODUCT: _ClassVar[Block.Kind]
        SQUARE: _ClassVar[Block.Kind]
    KIND_UNSPECIFIED: Block.Kind
    AND: Block.Kind
    BIT: Block.Kind
    CARRY: Block.Kind
    CHOICE: Block.Kind
    PRODUCT: Block.Kind
    SQUARE: Block.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    N_WORDS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BITS_FIELD_NUMBER: _ClassVar[int]
    N_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    kind: Block.Kind
    n_words: int
    block_bits: int
    n_blocks: int
    def __init__(self, kind: _Optional[_Union[Block.Kind, str]] = ..., n_words: _Optional[int] = ..., block_bits: _Optional[int] = ..., n_blocks: _Optional[int] = ...) -> None: ...

class DealReply(_message.Message):
    __slots__ = ("hello", "key", "corrections")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    CORRECTIONS_FIELD_NUMBER: _ClassVar[int]
    hello: _common_pb2.Hello
    key: BatchKey
    corrections: Corrections
    def __init__(self, hello: _Optional[_Union[_common_pb2.Hello, _Mapping]] = ..., key: _Optional[_Union[BatchKey, _Mapping]] = ..., corrections: _Optional[_Union[Corrections, _Mapping]] = ...) -> None: ...

class BatchKey(_message.Message):
    __slots__ = ("round", "key")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    round: int
    key: bytes
    def __init__(self, round: _Optional[int] = ..., key: _Optional[bytes] = ...) -> None: ...

class Corrections(_message.Message):
    __slots__ = ("squared_masks", "equality", "products", "last", "peer_seed_digests", "trims", "pairs", "layer_squares")
    SQUARED_MASKS_FIELD_NUMBER: _ClassVar[int]
    EQUALITY_FIELD_NUMBER: _ClassVar[int]
    PRODUCTS_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    PEER_SEED_DIGESTS_FIELD_NUMBER: _ClassVar[int]
    TRIMS_FIELD_NUMBER: _ClassVar[int]
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    LAYER_SQUARES_FIELD_NUMBER: _ClassVar[int]
    squared_masks: bytes
    equality: bytes
    products: bytes
    last: bool
    peer_seed_digests: bytes
    trims: bytes
    pairs: bytes
    layer_squares: bytes
    def __init__(self, squared_masks: _Optional[bytes] = ..., equality: _Optional[bytes] = ..., products: _Optional[bytes] = ..., last: _Optional[bool] = ..., peer_seed_digests: _Optional[bytes] = ..., trims: _Optional[bytes] = ..., pairs: _Optional[bytes] = ..., layer_squares: _Optional[bytes] = ...) -> None: ...
