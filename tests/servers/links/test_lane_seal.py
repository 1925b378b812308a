"""The lane's second encryption, beside a second computation of its records, and against whoever has broken its TLS.

What counts as failure:
- a step that arrives changed or not at all;
- a record that opens in another place than its own;
- a byte of a step that somebody reads who knows everything but the link's secrets.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import GCM

from precad.mpc.errors import ChannelClosedError, MalformedMessageError, PeerMismatchError
from precad.protos.precad.v1 import common_pb2
from precad.servers.links.lane import HEADER, Lane, lane_context
from precad.servers.links.lane_listener import LaneListener
from precad.servers.links.lane_opening import open_lane
from precad.servers.links.lane_seal import RECORD_BYTES, SECRET_BYTES, TAG_BYTES, SealedConnection, keys_of
from tests.harness.harness import Pki, asynchronous

BIG = 8 * 1024 * 1024 + 3
"""Several times what the buffers of a loopback connection hold."""
OF_A, OF_B = (common_pb2.Hello(lane_key=bytes([letter]) * SECRET_BYTES) for letter in b"ab")


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki.create(tmp_path_factory.mktemp("pki"), ["alice"])


def context_of(pki: Pki, party: int) -> Callable[[], object]:
    own, other = ("aggregator-a", "aggregator-b") if party == 0 else ("aggregator-b", "aggregator-a")
    return lane_context(party, pki.tls(own), pki.tls(other).certificate)


async def lanes(pki: Pki, seals: tuple[bool, bool] = (True, True)) -> tuple[Lane, Lane]:
    """Both ends over TLS on loopback. seals: which of them encrypts a second time."""
    at_b = LaneListener("127.0.0.1:0", context_of(pki, 1))
    opening = open_lane("127.0.0.1:1", at_b.port, at_b.token, context_of(pki, 0), 10)
    pair = await asyncio.gather(opening, at_b.accept(10))
    for lane, hellos, is_sealed in zip(pair, ((OF_A, OF_B), (OF_B, OF_A)), seals, strict=True):
        keys = keys_of(lane.party, *hellos)
        assert keys is not None
        if is_sealed:
            lane.seal(keys)
    return pair


async def both(*programs: Callable[[], bytes]) -> list[bytes | BaseException]:
    """Each in a thread of its own; an error is a result."""
    with ThreadPoolExecutor(2) as threads:
        loop = asyncio.get_running_loop()
        return await asyncio.gather(*(loop.run_in_executor(threads, p) for p in programs), return_exceptions=True)


def second_keys(secret_a: bytes, secret_b: bytes) -> tuple[bytes, bytes]:
    """HKDF-SHA256 by RFC 5869, by hand: of A's direction and of B's."""
    pseudorandom = hmac.digest(bytes(32), secret_a + secret_b, hashlib.sha256)
    first = hmac.digest(pseudorandom, b"precad/v1.1 lane keys\x01", hashlib.sha256)
    return first, hmac.digest(pseudorandom, first + b"precad/v1.1 lane keys\x02", hashlib.sha256)


def second_opening(key: bytes, number: int, record: bytes) -> bytes:
    """Open a record by the cipher's own interface."""
    mode = GCM(number.to_bytes(12, "big"), record[-16:])
    decryptor = Cipher(AES(key), mode).decryptor()
    decryptor.authenticate_additional_data(record[:4])
    return decryptor.update(record[4:-16]) + decryptor.finalize()


@pytest.mark.parametrize("n_bytes", [0, 1, RECORD_BYTES - 18, RECORD_BYTES, RECORD_BYTES + 1, BIG])
@asynchronous
async def test_steps_arrive_over_a_sealed_lane(pki: Pki, n_bytes: int) -> None:
    """Swap payloads of any length, also when both are longer than every buffer, three steps one after the other."""
    a, b = await lanes(pki)
    long, short, twin = os.urandom(n_bytes), os.urandom(3), os.urandom(n_bytes)
    for ours, theirs in ((long, short), (short, long), (long, twin)):
        at_a = lambda: a.exchange("step", ours, len(theirs))  # noqa: B023, E731 - it is over before the next
        at_b = lambda: b.exchange("step", theirs, len(ours))  # noqa: B023, E731
        assert await both(at_a, at_b) == [theirs, ours]
    a.close()
    b.close()


@asynchronous
async def test_whoever_breaks_the_lanes_tls_sees_records_of_a_second_cipher_alone(pki: Pki) -> None:
    """B's end of TLS without the seal stands for it: it reads what TLS protected.

    Neither label nor payload is there. The link's two secrets open it, by a second computation; one of them does not.
    """
    a, b = await lanes(pki, seals=(True, False))
    payload = b"one share of an update " * 5_000
    with ThreadPoolExecutor(1) as thread:
        sending = thread.submit(a.exchange, "step", payload, 0)
        frame = HEADER.pack(4, len(payload)) + b"step" + payload
        lengths = [min(RECORD_BYTES, len(frame) - begin) for begin in range(0, len(frame), RECORD_BYTES)]
        n_bytes, seen = sum(lengths) + len(lengths) * (4 + TAG_BYTES), b""
        b._socket.settimeout(10)
        while len(seen) < n_bytes:
            seen += b._socket.recv(1 << 16)
        b.close()
        assert isinstance(sending.exception(10), ChannelClosedError)
    assert b"step" not in seen
    assert b"one share" not in seen
    key, _ = second_keys(OF_A.lane_key, OF_B.lane_key)
    opened, at = b"", 0
    for number, length in enumerate(lengths):
        record = seen[at : at + 4 + length + TAG_BYTES]
        assert int.from_bytes(record[:4], "big") == length
        opened += second_opening(key, number, record)
        at += len(record)
    assert opened == frame
    for wrong in ((OF_A.lane_key, bytes(32)), (bytes(32), OF_B.lane_key), (OF_B.lane_key, OF_A.lane_key)):
        with pytest.raises(InvalidTag):
            second_opening(second_keys(*wrong)[0], 0, seen[: 4 + lengths[0] + TAG_BYTES])
    a.close()


@asynchronous
async def test_a_server_without_the_seal_is_not_understood(pki: Pki) -> None:
    """No step in the clear passes for a sealed one."""
    a, b = await lanes(pki, seals=(True, False))
    found = await both(lambda: a.exchange("step", bytes(99), 99), lambda: _then_close(b))
    assert isinstance(found[0], MalformedMessageError | ChannelClosedError)
    a.close()


def _then_close(lane: Lane) -> bytes:
    lane._socket.setblocking(True)
    lane._socket.send(HEADER.pack(4, 99) + b"step" + bytes(99))
    lane.close()
    return b""


Records = list[bytes]
TAMPERED: dict[str, Callable[[Records], Records]] = {
    "length": lambda r: [(len(r[0]) - 19).to_bytes(4, "big") + r[0][4:] + b"\0", *r[1:]],
    "text": lambda r: [r[0][:4] + bytes([r[0][4] ^ 1]) + r[0][5:], *r[1:]],
    "tag": lambda r: [r[0][:-1] + bytes([r[0][-1] ^ 128]), *r[1:]],
    "repeated": lambda r: [r[0], r[0], *r[1:]],
    "left out": lambda r: r[1:],
    "swapped": lambda r: [r[1], r[0], *r[2:]],
    "empty": lambda r: [bytes(4 + TAG_BYTES), *r],
    "too long": lambda r: [(RECORD_BYTES + 1).to_bytes(4, "big"), *r],
    "endless": lambda r: [b"\xff" * 4, *r],
}


@pytest.mark.parametrize("how", TAMPERED)
def test_a_record_that_is_not_the_one_due_does_not_open_nor_does_any_after_it(how: str) -> None:
    """Read no more than what was sent before the change, and refuse the untouched records behind it too."""
    texts = [b"first", b"second", b"third"]
    received, error = _deliver(TAMPERED[how](_sealed(0, texts)), party=1)
    assert isinstance(error, MalformedMessageError)
    assert received in (b"", b"first")
    assert (received == b"first") == (how == "repeated")


def test_records_that_are_turned_back_do_not_open() -> None:
    """A's own records, at A, which expects B's."""
    assert _deliver(_sealed(0, [b"first"]), party=1) == (b"first", None)
    received, error = _deliver(_sealed(0, [b"first"]), party=0)
    assert (received, isinstance(error, MalformedMessageError)) == (b"", True)


def _keys(party: int) -> tuple[bytes, bytes]:
    hellos = (OF_A, OF_B) if party == 0 else (OF_B, OF_A)
    keys = keys_of(party, *hellos)  # type: ignore[arg-type]
    assert keys is not None
    return keys


def _sealed(party: int, texts: list[bytes]) -> Records:
    """The records of these texts, as that server sends them."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        stream = SealedConnection(ours, _keys(party))
        for text in texts:
            stream.send(memoryview(text))
        return [theirs.recv(4 + len(text) + TAG_BYTES) for text in texts]


def _deliver(records: Records, party: int) -> tuple[bytes, Exception | None]:
    """Return what that server reads of them, and what ends it; it asks again after an error."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"".join(records))
        theirs.shutdown(socket.SHUT_WR)
        stream = SealedConnection(ours, _keys(party))
        received, buffer, error = b"", bytearray(64), None
        for _ in range(2 * len(records) + 2):
            try:
                received += buffer[: stream.recv_into(memoryview(buffer))]
            except MalformedMessageError as found:
                error = found
        return received, error


@pytest.mark.parametrize("party", [0, 1])
def test_both_secrets_make_the_keys_and_each_direction_has_its_own(party: int) -> None:
    of_a, of_b = second_keys(OF_A.lane_key, OF_B.lane_key)
    assert _keys(party) == ((of_a, of_b) if party == 0 else (of_b, of_a))
    assert of_a != of_b


@pytest.mark.parametrize("n_bytes", [1, 31, 33, 4096])
def test_a_secret_of_another_length_is_refused(n_bytes: int) -> None:
    with pytest.raises(MalformedMessageError, match=f"^lane_key: expected 32 bytes, found {n_bytes}$"):
        keys_of(0, OF_A, common_pb2.Hello(lane_key=bytes(n_bytes)))


def test_no_secret_is_a_setting_that_both_must_share() -> None:
    nothing = common_pb2.Hello()
    assert keys_of(0, nothing, nothing) is None
    for ours, theirs, said in ((OF_A, nothing, "ours true, peer's false"), (nothing, OF_B, "ours false, peer's true")):
        with pytest.raises(PeerMismatchError, match=f"^require_pqc differs between the servers: {said}$"):
            keys_of(0, ours, theirs)


def test_no_secret_is_written_down(tmp_path: Path) -> None:
    """The refusals above name no byte of it."""
    secret = common_pb2.Hello(lane_key=b"s3cr3t" * 6)
    for theirs in (common_pb2.Hello(), secret):
        with pytest.raises((PeerMismatchError, MalformedMessageError)) as found:
            keys_of(0, common_pb2.Hello(lane_key=b"s3cr3t" * 5 + b"xx"), theirs)
        assert "s3cr3t" not in str(found.value)
