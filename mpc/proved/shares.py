"""Shares of an upload and of a proof: what the holder was sent, and what the seeded server expands.

The seeded server's share of X is the stream SHARE of its seed, and its share of a proof is PROOF_SHARE. The holder has
the differences, 7 bytes an element, in memory or on disk. Both are read in order, and from any element on, so the pass
over the uploads reads them alike. Source: docs/reference/protocol-v2.md, sections 5 and 7.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from precad.mpc import ring
from precad.mpc.errors import MalformedMessageError
from precad.mpc.prg import Label, Purpose, Seed
from precad.mpc.proved import field
from precad.mpc.proved.field import ELEMENT_BYTES, FieldArray
from precad.mpc.proved.streams import FieldStream, open_field_stream
from precad.mpc.ring import RingArray


class Share(Protocol):
    """Elements that are read in order: `PackedShare`, or a `FieldStream`."""

    def after(self, n_elements: int) -> Share:
        """Return what follows the next n elements, for another reader."""

    def fill(self, out: FieldArray) -> None:
        """Overwrite `out` with the next elements, each below p."""


class Bytes(Protocol):
    """Bytes that are read by position: `precad.mpc.local.encrypted_region.EncryptedRegion`, or `HeldBytes`."""

    def __len__(self) -> int: ...

    @property
    def held(self) -> memoryview | None:
        """Return them where they lie in memory; None where they lie elsewhere."""

    def read_into(self, position: int, buffer: memoryview) -> None:
        """Fill `buffer` with the bytes from `position` on."""


class HeldBytes:
    """Bytes in memory."""

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self._data = memoryview(data).cast("B")

    def __len__(self) -> int:
        return len(self._data)

    @property
    def held(self) -> memoryview | None:
        """See `Bytes.held`."""
        return self._data

    def read_into(self, position: int, buffer: memoryview) -> None:
        """See `Bytes.read_into`."""
        buffer[:] = self._data[position : position + len(buffer)]

    def __repr__(self) -> str:
        return f"HeldBytes({len(self)} bytes)"


class PackedShare:
    """`n_elements` of 7 bytes, from the start of `data`. Raises MalformedMessageError when there are fewer bytes."""

    __slots__ = ("_data", "_n_elements", "_position")

    def __init__(self, data: Bytes, n_elements: int, position: int = 0) -> None:
        if len(data) < ELEMENT_BYTES * n_elements:
            raise MalformedMessageError(f"share: expected {ELEMENT_BYTES * n_elements} bytes, found {len(data)}")
        self._data, self._n_elements, self._position = data, n_elements, position

    def after(self, n_elements: int) -> PackedShare:
        """See `Share.after`."""
        return PackedShare(self._data, self._n_elements, self._position + n_elements)

    def fill(self, out: FieldArray) -> None:
        """See `Share.fill`. Raises MalformedMessageError behind the end, and on an element that is not below p."""
        if self._position + out.size > self._n_elements:
            raise MalformedMessageError(f"share: expected at most {self._n_elements} elements to be read")
        if field.unpack_into(self._packed(out.size), out):
            raise MalformedMessageError("share: expected elements below p, found another")
        self._position += out.size

    def _packed(self, n_elements: int) -> FieldArray:
        """Return the next elements packed, in place where that can be. Raises as `Bytes.read_into`."""
        start, n_bytes = ELEMENT_BYTES * self._position, ELEMENT_BYTES * n_elements
        held = self._data.held
        here = memoryview(b"") if held is None else held[start : start + n_bytes]
        if len(here) == n_bytes and (in_place := field.packed_in_place(here)) is not None:
            return in_place
        packed = field.packed_room(n_elements)
        self._data.read_into(start, packed.view(np.uint8)[:n_bytes].data)
        return packed

    def __repr__(self) -> str:
        return f"PackedShare({self._n_elements} elements)"


def seeded_share(share_seed: Seed, label: Label) -> FieldStream:
    """Return the seeded server's share of X, at its start."""
    return open_field_stream(share_seed, Purpose.SHARE, label)


def seeded_proof_share(share_seed: Seed, label: Label) -> FieldStream:
    """Return the seeded server's share of a proof, at its start."""
    return open_field_stream(share_seed, Purpose.PROOF_SHARE, label)


def payload_pieces(x: RingArray, share_seed: Seed, label: Label) -> Iterator[bytes]:
    """Yield the payload to the holder, X - SHARE, a tile at a time: 7d bytes in all. Run by the client.

    Raises ParameterError for a coordinate that no element stands for.
    """
    stream = seeded_share(share_seed, label)
    scratch = np.empty(min(x.size, ring.TILE), dtype=np.uint64)
    for tile in ring.tiles(x.size):
        elements, mask = field.from_integers(x[tile]), scratch[: tile.stop - tile.start]
        stream.fill(mask)
        yield field.to_bytes(field.subtract(elements, mask, elements))


def proof_payload(proof: FieldArray, share_seed: Seed, label: Label) -> bytes:
    """Return the proof's payload to the holder, proof - PROOF_SHARE. Run by the client."""
    return field.to_bytes(field.subtract(proof, seeded_proof_share(share_seed, label).take(proof.size)))
