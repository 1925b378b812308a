"""A second encryption of the lane, inside TLS, under a key that came over the link between the servers.

The library of the lane's TLS cannot require a post-quantum group; the link's can (`precad.protos.tls.key_exchange`).
With `require_pqc`, each server tells the other 32 fresh bytes in its hello, which B takes and gives over no other link.
HKDF-SHA256 makes one key for each direction of both. Whoever records the lane and breaks its TLS later then finds
AES-256-GCM under keys that it never saw.

    record    length n of the text (4 bytes, big-endian, 1 to 65,536), n bytes of it sealed, 16 bytes of tag
    nonce     how many records that direction had before, 12 bytes big-endian; the length is authenticated beside it

So a record that is changed, left out, repeated, moved or turned back does not open, and then nothing opens any more.
"""

from __future__ import annotations

import struct
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from precad.mpc.errors import MalformedMessageError, PeerMismatchError
from precad.mpc.sharing import Party
from precad.protos.precad.v1 import common_pb2

SECRET_BYTES = KEY_BYTES = 32
PURPOSE = b"precad/v1.1 lane keys"
LENGTH, NONCE_BYTES, TAG_BYTES = struct.Struct(">I"), 12, 16
RECORD_BYTES = 1 << 16
"""Longest text of one record."""


class Connection(Protocol):
    """The socket below: never waits, but raises what a socket of TLS raises then."""

    def send(self, data: memoryview, /) -> int:
        """Return how many bytes were taken."""

    def recv_into(self, buffer: memoryview, /) -> int:
        """Return how many bytes came; 0 at the end."""


def keys_of(party: Party, ours: common_pb2.Hello, theirs: common_pb2.Hello) -> tuple[bytes, bytes] | None:
    """Return the keys to send and to receive under, from both hellos; None where neither server requires any.

    Raises: PeerMismatchError when one alone does, MalformedMessageError for a secret of another length.
    """
    if bool(ours.lane_key) != bool(theirs.lane_key):
        settings = [str(bool(hello.lane_key)).lower() for hello in (ours, theirs)]
        raise PeerMismatchError("require_pqc", ours=settings[0], peers=settings[1])
    if not ours.lane_key:
        return None
    if len(theirs.lane_key) != SECRET_BYTES:
        raise MalformedMessageError(f"lane_key: expected {SECRET_BYTES} bytes, found {len(theirs.lane_key)}")
    secrets = ours.lane_key + theirs.lane_key if party == 0 else theirs.lane_key + ours.lane_key
    derived = HKDF(SHA256(), 2 * KEY_BYTES, salt=None, info=PURPOSE).derive(secrets)
    of_a, of_b = derived[:KEY_BYTES], derived[KEY_BYTES:]
    return (of_a, of_b) if party == 0 else (of_b, of_a)


class SealedConnection:
    """Seal what is sent, open what comes. Behaves like the socket below. Keys serve one connection."""

    def __init__(self, connection: Connection, keys: tuple[bytes, bytes]) -> None:
        self._connection = connection
        self._sealing, self._opening = map(AESGCM, keys)
        self._n_sent = self._n_received = 0
        self._outgoing, self._n_taken = memoryview(b""), 0
        self._incoming, self._n_there = bytearray(LENGTH.size), 0
        self._text = memoryview(b"")
        self._is_broken = False

    def send(self, data: memoryview) -> int:
        """Send a record of the first bytes, and return how many. Raises what the socket raises.

        Whoever is told to wait calls again with the same bytes: they are sealed once.
        """
        if not self._outgoing:
            self._n_taken = min(len(data), RECORD_BYTES)
            length = LENGTH.pack(self._n_taken)
            sealed = self._sealing.encrypt(_nonce(self._n_sent), data[: self._n_taken], length)
            self._n_sent += 1
            self._outgoing = memoryview(length + sealed)
        while self._outgoing:
            self._outgoing = self._outgoing[self._connection.send(self._outgoing) :]
        return self._n_taken

    def recv_into(self, buffer: memoryview) -> int:
        """Fill the buffer with text that has come, and return its length; 0 at the end of the stream.

        Raises: what the socket raises, MalformedMessageError for a record that does not open.
        """
        while not self._text:
            if not self._take_in():
                return 0
        n_read = min(len(buffer), len(self._text))
        buffer[:n_read] = self._text[:n_read]
        self._text = self._text[n_read:]
        return n_read

    def _take_in(self) -> bool:
        """Read on in the record that is due. False at the end of the stream."""
        if self._is_broken:
            raise MalformedMessageError("record of the lane: expected none after one that does not open")
        n_read = self._connection.recv_into(memoryview(self._incoming)[self._n_there :])
        self._n_there += n_read
        if self._n_there == len(self._incoming):
            if self._n_there == LENGTH.size:
                self._begin_record()
            else:
                self._open_record()
        return n_read > 0

    def _begin_record(self) -> None:
        (n_bytes,) = LENGTH.unpack(self._incoming)
        if not 1 <= n_bytes <= RECORD_BYTES:
            self._is_broken = True
            raise MalformedMessageError(f"record of the lane: expected 1 to {RECORD_BYTES} bytes, found {n_bytes}")
        self._incoming = self._incoming + bytes(n_bytes + TAG_BYTES)

    def _open_record(self) -> None:
        record = memoryview(self._incoming)
        try:
            text = self._opening.decrypt(_nonce(self._n_received), record[LENGTH.size :], record[: LENGTH.size])
        except InvalidTag:
            self._is_broken = True
            expected = f"record {self._n_received} of the other aggregator, under the link's key"
            raise MalformedMessageError(f"record of the lane: expected {expected}, found another") from None
        self._n_received += 1
        self._text = memoryview(text)
        self._incoming, self._n_there = bytearray(LENGTH.size), 0


def _nonce(n_records: int) -> bytes:
    return n_records.to_bytes(NONCE_BYTES, "big")
